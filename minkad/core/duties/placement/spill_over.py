"""Spill over: each shard is filled to its limit before the next shard gets any duty."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import ClassVar, Final

from minkad.core.duties.placement.duty_layout import DutyLayout, Measure
from minkad.core.duties.placement.over_limit import note_crowded, relieve
from minkad.core.duties.placement.placing import heaviest_first
from minkad.core.duties.placement.snapshot import BalancerSettings, DutyPlan, FillBy, PlacedDuty, ShardRoom

FULL: Final = 0.95  # of the limit: no duty moves to a shard that is at least this full, only to fill it


class SpillOver:
    """With `fill_by` WEIGHT or COUNT, capacities are ignored, except that a shard with capacity 0 takes no duties.
    Duties of size 0 aren't moved to fill a shard.
    """

    name: ClassVar = "spill_over"
    bound: ClassVar = (
        "no duty on a later shard would fit on an earlier one with more than 5 % free, and no shard "
        "exceeds its limit, as far as fixed and quarantined duties allow"
    )
    movement: ClassVar = (
        "at most 1 + heaviest / lightest duty times the fewest moves that fill the shards as the plan does; none when "
        "a shard joins at the end of the order"
    )
    spread_multiple: ClassVar = 1.0

    def place(self, new: Sequence[PlacedDuty], shards: Sequence[ShardRoom], settings: BalancerSettings) -> DutyPlan:
        """Each new duty goes to the first shard that has room."""
        layout = DutyLayout.of_totals(new, shards, _measure(shards, settings))
        filling = _Filling(layout, settings)
        filling.place()
        return layout.plan(filling.ideals(), {})

    def rebalance(
        self, duties: Sequence[PlacedDuty], shards: Sequence[ShardRoom], settings: BalancerSettings
    ) -> DutyPlan:
        """Waiting duties, and those over a limit, are placed like new ones. Then each shard in turn is filled with
        duties of the last shards.
        """
        layout = DutyLayout.of_duties(duties, shards, _measure(shards, settings))
        filling = _Filling(layout, settings)
        again = True
        while again:
            relieved = relieve(layout, lambda: filling.order)
            placed = filling.place()
            again = filling.fill() or ((placed or relieved) and bool(layout.waiting))
        note_crowded(layout)
        return layout.plan(filling.ideals(), {name: (layout.used[name], layout.used[name]) for name in layout.open})


def _measure(shards: Iterable[ShardRoom], settings: BalancerSettings) -> Measure:
    if settings.fill_by is FillBy.CAPACITY:
        return Measure(limits={shard.name: shard.capacity for shard in shards if shard.capacity is not None})
    limits = {shard.name: settings.fill_limit for shard in shards}
    return Measure(by_count=settings.fill_by is FillBy.COUNT, limits=limits)


class _Filling:
    """`order`: the order in which the open shards are filled."""

    def __init__(self, layout: DutyLayout, settings: BalancerSettings) -> None:
        self._layout = layout
        named = {name: place for place, name in reversed(list(enumerate(settings.shard_order)))}
        self.order = sorted(layout.open, key=lambda name: (named.get(name, len(named)), name))

    def place(self) -> bool:
        """Place duties, the heaviest first. Returns True if any was placed."""
        layout, waiting = self._layout, sorted(self._layout.waiting, key=heaviest_first)
        layout.waiting = []
        first, last_size = 0, -1
        for duty in waiting:
            size = layout.measure.size(duty)
            if size != last_size:
                first, last_size = 0, size
            while first < len(self.order) and size > layout.free(self.order[first]):
                first += 1  # no further duty of this size fits there
            target = next((name for name in islice(self.order, first, None) if layout.fits(duty, name)), None)
            if target is None:
                layout.waiting.append(duty)
            else:
                layout.place(duty, target)
        return len(layout.waiting) < len(waiting)

    def fill(self) -> bool:
        """Fill each shard in turn with duties of the last shards. Returns True if any was moved."""
        moved, layout = False, self._layout
        for i, target in enumerate(self.order):
            if layout.used[target] >= FULL * layout.limits[target]:
                continue
            for source in reversed(self.order[i + 1 :]):
                while (duty := layout.pools[source].heaviest(target, layout.free(target), at_least=1)) is not None:
                    layout.move(duty, source, target)
                    moved = True
        return moved

    def ideals(self) -> dict[str, float]:
        """The amount of each shard if duties could be divided: each shard is full before the next gets any."""
        left, ideals = float(sum(self._layout.used[name] for name in self._layout.open)), {}
        for name in self.order:
            ideals[name] = min(left, self._layout.limits[name])
            left -= ideals[name]
        return ideals
