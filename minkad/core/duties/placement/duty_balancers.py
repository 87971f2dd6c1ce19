"""The four balancers, by their names."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Protocol

from minkad.core.duties.placement.capacity_workload import CapacityWorkload
from minkad.core.duties.placement.fair_workload import FairWorkload
from minkad.core.duties.placement.round_robin import RoundRobin
from minkad.core.duties.placement.snapshot import BalancerSettings, DutyPlan, PlacedDuty, ShardRoom
from minkad.core.duties.placement.spill_over import SpillOver


class Balancer(Protocol):
    """Decides which shard gets which duty. The plan depends only on the input, and not on its order."""

    name: ClassVar[str]
    bound: ClassVar[str]  # the greatest distance of a shard from its ideal after a plan
    movement: ClassVar[str]  # the number of moves after one shard joins or leaves
    # A plan has at most (1 + this × heaviest duty / lightest duty) × `minimum_moves`: where the lower bound counts one
    # heavy duty, the plan may have to move several light ones.
    spread_multiple: ClassVar[float]

    def place(self, new: Sequence[PlacedDuty], shards: Sequence[ShardRoom], settings: BalancerSettings) -> DutyPlan:
        """Places new duties, and moves no others. What the shards have already, `shards` state by their counts and
        weights.

        So the cost grows with the new duties and the shards, not with the existing duties.
        """

    def rebalance(
        self, duties: Sequence[PlacedDuty], shards: Sequence[ShardRoom], settings: BalancerSettings
    ) -> DutyPlan:
        """Places duties that are nowhere, empties shards that take no duties, and balances all shards with few moves.

        `duties` are all duties of the pallet. After these moves, the next plan has no moves.
        """


BALANCERS: Final[Mapping[str, Balancer]] = {
    balancer.name: balancer for balancer in (RoundRobin(), SpillOver(), CapacityWorkload(), FairWorkload())
}
