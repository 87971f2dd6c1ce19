"""Capacity workload: each shard's weight is in proportion to its capacity, so all shards are full at the same time."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from minkad.core.duties.placement.duty_layout import DutyLayout, Measure
from minkad.core.duties.placement.placing import heaviest_first
from minkad.core.duties.placement.snapshot import BalancerSettings, DutyPlan, PlacedDuty, ShardRoom
from minkad.core.duties.placement.workload import WORKLOAD_MOVEMENT, Workload


class CapacityWorkload:
    """A shard that states no capacity has no limit. Its share is that of a shard with the mean of the stated ones."""

    name: ClassVar = "capacity_workload"
    bound: ClassVar = (
        "each shard's weight differs from total × its capacity / cluster capacity by at most 5 % or 1.5 times the "
        "heaviest duty's, and does not exceed its capacity, as far as fixed and quarantined duties allow"
    )
    movement: ClassVar = WORKLOAD_MOVEMENT
    spread_multiple: ClassVar = 1.0

    def place(self, new: Sequence[PlacedDuty], shards: Sequence[ShardRoom], settings: BalancerSettings) -> DutyPlan:
        """Each new duty goes to the shard that is furthest below its share, if it has room."""
        return _workload(DutyLayout.of_totals(new, shards, _measure(shards))).place()

    def rebalance(
        self, duties: Sequence[PlacedDuty], shards: Sequence[ShardRoom], settings: BalancerSettings
    ) -> DutyPlan:
        """Waiting duties are placed like new ones; then duties move from the fullest shard to the emptiest."""
        return _workload(DutyLayout.of_duties(duties, shards, _measure(shards))).rebalance()


def _measure(shards: Iterable[ShardRoom]) -> Measure:
    return Measure(limits={shard.name: shard.capacity for shard in shards if shard.capacity is not None})


def _workload(layout: DutyLayout) -> Workload:
    stated = [capacity for name in layout.open if (capacity := layout.shards[name].capacity) is not None]
    mean = sum(stated) / len(stated) if stated else 1.0
    parts = {name: mean if (c := layout.shards[name].capacity) is None else float(c) for name in layout.open}
    return Workload(layout, parts, heaviest_first)
