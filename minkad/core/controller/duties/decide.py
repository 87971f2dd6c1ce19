"""Turns commands about pallets, duties and shards into records, or raises a refusal (MinkaError)."""

from collections.abc import Iterable

from minka.v1.records_pb2 import Record
from minkad.core.controller.duties import changes, reports, shards
from minkad.core.controller.duties.commands import (
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
            return changes.change_duties(state, command, now_ms)
        case ChangePallets():
            return changes.change_pallets(state, command, now_ms)
        case ReportShards():
            return reports.report(state, command, now_ms)
        case RegisterShard():
            return shards.register(state, command, now_ms)
        case FailShards():
            return shards.fail(state, command, now_ms)
        case NoteFlap():
            return shards.note_flap(state, command, now_ms)
        case LeaveShard():
            return shards.leave(state, command, now_ms)
