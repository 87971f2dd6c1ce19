"""Records the answers of nodes to the rows that they were sent."""

from minka.v1.cluster_pb2 import (
    PARTITION_STATE_ASSIGNED,
    Partition,
)
from minka.v1.records_pb2 import Record
from minkad.core.controller.commands import ReportReplicas
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.rows import partitions_changed
from minkad.core.state import State


def report(state: State, command: ReportReplicas) -> list[Record]:
    """A partition whose leader hosts it goes from ASSIGNED to ONLINE. A node that has deleted its replica has nothing
    of the partition left (OfflineReplica → NonExistentReplica).
    """
    node = command.node_id
    rows: dict[int, Partition] = {}
    for partition_id, epoch in command.hosted:
        partition = state.partitions.get(partition_id)
        if partition is not None and _is_confirmation(partition, node, epoch):
            rows[partition_id] = PartitionChange(partition).confirm_leader().row()
    merged: dict[int, Record] = {}
    for partition_id in command.deleted:
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
