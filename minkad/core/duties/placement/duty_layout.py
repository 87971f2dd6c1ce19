"""The duties of each shard while a balancer makes a plan, and the resulting plan."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from minkad.core.duties.placement.minimum import fewest_moves
from minkad.core.duties.placement.pools import Pool
from minkad.core.duties.placement.reasons import Reasons
from minkad.core.duties.placement.snapshot import DutyMove, DutyPlan, PlacedDuty, ShardBalance, ShardRoom, Unplaced


@dataclass(frozen=True, slots=True)
class Measure:
    """A balancer's measure of duties (number or weight), and limits by shard; a shard without one isn't limited."""

    by_count: bool = False
    limits: Mapping[str, int] | None = None

    def size(self, duty: PlacedDuty) -> int:
        """The amount that the duty takes of a shard's limit."""
        return 1 if self.by_count else duty.weight


class DutyLayout:
    """The duties on each shard after the moves so far; one that has to leave its shard counts there until it is moved.
    A shard that isn't open gets no duties.

    `waiting`: the duties that have to be placed or have to leave, and aren't placed yet.
    """

    def __init__(self, shards: Iterable[ShardRoom], measure: Measure) -> None:
        self.shards = {shard.name: shard for shard in sorted(shards, key=lambda shard: shard.name)}
        self.open = [shard.name for shard in self.shards.values() if shard.is_open]
        self.measure = measure
        # By shard: the number and the weight of its duties; `used` is the one that the balancer measures.
        self.count = dict.fromkeys(self.shards, 0)
        self.weight = dict.fromkeys(self.shards, 0)
        self.used = self.count if measure.by_count else self.weight
        self.limits = {name: float((measure.limits or {}).get(name, math.inf)) for name in self.shards}
        self.pools = {name: Pool() for name in self.open}  # the duties that may move from the shard
        self.movable = dict.fromkeys(self.open, 0)  # the part of `used` that can be moved
        self.waiting: list[PlacedDuty] = []
        self.crowded: list[PlacedDuty] = []  # duties that fit nowhere else, and stay on a shard over its limit
        self._went: dict[int, tuple[PlacedDuty, str]] = {}  # by number: each duty that was moved, and its last target
        self._duties: Sequence[PlacedDuty] = ()  # all duties; none for `of_totals`
        self._had_to_go: set[int] = set()  # the duties that waited at the start
        self._start: tuple[dict[str, int], dict[str, int]] = ({}, {})  # `count` and `weight` at the start

    @classmethod
    def of_totals(cls, new: Sequence[PlacedDuty], shards: Sequence[ShardRoom], measure: Measure) -> "DutyLayout":
        """A layout with the counts and weights that `shards` state. Only the new duties can be placed."""
        layout = cls(shards, measure)
        for shard in layout.shards.values():
            layout.count[shard.name], layout.weight[shard.name] = shard.count, shard.weight
        layout.waiting = list(new)
        layout._begin()
        return layout

    @classmethod
    def of_duties(cls, duties: Sequence[PlacedDuty], shards: Sequence[ShardRoom], measure: Measure) -> "DutyLayout":
        """A layout in which the shards have these duties, whatever counts and weights `shards` state."""
        layout = cls(shards, measure)
        layout._duties = duties
        count, weight, pools, size = layout.count, layout.weight, layout.pools, measure.size
        for duty in duties:
            shard = duty.shard
            if shard in count:
                count[shard] += 1
                weight[shard] += duty.weight
            if duty.is_fixed and shard:
                continue
            if shard not in pools or shard in duty.not_on or (duty.only_on and duty.only_on != shard):
                layout.waiting.append(duty)
            elif not duty.only_on:
                pools[shard].add(duty, size(duty))
                layout.movable[shard] += size(duty)
        layout._begin()
        return layout

    def _begin(self) -> None:
        self._start = (dict(self.count), dict(self.weight))
        self._had_to_go = {duty.number for duty in self.waiting}

    def free(self, shard: str) -> float:
        """The amount that the shard may still get; below 0 if it has too much."""
        return self.limits[shard] - self.used[shard]

    def allows(self, duty: PlacedDuty, shard: str) -> bool:
        """True if the duty may be on the shard, whether or not there is room."""
        if shard not in self.pools or shard in duty.not_on:
            return False
        return not duty.only_on or duty.only_on == shard

    def fits(self, duty: PlacedDuty, shard: str) -> bool:
        """True if the duty may go there, and there is room."""
        return self.allows(duty, shard) and self.measure.size(duty) <= self.free(shard)

    def place(self, duty: PlacedDuty, target: str) -> None:
        """Place a duty that waits."""
        self._move(duty, duty.shard, target)
        if not (duty.only_on or duty.is_fixed):
            self.pools[target].add(duty, self.measure.size(duty))
            self.movable[target] += self.measure.size(duty)

    def move(self, duty: PlacedDuty, source: str, target: str) -> None:
        """Move a duty from one shard's pool to another's."""
        size = self.measure.size(duty)
        self.pools[source].remove(duty, size)
        self.pools[target].add(duty, size)
        self.movable[source] -= size
        self.movable[target] += size
        self._move(duty, source, target)

    def _move(self, duty: PlacedDuty, source: str, target: str) -> None:
        if source in self.count:
            self.count[source] -= 1
            self.weight[source] -= duty.weight
        self.count[target] += 1
        self.weight[target] += duty.weight
        self._went[duty.number] = (duty, target)

    def plan(self, ideals: Mapping[str, float], settled: Mapping[str, tuple[float, float]]) -> DutyPlan:
        """The plan with the moves so far. `settled`: for each open shard, the lowest and the highest amount that are
        near enough to its ideal; for the lower bound of moves.
        """
        reasons = Reasons(self.shards, self._start, (self.count, self.weight), self.limits, self.measure.by_count)
        went = [(d, to) for _, (d, to) in sorted(self._went.items(), key=lambda item: item[0]) if d.shard != to]
        moves = tuple(
            DutyMove(d.number, d.shard, to, reasons.of_move(d, to, had_to_go=d.number in self._had_to_go))
            for d, to in went
        )
        unplaced = [Unplaced(d.number, reasons.of_waiting(d), d.shard) for d in self.waiting]
        for duty in self.crowded:
            at = self._went[duty.number][1] if duty.number in self._went else duty.shard
            unplaced.append(Unplaced(duty.number, reasons.of_crowded(duty, at), at))
        return DutyPlan(
            moves,
            tuple(sorted(unplaced, key=lambda one: one.number)),
            self._minimum([d for d, _ in went], settled),
            tuple(self._balances(ideals)),
        )

    def _balances(self, ideals: Mapping[str, float]) -> Iterator[ShardBalance]:
        for name, shard in self.shards.items():
            before, count, weight = self._start[1][name], self.count[name], self.weight[name]
            yield ShardBalance(name, shard.capacity, shard.is_open, before, count, weight, ideals.get(name, 0.0))

    def _minimum(self, moved: Sequence[PlacedDuty], settled: Mapping[str, tuple[float, float]]) -> int:
        had_to_go = [duty for duty in moved if duty.number in self._had_to_go]
        if len(had_to_go) == len(moved):
            return len(moved)
        size, used = self.measure.size, dict(self._start[not self.measure.by_count])
        for duty in had_to_go:
            if duty.shard in used:
                used[duty.shard] -= size(duty)
        movable = (
            (d.shard, size(d))
            for d in self._duties
            if d.number not in self._had_to_go and not (d.is_fixed or d.only_on)
        )
        reached = {
            name: (min(low, self.used[name]), max(high, self.used[name]))
            for name, (low, high) in settled.items()
        }  # fmt: skip
        return fewest_moves([size(duty) for duty in had_to_go], movable, used, reached)
