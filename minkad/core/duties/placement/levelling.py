"""Moves duties from shards that have too much to shards that have too little, until no move is worth its cost."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from typing import Final

from minkad.core.duties.placement.duty_layout import DutyLayout
from minkad.core.duties.placement.snapshot import PlacedDuty

# A duty moves only between shards that differ by at least 1.5 times its size. The move then lessens their difference by
# at least its size: a duty of 10 turns 15 and 0 into 5 and 10.
WORTH: Final = 1.5

Rank = tuple[float, int, str]


class Levelling:
    """Levels the heights of the shards. A shard's height is its amount less its ideal, so it may be negative.

    A duty goes from the highest to the lowest shard if this lessens their difference by at least the duty's size. So
    the levelling ends, and a duty comes back only after a change of about twice its size.

    A shard becomes *off* when its height, up or down, exceeds its tolerance, and stays off until the height is at most
    `settled` times the tolerance. With an ideal of 100, a tolerance of 5 and `settled` 0.2: a shard with 106 is off
    until it has at most 101. No duty moves between two shards if neither is off, or if they differ by less than
    `least_gap`. Without tolerances, all shards are off.
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
        self._ranks = sorted(map(self._rank, layout.open))  # of all open shards, the lowest first
        self._off: set[str] = set()  # the shards that are off; `_is_off` reads it, too
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
        """(duty, source, target) of the next move: the highest source and the lowest target whose move is worth it."""
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
        """The shards that may get a duty from the source, the lowest first. The source must be off and too high;
        otherwise, only shards that are off and too low may get a duty.
        """
        if source in self._off and self._height[source] > 0:
            return (name for _, _, name in self._ranks)
        return (name for height, _, name in sorted(map(self._rank, self._off)) if height < 0)

    def _duty(self, source: str, target: str, gap: float) -> PlacedDuty | None:
        """The heaviest duty whose move takes neither shard beyond its ideal (and the slack). If there is none: the
        lightest duty, if its move is worth it.
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
        return pool.heaviest(target, self._layout.measure.size(lightest))  # the newest duty of this size

    def _slack_of(self, name: str) -> float:
        return self._tolerances[name] * self._settled if self._tolerances is not None else 0.0
