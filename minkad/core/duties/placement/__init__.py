"""Balancers of duties: pure functions from the duties and shards of one pallet to a plan."""

from minkad.core.duties.placement.compare import Comparison, compare
from minkad.core.duties.placement.duty_balancers import BALANCERS, Balancer
from minkad.core.duties.placement.snapshot import (
    BalancerSettings,
    DutyMove,
    DutyPlan,
    FillBy,
    PlacedDuty,
    PreSort,
    ShardBalance,
    ShardRoom,
    Unplaced,
)

__all__ = [
    "BALANCERS",
    "Balancer",
    "BalancerSettings",
    "Comparison",
    "DutyMove",
    "DutyPlan",
    "FillBy",
    "PlacedDuty",
    "PreSort",
    "ShardBalance",
    "ShardRoom",
    "Unplaced",
    "compare",
]
