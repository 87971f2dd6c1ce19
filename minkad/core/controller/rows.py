"""Makes records from rows."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from minka.v1.cluster_pb2 import Migration, MigrationState, Node, NodeState, Operation, Partition
from minka.v1.records_pb2 import PartitionsChanged, Record
from minkad.core.state import other_half

ROWS_A_STEP: Final = 250  # moves or migrations; they take a few milliseconds to check or to change
ROWS_A_RECORD: Final = 50  # if thousands change; they take about a millisecond to decide, and one to apply


def node_in_state(node: Node, state: NodeState.ValueType, reason: str, now_ms: int, *, emptied: bool = False) -> Record:
    """The record by which a node is in this state from now on. `emptied`: a person drains it."""
    row = Node()
    row.CopyFrom(node)
    row.emptied = emptied or (node.emptied and state != NodeState.NODE_STATE_LIVE)
    row.state, row.state_reason, row.state_since_ms = state, reason, now_ms
    return Record(node_changed=row)


def partitions_changed(rows: Iterable[Partition]) -> list[Record]:
    """One record for all these rows; none if there are no rows."""
    record = Record(partitions_changed=PartitionsChanged(partitions=rows))
    return [record] if record.partitions_changed.partitions else []


def together(records: Iterable[Record]) -> list[Record]:
    """The same facts with all changed rows of partitions, at most one a partition, in one record."""
    changed, others = Record(), list[Record]()
    for record in records:
        if record.HasField("partitions_changed"):
            changed.partitions_changed.partitions.extend(record.partitions_changed.partitions)
        else:
            others.append(record)
    return [changed, *others] if changed.partitions_changed.partitions else others


def in_pieces(rows: Iterable[Partition]) -> Iterator[Record]:
    """The rows in several records, each valid alone: both halves of a split are in one record, and two rows of one
    partition are in two records. The rows are read only when the caller asks for records.
    """
    piece: list[Partition] = []
    last = 0  # the partition of the row before
    halves: dict[int, Partition] = {}  # halves of splits whose other half is yet to come
    for row in rows:
        if row.splitting and other_half(row) not in halves:
            halves[row.id] = row
            continue
        if row.id == last:
            yield from partitions_changed(piece)
            piece = []
        last = row.id
        piece.append(row)
        if row.splitting:
            piece.append(halves.pop(other_half(row)))
        if len(piece) >= ROWS_A_RECORD:
            yield from partitions_changed(piece)
            piece = []
    yield from partitions_changed([*piece, *halves.values()])


def migration_in_state(migration: Migration, state: MigrationState.ValueType, now_ms: int, outcome: str = "") -> Record:
    """The record by which a migration is in this state from now on."""
    row = Migration()
    row.CopyFrom(migration)
    row.state, row.outcome = state, outcome
    match state:
        case MigrationState.MIGRATION_STATE_COPYING | MigrationState.MIGRATION_STATE_PREPARING:
            row.started_ms = now_ms
        case MigrationState.MIGRATION_STATE_RELEASING:
            row.started_ms = row.started_ms or now_ms
        case MigrationState.MIGRATION_STATE_HANDED_OVER:
            row.handed_over_ms = now_ms
        case MigrationState.MIGRATION_STATE_CANCELLING:
            pass
        case _:
            row.finished_ms = now_ms
    return Record(migration_changed=row)


def operation_with(operation: Operation, change: Callable[[Operation], None]) -> Operation:
    """A changed copy of the row."""
    row = Operation()
    row.CopyFrom(operation)
    change(row)
    return row


def rows_in(record: Record) -> int:
    """The work of deciding and applying the record, in rows of partitions. A duty's row or assignment counts as a
    fifth.
    """
    changed = record.duties_changed
    duties = len(record.assignments_changed.duties) + len(changed.duties) + len(changed.removed)
    nodes = record.HasField("node_changed")
    return len(record.partitions_changed.partitions) + (duties + 9) // 5 * bool(duties) + nodes
