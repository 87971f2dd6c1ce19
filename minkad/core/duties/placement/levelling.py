"""Moves duties from shards that have too much to those that have too little, until no move is worth it."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from typing import Final

from minkad.core.duties.placement.duty_layout import DutyLayout
from minkad.core.duties.placement.snapshot import PlacedDuty

# Shards must differ by at least 1.5 times a duty's size for its move, so that the move lessens the difference by at
# least that size: with a duty of 10, 15 and 0 become 5 and 10.
WORTH: Final = 1.5

Rank = tuple[float, int, str]


class Levelling:
    """Levels the heights of the shards. A shard's height is the amount that it has beyond its ideal.

    A duty goes from the highest to the lowest shard if this lessens their difference by at least the duty's size. So
    levelling ends, and a duty comes back only after a change of about twice its size. A shard is off from when its
    height exceeds its tolerance until the height is at most `settled` times the tolerance. Nothing moves between two
    shards if neither is off, or if they differ by less than `least_gap`. Without tolerances all are off.
    """

    def __init__(
        self,
        layout: DutyLayout,
        ideals: Mapping[str, float],
        tolerances: Mapping[str, float] | None = None,
        settled: float = 0,
        least_gap: float = 0,
    ) -> None:
        self._layout = layout
        self._ideals = ideals
        self._tolerances = tolerances
        self._settled = settled
        self._least_gap = least_gap
        self._height = {name: self._height_of(name) for name in layout.open}
        self._ranks = sorted(map(self._rank, layout.open))
        self._off: set[str] = set()
        self._off = {name for name in layout.open if self._is_off(name)}

    def run(self) -> bool:
        """Move duties until no move is worth it. Returns True if any was moved."""
        moved = False
        while (found := self._next()) is not None:
            duty, source, target = found
            self._layout.move(duty, source, target)
            self._update(source)
            self._update(target)
            moved = True
        return moved

    def _height_of(self, name: str) -> float:
        return self._layout.used[name] - self._ideals[name]

    def _rank(self, name: str) -> Rank:
        return (self._height[name], self._layout.shards[name].rank, name)

    def _is_off(self, name: str) -> bool:
        if self._tolerances is None:
            return True
        return abs(self._height[name]) > self._tolerances[name] * (self._settled if name in self._off else 1)

    def _update(self, name: str) -> None:
        del self._ranks[bisect_left(self._ranks, self._rank(name))]
        self._height[name] = self._height_of(name)
        insort(self._ranks, self._rank(name))
        (self._off.add if self._is_off(name) else self._off.discard)(name)

    def _next(self) -> tuple[PlacedDuty, str, str] | None:
        """The duty for the highest shard and the lowest one that it can go to."""
        if not self._off:
            return None
        for height, _, source in reversed(self._ranks):
            least = max(self._least_gap, WORTH * self._layout.pools[source].least_size())
            if height - self._ranks[0][0] < least:  # the gaps to all targets are less, too
                continue
            for target in self._targets(source):
                gap = height - self._height[target]
                if gap < least:
                    break
                duty = self._duty(source, target, gap)
                if duty is not None:
                    return duty, source, target
        return None

    def _targets(self, source: str) -> Iterator[str]:
        """The shards that may get a duty, the lowest first. One of the two shards must be off: a source that is too
        high, or a target that is too low.
        """
        if source in self._off and self._height[source] > 0:
            return (name for _, _, name in self._ranks)
        return (name for height, _, name in sorted(map(self._rank, self._off)) if height < 0)

    def _duty(self, source: str, target: str, gap: float) -> PlacedDuty | None:
        """The heaviest duty whose move takes neither shard past its ideal; else the lightest, if its move is worth
        it.
        """
        pool = self._layout.pools[source]
        below = min(self._layout.free(target), gap / WORTH)
        fits = min(below, self._height[source] + self._slack_of(source), self._slack_of(target) - self._height[target])
        duty = pool.heaviest(target, fits, at_least=1)
        if duty is not None:
            return duty
        lightest = pool.lightest(target, at_least=1)
        if lightest is None or self._layout.measure.size(lightest) > below:
            return None
        return pool.heaviest(target, self._layout.measure.size(lightest))  # the newest of these

    def _slack_of(self, name: str) -> float:
        return self._tolerances[name] * self._settled if self._tolerances is not None else 0.0
