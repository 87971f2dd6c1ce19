"""The one door: command → records, or a refusal (MinkaError)."""

from minka.v1.records_pb2 import Record
from minkad.core.controller import keyspaces, membership, operations, replicas
from minkad.core.controller.commands import (
    ApplyPlan,
    CancelMigration,
    Command,
    CreateCluster,
    CreateKeyspace,
    FailNode,
    HandOver,
    Leave,
    Register,
    RemoveNode,
    ReportReplicas,
)
from minkad.core.state import State


def decide(state: State, command: Command, now_ms: int) -> list[Record]:
    """The facts that this command makes true. `state` is only read; `now_ms` is Unix time.

    An empty list means that the command finds things as it wants them: every command can be repeated.
    Raises MinkaError when the command is refused; then nothing has changed.
    """
    match command:
        case CreateCluster():
            return membership.create_cluster(state, command)
        case Register():
            return membership.register(state, command, now_ms)
        case Leave():
            return membership.leave(state, command, now_ms)
        case FailNode():
            return membership.fail(state, command, now_ms)
        case RemoveNode():
            return membership.remove(state, command)
        case CreateKeyspace():
            return keyspaces.create(state, command, now_ms)
        case ReportReplicas():
            return replicas.report(state, command, now_ms)
        case ApplyPlan():
            return operations.apply_plan(state, command, now_ms)
        case HandOver():
            return operations.hand_over(state, command, now_ms)
        case CancelMigration():
            return operations.cancel_migration(state, command, now_ms)
