"""The tables, and how records change them. Pure: equal records make equal states on all nodes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, takewhile
from typing import Final, Self, TypeVar

from minka.cluster.key_ranges import is_by_ranges
from minka.v1.cluster_pb2 import (
    PARTITION_STATE_ASSIGNED,
    PARTITION_STATE_ONLINE,
    Cluster,
    Keyspace,
    Migration,
    Node,
    NodeState,
    Operation,
    OperationState,
    Partition,
    PartitionTable,
    StateSnapshot,
    TableChanges,
)
from minka.v1.records_pb2 import (
    KeyspaceCreated,
    OperationStarted,
    PartitionsChanged,
    PartitionsCreated,
    PartitionsMerged,
    PartitionSplit,
    Record,
    RecordBatch,
)
from minkad.core.duties.duty_table import DutyState, NotifyShard
from minkad.core.state.captured import CapturedState
from minkad.core.state.loads import LoadTable
from minkad.core.state.partitions import Partitions
from minkad.core.state.placed import Placed
from minkad.core.state.ranges import (
    check_halves,
    check_merge,
    check_neighbours,
    check_ranges,
    check_split,
)
from minkad.core.state.row_changes import Changed, ChangeLog
from minkad.core.state.slices import ROWS_A_PIECE, slices
from minkad.core.state.transitions import (
    MIGRATIONS_ENDED,
    MIGRATIONS_UNDER_WAY,
    check_eligible,
    check_migration_change,
    check_new_partition,
    check_node_change,
    check_partition,
    check_partition_change,
    check_partition_row,
)

K = TypeVar("K")
R = TypeVar("R")

OPERATIONS_UNENDED = (OperationState.OPERATION_STATE_QUEUED, OperationState.OPERATION_STATE_RUNNING)
KEPT_OPERATIONS = 20  # of the ended operations that people asked for; and as many automatic ones
KEPT_REMOVALS = 1000  # ids of removed data directories
ALL = 0  # never a partition's id; see `NotifyNode`


@dataclass(frozen=True, slots=True)
class NotifyNode:
    """The effect of a changed row: the controller has to send this partition's row to this node. ALL: the node itself
    has changed, and the controller has to send it all its rows.
    """

    node: str
    partition_id: int


Effect = NotifyNode | NotifyShard

_ABSENT: Final = (NodeState.NODE_STATE_FAILED, NodeState.NODE_STATE_LEFT)


@dataclass(slots=True)
class State:
    """All tables. Rows are replaced, never mutated, so a shallow copy is a snapshot. `moving`, `under_way` and
    `unended` are indexes, which follow from `operations` and `migrations`.
    """

    cluster: Cluster = field(default_factory=Cluster)  # without an id until the first record
    version: int = 0  # counts the changes that clients see: of nodes, keyspaces and partitions
    nodes: dict[str, Node] = field(default_factory=dict)  # by id, without removed nodes
    keyspaces: dict[int, Keyspace] = field(default_factory=dict)  # by id
    partitions: Partitions = field(default_factory=Partitions)  # without merged ones, which may be `tombstones`
    # By id, the oldest first: all unended operations, and the last ended ones.
    operations: dict[int, Operation] = field(default_factory=dict)
    # By operation; then by thing, and by the migration's place among the thing's migrations: 0, 1, 2 …
    migrations: dict[int, dict[tuple[Placed, int], Migration]] = field(default_factory=dict)
    removed_data_ids: dict[str, None] = field(default_factory=dict)  # of the last removed nodes, in order
    tombstones: dict[int, Partition] = field(default_factory=dict)  # merged partitions with copies yet to be deleted
    next_raft_id: int = 1  # the next id to be given, like the three below: an id is never given twice
    next_keyspace_id: int = 1
    next_partition_id: int = 1
    next_operation_id: int = 1
    duties: DutyState = field(default_factory=DutyState)  # the tables of pallets, duties and shards
    # By thing: the one operation that has begun and has unended migrations of the thing.
    moving: dict[Placed, int] = field(default_factory=dict)
    under_way: dict[Placed, Migration] = field(default_factory=dict)  # by thing: its begun, unended migration
    # By operation that has begun: its unended migrations, in the order of the plan.
    unended: dict[int, dict[tuple[Placed, int], Migration]] = field(default_factory=dict)
    revision: int = field(default=0, compare=False)  # counts the facts that were applied
    nodes_revision: int = field(default=0, compare=False)  # counts the facts about nodes
    loads: LoadTable = field(default_factory=LoadTable)
    incomplete: set[int] = field(default_factory=set)  # the keyspace that lacks partitions until later records; if any
    changes: ChangeLog = field(default_factory=ChangeLog, compare=False)  # not copied: a copy begins an empty log

    def copy(self) -> Self:
        """An independent copy of the state."""
        return type(self)(
            self.cluster,
            self.version,
            dict(self.nodes),
            dict(self.keyspaces),
            self.partitions.copy(),
            dict(self.operations),
            {operation: dict(rows) for operation, rows in self.migrations.items()},
            dict(self.removed_data_ids),
            dict(self.tombstones),
            self.next_raft_id,
            self.next_keyspace_id,
            self.next_partition_id,
            self.next_operation_id,
            self.duties.copy(),
            dict(self.moving),
            dict(self.under_way),
            {operation: dict(rows) for operation, rows in self.unended.items()},
            self.revision,
            self.nodes_revision,
            self.loads.copy(),
            set(self.incomplete),
            ChangeLog(self.version),
        )

    # Reading

    def keyspace_named(self, name: str) -> Keyspace | None:
        """The keyspace with this name."""
        return next((k for k in self.keyspaces.values() if k.name == name), None)

    def running_operations(self) -> list[Operation]:
        """The operations that have begun and not ended, the oldest first."""
        return [o for o in self.operations.values() if o.state == OperationState.OPERATION_STATE_RUNNING]

    def queued_operations(self) -> list[Operation]:
        """The operations that wait until others have ended, the oldest first."""
        return [o for o in self.operations.values() if o.state == OperationState.OPERATION_STATE_QUEUED]

    def unended_operations(self) -> list[Operation]:
        """The operations that wait or have begun, the oldest first."""
        return [o for o in self.operations.values() if o.state in OPERATIONS_UNENDED]

    def moving_operations(self) -> list[Operation]:
        """The operations with migrations that have begun and not ended, the oldest first."""
        return [o for o in self.running_operations() if o.migration_count]

    def operation_moving(self, thing: Placed) -> Operation | None:
        """The operation that has begun and has unended migrations of this thing."""
        operation_id = self.moving.get(thing)
        return None if operation_id is None else self.operations[operation_id]

    def partitions_on(self, node: str) -> Iterable[Partition]:
        """The partitions of which this node has a copy, is to get a copy, or still has to delete a copy."""
        rows = map(self.row, list(self.partitions.copies.get(node, ())))
        return (row for row in rows if row is not None)

    def led_by(self, node: str) -> Iterator[Partition]:
        """The partitions that this node leads."""
        return (self.partitions[id_] for id_ in list(self.partitions.led.get(node, ())))

    def row(self, partition_id: int) -> Partition | None:
        """A partition's row. The last row of a merged partition stays until all its copies are deleted."""
        return self.partitions.get(partition_id) or self.tombstones.get(partition_id)

    def is_gone(self, partition_id: int) -> bool:
        """True if the partition was merged into another, and all its copies are deleted."""
        return partition_id < self.next_partition_id and self.row(partition_id) is None

    def is_absent(self, node_id: str) -> bool:
        """True if the node has failed or left: it serves nothing until it has registered again."""
        node = self.nodes.get(node_id)
        return node is not None and node.state in _ABSENT

    def table(self) -> PartitionTable:
        """The table that clients and people see."""
        table, rows = self.table_in_pieces()
        for some in rows:
            table.partitions.extend(some)
        return table

    def table_in_pieces(
        self, keyspaces: Sequence[int] | None = None
    ) -> tuple[PartitionTable, Iterator[Sequence[Partition]]]:
        """The table without its partitions; and, in pieces, the present partitions of these keyspaces (None: of all). A
        keyspace without all its partitions is left out.
        """
        incomplete, partitions = set(self.incomplete), self.partitions
        rows = (
            partitions.decoded()
            if keyspaces is None
            else chain.from_iterable([partitions.of(id_) for id_ in keyspaces])
        )
        complete = (row for row in rows if row.keyspace_id not in incomplete)
        return self.table_without_partitions(), slices(complete, ROWS_A_PIECE)

    def table_without_partitions(self) -> PartitionTable:
        """The nodes, and the keyspaces that have all their partitions."""
        return PartitionTable(
            cluster=self.cluster,
            version=self.version,
            nodes=self.nodes.values(),
            keyspaces=[keyspace for keyspace in self.keyspaces.values() if keyspace.id not in self.incomplete],
            next_partition_id=self.next_partition_id,
        )

    def table_since_in_pieces(self, version: int) -> tuple[TableChanges, Iterator[Sequence[Partition]]] | None:
        """The changes for clients and people since an older version, without partitions; and, in pieces, the present
        rows of the changed partitions. None if the changes aren't remembered.
        """
        changed = self.changes.since(version)
        if changed is None:
            return None
        changes = TableChanges(
            since=version,
            version=self.version,
            nodes=_found(self.nodes, sorted(changed.nodes)),
            keyspaces=_found(self.keyspaces, sorted(changed.keyspaces)),
            next_partition_id=self.next_partition_id,
            removed_nodes=sorted(changed.nodes - self.nodes.keys()),
            gone_partitions=sorted(changed.partitions - self.partitions.keys()),
        )
        return changes, slices(self.partitions.decoded(sorted(changed.partitions)), ROWS_A_PIECE)

    # Changing

    def apply_batch(self, batch: RecordBatch, *, is_checked: bool = False) -> list[Effect]:
        """Apply the records of one command of a Raft entry. Returns their effects: the active controller carries out
        those on nodes, and the node with a shard's session those on the shard.

        `is_checked`: the controller that proposed the batch has applied it to an equal state without a contradiction.
        """
        effects: list[Effect] = []
        for record in batch.records:
            effects += self.apply(record, is_checked=is_checked)
        return effects

    def apply(self, record: Record, *, is_checked: bool = False) -> Sequence[Effect]:  # noqa: C901 - one case a fact
        """Apply one fact. Raises AssertionError if it contradicts the state, which is a bug in `decide`."""
        self.revision += 1
        match record.WhichOneof("fact"):
            case "cluster_created":
                assert not self.cluster.id, f"the cluster exists already: {self.cluster}"
                self.cluster = record.cluster_created
                self._note(Changed())
                return []
            case "node_changed":
                return self._apply_node(record.node_changed)
            case "node_removed":
                self._apply_node_removed(record.node_removed)
                return []
            case "keyspace_created":
                return self._apply_keyspace(record.keyspace_created, is_checked)
            case "partitions_changed":
                return self._apply_partitions(record.partitions_changed, is_checked)
            case "partitions_created":
                return self._apply_created(record.partitions_created, is_checked)
            case "partition_split":
                return self._apply_split(record.partition_split)
            case "partitions_merged":
                return self._apply_merge(record.partitions_merged)
            case "tombstone_changed":
                self._apply_tombstone_changed(record.tombstone_changed)
                return []
            case "operation_started":
                return self._apply_operation_started(record.operation_started)
            case "migrations_added":
                added = record.migrations_added
                self._add_migrations(self.operations[added.operation_id], added.migrations)
                return []
            case "migration_changed":
                self._apply_migration(record.migration_changed)
                return []
            case "operation_changed":
                self._apply_operation(record.operation_changed, ends=False)
                return []
            case "operation_finished":
                self._apply_operation(record.operation_finished, ends=True)
                return []
            case "load_changed" | "load_parts_added" | "load_parts_done":
                self.loads.apply(record)
                return []
            case _:
                return self._apply_to_duties(record)

    def _apply_to_duties(self, record: Record) -> Sequence[Effect]:
        duties = self.duties
        match record.WhichOneof("fact"):
            case "assignments_changed":
                return duties.change_assignments(record.assignments_changed)
            case "duties_changed":
                return duties.change_duties(record.duties_changed)
            case "shard_changed":
                return duties.put_shard(record.shard_changed)
            case "shard_removed":
                return duties.remove_shard(record.shard_removed)
            case "pallet_changed":
                duties.put_pallet(record.pallet_changed)
                return []
            case "pallet_removed":
                duties.remove_pallet(record.pallet_removed)
                return []
            case unknown:
                raise AssertionError(f"a record of an unknown kind ({unknown}): {record}")

    def _note(self, changed: Changed) -> None:
        """Count a new version for clients, and remember the changes."""
        self.version += 1
        self.changes.note(changed)

    def _apply_node(self, node: Node) -> list[NotifyNode]:
        old = self.nodes.get(node.id)
        check_node_change(old, node, self.nodes.values())
        self.nodes[node.id] = node
        self.nodes_revision += 1
        self.next_raft_id = max(self.next_raft_id, node.raft_id + 1)
        self._note(Changed(nodes=frozenset({node.id})))
        if old is not None and old.incarnation == node.incarnation and old.state == node.state:
            return []
        return [NotifyNode(node.id, ALL)]

    def _apply_node_removed(self, node: Node) -> None:
        assert not any(self.partitions_on(node.id)), f"{node.id} still holds partitions"
        del self.nodes[node.id]
        self.nodes_revision += 1
        self.removed_data_ids[node.data_id] = None
        while len(self.removed_data_ids) > KEPT_REMOVALS:
            del self.removed_data_ids[next(iter(self.removed_data_ids))]
        self._note(Changed(nodes=frozenset({node.id})))

    def _apply_keyspace(self, created: KeyspaceCreated, is_checked: bool) -> list[NotifyNode]:
        keyspace = created.keyspace
        assert keyspace.id >= self.next_keyspace_id, f"keyspace id {keyspace.id} was used before"
        assert self.keyspace_named(keyspace.name) is None, f"keyspace {keyspace.name} exists already"
        self.keyspaces[keyspace.id] = keyspace
        self.next_keyspace_id = keyspace.id + 1
        self.incomplete.add(keyspace.id)
        rows = PartitionsCreated(partitions=created.partitions, complete=not created.more_partitions)
        return self._apply_created(rows, is_checked)

    def _apply_created(self, created: PartitionsCreated, is_checked: bool) -> list[NotifyNode]:
        """NonExistentPartition → NewPartition; a partition with a leader is OnlinePartition at once."""
        for partition in created.partitions:
            assert partition.id >= self.next_partition_id, f"partition id {partition.id} was used before"
            assert partition.keyspace_id in self.incomplete, partition
            if not is_checked:
                check_new_partition(partition, self.nodes)
            self.partitions.put(partition)
            self.next_partition_id = partition.id + 1
        if created.complete:
            (keyspace_id,) = self.incomplete
            self.incomplete.clear()
            if not is_checked and is_by_ranges(self.keyspaces[keyspace_id]):
                check_ranges(self.partitions.of(keyspace_id))
            ids = frozenset(self.partitions.of_keyspace[keyspace_id])
            self._note(Changed(keyspaces=frozenset({keyspace_id}), partitions=ids))
        return [NotifyNode(node, p.id) for p in created.partitions for node in p.replicas]

    def _apply_partitions(self, changed: PartitionsChanged, is_checked: bool) -> list[NotifyNode]:
        effects: list[NotifyNode] = []
        for partition in changed.partitions:
            old = self.partitions[partition.id]
            if not is_checked:
                check_partition_change(old, partition, self.nodes)
                check_eligible(partition, self.keyspaces[partition.keyspace_id])
            self.partitions.put(partition)
            effects += [NotifyNode(node, partition.id) for node in _affected(old, partition)]
        if not is_checked:
            for partition in changed.partitions:
                check_halves(self.partitions, partition)
                check_neighbours(self.partitions, partition)
        self._note(Changed(partitions=frozenset(row.id for row in changed.partitions)))
        return effects

    def _apply_split(self, split: PartitionSplit) -> list[NotifyNode]:
        """The child: NonExistentPartition → NewPartition → OnlinePartition at once, as its replicas have its data."""
        parent, child = split.parent, split.child
        assert child.id >= self.next_partition_id, f"partition id {child.id} was used before"
        assert is_by_ranges(self.keyspaces[parent.keyspace_id]), parent
        check_partition_row(self.partitions[parent.id], parent, self.nodes)
        check_partition(child)
        check_split(self.partitions[parent.id], parent, child)
        self.partitions.put(parent)
        self.partitions.put(child)
        self.next_partition_id = child.id + 1
        self._note(Changed(partitions=frozenset({parent.id, child.id})))
        return [NotifyNode(node, row.id) for row in (parent, child) for node in sorted(row.replicas)]

    def _apply_merge(self, merge: PartitionsMerged) -> list[NotifyNode]:
        """The right partition becomes NonExistentPartition. Its replicas are OfflineReplica until they are deleted."""
        remaining, gone = merge.remaining, merge.gone
        check_partition_row(self.partitions[remaining.id], remaining, self.nodes)
        check_merge(self.partitions[remaining.id], self.partitions[gone.id], remaining, gone)
        self.partitions.put(remaining)
        del self.partitions[gone.id]
        self._put_tombstone(gone)
        self._note(Changed(partitions=frozenset({remaining.id, gone.id})))
        copies = [(remaining.id, remaining.replicas), (gone.id, gone.removing_replicas)]
        return [NotifyNode(node, id_) for id_, nodes in copies for node in sorted(nodes)]

    def _apply_tombstone_changed(self, row: Partition) -> None:
        assert set(row.removing_replicas) < set(self.tombstones[row.id].removing_replicas), row
        assert not row.replicas, row
        self._put_tombstone(row)
        if not row.removing_replicas:
            del self.tombstones[row.id]

    def _put_tombstone(self, row: Partition) -> None:
        self.partitions.index_copies(self.tombstones.get(row.id), row)
        self.tombstones[row.id] = row

    def _apply_operation_started(self, started: OperationStarted) -> list[NotifyNode]:
        operation = started.operation
        known = self.operations.get(operation.id)
        is_queued = known is not None and known.state == OperationState.OPERATION_STATE_QUEUED
        assert is_queued or operation.id >= self.next_operation_id, f"operation id {operation.id} was used before"
        self.operations[operation.id] = operation
        self.next_operation_id = max(self.next_operation_id, operation.id + 1)
        self.migrations[operation.id] = {}
        self._add_migrations(operation, started.migrations)
        self._forget_old_operations()
        return []

    def _add_migrations(self, operation: Operation, migrations: Sequence[Migration]) -> None:
        rows, added = self.migrations[operation.id], _by(migrations, _place)
        assert len(added) == len(migrations), operation
        assert rows.keys().isdisjoint(added), operation
        rows.update(added)
        assert len(rows) <= operation.migration_count, operation
        if operation.state == OperationState.OPERATION_STATE_RUNNING:
            self._move(operation, added)

    def _move(self, operation: Operation, migrations: Mapping[tuple[Placed, int], Migration]) -> None:
        unended = {place: one for place, one in migrations.items() if one.state not in MIGRATIONS_ENDED}
        self.unended.setdefault(operation.id, {}).update(unended)
        for thing, _ in unended:
            by = self.moving.setdefault(thing, operation.id)
            assert by == operation.id, f"operation {by} moves {thing}"

    def _apply_migration(self, migration: Migration) -> None:
        rows = self.migrations[migration.operation_id]
        thing = Placed.of(migration)
        check_migration_change(rows[thing, migration.index], migration)
        rows[thing, migration.index] = migration
        unended = self.unended.get(migration.operation_id, {})
        if migration.state in MIGRATIONS_ENDED:
            unended.pop((thing, migration.index), None)
        else:
            unended[thing, migration.index] = migration
        begun = self.under_way.get(thing)
        if migration.state in MIGRATIONS_UNDER_WAY:
            self.under_way[thing] = migration
        elif begun is not None and (begun.operation_id, begun.index) == (migration.operation_id, migration.index):
            del self.under_way[thing]
        is_moving = self.moving.get(thing) == migration.operation_id
        indexes = takewhile(lambda index: (thing, index) in rows, count())
        if is_moving and not any((thing, index) in unended for index in indexes):
            del self.moving[thing]

    def _apply_operation(self, operation: Operation, *, ends: bool) -> None:
        old = self.operations[operation.id]
        assert old.state in OPERATIONS_UNENDED, operation
        assert ends if operation.state not in OPERATIONS_UNENDED else operation.state == old.state, operation
        self.operations[operation.id] = operation
        if ends:
            self.unended.pop(operation.id, None)

    def _forget_old_operations(self) -> None:
        ended = [o for o in self.operations.values() if o.state not in OPERATIONS_UNENDED]
        for is_automatic in (False, True):
            ids = sorted(o.id for o in ended if o.automatic == is_automatic)
            for operation_id in ids[:-KEPT_OPERATIONS]:
                del self.operations[operation_id]
                del self.migrations[operation_id]

    # Snapshots

    def to_snapshot(self) -> bytes:
        """The whole state; equal states give equal bytes."""
        return self.capture().encode()

    def capture(self) -> CapturedState:
        """The state as of now, to be encoded later. This takes a few milliseconds with 100,000 partitions."""
        table = PartitionTable(
            cluster=self.cluster,
            version=self.version,
            nodes=self.nodes.values(),
            keyspaces=self.keyspaces.values(),
            next_partition_id=self.next_partition_id,
        )
        first = StateSnapshot(
            table=table,
            operations=self.operations.values(),
            removed_data_ids=self.removed_data_ids,
            tombstones=self.tombstones.values(),
            next_raft_id=self.next_raft_id,
            next_keyspace_id=self.next_keyspace_id,
            next_partition_id=self.next_partition_id,
            next_operation_id=self.next_operation_id,
        )
        migrations = [one for rows in self.migrations.values() for one in rows.values()]
        return CapturedState(first, self.partitions.encoded(), migrations, self.duties.copy(), self.loads.copy())

    @classmethod
    def from_snapshot(cls, data: bytes) -> Self:
        """The state from the bytes of `to_snapshot`; empty bytes give the empty state."""
        snapshot = StateSnapshot.FromString(data)
        if not data:
            return cls()
        table = snapshot.table
        migrations: dict[int, dict[tuple[Placed, int], Migration]] = {o.id: {} for o in snapshot.operations}
        for migration in snapshot.migrations:
            migrations[migration.operation_id][_place(migration)] = migration
        partitions = Partitions.of_encoded(snapshot.partitions)
        for keyspace in table.keyspaces:
            if is_by_ranges(keyspace):
                check_ranges(partitions.of(keyspace.id))
        state = cls(
            table.cluster,
            table.version,
            _by(table.nodes, lambda n: n.id),
            _by(table.keyspaces, lambda k: k.id),
            partitions,
            _by(snapshot.operations, lambda o: o.id),
            migrations,
            dict.fromkeys(snapshot.removed_data_ids),
            _by(snapshot.tombstones, lambda p: p.id),
            snapshot.next_raft_id,
            snapshot.next_keyspace_id,
            snapshot.next_partition_id,
            snapshot.next_operation_id,
            DutyState.of(snapshot.duties),
            loads=LoadTable.of(snapshot.loads),
        )
        state.changes = ChangeLog(state.version)
        for partition in state.tombstones.values():
            partitions.index_copies(None, partition)
        for operation in state.running_operations():
            state._move(operation, migrations[operation.id])
        for migration in snapshot.migrations:
            if migration.state in MIGRATIONS_UNDER_WAY:
                state.under_way[Placed.of(migration)] = migration
        return state


def _found(rows: Mapping[K, R], ids: Iterable[K]) -> list[R]:
    return [rows[id_] for id_ in ids if id_ in rows]


def _affected(old: Partition, new: Partition) -> list[str]:
    """The nodes that have to learn of the change. If a leader only confirms that it leads, this is the leader alone.
    The leader_epochs are compared, since a leader may hand over before it has confirmed that it leads.
    """
    went_online = old.state == PARTITION_STATE_ASSIGNED and new.state == PARTITION_STATE_ONLINE
    if went_online and old.leader_epoch == new.leader_epoch:
        return [new.leader]
    return sorted({*old.replicas, *new.replicas, *new.removing_replicas})


def _place(migration: Migration) -> tuple[Placed, int]:
    return Placed.of(migration), migration.index


def _by(rows: Iterable[R], key: Callable[[R], K]) -> dict[K, R]:
    return {key(row): row for row in rows}
