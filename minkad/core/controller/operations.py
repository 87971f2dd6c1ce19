"""Running operations are paused, limited and cancelled, and end."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import (
    CancelOperationRequest,
    LimitOperationRequest,
    OperationResponse,
    PauseOperationRequest,
    ResumeOperationRequest,
    UndrainNodeRequest,
    UndrainNodeResponse,
)
from minka.v1.cluster_pb2 import Migration, MigrationState, Operation, OperationState
from minka.v1.records_pb2 import Record
from minkad.core.controller.decision import OwnCommand, Steps
from minkad.core.controller.drains import undrained
from minkad.core.controller.movers import mover_of, name_of
from minkad.core.controller.operation_kind import End, Touch
from minkad.core.controller.operation_kinds import kind_of
from minkad.core.controller.rows import ROWS_A_STEP, migration_in_state, operation_with
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


def _answer(state: State, operation_id: int) -> OperationResponse:
    return OperationResponse(operation=state.operations[operation_id])


def pause(state: State, request: PauseOperationRequest, now_ms: int) -> Steps[OperationResponse]:
    """Begin no further migrations of the operation; migrations under way go on."""
    yield _with_paused(unended(state, request.id), True)
    return _answer(state, request.id)


def resume(state: State, request: ResumeOperationRequest, now_ms: int) -> Steps[OperationResponse]:
    """Begin migrations of a paused operation again."""
    yield _with_paused(unended(state, request.id), False)
    return _answer(state, request.id)


def _with_paused(operation: Operation, paused: bool) -> list[Record]:
    def change(row: Operation) -> None:
        row.paused = paused

    is_new = operation.paused != paused
    return [Record(operation_changed=operation_with(operation, change))] if is_new else []


def limit(state: State, request: LimitOperationRequest, now_ms: int) -> Steps[OperationResponse]:
    """Limit the bytes a second that each node may send for the operation; 0: no limit."""
    operation = unended(state, request.id)

    def change(row: Operation) -> None:
        row.rate_limit = request.rate_limit

    yield [Record(operation_changed=operation_with(operation, change))]
    return _answer(state, request.id)


def cancel(state: State, request: CancelOperationRequest, now_ms: int) -> Steps[OperationResponse]:
    """Cancel an operation: migrations that have not begun never begin, those that are copying go back to OAR, and those
    that are removing old replicas are completed.

    Raises UNKNOWN_OPERATION, OPERATION_ENDED, and CANCEL_REFUSED if too few replicas of OAR are alive; then everything
    goes on.
    """
    operation = unended(state, request.id)
    reason = f"cancelled by {request.requested_by or 'somebody'}{': ' if request.reason else ''}{request.reason}"
    if operation.state == OperationState.OPERATION_STATE_QUEUED:
        yield from give_up(state, operation, reason, now_ms, OperationState.OPERATION_STATE_CANCELLED)
    elif not operation.cancelled:
        yield from _cancelled(state, operation, reason, now_ms)
    return _answer(state, request.id)


def _cancelled(state: State, operation: Operation, reason: str, now_ms: int) -> Iterator[list[Record]]:
    live, going_back = Live.of(state), list[Record]()
    begun = [m for m in state.unended.get(operation.id, {}).values() if m.state in _CAN_GO_BACK]
    for migration in begun:
        refuse_unless_can_go_back(state, migration, live)
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


@dataclass(frozen=True, slots=True)
class CancelMigration(OwnCommand):
    """The migration of a thing can't go on; the thing stays where it was, unless the migration is nearly done."""

    operation_id: int
    thing: Placed
    reason: str


def cancel_migration(state: State, command: CancelMigration, now_ms: int) -> Steps[None]:
    """Give up one migration: the thing stays where it was, and its copy in the new place is removed. Nothing happens if
    this isn't safe, or if the thing is being removed from its old place already.
    """
    yield _given_up(state, command, now_ms)


def _given_up(state: State, command: CancelMigration, now_ms: int) -> list[Record]:
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


def undrain_node(state: State, request: UndrainNodeRequest, now_ms: int) -> Steps[UndrainNodeResponse]:
    """Let the node stay; a drain that has not ended is cancelled. Raises UNKNOWN_NODE, and what `cancel` raises."""
    if request.node not in state.nodes:
        raise MinkaError(Code.UNKNOWN_NODE, f"there is no node {request.node}", node=request.node)
    node = (Touch.DRAINS, request.node)
    operation = next((o for o in state.unended_operations() if node in kind_of(o).touches(state, o)), None)
    if operation is not None:
        why = CancelOperationRequest(id=operation.id, requested_by=request.requested_by, reason="the node stays")
        yield from cancel(state, why, now_ms)
    else:
        yield undrained(state, request.node, now_ms)
    return UndrainNodeResponse()


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
