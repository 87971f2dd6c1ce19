"""Begins operations. Operations that touch different things run side by side; others are refused, or queued."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Migration, Operation, OperationState
from minka.v1.coordinator_pb2 import DiskSpace
from minka.v1.records_pb2 import MigrationsAdded, OperationStarted, Record
from minkad.core.controller.decision import OwnCommand, Steps
from minkad.core.controller.movers import name_of
from minkad.core.controller.operation_kind import Begins, Touch, Touched, Usage
from minkad.core.controller.operation_kinds import kind_of
from minkad.core.controller.operations import give_up
from minkad.core.controller.rows import ROWS_A_STEP
from minkad.core.state import MIGRATIONS_ENDED, Placed, State, partition_name, slices

MAX_QUEUED = 100
_NAMED = 3  # of the things that two operations touch, in a refusal
_S = OperationState


def begin(state: State, command: Begins, now_ms: int) -> Steps[Operation | None]:
    """Record the operation and its migrations, before any work begins; None if there is nothing to do. Raises the
    errors of the command and of the kind, and OPERATION_RUNNING if another operation touches the same things and the
    command doesn't ask for the queue.
    """
    for _ in command.check(state):
        yield []
    operation, migrations = command.operation(state), list[Migration]()
    if operation is None:
        return None
    operation.id, operation.created_ms = state.next_operation_id, now_ms
    for some in slices(command.migrations(), ROWS_A_STEP):
        for migration in some:
            migration.operation_id = operation.id
        migrations += some
        yield []
    try:
        operation, moves, records = yield from _begun(state, operation, migrations, command.usage, now_ms)
    except MinkaError as refusal:
        if not command.queue or refusal.code is not Code.OPERATION_RUNNING:
            raise
        if len(state.queued_operations()) >= MAX_QUEUED:
            text = f"{refusal.message}; and {MAX_QUEUED} operations are queued"
            raise MinkaError(refusal.code, text, operation=refusal.details.get("operation", "")) from None
        operation.state, operation.migration_count = _S.OPERATION_STATE_QUEUED, len(migrations)
        moves, records = migrations, []
    yield []
    yield from _recorded(operation, moves)
    yield list(records)
    return state.operations[operation.id]


@dataclass(frozen=True, slots=True)
class BeginQueued(OwnCommand):
    """An operation for which others wait may have ended."""

    sizes: Mapping[int, int]
    disks: Mapping[str, DiskSpace]


def begin_queued(state: State, command: BeginQueued, now_ms: int) -> Steps[None]:
    """Begin the first queued operation that no longer conflicts with others; fail it if it has become impossible."""
    for queued in state.queued_operations():
        operation = Operation()
        operation.CopyFrom(queued)
        migrations = list(state.migrations[queued.id].values())
        try:
            usage = Usage(command.sizes, command.disks)
            begun, moves, records = yield from _begun(state, operation, migrations, usage, now_ms)
        except MinkaError as refusal:
            if refusal.code is Code.OPERATION_RUNNING:
                continue
            yield from give_up(state, queued, str(refusal), now_ms)
        else:
            yield from _recorded(begun, moves)
            yield list(records)
        return


def _recorded(operation: Operation, migrations: Sequence[Migration]) -> Iterator[list[Record]]:
    first = migrations[:ROWS_A_STEP]
    yield [Record(operation_started=OperationStarted(operation=operation, migrations=first))]
    for some in slices(migrations[ROWS_A_STEP:], ROWS_A_STEP):
        yield [Record(migrations_added=MigrationsAdded(operation_id=operation.id, migrations=some))]


def _begun(
    state: State, operation: Operation, migrations: Sequence[Migration], usage: Usage, now_ms: int
) -> Steps[tuple[Operation, Sequence[Migration], Sequence[Record]]]:
    """The operation as it begins, all of its migrations, and the other records."""
    operation.state = _S.OPERATION_STATE_RUNNING
    found = yield from kind_of(operation).begin(state, operation, usage, now_ms)
    moves = [*migrations, *found.migrations]
    for migration in found.migrations:
        migration.operation_id = operation.id
    operation.migration_count = len(moves)
    yield []
    conflict = next(conflicts(state, operation, moves), None)
    if conflict is not None:
        raise MinkaError(Code.OPERATION_RUNNING, conflict.text, operation=str(conflict.operation.id))
    return operation, moves, found.records


# Conflicts


class Conflict(NamedTuple):
    """`operation` has not ended, and touches the same things as a new operation. So the new one has to wait for it."""

    operation: Operation
    text: str


def conflicts(state: State, operation: Operation, migrations: Iterable[Migration]) -> Iterator[Conflict]:
    """The operations that touch the same things as this one, and that run or were queued before it."""
    moves = dict.fromkeys(Placed.of(m) for m in migrations if m.state not in MIGRATIONS_ENDED)
    touches = frozenset(kind_of(operation).touches(state, operation))
    moved_by: dict[int, list[Placed]] = {}
    for thing in moves:
        if (by := state.moving.get(thing)) is not None:
            moved_by.setdefault(by, []).append(thing)
    for other in state.unended_operations():
        if other.id == operation.id or (other.state == _S.OPERATION_STATE_QUEUED and other.id > operation.id):
            continue
        theirs = frozenset(kind_of(other).touches(state, other))
        found = {touched for touched in touches if touched in theirs or _is_moved_by(state, other, touched)}
        found |= {touched for touched in theirs if touched[0] is Touch.MOVES and touched[1] in moves}
        waiting = _both_wait(state, other, moves) if other.state == _S.OPERATION_STATE_QUEUED else []
        found |= {(Touch.MOVES, thing) for thing in (*moved_by.get(other.id, ()), *waiting)}
        if found:
            both = sorted(found, key=str)
            yield Conflict(other, f"{described(state, other)} has not ended, and both {_named(state, both)}")


def _is_moved_by(state: State, other: Operation, touched: Touched) -> bool:
    touch, thing = touched
    if touch is not Touch.MOVES or not isinstance(thing, Placed):
        return False
    queued = other.state == _S.OPERATION_STATE_QUEUED and (thing, 0) in state.migrations[other.id]
    return queued or state.moving.get(thing) == other.id


def _both_wait(state: State, queued: Operation, moves: Collection[Placed]) -> Iterator[Placed]:
    """The things in `moves` that a queued operation is to move as well; none of its migrations has ended."""
    theirs = state.migrations[queued.id]
    if len(moves) <= len(theirs):
        return (thing for thing in moves if (thing, 0) in theirs)
    return (thing for thing, index in theirs if not index and thing in moves)


def described(state: State, operation: Operation) -> str:
    """A description of an operation for people: operation 7 (split flights, asked for by admin@host)."""
    by = "automatic" if operation.automatic else f"asked for by {operation.requested_by or 'somebody unknown'}"
    return f"operation {operation.id} ({kind_of(operation).told(state, operation)}, {by})"


def _named(state: State, both: Sequence[Touched]) -> str:
    touch = both[0][0]
    things = [thing for one, thing in both if one is touch]
    names = ", ".join(_name(state, touch, thing) for thing in things[:_NAMED])
    more = f" and {len(things) - _NAMED} more" if len(things) > _NAMED else ""
    return f"{touch.value} {names}{more}"


def _name(state: State, touch: Touch, thing: Placed | int | str) -> str:
    if isinstance(thing, str):
        return thing
    if isinstance(thing, Placed):
        return name_of(state, thing)
    if touch is Touch.CUTS:
        return state.keyspaces[thing].name
    return partition_name(state.keyspaces, state.partitions[thing])
