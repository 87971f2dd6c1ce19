"""The shards and duties as the planners see them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final
from zlib import crc32

from minka.v1.duties_pb2 import (
    AssignmentState,
    Balancer,
    BalancerKind,
    Canary,
    Duty,
    OnFailure,
    Pallet,
    PalletCapacity,
    Shard,
    ShardState,
)
from minka.v1.duties_pb2 import FillBy as FillByRow
from minka.v1.duties_pb2 import PreSort as PreSortRow
from minkad.core.duties.control.quarantines import quarantined_on
from minkad.core.duties.control.suspects import is_suspect
from minkad.core.duties.control.trust import penalty
from minkad.core.duties.placement import BALANCERS, BalancerSettings, FillBy, PlacedDuty, PreSort, ShardRoom
from minkad.core.duties.placement import Balancer as DutyBalancer
from minkad.core.state import Placed, State, duty_name, weight_of

_RANK_POINTS: Final = 10  # this many points of penalty make a shard's rank greater, so worse, by one
_DEFAULT_KIND: Final = BalancerKind.BALANCER_KIND_CAPACITY_WORKLOAD


def capacity_of(shard: Shard, pallet: str) -> PalletCapacity | None:
    """The shard's capacity for the pallet; None if it doesn't take the pallet."""
    return next((one for one in shard.pallets if one.pallet == pallet), None)


def refusal(state: State, shard: Shard) -> str:
    """The reason why the shard gets no duties at present, as a part of a sentence; "" if it may get duties."""
    if shard.state != ShardState.SHARD_STATE_LIVE:
        name = ShardState.Name(shard.state).removeprefix("SHARD_STATE_")
        return f"it is {name}: {shard.state_reason}"
    return _drain_of(state, shard)


def _drain_of(state: State, shard: Shard) -> str:
    node = state.nodes.get(shard.node)
    return f"it is on node {node.id}, which is being drained" if node is not None and node.emptied else ""


def rooms(state: State, pallet: str, now_ms: int) -> list[ShardRoom]:
    """All shards that take the pallet or have duties of it, by name."""
    found = []
    for name, shard in sorted(state.duties.shards.items()):
        one, why = capacity_of(shard, pallet), refusal(state, shard)
        load = state.duties.load(name, pallet)
        if one is None and not load.duties:
            continue
        found.append(
            ShardRoom(
                name=name,
                capacity=0 if one is None else one.capacity if one.HasField("capacity") else None,
                accepts=one is not None and not why,
                rank=int(penalty(shard, now_ms) // _RANK_POINTS),
                count=load.duties,
                weight=load.weight,
                why=why.removeprefix("it ") if one is not None else f"takes no duties of {pallet}",
            )
        )
    return found


def newest_version(state: State, names: Iterable[str]) -> str:
    """The version of the application that appeared last among these shards."""
    shards = (state.duties.shards[name] for name in names)
    newest = max(shards, key=lambda shard: (shard.version_since_ms, shard.version), default=None)
    return "" if newest is None else newest.version


def versions(state: State, found: Iterable[ShardRoom]) -> list[str]:
    """The versions of the application on the shards that accept duties."""
    return sorted({state.duties.shards[room.name].version for room in found if room.accepts})


def without(
    found: Iterable[ShardRoom], kept: Iterable[str], why: str = "runs another version of the application"
) -> list[ShardRoom]:
    """These rooms, but only those of `kept` accept duties. `why`: the reason for the others, if they have none yet."""
    names = set(kept)
    return [room if room.name in names else replace(room, accepts=False, why=room.why or why) for room in found]


def with_quarantined(state: State, found: Iterable[ShardRoom]) -> list[ShardRoom]:
    """These rooms, but quarantined shards accept duties, too: such a shard is better than no shard."""
    return [replace(room, accepts=True, why="") if _is_last_resort(state, room.name) else room for room in found]


def _is_last_resort(state: State, name: str) -> bool:
    shard = state.duties.shards[name]
    return shard.state == ShardState.SHARD_STATE_QUARANTINED and not _drain_of(state, shard)


def is_canary(duty: Duty, canary: Canary) -> bool:
    """True if the duty is one of those for the canary's version. The duty's name decides, so this never changes."""
    return crc32(duty_name(duty).encode()) % 100 < canary.percent


def placed_duty(state: State, duty: Duty) -> PlacedDuty:
    """The duty as the planners see it."""
    holder = state.duties.holder(duty.number)
    pinned = state.duties.shards.get(duty.pinned_to)
    is_kept = holder is not None and holder.state == AssignmentState.ASSIGNMENT_STATE_KEPT
    is_moving = Placed.duty(duty.number) in state.moving
    is_fixed = duty.stationary or bool(duty.pinned_to) or is_kept or is_moving or is_suspect(duty)
    return PlacedDuty(
        number=duty.number,
        name=duty_name(duty),
        weight=weight_of(duty),
        created_ms=duty.created_ms,
        shard=holder.shard if holder is not None else "",
        is_fixed=is_fixed,
        not_on=quarantined_on(state, duty),
        only_on=duty.pinned_to if pinned is not None and not refusal(state, pinned) else "",
    )


def may_be_placed(pallet: Pallet, duty: Duty) -> bool:
    """True if a duty that is nowhere may be given to a shard automatically. With `on_failure: leave`, a person decides
    this for a stationary duty whose shard has failed.
    """
    return not (duty.was_attached and pallet.on_failure == OnFailure.ON_FAILURE_LEAVE)


def balancer_of(pallet: Pallet) -> DutyBalancer:
    """The pallet's balancer."""
    return BALANCERS[balancer_name(pallet.balancer.kind)]


def balancer_name(kind: BalancerKind.ValueType) -> str:
    """The name by which the planners know a balancer, such as fair_workload."""
    return BalancerKind.Name(kind or _DEFAULT_KIND).removeprefix("BALANCER_KIND_").lower()


def settings_of(balancer: Balancer) -> BalancerSettings:
    """A balancer's settings, as the planners take them."""
    fill_by = {FillByRow.FILL_BY_WEIGHT: FillBy.WEIGHT, FillByRow.FILL_BY_COUNT: FillBy.COUNT}
    return BalancerSettings(
        max_difference=balancer.max_difference or 1,
        fill_by=fill_by.get(balancer.fill_by, FillBy.CAPACITY),
        fill_limit=balancer.fill_limit,
        shard_order=tuple(balancer.shard_order),
        pre_sort=PreSort.DATE if balancer.pre_sort == PreSortRow.PRE_SORT_DATE else PreSort.WEIGHT,
    )


def groups(
    state: State, pallet: Pallet, duties: Sequence[Duty], found: list[ShardRoom]
) -> list[tuple[list[Duty], list[ShardRoom]]]:
    """Divides duties and shards into groups that are placed separately. With a canary, there are two: the canary's
    duties with the shards that run its version, and all other duties with all other shards. If one of these groups
    would have no shard that accepts duties, there is one group of all.
    """
    if not pallet.HasField("canary"):
        return [(list(duties), found)]
    canary = pallet.canary
    with_version = [room.name for room in found if state.duties.shards[room.name].version == canary.version]
    others = [room.name for room in found if room.name not in with_version]
    open_ = {room.name for room in found if room.accepts}
    if not (open_ & set(with_version) and open_ & set(others)):
        return [(list(duties), found)]
    chosen = [duty for duty in duties if is_canary(duty, canary)]
    rest = [duty for duty in duties if not is_canary(duty, canary)]
    return [(chosen, without(found, with_version)), (rest, without(found, others))]
