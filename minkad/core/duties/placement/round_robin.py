"""Round robin: equal numbers of duties on all shards, whatever the duties weigh."""

from collections.abc import Sequence
from typing import ClassVar

from minkad.core.duties.placement.duty_layout import DutyLayout, Measure
from minkad.core.duties.placement.levelling import Levelling
from minkad.core.duties.placement.placing import oldest_first, place_waiting
from minkad.core.duties.placement.snapshot import BalancerSettings, DutyPlan, PlacedDuty, ShardRoom


class RoundRobin:
    """Ignores weights and capacities, except that a shard with capacity 0 takes nothing."""

    name: ClassVar = "round_robin"
    bound: ClassVar = (
        "the numbers of duties on any two shards differ by at most max_difference, as far as fixed and quarantined "
        "duties allow"
    )
    movement: ClassVar = "the fewest moves that bring the numbers within max_difference of each other"
    spread_multiple: ClassVar = 0.0

    def place(self, new: Sequence[PlacedDuty], shards: Sequence[ShardRoom], settings: BalancerSettings) -> DutyPlan:
        """Each new duty goes to the shard with the fewest duties."""
        layout = DutyLayout.of_totals(new, shards, Measure(by_count=True))
        _place(layout)
        return layout.plan(_ideals(layout), {})

    def rebalance(
        self, duties: Sequence[PlacedDuty], shards: Sequence[ShardRoom], settings: BalancerSettings
    ) -> DutyPlan:
        """Waiting duties go to the shard with the fewest duties. Then, while two shards differ by more than
        `max_difference`, one duty moves from the fuller shard to the other.
        """
        layout = DutyLayout.of_duties(duties, shards, Measure(by_count=True))
        _place(layout)
        Levelling(layout, _ideals(layout), least_gap=max(1, settings.max_difference) + 0.5).run()
        return layout.plan(_ideals(layout), {name: (layout.count[name], layout.count[name]) for name in layout.open})


def _place(layout: DutyLayout) -> None:
    def key(name: str) -> tuple[int, int, str]:
        return (layout.count[name], layout.shards[name].rank, name)

    place_waiting(layout, oldest_first, key, key)


def _ideals(layout: DutyLayout) -> dict[str, float]:
    total = sum(layout.count[name] for name in layout.open)
    return {name: total / len(layout.open) for name in layout.open}
