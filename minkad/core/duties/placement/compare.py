"""Compares the plans that each balancer would make for the same duties."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minkad.core.duties.placement.duty_balancers import BALANCERS
from minkad.core.duties.placement.snapshot import (
    BalancerSettings,
    DutyPlan,
    PlacedDuty,
    ShardBalance,
    ShardRoom,
    Unplaced,
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One balancer's plan in figures, for the open shards. A skew is the highest value divided by the mean: 1 is even.

    `fullest`: the highest weight / capacity of the shards that state a capacity, and `fill_skew` the skew of these
    values; None if no shard states one.
    """

    balancer: str
    moves: int
    minimum_moves: int
    unplaced: tuple[Unplaced, ...]
    count_skew: float
    weight_skew: float
    fill_skew: float | None
    fullest: float | None
    shards: tuple[ShardBalance, ...]


def compare(duties: Sequence[PlacedDuty], shards: Sequence[ShardRoom], settings: BalancerSettings) -> list[Comparison]:
    """One row for each balancer, in the order of BALANCERS."""
    return [_row(name, balancer.rebalance(duties, shards, settings)) for name, balancer in BALANCERS.items()]


def _row(name: str, plan: DutyPlan) -> Comparison:
    open_ = [shard for shard in plan.shards if shard.is_open]
    fills = [fill for shard in open_ if (fill := _fill(shard)) is not None]
    return Comparison(
        balancer=name,
        moves=len(plan.moves),
        minimum_moves=plan.minimum_moves,
        unplaced=plan.unplaced,
        count_skew=skew(shard.count for shard in open_),
        weight_skew=skew(shard.weight for shard in open_),
        fill_skew=skew(fills) if fills else None,
        fullest=max(fills, default=None),
        shards=plan.shards,
    )


def skew(values: Iterable[float]) -> float:
    """The highest value divided by the mean; 1 without values, or if all are 0."""
    values = list(values)
    total = sum(values)
    return max(values) * len(values) / total if total else 1.0


def _fill(shard: ShardBalance) -> float | None:
    return shard.weight / shard.capacity if shard.capacity else None
