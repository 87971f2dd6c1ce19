"""Turns commands about pallets, duties and shards into records, or raises a refusal (MinkaError)."""

from collections.abc import Iterable

from minka.v1.records_pb2 import Record
from minkad.core.duties.control import duty_changes, reports, shard_lives
from minkad.core.duties.control.duty_commands import (
    ChangeDuties,
    ChangePallets,
    FailShards,
    LeaveShard,
    NoteFlap,
    RegisterShard,
    ReportShards,
)
from minkad.core.state import State

DutyCommand = ChangePallets | ChangeDuties | RegisterShard | FailShards | NoteFlap | LeaveShard | ReportShards


def duty_facts(state: State, command: DutyCommand, now_ms: int) -> Iterable[Record]:
    """The same as `minkad.core.controller.facts`, for commands about duties."""
    match command:
        case ChangeDuties():
            return duty_changes.change_duties(state, command, now_ms)
        case ChangePallets():
            return duty_changes.change_pallets(state, command, now_ms)
        case ReportShards():
            return reports.report(state, command, now_ms)
        case RegisterShard():
            return shard_lives.register(state, command, now_ms)
        case FailShards():
            return shard_lives.fail(state, command, now_ms)
        case NoteFlap():
            return shard_lives.note_flap(state, command, now_ms)
        case LeaveShard():
            return shard_lives.leave(state, command, now_ms)
