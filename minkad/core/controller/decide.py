"""The only entry point: decides a command, by the table of all commands."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from minka.v1 import admin_pb2 as admin
from minka.v1 import coordinator_pb2 as nodes
from minka.v1 import duty_api_pb2 as duties
from minka.v1 import load_api_pb2 as loading
from minka.v1 import shards_pb2 as shards
from minkad.core.controller import (
    begin,
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
    unclean,
)
from minkad.core.controller.decision import Command, Decision, Steps
from minkad.core.controller.operation_kind import Begins
from minkad.core.duties.control import duty_changes, reports, shard_lives
from minkad.core.state import State

C = TypeVar("C")


class Rule(NamedTuple):
    """How commands of one type are decided. `is_atomic`: see `Decision`."""

    decide: Callable[[State, Any, int], Steps[Any]]
    is_atomic: bool


def _atomic(type_: type[C], decide: Callable[[State, C, int], Steps[Any]]) -> tuple[type, Rule]:
    return type_, Rule(decide, is_atomic=True)


def _in_pieces(type_: type[C], decide: Callable[[State, C, int], Steps[Any]]) -> tuple[type, Rule]:
    return type_, Rule(decide, is_atomic=False)


COMMANDS: Final[dict[type, Rule]] = dict(
    [
        # Nodes
        _atomic(membership.CreateCluster, membership.create_cluster),
        _in_pieces(membership.Register, membership.register),
        _in_pieces(nodes.LeaveRequest, membership.leave),
        _in_pieces(membership.FailNodes, membership.fail),
        _atomic(admin.RemoveNodeRequest, membership.remove),
        _in_pieces(node_events.ControllerFailover, node_events.on_controller_failover),
        _atomic(nodes.ControlledShutdownRequest, drains.controlled_shutdown),
        _atomic(admin.UndrainNodeRequest, operations.undrain_node),
        # Partitions
        _atomic(keyspaces.CreateKeyspace, keyspaces.create),
        _in_pieces(row_answers.ReportReplicas, row_answers.report),
        _in_pieces(nodes.AlterIsrRequest, isr.alter_isr),
        _atomic(nodes.HandOverRequest, hand_over.hand_over),
        _atomic(unclean.ElectUnclean, unclean.elect_unclean),
        _atomic(nodes.ProposeSplitRequest, splits.propose),
        _atomic(nodes.FinishSplitRequest, splits.finish),
        _atomic(nodes.FinishMergeRequest, merges.finish),
        # Operations
        _atomic(Begins, begin.begin),  # type: ignore[type-abstract]
        _atomic(begin.BeginQueued, begin.begin_queued),
        _atomic(admin.PauseOperationRequest, operations.pause),
        _atomic(admin.ResumeOperationRequest, operations.resume),
        _atomic(admin.LimitOperationRequest, operations.limit),
        _atomic(admin.CancelOperationRequest, operations.cancel),
        _atomic(operations.CancelMigration, operations.cancel_migration),
        # Loads
        _atomic(loading.BeginLoadRequest, loads.begin),
        _atomic(loading.TouchLoadRequest, loads.touch),
        _atomic(loading.CommitLoadRequest, loads.commit),
        _atomic(loading.AbortLoadRequest, loads.abort),
        _atomic(loads.AbortAbandoned, loads.abort_abandoned),
        _atomic(loading.FinishLoadPartsRequest, loads.finish_parts),
        # Duties
        _atomic(duties.ChangePalletsRequest, duty_changes.change_pallets),
        _atomic(duties.ChangeDutiesRequest, duty_changes.change_duties),
        _in_pieces(shard_lives.RegisterShard, shard_lives.register),
        _in_pieces(shard_lives.FailShards, shard_lives.fail),
        _atomic(shard_lives.NoteFlap, shard_lives.note_flap),
        _atomic(shards.LeaveShardRequest, shard_lives.leave),
        _in_pieces(shards.ReportShardsRequest, reports.report),
    ]
)
"""All commands: the type of each, and the function that decides it."""


def decide(state: State, command: Command, now_ms: int) -> Decision[Any]:
    """The decision on the command. `state` is only read; `now_ms` is Unix time in milliseconds. A refusal (MinkaError)
    is raised at the latest when the first piece is asked for.
    """
    rule = COMMANDS[Begins if isinstance(command, Begins) else type(command)]
    return Decision(rule.decide(state, command, now_ms), is_atomic=rule.is_atomic)
