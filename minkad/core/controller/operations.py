"""Operations and their migrations (Fixed Partitions: "Moving partitions to newly added members")."""

from collections.abc import Callable

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import Move, Plan
from minka.v1.cluster_pb2 import (
    Migration,
    MigrationState,
    NodeState,
    Operation,
    OperationState,
    Partition,
    PartitionState,
)
from minka.v1.records_pb2 import OperationStarted, Record
from minkad.core.controller.commands import ApplyPlan, CancelMigration, HandOver
from minkad.core.controller.rows import changed, migration_in_state, partitions_changed, replace, take_offline
from minkad.core.placement.plan import plan_digest, refuse_if_running
from minkad.core.state import State, partition_name

_M = MigrationState
ENDED = frozenset({_M.MIGRATION_STATE_COMPLETED, _M.MIGRATION_STATE_CANCELLED})


def apply_plan(state: State, command: ApplyPlan, now_ms: int) -> list[Record]:
    """Exactly the plan's moves are recorded as migrations of one operation, before a byte moves."""
    plan = command.plan
    refuse_if_running(state)
    _check_plan(state, plan)
    operation = Operation(
        id=state.next_operation_id,
        kind=plan.kind,
        state=OperationState.OPERATION_STATE_RUNNING,
        requested_by=command.requested_by,
        reason=command.reason,
        plan_digest=plan.digest,
        created_ms=now_ms,
        migration_count=len(plan.moves),
    )
    migrations = [
        Migration(
            operation_id=operation.id,
            partition_id=move.partition_id,
            source=move.source,
            target=move.target,
            state=_M.MIGRATION_STATE_PENDING,
            reason=move.reason,
        )
        for move in plan.moves
    ]
    return [Record(operation_started=OperationStarted(operation=operation, migrations=migrations))]


def _check_plan(state: State, plan: Plan) -> None:
    if plan.digest != plan_digest(plan):
        raise MinkaError(
            Code.DAMAGED_PLAN, f"the plan says digest {plan.digest[:12]}, its content {plan_digest(plan)[:12]}"
        )
    if plan.cluster_id != state.cluster.id:
        raise MinkaError(
            Code.CLUSTER_MISMATCH, f"the plan is for cluster {plan.cluster_id}, this is {state.cluster.id}"
        )
    if not plan.moves:
        raise MinkaError(Code.INVALID_ARGUMENT, "the plan has no moves")
    if plan.table_version != state.version:
        raise MinkaError(
            Code.STALE_PLAN, f"the plan was made from table version {plan.table_version}, now it is {state.version}"
        )
    seen: set[int] = set()
    for move in plan.moves:
        problem = _problem_of(state, move)
        if problem is None and move.partition_id in seen:
            problem = "it is moved twice"
        if problem is not None:
            raise MinkaError(
                Code.STALE_PLAN, f"{move.partition} can't go from {move.source} to {move.target}: {problem}"
            )
        seen.add(move.partition_id)


def _problem_of(state: State, move: Move) -> str | None:
    partition, target = state.partitions.get(move.partition_id), state.nodes.get(move.target)
    if partition is None:
        return "it does not exist"
    if partition.partition_epoch != move.partition_epoch:
        return f"its epoch was {move.partition_epoch}, now it is {partition.partition_epoch}"
    if move.source not in partition.replicas or move.target in partition.replicas:
        return f"its replicas are {', '.join(partition.replicas)}"
    if move.target in partition.removing_replicas:
        return f"{move.target} is still deleting an older copy"
    if target is None or target.state != NodeState.NODE_STATE_LIVE:
        return f"{move.target} is not LIVE"
    return None


def start(partition: Partition, migration: Migration, now_ms: int) -> list[Record]:
    """PENDING → COPYING: the target is a replica that is not in sync yet."""

    def add_target(row: Partition) -> None:
        row.replicas.append(migration.target)
        row.adding_replicas.append(migration.target)

    return [
        *partitions_changed([changed(partition, add_target)]),
        migration_in_state(migration, _M.MIGRATION_STATE_COPYING, now_ms),
    ]


def hand_over(state: State, command: HandOver, now_ms: int) -> list[Record]:
    """COPYING → HANDED_OVER: the target leads at a new epoch; the source has yet to delete its copy."""
    partition = state.partitions.get(command.partition_id)
    if partition is None:
        raise MinkaError(Code.UNKNOWN_PARTITION, f"partition {command.partition_id} does not exist")
    if partition.leader == command.target and command.node_id not in partition.replicas:
        return []  # asked again: the answer to the first request was lost
    name = partition_name(state.keyspaces, partition)
    migration = state.running_migration(partition.id)
    if (
        partition.partition_epoch != command.partition_epoch
        or partition.leader != command.node_id
        or migration is None
        or migration.state != _M.MIGRATION_STATE_COPYING
        or migration.target != command.target
    ):
        raise MinkaError(
            Code.STALE_GENERATION,
            f"{name}: {command.node_id} can't hand over to {command.target} at epoch {command.partition_epoch}; "
            f"the epoch is {partition.partition_epoch} and the leader {partition.leader or 'none'}",
            partitions=[partition],
        )

    def move(row: Partition) -> None:
        row.replicas[:] = replace([r for r in row.replicas if r != command.target], command.node_id, command.target)
        row.isr[:] = replace(list(row.isr), command.node_id, command.target)
        row.adding_replicas.remove(command.target)
        row.removing_replicas.append(command.node_id)
        row.leader = command.target
        row.leader_epoch += 1
        row.generation += 1
        row.state = PartitionState.PARTITION_STATE_ONLINE

    return [
        *partitions_changed([changed(partition, move)]),
        migration_in_state(migration, _M.MIGRATION_STATE_HANDED_OVER, now_ms),
    ]


def cancel_migration(state: State, command: CancelMigration, now_ms: int) -> list[Record]:
    """The partition stays at the source; what the target has of it goes."""
    migration = state.migrations.get(command.operation_id, {}).get(command.partition_id)
    if migration is None or migration.state in ENDED or migration.state == _M.MIGRATION_STATE_HANDED_OVER:
        return []
    partition = state.partitions[migration.partition_id]
    rows = [] if migration.state == _M.MIGRATION_STATE_PENDING else [changed(partition, _without_target(migration))]
    return [
        *partitions_changed(rows),
        migration_in_state(migration, _M.MIGRATION_STATE_CANCELLED, now_ms, command.reason),
    ]


def _without_target(migration: Migration) -> Callable[[Partition], None]:
    def change(row: Partition) -> None:
        row.replicas.remove(migration.target)
        row.adding_replicas.remove(migration.target)
        row.removing_replicas.append(migration.target)

    return change


def cancel_or_complete_for(
    state: State, node: str, reason: str, now_ms: int
) -> tuple[list[Record], dict[int, Partition]]:
    """How the migrations end that a node which is gone takes part in: their records, and the rows that change."""
    operation = state.running_operation()
    records: list[Record] = []
    rows: dict[int, Partition] = {}
    for migration in state.migrations[operation.id].values() if operation else ():
        if node not in (migration.source, migration.target):
            continue
        partition = state.partitions[migration.partition_id]
        match migration.state:
            case _M.MIGRATION_STATE_PENDING:
                records.append(migration_in_state(migration, _M.MIGRATION_STATE_CANCELLED, now_ms, reason))
            case _M.MIGRATION_STATE_COPYING:
                records.append(migration_in_state(migration, _M.MIGRATION_STATE_CANCELLED, now_ms, reason))
                rows[partition.id] = changed(partition, _give_up(migration, node))
            case _M.MIGRATION_STATE_HANDED_OVER if migration.source == node:
                outcome = f"moved; {reason}, so it deletes its copy when it is back"
                records.append(migration_in_state(migration, _M.MIGRATION_STATE_COMPLETED, now_ms, outcome))
    return records, rows


def _give_up(migration: Migration, gone: str) -> Callable[[Partition], None]:
    without_target = _without_target(migration)

    def change(row: Partition) -> None:
        without_target(row)
        if row.leader == gone:
            take_offline(row)

    return change


def finish(state: State, operation: Operation, now_ms: int) -> Record:
    """The operation has ended: every migration of it has."""
    migrations = state.migrations[operation.id].values()
    cancelled = [m for m in migrations if m.state == _M.MIGRATION_STATE_CANCELLED]
    row = Operation()
    row.CopyFrom(operation)
    row.finished_ms = now_ms
    moved = len(migrations) - len(cancelled)
    row.outcome = f"{moved} of {len(migrations)} partitions moved"
    row.state = OperationState.OPERATION_STATE_SUCCEEDED
    if cancelled:
        row.state = OperationState.OPERATION_STATE_FAILED
        named = [f"{partition_name(state.keyspaces, state.partitions[m.partition_id])}: {m.outcome}" for m in cancelled]
        row.outcome += f"; {len(cancelled)} stayed: {'; '.join(named[:5])}{' …' if len(named) > 5 else ''}"
    return Record(operation_finished=row)
