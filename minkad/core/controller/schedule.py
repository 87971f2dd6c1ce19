"""What the controller does of its own accord: the next step of everything that is under way.

It reads the rows alone, so a new active controller goes on where the last one stopped (Kafka Controller Internals:
onControllerFailover, 3. and 4.).
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from minka.v1.cluster_pb2 import Migration, MigrationState, Operation, Partition
from minka.v1.records_pb2 import Record
from minkad.core.controller import drains, operations
from minkad.core.controller.movers import mover_of
from minkad.core.controller.operation_kinds import kind_of
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.rows import migration_in_state, partitions_changed
from minkad.core.controller.selectors import Live
from minkad.core.state import MIGRATIONS_ENDED, Placed, State

HAND_OVERS_AT_ONCE: Final = 64  # leaderships on their way from one node to another, outside of reassignments


@dataclass(frozen=True, slots=True)
class MigrationCaps:
    """How many migrations may be COPYING at once: in or out of one node, and in the cluster."""

    per_node: int
    cluster: int


def schedule(state: State, caps: MigrationCaps, now_ms: int, low_disks: Collection[str] = ()) -> list[Record]:
    """The next facts; none when there is nothing to do. No row is changed twice in them. `low_disks`: the nodes that
    can't take writes for want of space, so that others are to lead.
    """
    live = Live.of(state, low_disks)
    if records := _go_on(state, live, now_ms) or _begin_migrations(state, caps, live, now_ms):
        return records
    steps = (kind_of(one).next_steps(state, one) for one in state.running_operations())
    return next(filter(None, steps), []) or _move_leaderships(state, live) or _end(state, live, now_ms)


# Migrations


def _go_on(state: State, live: Live, now_ms: int) -> list[Record]:
    """The next steps of those that have begun."""
    return [
        record
        for migration in state.under_way.values()
        for record in mover_of(migration).go_on(state, migration, live, now_ms)
    ]


def _begin_migrations(state: State, caps: MigrationCaps, live: Live, now_ms: int) -> list[Record]:
    """Those begin that may: each in the order of its operation's plan, and the next one is of the operation that has
    the fewest under way.
    """
    waiting = {o.id: _pending(state, o) for o in state.moving_operations() if not o.paused}
    if not waiting:
        return []
    records: list[Record] = []
    busy, shares = _load(state, live)
    free = caps.cluster - shares.total()
    while waiting and free > 0:
        first = min(waiting, key=lambda operation_id: (shares[operation_id], operation_id))
        migration = next(waiting[first], None)
        if migration is None:
            del waiting[first]
            continue
        mover = mover_of(migration)
        if (never := mover.impossible(state, migration)) is not None:
            records.append(migration_in_state(migration, MigrationState.MIGRATION_STATE_CANCELLED, now_ms, never))
            continue
        nodes = mover.hosts(state, migration, live)
        if mover.obstacle(state, migration) or any(busy[node] >= caps.per_node for node in nodes):
            continue
        busy.update(nodes)
        shares[first] += bool(nodes)
        free -= bool(nodes)
        records += mover.begin(state, migration, now_ms)
    return records


def _pending(state: State, operation: Operation) -> Iterator[Migration]:
    found = unfinished(list(state.migrations[operation.id].values()))
    return (migration for migration in found if migration.state == MigrationState.MIGRATION_STATE_PENDING)


def unfinished(migrations: list[Migration]) -> Iterator[Migration]:
    """The first of each thing that has not ended; no more than one of a thing is under way."""
    seen: set[Placed] = set()
    for migration in migrations:
        if migration.state not in MIGRATIONS_ENDED and (thing := Placed.of(migration)) not in seen:
            seen.add(thing)
            yield migration


def _load(state: State, live: Live) -> tuple[Counter[str], Counter[int]]:
    """How many copies each node sends and takes, and how many each operation makes. One that waits for a node that is
    gone costs nothing.
    """
    busy, shares = Counter[str](), Counter[int]()
    for migration in state.under_way.values():
        if migration.state == MigrationState.MIGRATION_STATE_COPYING:
            nodes = mover_of(migration).hosts(state, migration, live)
            busy.update(nodes)
            shares[migration.operation_id] += bool(nodes)
    return busy, shares


# Leaderships


def _move_leaderships(state: State, live: Live) -> list[Record]:
    """Leaders of DRAINING nodes and of those whose disks are low, and those that an operation wants elsewhere, get a
    successor.
    """
    wanted: dict[int, tuple[Partition, str]] = {}
    for operation in state.running_operations():
        due = kind_of(operation).leaderships(state, operation, live)
        wanted.update((p.id, (p, successor)) for p, successor in due)
    for node in sorted(live.draining):
        due = drains.leaderships_to_move(state, node, live)
        wanted.update((p.id, (p, successor)) for p, successor in due)
    waiting = [(p, successor) for p, successor in wanted.values() if not p.successor and not _is_bound(p)]
    if not waiting:
        return []
    free = HAND_OVERS_AT_ONCE - sum(1 for p in state.partitions.values() if p.successor)
    return partitions_changed(PartitionChange(p).appoint(successor).row() for p, successor in waiting[: max(0, free)])


def _is_bound(partition: Partition) -> bool:
    """Whether its leadership is another partition's, too."""
    return bool(partition.splitting or partition.merge_from or partition.merge_into)


# Ends


def _end(state: State, live: Live, now_ms: int) -> list[Record]:
    records: list[Record] = []
    for operation in state.running_operations():
        if any(m.state not in MIGRATIONS_ENDED for m in state.migrations[operation.id].values()):
            continue
        if (end := kind_of(operation).end(state, operation, live)) is not None:
            records.append(operations.finish(state, operation, end, now_ms))
    return records
