"""Converts Protobuf messages about duties to the library's dataclasses, and pallets back."""

from collections.abc import Callable

from minka.duties._arguments import checked_label, checked_pallet
from minka.duties.delegate import Duty
from minka.duties.duty_rows import (
    Assignment,
    Balancer,
    BalancerComparison,
    BalancerKind,
    Canary,
    DutyExplanation,
    DutyMove,
    DutyRow,
    DutyStatus,
    FillBy,
    OnFailure,
    Pallet,
    PalletSummary,
    PreSort,
    ShardLoad,
    Shards,
    ShardStatus,
    ShardVerdict,
)
from minka.duties.limits import MAX_WEIGHT
from minka.engine.arguments import invalid
from minka.engine.messages import checked_number, read, read_all
from minka.engine.requests import checked_whole, made
from minka.v1 import duties_pb2 as rows
from minka.v1 import duty_api_pb2 as api
from minka.v1.shards_pb2 import HeldDuty


def held_duty(held: HeldDuty, holds: Callable[[int, int], bool]) -> Duty:
    """Convert a duty to the form that the delegate gets. `holds` takes the number and the epoch of a duty, and returns
    True if the shard may act for it.
    """
    return Duty(
        number=held.duty,
        epoch=held.epoch,
        pallet=held.pallet,
        id=held.id,
        payload=held.payload,
        weight=held.weight,
        version=held.version,
        synthetic=held.synthetic,
        stationary=held.stationary,
        lazy=held.lazy,
        _holds=holds,
    )


def duty_row(row: rows.Duty) -> DutyRow:
    """Convert a duty's row."""
    return read(DutyRow, row, duty=_duty(row, b""))


def duty_status(status: api.DutyStatus) -> DutyStatus:
    """Convert a duty's row, and the shards that have the duty."""
    return read(
        DutyStatus,
        status.duty,
        duty=_duty(status.duty, status.payload),
        assignments=read_all(Assignment, status.assignments),
        unplaced=status.unplaced,
    )


def _duty(row: rows.Duty, payload: bytes) -> Duty:
    return Duty(
        number=row.number,
        pallet=row.pallet,
        id=row.id,
        payload=payload,
        weight=row.weight,
        version=row.version,
        synthetic=row.synthetic,
        stationary=row.stationary,
        lazy=row.lazy,
    )


def pallet(row: rows.Pallet) -> Pallet:
    """Convert a pallet's row."""
    return read(Pallet, row)


def pallet_summary(summary: api.PalletSummary) -> PalletSummary:
    """Convert a pallet, and the sums of its duties."""
    return read(PalletSummary, summary)


def shard_status(status: api.ShardStatus) -> ShardStatus:
    """Convert a shard, and the numbers of its duties."""
    return read(
        ShardStatus,
        status.shard,
        score=status.score,
        heartbeat_age_ms=status.heartbeat_age_ms,
        assigned=status.assigned,
        attached=status.attached,
        releasing=status.releasing,
        loads=read_all(ShardLoad, status.loads),
    )


def shards(response: api.GetShardsResponse) -> Shards:
    """Convert the shards and the latest moves."""
    return Shards(tuple(map(shard_status, response.shards)), read_all(DutyMove, response.moves))


def explanation(response: api.ExplainDutyResponse) -> DutyExplanation:
    """Convert the reasons why some shards have a duty and others don't."""
    return read(
        DutyExplanation,
        response,
        status=duty_status(response.status),
        shards=read_all(ShardVerdict, response.shards),
    )


def comparisons(response: api.ComparePalletResponse) -> list[BalancerComparison]:
    """Convert the comparison of how each kind of balancer would spread a pallet's duties."""
    return list(read_all(BalancerComparison, response.balancers))


def pallet_row(pallet: Pallet) -> rows.Pallet:
    """The message in which a client sends the pallet's settings. Raises MinkaError(INVALID_ARGUMENT)."""
    if not isinstance(pallet, Pallet):
        raise invalid(f"the pallet is {type(pallet).__name__}, not a minka.duties.Pallet")
    balancer, canary = pallet.balancer, pallet.canary
    if not isinstance(balancer, Balancer):
        raise invalid(f"the balancer is {type(balancer).__name__}, not a minka.duties.Balancer")
    if not isinstance(canary, Canary | None):
        raise invalid(f"the canary is {type(canary).__name__}, not a minka.duties.Canary")
    return made(
        rows.Pallet,
        id=checked_pallet(pallet.id),
        balancer=_balancer_row(balancer),
        manual=pallet.manual,
        on_failure=checked_number(rows.OnFailure, OnFailure, pallet.on_failure, "on_failure"),
        warm=pallet.warm,
        moves_per_shard=pallet.moves_per_shard,
        canary=canary and _canary_row(canary),
    )


def _balancer_row(balancer: Balancer) -> rows.Balancer:
    row = made(
        rows.Balancer,
        kind=checked_number(rows.BalancerKind, BalancerKind, balancer.kind, "balancer.kind"),
        max_difference=balancer.max_difference,
        fill_by=checked_number(rows.FillBy, FillBy, balancer.fill_by, "balancer.fill_by"),
        fill_limit=checked_whole(balancer.fill_limit, "balancer.fill_limit", range(MAX_WEIGHT + 1)),
        shard_order=balancer.shard_order,
        pre_sort=checked_number(rows.PreSort, PreSort, balancer.pre_sort, "balancer.pre_sort"),
    )
    for name in row.shard_order:
        checked_label(name, "a shard in balancer.shard_order")
    return row


def _canary_row(canary: Canary) -> rows.Canary:
    percent = checked_whole(canary.percent, "canary.percent", range(1, 101))
    return rows.Canary(version=checked_label(canary.version, "canary.version"), percent=percent)
