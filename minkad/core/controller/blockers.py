"""The blockers of an operation's steps, with their remedies."""

from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import Blocker, GetSplitBlockersResponse
from minka.v1.cluster_pb2 import Migration, MigrationState, Operation, OperationState
from minkad.core.controller import splits
from minkad.core.controller.begin import conflicts
from minkad.core.controller.movers import mover_of, name_of
from minkad.core.controller.operation_kinds import kind_of
from minkad.core.controller.schedule import unfinished
from minkad.core.state import Placed, State, partition_name

MAX_BLOCKERS: Final = 100  # in an answer, for one operation or node
PENDING_LOOKED_AT: Final = 500  # migrations of one operation; they take some milliseconds


def blockers_of(
    state: State, operation: Operation, at_most: int = MAX_BLOCKERS, now_ms: int | None = None
) -> list[Blocker]:
    """At most `at_most` blockers of an operation that has not ended: one for each thing that waits, or one for the
    whole operation. Of the migrations that have not begun, only the next PENDING_LOOKED_AT are looked at. With
    `now_ms`, a Unix time, the blockers say how long the things have waited.
    """
    if operation.state == OperationState.OPERATION_STATE_QUEUED:
        return [_what_comes_first(state, operation)]
    if operation.paused:
        remedy = f"minkactl operations resume {operation.id}"
        return [Blocker(operation_id=operation.id, reason="it is paused", remedy=remedy)]
    begun = (one for one in state.under_way.values() if one.operation_id == operation.id)
    pending = (one for one in unfinished(state, operation) if one.state == MigrationState.MIGRATION_STATE_PENDING)
    found = (what_blocks(state, migration, now_ms) for migration in chain(begun, islice(pending, PENDING_LOOKED_AT)))
    blockers = list(islice((blocker for blocker in found if blocker is not None), at_most))
    blockers += islice(kind_of(operation).blockers(state, operation), at_most - len(blockers))
    for blocker in blockers:
        blocker.operation_id = operation.id
    return blockers


def _what_comes_first(state: State, operation: Operation) -> Blocker:
    conflict = next(conflicts(state, operation, state.migrations[operation.id].values()), None)
    if conflict is None:
        return Blocker(operation_id=operation.id, reason="it begins in a moment")
    remedy = f"minkactl operations cancel {conflict.operation.id}"
    return Blocker(operation_id=operation.id, reason=conflict.text, remedy=remedy)


def split_blockers(state: State, partition_id: int) -> GetSplitBlockersResponse:
    """The reasons why this partition can't be split now. Raises UNKNOWN_PARTITION."""
    row = state.partitions.get(partition_id)
    if row is None:
        raise MinkaError(Code.UNKNOWN_PARTITION, f"partition {partition_id} does not exist")
    name = partition_name(state.keyspaces, row)

    def told(found: Iterable[splits.Obstacle]) -> list[Blocker]:
        return [Blocker(partition_id=row.id, partition=name, reason=one.reason, remedy=one.remedy) for one in found]

    return GetSplitBlockersResponse(blockers=told(splits.obstacles(state, row)), caps=told(splits.caps(state, row)))


def what_blocks(state: State, migration: Migration, now_ms: int | None = None) -> Blocker | None:
    """The reason why the migration waits, with the duration if `now_ms` is given; None if the migration waits only for
    its turn, or until all bytes are copied.
    """
    mover = mover_of(migration)
    if migration.state == MigrationState.MIGRATION_STATE_PENDING:
        reason, remedy = mover.obstacle(state, migration), f"minkactl operations cancel {migration.operation_id}"
    else:
        reason, remedy = mover.waits_for(state, migration, now_ms)
    if not reason:
        return None
    thing = Placed.of(migration)
    name = name_of(state, thing)
    blocker = Blocker(operation_id=migration.operation_id, partition=name, reason=reason, remedy=remedy)
    setattr(blocker, thing.kind, thing.id)
    return blocker
