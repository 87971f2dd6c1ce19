"""Running operations are paused, limited and cancelled, and end."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Migration, MigrationState, Operation, OperationState
from minka.v1.records_pb2 import Record
from minkad.core.controller.at_once import ROWS_A_STEP, AtOnce
from minkad.core.controller.commands import (
    CancelMigration,
    CancelOperation,
    LimitOperation,
    PauseOperation,
    UndrainNode,
)
from minkad.core.controller.drains import undrained
from minkad.core.controller.movers import mover_of, name_of
from minkad.core.controller.operation_kind import End, Touch
from minkad.core.controller.operation_kinds import kind_of
from minkad.core.controller.rows import migration_in_state, operation_with
from minkad.core.controller.selectors import Live
from minkad.core.state import MIGRATIONS_ENDED, OPERATIONS_UNENDED, Placed, State, slices

_M = MigrationState
_CAN_GO_BACK = (_M.MIGRATION_STATE_COPYING, _M.MIGRATION_STATE_PREPARING)


# While they run


def unended(state: State, operation_id: int) -> Operation:
    """The operation. Raises UNKNOWN_OPERATION, OPERATION_ENDED."""
    operation = state.operations.get(operation_id)
    if operation is None:
        raise MinkaError(Code.UNKNOWN_OPERATION, f"there is no operation {operation_id}")
    if operation.state not in OPERATIONS_UNENDED:
        raise MinkaError(Code.OPERATION_ENDED, f"operation {operation_id} has ended: {operation.outcome}")
    return operation


def pause(state: State, command: PauseOperation) -> list[Record]:
    """Begin no further migrations of the operation, or begin them again; migrations under way go on."""
    operation = unended(state, command.operation_id)
    if operation.paused == command.paused:
        return []

    def change(row: Operation) -> None:
        row.paused = command.paused

    return [Record(operation_changed=operation_with(operation, change))]


def limit(state: State, command: LimitOperation) -> list[Record]:
    """Limit the bytes a second that each node may send for the operation; 0: no limit."""
    operation = unended(state, command.operation_id)

    def change(row: Operation) -> None:
        row.rate_limit = command.rate_limit

    return [Record(operation_changed=operation_with(operation, change))]


def cancel(state: State, command: CancelOperation, now_ms: int) -> AtOnce:
    """Cancel an operation: migrations that have not begun never begin, those that are copying go back to OAR, and those
    that are removing old replicas are completed.

    Raises UNKNOWN_OPERATION, OPERATION_ENDED, and CANCEL_REFUSED if too few replicas of OAR are alive; then everything
    goes on.
    """
    operation = unended(state, command.operation_id)
    if operation.cancelled:
        return AtOnce(iter(()))
    reason = f"cancelled by {command.requested_by or 'somebody'}{': ' if command.reason else ''}{command.reason}"
    if operation.state == OperationState.OPERATION_STATE_QUEUED:
        return AtOnce(give_up(state, operation, reason, now_ms, OperationState.OPERATION_STATE_CANCELLED))
    live = Live.of(state)
    begun = [m for m in state.unended.get(operation.id, {}).values() if m.state in _CAN_GO_BACK]
    for migration in begun:
        refuse_unless_can_go_back(state, migration, live)
    return AtOnce(_cancelled(state, operation, begun, reason, now_ms))


def _cancelled(
    state: State, operation: Operation, begun: Sequence[Migration], reason: str, now_ms: int
) -> Iterator[list[Record]]:
    live, going_back = Live.of(state), list[Record]()
    for migration in begun:
        going_back += mover_of(migration).go_back(state, migration, live, now_ms, reason)
    going_back += kind_of(operation).cancelled(state, operation, [Placed.of(m) for m in begun], now_ms)
    yield going_back
    yield from _dropped(state.unended.get(operation.id, {}).values(), reason, now_ms)

    def change(row: Operation) -> None:
        row.cancelled, row.outcome = True, reason

    yield [Record(operation_changed=operation_with(operation, change))]


def _dropped(migrations: Iterable[Migration], reason: str, now_ms: int) -> Iterator[list[Record]]:
    """The records that cancel the migrations that have not begun."""
    waiting = [one for one in migrations if one.state == _M.MIGRATION_STATE_PENDING]
    for some in slices(waiting, ROWS_A_STEP):
        yield [migration_in_state(one, _M.MIGRATION_STATE_CANCELLED, now_ms, reason) for one in some]


def cancel_migration(state: State, command: CancelMigration, now_ms: int) -> list[Record]:
    """Give up one migration: the thing stays where it was, and its copy in the new place is removed. Nothing happens if
    this isn't safe, or if the thing is being removed from its old place already.
    """
    live = Live.of(state)
    for (thing, _), migration in state.migrations.get(command.operation_id, {}).items():
        if thing != command.thing:
            continue
        if migration.state == _M.MIGRATION_STATE_PENDING:
            return [migration_in_state(migration, _M.MIGRATION_STATE_CANCELLED, now_ms, command.reason)]
        if migration.state in _CAN_GO_BACK:
            mover = mover_of(migration)
            if mover.refusal_to_go_back(state, migration, live) is not None:
                return []
            return mover.go_back(state, migration, live, now_ms, command.reason)
        if migration.state not in MIGRATIONS_ENDED:
            return []
    return []


def refuse_unless_can_go_back(state: State, migration: Migration, live: Live) -> None:
    """Raises CANCEL_REFUSED if the migration can't be undone; it names the thing, and the reason."""
    mover = mover_of(migration)
    refusal = mover.refusal_to_go_back(state, migration, live)
    if refusal is not None:
        raise MinkaError(Code.CANCEL_REFUSED, f"{name_of(state, Placed.of(migration))} can't go back: {refusal}")


def undrain_node(state: State, command: UndrainNode, now_ms: int) -> Iterable[Record]:
    """Let the node stay; a drain that has not ended is cancelled. Raises UNKNOWN_NODE, and what `cancel` raises."""
    if command.node_id not in state.nodes:
        raise MinkaError(Code.UNKNOWN_NODE, f"there is no node {command.node_id}", node=command.node_id)
    node = (Touch.DRAINS, command.node_id)
    operation = next((o for o in state.unended_operations() if node in kind_of(o).touches(state, o)), None)
    if operation is not None:
        return cancel(state, CancelOperation(operation.id, command.requested_by, "the node stays"), now_ms)
    return undrained(state, command.node_id, now_ms)


# End


def give_up(
    state: State,
    operation: Operation,
    reason: str,
    now_ms: int,
    ends: OperationState.ValueType = OperationState.OPERATION_STATE_FAILED,
) -> Iterator[list[Record]]:
    """End a queued operation before it has begun. Yields the records piece by piece, for one Raft entry."""
    yield from _dropped(state.migrations[operation.id].values(), reason, now_ms)

    def change(row: Operation) -> None:
        row.state, row.outcome, row.finished_ms = ends, reason, now_ms
        row.cancelled = ends == OperationState.OPERATION_STATE_CANCELLED

    yield [Record(operation_finished=operation_with(operation, change))]


def finish(state: State, operation: Operation, end: End, now_ms: int) -> Record:
    """The record that ends an operation, all of whose migrations have ended."""
    migrations = state.migrations[operation.id].values()
    cancelled = [m for m in migrations if m.state == _M.MIGRATION_STATE_CANCELLED]
    said = [end.outcome] if end.outcome else []
    if migrations:
        what = _what_moves(state, migrations)
        said.append(f"{len(migrations) - len(cancelled)} of {len(migrations)} {what} moved")
    if operation.cancelled:
        said.append(operation.outcome)
    elif cancelled:
        named = [f"{name_of(state, Placed.of(m))}: {m.outcome}" for m in cancelled]
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


def _what_moves(state: State, migrations: Collection[Migration]) -> str:
    if any(m.HasField("duty") for m in migrations):
        return "duties"
    return "replicas" if any(_moves_one_of_several(state, m) for m in migrations) else "partitions"


def _moves_one_of_several(state: State, migration: Migration) -> bool:
    partition = state.partitions.get(migration.partition_id)  # None: it was merged into another one
    is_one_of_several = partition is not None and state.keyspaces[partition.keyspace_id].replicas > 1
    return bool(migration.source) and is_one_of_several
