"""Records the answers of nodes to the rows that they were sent."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from minka.v1.cluster_pb2 import (
    PARTITION_STATE_ASSIGNED,
    Partition,
)
from minka.v1.records_pb2 import Record
from minkad.core.controller.decision import OwnCommand, Steps
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.rows import ROWS_A_RECORD, partitions_changed, together
from minkad.core.state import State, slices


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """A node's answers to the rows that it was sent: the partitions that it hosts by their rows at these
    partition_epochs, and the partitions of which it has nothing left.
    """

    node_id: str
    hosted: Collection[tuple[int, int]]
    deleted: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class ReportReplicas(OwnCommand):
    """Nodes have answered, in this order."""

    reports: Sequence[ReplicaReport]


def report(state: State, command: ReportReplicas, now_ms: int) -> Steps[None]:
    """Record the answers; those about different partitions together."""
    records: list[Record] = []
    decided: set[int] = set()  # the partitions of these
    for piece in chain.from_iterable(map(_pieces_of, command.reports)):
        concerned = {*piece.deleted, *(id_ for id_, _ in piece.hosted)}
        if decided & concerned or len(decided) >= ROWS_A_RECORD:
            yield together(records)
            records, decided = [], set()
        records += _report(state, piece)
        decided |= concerned
    yield together(records)


def _pieces_of(report: ReplicaReport) -> Iterator[ReplicaReport]:
    """The same report in pieces, each decided in one step."""
    for hosted in slices(report.hosted, ROWS_A_RECORD):
        yield ReplicaReport(report.node_id, hosted)
    for deleted in slices(report.deleted, ROWS_A_RECORD):
        yield ReplicaReport(report.node_id, (), deleted)


def _report(state: State, report: ReplicaReport) -> list[Record]:
    """A partition whose leader hosts it goes from ASSIGNED to ONLINE. A node that has deleted its replica has nothing
    of the partition left (OfflineReplica → NonExistentReplica).
    """
    node = report.node_id
    rows: dict[int, Partition] = {}
    for partition_id, epoch in report.hosted:
        partition = state.partitions.get(partition_id)
        if partition is not None and _is_confirmation(partition, node, epoch):
            rows[partition_id] = PartitionChange(partition).confirm_leader().row()
    merged: dict[int, Record] = {}
    for partition_id in report.deleted:
        partition = state.row(partition_id)
        if partition is None or partition_id in rows or not is_release(partition, node):
            continue
        row = PartitionChange(partition).note_deleted(node).row()
        if partition_id in state.tombstones:
            merged[partition_id] = Record(tombstone_changed=row)
        else:
            rows[partition_id] = row
    return [*partitions_changed(rows.values()), *merged.values()]


def _is_confirmation(partition: Partition, node: str, epoch: int) -> bool:
    """True if the partition becomes ONLINE because the node hosts it by its row of this partition_epoch."""
    return (
        partition.leader == node and partition.partition_epoch == epoch and partition.state == PARTITION_STATE_ASSIGNED
    )


def is_release(partition: Partition, node: str) -> bool:
    """True if the node still had to delete its replica. If it was assigned the partition again meanwhile, it is sent
    the row again.
    """
    return node in partition.removing_replicas and node not in partition.replicas
