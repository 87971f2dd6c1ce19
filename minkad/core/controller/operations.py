"""Operations: how they begin, are paused, limited and cancelled, and end."""

from collections import Counter

from minka.errors import Code, MinkaError
from minka.plans import plan_digest
from minka.v1.admin_pb2 import Move, Plan, PlanReassignRequest
from minka.v1.cluster_pb2 import (
    Migration,
    MigrationState,
    NodeState,
    Operation,
    OperationState,
    ReassignOperation,
)
from minka.v1.records_pb2 import OperationStarted, Record
from minkad.core.controller.commands import (
    ApplyPlan,
    CancelMigration,
    CancelOperation,
    DrainNode,
    LimitOperation,
    PauseOperation,
    UndrainNode,
)
from minkad.core.controller.drains import draining, new_drain, running_drain, undrained
from minkad.core.controller.operation_kind import End
from minkad.core.controller.operation_kinds import kind_of
from minkad.core.controller.reassignment import go_back, refusal_to_go_back
from minkad.core.controller.rows import (
    migration_in_state,
    operation_with,
    partitions_changed,
    replace,
)
from minkad.core.controller.selectors import Live
from minkad.core.placement.plan import refuse_if_running
from minkad.core.placement.reassign import plan_reassign
from minkad.core.state import State, partition_name

_M = MigrationState
ENDED = frozenset({_M.MIGRATION_STATE_COMPLETED, _M.MIGRATION_STATE_CANCELLED})


# Begin


def apply_plan(state: State, command: ApplyPlan, now_ms: int) -> list[Record]:
    """Exactly the plan's moves are recorded as migrations of one operation, before a byte moves."""
    plan = command.plan
    refuse_if_running(state)
    _check_plan(state, plan)
    operation = Operation(
        id=state.next_operation_id,
        state=OperationState.OPERATION_STATE_RUNNING,
        requested_by=command.requested_by,
        reason=command.reason or plan.reason,
        reassign=ReassignOperation(plan_digest=plan.digest),
        created_ms=now_ms,
        migration_count=len(plan.moves),
        rate_limit=plan.rate_limit if command.rate_limit is None else command.rate_limit,
    )
    return [Record(operation_started=OperationStarted(operation=operation, migrations=migrations_of(operation, plan)))]


def migrations_of(operation: Operation, plan: Plan) -> list[Migration]:
    """One for each move, in order."""
    places = Counter[int]()
    migrations = []
    for move in plan.moves:
        is_simple = replace(move.replicas, move.source, move.target) == list(move.target_replicas)
        migrations.append(
            Migration(
                operation_id=operation.id,
                partition_id=move.partition_id,
                source=move.source,
                target=move.target,
                state=_M.MIGRATION_STATE_PENDING,
                reason=move.reason,
                index=places[move.partition_id],
                target_replicas=() if is_simple else move.target_replicas,
            )
        )
        places[move.partition_id] += 1
    return migrations


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
    replicas: dict[int, list[str]] = {}  # of the partitions as the moves so far leave them
    for move in plan.moves:
        problem = _problem_of(state, move, replicas)
        if problem is not None:
            going = f"from {move.source} to {move.target}" if move.source else f"to {', '.join(move.target_replicas)}"
            raise MinkaError(Code.STALE_PLAN, f"{move.partition} can't go {going}: {problem}")
        replicas[move.partition_id] = list(move.target_replicas)


def _problem_of(state: State, move: Move, replicas: dict[int, list[str]]) -> str | None:
    partition = state.partitions.get(move.partition_id)
    if partition is None:
        return "it does not exist"
    if partition.partition_epoch != move.partition_epoch:
        return f"its epoch was {move.partition_epoch}, now it is {partition.partition_epoch}"
    now = replicas.get(partition.id, list(partition.replicas))
    if list(move.replicas) != now:
        return f"its replicas are {', '.join(now)}"
    target = list(move.target_replicas)
    min_insync = state.keyspaces[partition.keyspace_id].min_insync
    if len(set(target)) != len(target) or len(target) < max(1, min_insync):
        return f"it would have the replicas {', '.join(target)}, and {max(1, min_insync)} must be in sync"
    for node_id in target:
        node = state.nodes.get(node_id)
        if node_id in partition.removing_replicas:
            return f"{node_id} is still deleting an older copy"
        if node_id not in now and (node is None or node.state != NodeState.NODE_STATE_LIVE):
            return f"{node_id} is not LIVE"
    return None


def drain_node(state: State, command: DrainNode, now_ms: int) -> list[Record]:
    """The node leads nothing any more as soon as others lead; with `decommission` its replicas are moved away, too.

    Raises UNKNOWN_NODE, OPERATION_RUNNING, INVALID_ARGUMENT, and what `plan_reassign` raises.
    """
    operation = new_drain(state, command, now_ms)
    migrations: list[Migration] = []
    if command.decommission:
        request = PlanReassignRequest(drain=[command.node_id])
        plan = plan_reassign(state, command.sizes, request, now_ms, command.disks)
        migrations = migrations_of(operation, plan)
        operation.drain.plan_digest, operation.migration_count = plan.digest, len(migrations)
    return [
        Record(operation_started=OperationStarted(operation=operation, migrations=migrations)),
        *draining(state, command.node_id, now_ms),
    ]


def undrain_node(state: State, command: UndrainNode, now_ms: int) -> list[Record]:
    """The node stays; a drain that runs is cancelled. Raises UNKNOWN_NODE, and what `cancel` raises."""
    if command.node_id not in state.nodes:
        raise MinkaError(Code.UNKNOWN_NODE, f"there is no node {command.node_id}", node=command.node_id)
    operation = running_drain(state, command.node_id)
    if operation is not None:
        return cancel(state, CancelOperation(operation.id, "", "the node stays"), now_ms)
    return undrained(state, command.node_id, now_ms)


# While it runs


def running(state: State, operation_id: int) -> Operation:
    """The operation. Raises UNKNOWN_OPERATION, OPERATION_ENDED."""
    operation = state.operations.get(operation_id)
    if operation is None:
        raise MinkaError(Code.UNKNOWN_OPERATION, f"there is no operation {operation_id}")
    if operation.state != OperationState.OPERATION_STATE_RUNNING:
        raise MinkaError(Code.OPERATION_ENDED, f"operation {operation_id} has ended: {operation.outcome}")
    return operation


def pause(state: State, command: PauseOperation) -> list[Record]:
    """No further migration begins, or they begin again; those under way go on."""
    operation = running(state, command.operation_id)
    if operation.paused == command.paused:
        return []

    def change(row: Operation) -> None:
        row.paused = command.paused

    return [Record(operation_changed=operation_with(operation, change))]


def limit(state: State, command: LimitOperation) -> list[Record]:
    """Bytes a second that each node may ship; nodes hear of it with their next heartbeat."""
    operation = running(state, command.operation_id)

    def change(row: Operation) -> None:
        row.rate_limit = command.rate_limit

    return [Record(operation_changed=operation_with(operation, change))]


def cancel(state: State, command: CancelOperation, now_ms: int) -> list[Record]:
    """What has not begun does not begin, what is being copied goes back to OAR, what is being removed is completed.

    Raises UNKNOWN_OPERATION, OPERATION_ENDED, and CANCEL_REFUSED where too little of OAR is alive; then all goes on.
    """
    operation = running(state, command.operation_id)
    if operation.cancelled:
        return []
    live = Live.of(state)
    reason = f"cancelled by {command.requested_by or 'somebody'}{': ' if command.reason else ''}{command.reason}"
    migrations: list[Record] = []
    rows = []
    for migration in state.migrations[operation.id].values():
        if migration.state == _M.MIGRATION_STATE_COPYING:
            refuse_unless_can_go_back(state, migration, live)
            row, record = go_back(state.partitions[migration.partition_id], migration, live, now_ms, reason)
            rows.append(row)
            migrations.append(record)
        elif migration.state == _M.MIGRATION_STATE_PENDING:
            migrations.append(migration_in_state(migration, _M.MIGRATION_STATE_CANCELLED, now_ms, reason))

    def change(row: Operation) -> None:
        row.cancelled, row.outcome = True, reason

    return [
        *partitions_changed(rows),
        *kind_of(operation).cancelled(state, operation, [row.id for row in rows], now_ms),
        *migrations,
        Record(operation_changed=operation_with(operation, change)),
    ]


def cancel_migration(state: State, command: CancelMigration, now_ms: int) -> list[Record]:
    """The partition stays with its old replicas; what the new ones have goes. Nothing happens where that isn't safe,
    or the old ones are being removed already.
    """
    live = Live.of(state)
    for (partition_id, _), migration in state.migrations.get(command.operation_id, {}).items():
        if partition_id != command.partition_id:
            continue
        if migration.state == _M.MIGRATION_STATE_PENDING:
            return [migration_in_state(migration, _M.MIGRATION_STATE_CANCELLED, now_ms, command.reason)]
        if migration.state == _M.MIGRATION_STATE_COPYING:
            if refusal_to_go_back(state, migration, live) is not None:
                return []
            row, record = go_back(state.partitions[partition_id], migration, live, now_ms, command.reason)
            return [*partitions_changed([row]), record]
        if migration.state not in ENDED:
            return []
    return []


def refuse_unless_can_go_back(state: State, migration: Migration, live: Live) -> None:
    """CANCEL_REFUSED names the partition and why."""
    refusal = refusal_to_go_back(state, migration, live)
    if refusal is not None:
        name = partition_name(state.keyspaces, state.partitions[migration.partition_id])
        raise MinkaError(Code.CANCEL_REFUSED, f"{name} can't go back: {refusal}")


# End


def finish(state: State, operation: Operation, end: End, now_ms: int) -> Record:
    """The operation has ended, and every migration of it has."""
    migrations = state.migrations[operation.id].values()
    cancelled = [m for m in migrations if m.state == _M.MIGRATION_STATE_CANCELLED]
    said = [end.outcome] if end.outcome else []
    if migrations:
        what = "replicas" if any(_moves_one_of_several(state, m) for m in migrations) else "partitions"
        said.append(f"{len(migrations) - len(cancelled)} of {len(migrations)} {what} moved")
    if operation.cancelled:
        said.append(operation.outcome)
    elif cancelled:
        named = [f"{_name(state, m.partition_id)}: {m.outcome}" for m in cancelled]
        said.append(f"{len(cancelled)} stayed: {'; '.join(named[:5])}{' …' if len(named) > 5 else ''}")

    def change(row: Operation) -> None:
        row.finished_ms = now_ms
        row.outcome = "; ".join(said)
        row.state = OperationState.OPERATION_STATE_SUCCEEDED
        if operation.cancelled:
            row.state = OperationState.OPERATION_STATE_CANCELLED
        elif cancelled or end.failed:
            row.state = OperationState.OPERATION_STATE_FAILED

    return Record(operation_finished=operation_with(operation, change))


def _moves_one_of_several(state: State, migration: Migration) -> bool:
    partition = state.partitions.get(migration.partition_id)  # None: it was merged into another one
    is_one_of_several = partition is not None and state.keyspaces[partition.keyspace_id].replicas > 1
    return bool(migration.source) and is_one_of_several


def _name(state: State, partition_id: int) -> str:
    partition = state.partitions.get(partition_id)
    return f"partition {partition_id}" if partition is None else partition_name(state.keyspaces, partition)
