"""How an operation begins. Operations that touch different things run side by side."""

from collections.abc import Iterable, Sequence

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Migration, Operation, OperationState
from minka.v1.records_pb2 import OperationStarted, Record
from minkad.core.controller.operation_kind import Touch, Touched, Usage
from minkad.core.controller.operation_kinds import kind_of
from minkad.core.state import MIGRATIONS_ENDED, State, operation_name, partition_name

_NAMED = 3  # of the things that two operations touch
NOTHING_KNOWN = Usage({}, {})


def begin(
    state: State,
    operation: Operation | None,
    now_ms: int,
    *,
    migrations: Sequence[Migration] = (),
    usage: Usage = NOTHING_KNOWN,
) -> list[Record]:
    """It is recorded, and what it moves, before anything is done; None: nothing is to be done. `migrations`: those that
    come with it; its kind may have more. Raises OPERATION_RUNNING where another one touches the same things, and what
    the kind does.
    """
    if operation is None:
        return []
    operation.id, operation.created_ms = state.next_operation_id, now_ms
    operation.state = OperationState.OPERATION_STATE_RUNNING
    found = kind_of(operation).begin(state, operation, usage, now_ms)
    moves = [*migrations, *found.migrations]
    for migration in moves:
        migration.operation_id = operation.id
    operation.migration_count = len(moves)
    _refuse_conflict(state, operation, moves)
    return [Record(operation_started=OperationStarted(operation=operation, migrations=moves)), *found.records]


def _refuse_conflict(state: State, operation: Operation, migrations: Iterable[Migration]) -> None:
    wanted = _touched(state, operation, migrations)
    for other in state.running_operations():
        both = sorted(wanted & _touched(state, other, state.migrations[other.id].values()), key=str)
        if both:
            text = f"{described(state, other)} has not ended, and both {_named(state, both)}"
            raise MinkaError(Code.OPERATION_RUNNING, text, operation=str(other.id))


def described(state: State, operation: Operation) -> str:
    """An operation, so that a person knows which: operation 7 (split flights, asked for by admin@host)."""
    by = "begun by itself" if operation.automatic else f"asked for by {operation.requested_by or 'somebody unknown'}"
    return f"operation {operation.id} ({operation_name(state.keyspaces, operation)}, {by})"


def _touched(state: State, operation: Operation, migrations: Iterable[Migration]) -> frozenset[Touched]:
    moved = ((Touch.MOVES, m.partition_id) for m in migrations if m.state not in MIGRATIONS_ENDED)
    return frozenset([*moved, *kind_of(operation).touches(state, operation)])


def _named(state: State, both: Sequence[Touched]) -> str:
    touch = both[0][0]
    things = [thing for one, thing in both if one is touch]
    names = ", ".join(_name(state, touch, thing) for thing in things[:_NAMED])
    more = f" and {len(things) - _NAMED} more" if len(things) > _NAMED else ""
    return f"{touch.value} {names}{more}"


def _name(state: State, touch: Touch, thing: int | str) -> str:
    if isinstance(thing, str):
        return thing
    if touch is Touch.CUTS:
        return state.keyspaces[thing].name
    return partition_name(state.keyspaces, state.partitions[thing])
