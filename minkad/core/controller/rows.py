"""New rows from old ones, and records from rows."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from minka.v1.cluster_pb2 import Migration, MigrationState, Node, NodeState, Operation, Partition, PartitionState
from minka.v1.records_pb2 import PartitionsChanged, Record
from minkad.core.controller.selectors import Selection
from minkad.core.state import other_half

ROWS_A_RECORD: Final = 50  # of what changes thousands; about a millisecond to decide, and as much to apply


def node_in_state(node: Node, state: NodeState.ValueType, reason: str, now_ms: int) -> Record:
    """The record that a node is now in this state."""
    row = Node()
    row.CopyFrom(node)
    row.state, row.state_reason, row.state_since_ms = state, reason, now_ms
    return Record(node_changed=row)


def changed(partition: Partition, change: Callable[[Partition], None]) -> Partition:
    """A copy of the row with the change made and the next partition_epoch."""
    row = Partition()
    row.CopyFrom(partition)
    change(row)
    row.partition_epoch += 1
    return row


def partitions_changed(rows: Iterable[Partition]) -> list[Record]:
    """One record for all the rows; none for no row."""
    record = Record(partitions_changed=PartitionsChanged(partitions=rows))
    return [record] if record.partitions_changed.partitions else []


def in_pieces(rows: Iterable[Partition]) -> Iterator[Record]:
    """The same in as many records as it takes, each valid by itself: the halves of a split change together. The rows
    are looked at as they are asked for.
    """
    piece: list[Partition] = []
    halves: dict[int, Partition] = {}  # whose other half is yet to come
    for row in rows:
        if row.splitting and other_half(row) not in halves:
            halves[row.id] = row
            continue
        piece.append(row)
        if row.splitting:
            piece.append(halves.pop(other_half(row)))
        if len(piece) >= ROWS_A_RECORD:
            yield from partitions_changed(piece)
            piece = []
    yield from partitions_changed([*piece, *halves.values()])


def deleted_at(partition: Partition, node: str, *, is_tombstone: bool) -> Record:
    """The record that the node has nothing of the partition any more."""
    row = changed(partition, lambda row: row.removing_replicas.remove(node))
    return Record(tombstone_changed=row) if is_tombstone else partitions_changed([row])[0]


def elect(row: Partition, selection: Selection) -> None:
    """→ OnlinePartition: the leader is to lead at a new epoch; ASSIGNED until it has acknowledged."""
    row.leader = selection.leader
    row.leader_epoch += 1
    row.isr[:] = selection.isr
    row.adding_replicas[:] = [node for node in row.adding_replicas if node not in selection.isr]
    row.unclean_elections += selection.unclean
    row.successor = ""
    row.state = PartitionState.PARTITION_STATE_ASSIGNED


def take_offline(row: Partition) -> None:
    """→ OfflinePartition: nobody can lead. The isr stays: who was in it has everything."""
    row.leader = row.successor = ""
    row.state = PartitionState.PARTITION_STATE_OFFLINE


def leave_isr(row: Partition, node: str) -> None:
    """The node's replica, which isn't the leader's, is not in sync any more."""
    assert node != row.leader, row
    if node in row.isr:
        row.isr.remove(node)
    if row.successor == node:
        row.successor = ""


def appoint(partition: Partition, successor: str) -> Partition:
    """The leader is to hand over to `successor` gracefully."""

    def change(row: Partition) -> None:
        row.successor = successor

    return changed(partition, change)


def migration_in_state(migration: Migration, state: MigrationState.ValueType, now_ms: int, outcome: str = "") -> Record:
    """The record that a migration is now in this state."""
    row = Migration()
    row.CopyFrom(migration)
    row.state, row.outcome = state, outcome
    match state:
        case MigrationState.MIGRATION_STATE_COPYING:
            row.started_ms = now_ms
        case MigrationState.MIGRATION_STATE_HANDED_OVER:
            row.handed_over_ms = now_ms
        case MigrationState.MIGRATION_STATE_CANCELLING:
            pass
        case _:
            row.finished_ms = now_ms
    return Record(migration_changed=row)


def operation_with(operation: Operation, change: Callable[[Operation], None]) -> Operation:
    """A copy of the row with the change made."""
    row = Operation()
    row.CopyFrom(operation)
    change(row)
    return row
