"""Operations as people see them, however many migrations they have."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import Blocker, GetOperationsRequest, GetOperationsResponse, OperationSummary
from minka.v1.cluster_pb2 import Migration, MigrationState, Operation
from minka.v1.coordinator_pb2 import MigrationProgress
from minkad.coordinator.coordinator import Coordinator
from minkad.coordinator.node_reports import NodeReports
from minkad.core.controller.blockers import MAX_BLOCKERS, blockers_of
from minkad.core.state import OPERATIONS_UNENDED, ROWS_A_PIECE, Placed, State, duty_name, partition_name, slices
from minkad.process.clock import unix_ms
from minkad.process.turns import turn

DEFAULT_OPERATIONS = 20
_MOVED = (MigrationState.MIGRATION_STATE_HANDED_OVER, MigrationState.MIGRATION_STATE_COMPLETED)


async def get_operations(coordinator: Coordinator, request: GetOperationsRequest) -> GetOperationsResponse:
    """The operations in this node's copy of the table; only the active controller knows their progress. Other tasks run
    after each piece. If an operation is unknown, raises UNKNOWN_OPERATION at the active controller, and NOT_CONTROLLER
    or NO_CONTROLLER at another node, whose copy may lag.
    """
    state, active = coordinator.state, coordinator.active
    newest = sorted(state.operations, reverse=True)[: request.limit or DEFAULT_OPERATIONS]
    ids = list(request.ids) or newest
    for operation_id in ids:
        if operation_id not in state.operations:
            await coordinator.up_to_date()
            raise MinkaError(Code.UNKNOWN_OPERATION, f"there is no operation {operation_id}")
    operations = [state.operations[i] for i in ids]
    runs = [o for o in operations if o.state in OPERATIONS_UNENDED] if active else []
    response = GetOperationsResponse(
        operations=operations,
        progress=active.reports.progress() if active and runs else [],
        now_ms=unix_ms(),
    )
    for operation in runs:
        blockers = blockers_of(state, operation, now_ms=response.now_ms)
        response.blockers.extend(blockers)
        if not operation.paused:
            response.blockers.extend(_reported(state, operation, blockers, response.progress))
    if request.with_migrations:
        reports = active.reports if active else None
        rows = {id_: list(state.migrations[id_].values()) for id_ in ids}  # all of them, as they are now
        shown = {id_: list(_shown(state, id_, rows[id_], request.migrations_limit)) for id_ in ids}
        for operation_id in ids:
            response.summaries.append(await _summary(operation_id, rows[operation_id], reports, response))
            for some in slices(shown[operation_id], ROWS_A_PIECE):
                response.migrations.extend(some)
                await turn()
        moved = (state.duties.duties.get(m.duty) for m in response.migrations if m.HasField("duty"))
        response.duty_names.update({duty.number: duty_name(duty) for duty in moved if duty is not None})
    return response


def _reported(
    state: State, operation: Operation, known: Sequence[Blocker], progress: Iterable[MigrationProgress]
) -> list[Blocker]:
    """The reports that ask a person to act, from the sources of the operation's migrations."""
    told, found = {one.partition_id for one in known}, list[Blocker]()
    for one in progress:
        migration = state.under_way.get(Placed.partition(one.partition_id))
        if not one.remedy or one.partition_id in told or migration is None or migration.operation_id != operation.id:
            continue
        name = partition_name(state.keyspaces, state.partitions[one.partition_id])
        found.append(
            Blocker(
                operation_id=operation.id,
                partition_id=one.partition_id,
                partition=name,
                reason=one.blocked_by,
                remedy=one.remedy,
            )
        )
    return found[:MAX_BLOCKERS]


def _shown(state: State, operation_id: int, rows: list[Migration], limit: int) -> Iterator[Migration]:
    if not limit or len(rows) <= limit:
        return iter(rows)
    under_way = [one for one in state.under_way.values() if one.operation_id == operation_id]
    begun = {(one.partition_id, one.duty, one.index) for one in under_way}
    waiting = state.unended.get(operation_id, {}).values()
    others = (one for one in chain(waiting, _ended(rows)) if (one.partition_id, one.duty, one.index) not in begun)
    return islice(chain(under_way, others), limit)


def _ended(rows: list[Migration]) -> Iterator[Migration]:
    return (one for one in rows if one.finished_ms)


async def _summary(
    operation_id: int, rows: list[Migration], reports: NodeReports | None, response: GetOperationsResponse
) -> OperationSummary:
    """The summary of an operation's migrations. `reports` are those at the active controller; None at other nodes."""
    copied = Counter[int]()
    for one in response.progress:
        copied[one.partition_id] += one.bytes_done
    counts, done, total = Counter[int](), 0, 0
    for some in slices(rows, ROWS_A_PIECE):
        for row in some:
            counts[row.state] += 1
            if reports is not None and row.state != MigrationState.MIGRATION_STATE_CANCELLED:
                size = reports.size(row.partition_id)
                total += size
                done += size if row.state in _MOVED else 0
                done += copied[row.partition_id] if row.state == MigrationState.MIGRATION_STATE_COPYING else 0
        await turn()
    return OperationSummary(operation_id=operation_id, by_state=counts, bytes_done=done, bytes_total=total)
