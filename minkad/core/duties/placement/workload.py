"""The common part of the two balancers by weight: each shard is to have its share of the whole weight.

Hysteresis: a shard within 5 % of its share is left alone. Other shards are brought within 1 % of theirs, so the next
small change moves no duty.
"""

from collections.abc import Callable, Mapping
from typing import Final

from minkad.core.duties.placement.duty_layout import DutyLayout
from minkad.core.duties.placement.levelling import Levelling
from minkad.core.duties.placement.over_limit import note_crowded, relieve
from minkad.core.duties.placement.placing import Key, place_waiting
from minkad.core.duties.placement.snapshot import DutyPlan, PlacedDuty
from minkad.core.placement.quotas import level_shares

TOLERANCE: Final = 0.05  # of a shard's share; a shard that differs by at most this is left alone
SETTLED: Final = 0.01  # of a shard's share; other shards are brought this near to it, if the weights allow
WORKLOAD_MOVEMENT: Final = (
    "at most 1 + heaviest / lightest duty times the lower bound; the weight that moves is at most what has to leave, "
    "what shards have beyond their shares, and one heaviest duty a shard"
)

Order = Callable[[PlacedDuty], tuple[int, ...]]


class Workload:
    """One plan. `parts`: the share of each open shard, in any unit."""

    def __init__(self, layout: DutyLayout, parts: Mapping[str, float], order: Order) -> None:
        self._layout = layout
        self._parts = parts
        self._order = order

    def place(self) -> DutyPlan:
        """Place waiting duties, each on the shard that is furthest below its share."""
        self._place()
        return self._layout.plan(self._ideals(), {})

    def rebalance(self) -> DutyPlan:
        """Relieve shards over their limits, place waiting duties and level the shards, until there is nothing to do."""
        layout = self._layout
        again = True
        while again:
            relieved = relieve(layout, lambda: sorted(layout.open, key=self._lowest()))
            placed = self._place()
            again = self._level() or ((placed or relieved) and bool(layout.waiting))
        note_crowded(layout)
        ideals = self._ideals()
        settled = {name: (ideal * (1 - SETTLED), ideal * (1 + SETTLED)) for name, ideal in ideals.items()}
        return layout.plan(ideals, settled)

    def _place(self) -> bool:
        return place_waiting(self._layout, self._order, self._lowest(), self._fewest)

    def _lowest(self) -> Key:
        """A key: a shard's amount less the amount that it should have once all duties are placed.

        If each duty goes to the shard with the lowest key, each shard ends within one duty of its share. If each went
        to the least full shard, many small shards could each get a part of a duty too much, and a large shard much too
        little.
        """
        layout, ideals = self._layout, self._ideals(placed=False)
        return lambda name: (layout.used[name] - ideals[name], layout.shards[name].rank, name)

    def _fewest(self, name: str) -> tuple[int, int, str]:
        return (self._layout.count[name], self._layout.shards[name].rank, name)

    def _ideals(self, placed: bool = True) -> dict[str, float]:
        """The weight that each open shard should have, within its limit, and at least the weight of its duties that
        can't be moved. If `placed`, waiting duties that are on no open shard don't count; else they do.
        """
        layout = self._layout
        total = sum(layout.used[name] for name in layout.open)
        floors = {name: float(layout.used[name] - layout.movable[name]) for name in layout.open}
        if not placed:
            total += sum(duty.weight for duty in layout.waiting if duty.shard not in floors)
        return level_shares(total, self._parts, floors, layout.limits)

    def _level(self) -> bool:
        ideals = self._ideals()
        tolerances = {name: TOLERANCE * ideal for name, ideal in ideals.items()}
        return Levelling(self._layout, ideals, tolerances, SETTLED / TOLERANCE).run()
