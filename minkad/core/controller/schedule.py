"""The next steps of all things under way, which the controller takes automatically.

It reads the rows alone, so a new active controller goes on where the last one stopped (Kafka Controller Internals:
onControllerFailover, 3. and 4.).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice
from typing import Final

from minka.v1.cluster_pb2 import Migration, MigrationState, Operation
from minka.v1.records_pb2 import Record
from minkad.core.controller import operations
from minkad.core.controller.leaderships import Leaderships
from minkad.core.controller.mover import MigrationCaps
from minkad.core.controller.movers import MOVERS, mover_of
from minkad.core.controller.operation_kinds import kind_of
from minkad.core.controller.rows import migration_in_state
from minkad.core.controller.selectors import Live
from minkad.core.state import Placed, State

WAITING_A_LOOK: Final = 1000  # migrations of an operation that have not begun; some take ten microseconds
TIMER_MS: Final = 200  # between looks while nothing changes
_PENDING: Final = MigrationState.MIGRATION_STATE_PENDING


class Scheduler:
    """The scheduler of one active controller. It reads the next steps from the rows alone. It only remembers at which
    revisions there was nothing to do, so that it need not look again.
    """

    def __init__(self) -> None:
        self._quiet: tuple[object, int] = (None, 0)  # the revision at which there was nothing to do, and the time
        self._begun: object = None  # the revision at which no more migrations may begin
        self._live: tuple[object, Live] = (None, Live(frozenset()))  # with the revision of the nodes
        self._waiting = _Waiting()
        self._leaderships = Leaderships()

    def next_steps(
        self, state: State, caps: MigrationCaps, now_ms: int, low_disks: Collection[str] = ()
    ) -> list[Record]:
        """The next records; none if there is nothing to do. They change each row at most once. `low_disks`: the nodes
        that lack the space for writes, so others should lead.
        """
        beside = caps, tuple(low_disks)
        seen, (quiet, at) = (state.revision, *beside), self._quiet
        if seen == quiet and now_ms - at < TIMER_MS:
            return []
        live = self._live_nodes(state, beside[1])
        if records := _go_on(state, live, now_ms):
            return records
        if seen != self._begun:
            self._waiting.look(seen)
            records, never = _begin_migrations(state, self._waiting, caps, live, now_ms)
            # Migrations that begin leave less room for others, so no more can begin. Look again only if one was
            # cancelled, since the thing's next migration may begin, or if this look didn't get to the end.
            again = never or self._waiting.is_cut
            self._begun = None if again else (state.revision + len(records), *beside)
            if records or never:
                return records + never
        steps = (kind_of(one).next_steps(state, one) for one in state.running_operations())
        records = next(filter(None, steps), []) or self._leaderships.next_steps(state, live)
        if not records and self._leaderships.is_through:
            records = _end(state, live, now_ms)
        if not records and self._begun is not None and self._leaderships.is_through:
            self._quiet = seen, now_ms
        return records

    def _live_nodes(self, state: State, low_disks: tuple[str, ...]) -> Live:
        seen = state.nodes_revision, low_disks
        if self._live[0] != seen:
            self._live = seen, Live.of(state, low_disks)
        return self._live[1]


# Migrations


def _go_on(state: State, live: Live, now_ms: int) -> list[Record]:
    """The next steps of the migrations that have begun."""
    found = _by_kind(state.under_way.values())
    return [record for kind, rows in found.items() for record in MOVERS[kind].go_on(state, rows, live, now_ms)]


def _by_kind(migrations: Iterable[Migration]) -> dict[str, list[Migration]]:
    found: dict[str, list[Migration]] = {}
    for migration in migrations:
        found.setdefault(Placed.of(migration).kind, []).append(migration)
    return found


class _Waiting:
    """The migrations that have not begun. A look goes through at most WAITING_A_LOOK of an operation; the next look
    goes on from there.
    """

    def __init__(self) -> None:
        self.is_cut = False  # True if the last look didn't get to the end of an operation
        self._revision: object = None
        self._from: dict[int, int] = {}  # by operation: the place where the next look begins
        self._left: dict[int, int] = {}  # by operation: the number not looked at since the revision

    def look(self, revision: object) -> None:
        """Begin a look."""
        if revision != self._revision:
            self._revision, self._left = revision, {}
        self.is_cut = False

    def of(self, state: State, operation: Operation) -> Iterator[Migration]:
        """The operation's migrations, in the order of its plan; after the last comes the first."""
        unended = state.unended.get(operation.id, {})
        begin = self._from.pop(operation.id, 0)
        left = self._left.get(operation.id, len(unended))
        places = chain(islice(unended.items(), begin, None), islice(unended.items(), begin))
        for (thing, index), migration in islice(places, min(left, WAITING_A_LOOK)):
            if migration.state == _PENDING and (not index or (thing, index - 1) not in unended):
                yield migration
        self._left[operation.id] = max(0, left - WAITING_A_LOOK)
        if left > WAITING_A_LOOK:
            self.is_cut, self._from[operation.id] = True, (begin + WAITING_A_LOOK) % len(unended)


def _begin_migrations(
    state: State, not_begun: _Waiting, caps: MigrationCaps, live: Live, now_ms: int
) -> tuple[list[Record], list[Record]]:
    """The records that begin migrations, and that cancel migrations that can never begin. Each time, the next migration
    is taken from the operation with the fewest under way, in the order of its plan.
    """
    waiting = {o.id: not_begun.of(state, o) for o in state.moving_operations() if not o.paused}
    if not waiting:
        return [], []
    cancelled, begun, load = list[Record](), list[Migration](), _Load(state, caps, live)
    while waiting:
        first = min(waiting, key=lambda operation_id: (load.shares[operation_id], operation_id))
        if (found := load.next_with_room(waiting[first])) is None:
            del waiting[first]
            continue
        mover = mover_of(found)
        if (never := mover.impossible(state, found)) is not None:
            cancelled.append(migration_in_state(found, MigrationState.MIGRATION_STATE_CANCELLED, now_ms, never))
        elif not mover.obstacle(state, found):
            load.add(found)
            begun.append(found)
    found_by_kind = _by_kind(begun).items()
    return [record for kind, rows in found_by_kind for record in MOVERS[kind].begin(state, rows, now_ms)], cancelled


def unfinished(state: State, operation: Operation) -> Iterator[Migration]:
    """For each thing, its first migration that has not ended; a thing has at most one migration under way."""
    unended = state.unended.get(operation.id, {})
    return (one for (thing, index), one in unended.items() if not index or (thing, index - 1) not in unended)


class _Load:
    """The numbers of migrations under way, by host, by kind of thing, and by operation. Migrations that wait for a host
    that is gone don't count.
    """

    def __init__(self, state: State, caps: MigrationCaps, live: Live) -> None:
        self.shares = Counter[int]()
        self._state, self._caps, self._live = state, caps, live
        self._busy = Counter[tuple[str, str]]()
        self._kinds = Counter[str]()
        for kind, mover in MOVERS.items():
            self._busy.update({(kind, host): things for host, things in mover.busy_besides(state).items()})
        for migration in state.under_way.values():
            self.add(migration)

    def next_with_room(self, waiting: Iterator[Migration]) -> Migration | None:
        """The operation's next migration whose hosts have room; None if there is none, or the cluster can't move more
        things of this kind.
        """
        state, live, busy = self._state, self._live, self._busy
        if (migration := next(waiting, None)) is None:
            return None
        kind, mover = Placed.of(migration).kind, mover_of(migration)
        per_host, in_cluster = mover.most(state, migration, self._caps)  # the same for all things of one operation
        if self._kinds[kind] >= in_cluster:
            return None
        for one in chain([migration], waiting):
            if all(busy[kind, host] < per_host for host in mover.hosts(state, one, live)):
                return one
        return None

    def add(self, migration: Migration) -> None:
        """Count a migration that is under way."""
        kind = Placed.of(migration).kind
        hosts = MOVERS[kind].hosts(self._state, migration, self._live)
        self._busy.update((kind, host) for host in hosts)
        self._kinds[kind] += bool(hosts)
        self.shares[migration.operation_id] += bool(hosts)


# Ends


def _end(state: State, live: Live, now_ms: int) -> list[Record]:
    records: list[Record] = []
    for operation in state.running_operations():
        if state.unended.get(operation.id):
            continue
        if (end := kind_of(operation).end(state, operation, live)) is not None:
            records.append(operations.finish(state, operation, end, now_ms))
    return records
