"""The only entry point: turns a command into records, or raises a refusal (MinkaError)."""

from collections.abc import Iterable

from minka.v1.records_pb2 import Record
from minkad.core.controller import (
    drains,
    hand_over,
    isr,
    keyspaces,
    loads,
    membership,
    merges,
    node_events,
    operations,
    row_answers,
    splits,
)
from minkad.core.controller.begin import begin, begin_queued
from minkad.core.controller.commands import (
    AbortAbandoned,
    AbortLoad,
    AlterIsr,
    BeginLoad,
    BeginQueued,
    CancelMigration,
    CancelOperation,
    Command,
    CommitLoad,
    ControlledShutdown,
    ControllerFailover,
    CreateCluster,
    CreateKeyspace,
    ElectUnclean,
    FailNodes,
    FinishLoadParts,
    FinishMerge,
    FinishSplit,
    HandOver,
    Leave,
    LimitOperation,
    PauseOperation,
    ProposeSplit,
    Register,
    RemoveNode,
    ReportReplicas,
    TouchLoad,
    UndrainNode,
)
from minkad.core.controller.operation_kind import Begins
from minkad.core.controller.unclean import elect_unclean
from minkad.core.duties.control.decide_duties import duty_facts
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


def decide(state: State, command: Command, now_ms: int) -> list[Record]:
    """All records that follow from the command. `state` is only read; `now_ms` is Unix time in milliseconds.

    An empty list means that there is nothing to change: every command can be repeated. Raises MinkaError if the command
    is refused; then nothing has changed.
    """
    found = facts(state, command, now_ms)
    if isinstance(found, list):
        return found
    scratch, records = state.copy(), []
    for record in facts(scratch, command, now_ms):
        scratch.apply(record)
        records.append(record)
    return records


def facts(state: State, command: Command, now_ms: int) -> Iterable[Record]:  # noqa: C901 - one case a command
    """The same records, but as an iterator if they may change thousands of rows. Each has to be applied to `state`
    before the next is asked for, and no other command may be decided in between. A new controller can go on from the
    state after each record, except for records that are committed together (`AtOnce`). A refusal is raised at the
    latest when the first record is asked for.
    """
    match command:
        case CreateCluster():
            return membership.create_cluster(state, command)
        case Register():
            return membership.register(state, command, now_ms)
        case Leave():
            return membership.leave(state, command, now_ms)
        case FailNodes():
            return membership.fail(state, command, now_ms)
        case RemoveNode():
            return membership.remove(state, command)
        case CreateKeyspace():
            return keyspaces.create(state, command, now_ms)
        case ReportReplicas():
            return row_answers.report(state, command)
        case HandOver():
            return hand_over.hand_over(state, command)
        case CancelMigration():
            return operations.cancel_migration(state, command, now_ms)
        case ControllerFailover():
            return node_events.on_controller_failover(state)
        case AlterIsr():
            return isr.alter_isr(state, command)
        case ElectUnclean():
            return elect_unclean(state, command)
        case UndrainNode():
            return operations.undrain_node(state, command, now_ms)
        case ControlledShutdown():
            return drains.controlled_shutdown(state, command, now_ms)
        case PauseOperation():
            return operations.pause(state, command)
        case LimitOperation():
            return operations.limit(state, command)
        case CancelOperation():
            return operations.cancel(state, command, now_ms)
        case ProposeSplit():
            return splits.propose(state, command)
        case FinishSplit():
            return splits.finish(state, command)
        case FinishMerge():
            return merges.finish(state, command, now_ms)
        case BeginLoad() | TouchLoad() | CommitLoad() | AbortLoad() | AbortAbandoned() | FinishLoadParts():
            return loads.load_facts(state, command, now_ms)
        case ChangePallets() | ChangeDuties() | ReportShards():
            return duty_facts(state, command, now_ms)
        case RegisterShard() | FailShards() | NoteFlap() | LeaveShard():
            return duty_facts(state, command, now_ms)
        case Begins():
            return begin(state, command, now_ms)
        case BeginQueued():
            return begin_queued(state, command, now_ms)
