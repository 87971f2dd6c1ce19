"""Explains, in sentences, why a duty is where it is."""

from math import ceil

from minka.v1.duties_pb2 import AssignmentState, Duty, Shard, ShardState
from minka.v1.duty_api_pb2 import ShardVerdict
from minkad.core.duties.control.quarantines import last_failure, quarantine_of
from minkad.core.duties.control.rooms import balancer_name, capacity_of, refusal
from minkad.core.duties.control.suspects import is_suspect, why
from minkad.core.duties.control.trust import trusted_in_ms
from minkad.core.state import Assignment, State, duty_name, weight_of

_SAYS = {
    AssignmentState.ASSIGNMENT_STATE_ASSIGNED: "is about to attach it",
    AssignmentState.ASSIGNMENT_STATE_ATTACHED: "has it",
    AssignmentState.ASSIGNMENT_STATE_RELEASING: "has been releasing it",
    AssignmentState.ASSIGNMENT_STATE_KEPT: "is away; the duty is kept for it",
    AssignmentState.ASSIGNMENT_STATE_PREPARING: "prepares for it",
}


def summary(state: State, duty: Duty, unplaced: str, now_ms: int) -> str:
    """One or two sentences that say where the duty is, and why."""
    name = duty_name(duty)
    if duty.deleting:
        return f"{name} is being deleted: its shards have yet to release it."
    if duty.synthetic:
        count = len(state.duties.assignments(duty.number))
        if is_suspect(duty):
            return f"{name} is synthetic, and on {count} of the shards that take {duty.pallet}: {why(duty, now_ms)}."
        if duty.quarantines:
            return f"{name} is synthetic, and on {count} of the shards that take {duty.pallet}: {last_failure(duty)}."
        return f"{name} is synthetic: it is on all {count} shards that take pallet {duty.pallet}, and never moved."
    holder = state.duties.holder(duty.number)
    if holder is None:
        return f"{name} is nowhere: {unplaced}.{_would_go(duty) if duty.pinned_to else ''}"
    return f"{name} is on {holder.shard}: {holder.reason}.{_stays(state, duty, holder)}"


def _stays(state: State, duty: Duty, holder: Assignment) -> str:
    if duty.pinned_to:
        is_there = duty.pinned_to == holder.shard
        return " It stays there while the shard can have it, until it is released." if is_there else _would_go(duty)
    if duty.stationary:
        return " It is stationary: it isn't moved to balance."
    if is_suspect(duty):
        return " No rebalance moves it before it is attached: it may end the processes that attach it."
    balancer = balancer_name(state.duties.pallets[duty.pallet].balancer.kind).replace("_", " ")
    return f" The pallet's balancer ({balancer}) may move it."


def _would_go(duty: Duty) -> str:
    """The sentence about a duty that isn't on the shard to which it is pinned."""
    return f" A person has pinned it to {duty.pinned_to}: it goes there as soon as that shard can have it."


def verdicts(state: State, duty: Duty, now_ms: int) -> list[ShardVerdict]:
    """For each shard, by name: the state of its assignment, or whether it could have the duty, and if not, why."""
    return [_verdict(state, duty, shard, now_ms) for _, shard in sorted(state.duties.shards.items())]


def _verdict(state: State, duty: Duty, shard: Shard, now_ms: int) -> ShardVerdict:
    one = state.duties.assignment(duty.number, shard.name)
    if one is not None:
        says = _SAYS[AssignmentState.ValueType(one.state)]
        if one.state == AssignmentState.ASSIGNMENT_STATE_RELEASING:
            says += f" for {max(0, now_ms - one.since_ms) // 1000:,} s"
        carries = "" if duty.synthetic else _carries(state, duty, shard)
        trust = f"; {_trusted_again(refusal(state, shard), shard, now_ms)}" if _is_quarantined(shard) else ""
        return ShardVerdict(shard=shard.name, verdict=f"{says} (epoch {one.epoch}){carries}{trust}", possible=True)
    refused = _impossible(state, duty, shard, now_ms)
    return ShardVerdict(shard=shard.name, verdict=refused or _room(state, duty, shard), possible=not refused)


def _is_quarantined(shard: Shard) -> bool:
    return shard.state == ShardState.SHARD_STATE_QUARANTINED


def _trusted_again(why: str, shard: Shard, now_ms: int) -> str:
    """The reason why the shard isn't trusted, and when it is trusted again."""
    return f"{why}; it is trusted again in about {ceil(trusted_in_ms(shard, now_ms) / 1000)} s, unless it fails again"


def _impossible(state: State, duty: Duty, shard: Shard, now_ms: int) -> str:
    said = capacity_of(shard, duty.pallet)
    if said is None:
        return f"takes no duties of pallet {duty.pallet}"
    if refused := refusal(state, shard):
        return f"can't have it: {_trusted_again(refused, shard, now_ms) if _is_quarantined(shard) else refused}"
    if (one := quarantine_of(state, duty, shard)) is not None:
        if one.shard == shard.name:
            return f"couldn't attach it: {one.reason}"
        return f"isn't asked again, since too many shards couldn't attach it: {last_failure(duty)}"
    if duty.synthetic or not said.HasField("capacity"):
        return ""
    if not said.capacity:
        return f"has capacity 0 for pallet {duty.pallet}"
    free = said.capacity - state.duties.load(shard.name, duty.pallet).weight
    if weight_of(duty) > free:
        return f"has {max(0, free)} of {said.capacity} free, and the duty weighs {weight_of(duty)}"
    return ""


def _carries(state: State, duty: Duty, shard: Shard) -> str:
    """The weight and the capacity of a shard that has the duty; "" if the shard states no capacity."""
    said = capacity_of(shard, duty.pallet)
    if said is None or not said.HasField("capacity"):
        return ""
    if not said.capacity:
        return f"; it has capacity 0 for pallet {duty.pallet}, so duties go as soon as another shard has room"
    return f"; it carries weight {state.duties.load(shard.name, duty.pallet).weight} of its capacity {said.capacity}"


def _room(state: State, duty: Duty, shard: Shard) -> str:
    load, said = state.duties.load(shard.name, duty.pallet), capacity_of(shard, duty.pallet)
    of = f" of its capacity {said.capacity}" if said is not None and said.HasField("capacity") else ""
    return f"could have it; it has {load.duties} duties of weight {load.weight}{of}"
