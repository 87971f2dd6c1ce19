"""Fair workload: equal weights on all shards, whatever their capacities."""

from collections.abc import Sequence
from typing import ClassVar

from minkad.core.duties.placement.duty_layout import DutyLayout, Measure
from minkad.core.duties.placement.placing import heaviest_first, oldest_first
from minkad.core.duties.placement.snapshot import BalancerSettings, DutyPlan, PlacedDuty, PreSort, ShardRoom
from minkad.core.duties.placement.workload import WORKLOAD_MOVEMENT, Workload


class FairWorkload:
    """Ignores capacities, except that a shard with capacity 0 takes nothing."""

    name: ClassVar = "fair_workload"
    bound: ClassVar = (
        "each shard's weight differs from the mean by at most 5 % or 1.5 times the heaviest duty's, as far as fixed "
        "and quarantined duties allow"
    )
    movement: ClassVar = WORKLOAD_MOVEMENT
    spread_multiple: ClassVar = 1.0

    def place(self, new: Sequence[PlacedDuty], shards: Sequence[ShardRoom], settings: BalancerSettings) -> DutyPlan:
        """Each new duty goes to the shard with the least weight."""
        return _workload(DutyLayout.of_totals(new, shards, Measure()), settings).place()

    def rebalance(
        self, duties: Sequence[PlacedDuty], shards: Sequence[ShardRoom], settings: BalancerSettings
    ) -> DutyPlan:
        """Waiting duties are placed like new ones; then duties move from the heaviest shard to the lightest."""
        return _workload(DutyLayout.of_duties(duties, shards, Measure()), settings).rebalance()


def _workload(layout: DutyLayout, settings: BalancerSettings) -> Workload:
    order = oldest_first if settings.pre_sort is PreSort.DATE else heaviest_first
    return Workload(layout, dict.fromkeys(layout.open, 1.0), order)
