"""Shards register, leave and fail."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.duties_pb2 import AssignmentState, Shard, ShardState
from minka.v1.records_pb2 import Record
from minka.v1.shards_pb2 import LeaveShardRequest, LeaveShardResponse
from minkad.core.controller.decision import OwnCommand, Steps, one_by_one
from minkad.core.duties.control.duty_rows import Epochs, in_state, shard_in_state, shard_with
from minkad.core.duties.control.suspects import blame, is_suspect
from minkad.core.duties.control.trust import FLAP, QUARANTINED_BELOW, SILENCE, inherit, penalize, score
from minkad.core.state import DutyState, State

_S, _A = ShardState, AssignmentState

REGISTERED: Final = (_S.SHARD_STATE_LIVE, _S.SHARD_STATE_QUARANTINED, _S.SHARD_STATE_LEAVING)
_NOT_KEPT: Final = (_A.ASSIGNMENT_STATE_RELEASING, _A.ASSIGNMENT_STATE_PREPARING)
_SAID: Final = ("node", "version", "grace_ms")


def is_registered(shard: Shard | None) -> bool:
    """True if the shard has a process that may have duties."""
    return shard is not None and shard.state in REGISTERED


def is_process(shard: Shard, incarnation: str) -> bool:
    """True if this incarnation is the shard's process, and may have duties."""
    return is_registered(shard) and shard.incarnation == incarnation


@dataclass(frozen=True, slots=True)
class RegisterShard(OwnCommand):
    """A shard's process registers. `holder_alive`: the process that has this name now may hold a clearance."""

    shard: Shard
    holder_alive: bool


def register(state: State, command: RegisterShard, now_ms: int) -> Steps[None]:
    """Register a process. Raises SHARD_NAME_TAKEN while another process with this name may hold a clearance, and
    SHARD_FENCED for a process that counts as dead.
    """
    said, duties = command.shard, state.duties
    old = duties.shards.get(said.name)
    if old is not None and old.incarnation == said.incarnation:
        if not is_registered(old):
            raise MinkaError(Code.SHARD_FENCED, f"shard {said.name}: {old.state_reason}", shard=said.name)
        yield _said_again(old, said)
        return
    if old is not None and is_registered(old):
        if command.holder_alive:
            raise MinkaError(
                Code.SHARD_NAME_TAKEN, f"another process has the name {said.name}", shard=said.name, node=old.node
            )
        yield from one_by_one(_crashed(duties, old, "another process of its name comes", now_ms))
        old = duties.shards[said.name]
    elif old is not None:
        yield from one_by_one(let_go(duties, old, now_ms))
    row = _new_row(duties, said, old, now_ms)
    yield [Record(shard_changed=row)]
    kept = [one.duty for one in duties.on_shard.get(row.name, {}).values()]
    why = "the shard is back within its grace"
    given = Epochs(duties.next_epoch).given(row.name, _A.ASSIGNMENT_STATE_ASSIGNED, kept, now_ms, why)
    yield from one_by_one(given)


def _said_again(old: Shard, said: Shard) -> list[Record]:
    def change(row: Shard) -> None:
        for name in _SAID:
            setattr(row, name, getattr(said, name))
        del row.pallets[:]
        row.pallets.extend(said.pallets)

    record = shard_with(old, change)
    return [] if record.shard_changed == old else [record]


def _new_row(duties: DutyState, said: Shard, old: Shard | None, now_ms: int) -> Shard:
    row = Shard()
    row.CopyFrom(said)
    row.registered_ms = row.state_since_ms = now_ms
    inherit(row, old if old is not None else Shard())
    row.away_until_ms = 0
    same = (one.version_since_ms for one in duties.shards.values() if one.version == said.version)
    row.version_since_ms = min(same, default=now_ms)
    if score(row, now_ms) < QUARANTINED_BELOW:
        row.state, row.state_reason = _S.SHARD_STATE_QUARANTINED, "it fell silent again and again"
    else:
        row.state, row.state_reason = _S.SHARD_STATE_LIVE, "registered"
    return row


@dataclass(frozen=True, slots=True)
class FailShards(OwnCommand):
    """The failure detector hasn't heard from these shards for too long. `reasons`: by shard. `unheard`: the shards from
    which this controller has never heard; perhaps they have only lost their connection to the cluster.
    """

    reasons: Mapping[str, str]
    unheard: Collection[str] = ()


def fail(state: State, command: FailShards, now_ms: int) -> Steps[None]:
    """The shards' clearances have ended. Their duties are kept for the shards' next processes, or are free."""
    for name, reason in command.reasons.items():
        shard = state.duties.shards.get(name)
        if shard is not None and is_registered(shard):
            was_heard = name not in command.unheard
            yield from one_by_one(_crashed(state.duties, shard, reason, now_ms, was_heard=was_heard))


def _crashed(duties: DutyState, shard: Shard, reason: str, now_ms: int, *, was_heard: bool = True) -> Iterator[Record]:
    """The shard's process has ended: without notice, unless it was about to stop. `was_heard`: this controller has
    heard from the process. Otherwise the crash isn't certain, and nobody blames the duties or the next process for it.
    """
    if shard.state == _S.SHARD_STATE_LEAVING:
        yield from _gone(duties, shard, reason, now_ms, 0)
        return
    if was_heard:
        yield from blame(duties, shard, now_ms)
    yield from _gone(duties, shard, reason, now_ms, SILENCE, crashed=was_heard)


def _gone(
    duties: DutyState, shard: Shard, reason: str, now_ms: int, points: int, *, crashed: bool = False
) -> Iterator[Record]:
    """The shard's process no longer has duties. Without penalty `points`, the row also loses earlier penalties."""
    keeps = shard.grace_ms > 0

    def change(row: Shard) -> None:
        row.state = _S.SHARD_STATE_AWAY if keeps else _S.SHARD_STATE_GONE
        row.state_reason, row.state_since_ms = reason, now_ms
        row.away_until_ms = now_ms + row.grace_ms if keeps else 0
        if points:
            penalize(row, points, now_ms, crashed=crashed)
        else:
            row.penalty = row.crash_penalty = 0

    gone = shard_with(shard, change)
    yield gone
    yield from let_go(duties, gone.shard_changed, now_ms)


def let_go(duties: DutyState, shard: Shard, now_ms: int) -> Iterator[Record]:
    """While the shard is AWAY, keep the duties of its former process for it, except suspects. Free all its other
    duties. An earlier controller may have done a part of this.
    """
    kept, free = list[int](), list[int]()
    for one in duties.on_shard.get(shard.name, {}).values():
        is_kept = one.state not in _NOT_KEPT and not is_suspect(duties.duties[one.duty])
        if shard.state != _S.SHARD_STATE_AWAY or not is_kept:
            free.append(one.duty)
        elif one.state != _A.ASSIGNMENT_STATE_KEPT:
            kept.append(one.duty)
    yield from in_state(shard.name, _A.ASSIGNMENT_STATE_KEPT, kept, now_ms)
    yield from in_state(shard.name, _A.ASSIGNMENT_STATE_UNSPECIFIED, free, now_ms, f"{shard.name} is gone")


@dataclass(frozen=True, slots=True)
class NoteFlap(OwnCommand):
    """A shard's heartbeat came so late that its clearance was nearly over."""

    shard: str
    incarnation: str


def note_flap(state: State, command: NoteFlap, now_ms: int) -> Steps[None]:
    """Lower the shard's score. If the score is then below QUARANTINED_BELOW, quarantine the shard."""
    shard = state.duties.shards.get(command.shard)
    if shard is None or shard.state != _S.SHARD_STATE_LIVE or shard.incarnation != command.incarnation:
        return

    def change(row: Shard) -> None:
        penalize(row, FLAP, now_ms)
        if score(row, now_ms) < QUARANTINED_BELOW:
            row.state, row.state_since_ms = _S.SHARD_STATE_QUARANTINED, now_ms
            row.state_reason = "its heartbeats come late again and again"

    yield [shard_with(shard, change)]


def leave(state: State, request: LeaveShardRequest, now_ms: int) -> Steps[LeaveShardResponse]:
    """From now on the shard only releases its duties."""
    shard = state.duties.shards.get(request.shard)
    if shard is not None and shard.incarnation == request.incarnation and shard.state in REGISTERED[:2]:
        yield [shard_in_state(shard, _S.SHARD_STATE_LEAVING, "is about to stop", now_ms)]
    return LeaveShardResponse()


def left(duties: DutyState, shard: Shard, now_ms: int) -> Iterator[Record]:
    """The shard has released everything, and stops."""
    return _gone(duties, shard, "stopped gracefully", now_ms, 0)
