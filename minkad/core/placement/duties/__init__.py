"""Balancers of duties: the duties and shards of one pallet in, a plan out. Pure."""

from minkad.core.placement.duties.balancers import BALANCERS, Balancer
from minkad.core.placement.duties.compare import Comparison, compare
from minkad.core.placement.duties.snapshot import (
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
