"""What follows from the answers of nodes that were sent rows."""

from minka.v1.cluster_pb2 import Partition, PartitionState
from minka.v1.coordinator_pb2 import ReplicaOutcome, ReplicaResult
from minka.v1.records_pb2 import Record
from minkad.core.controller.commands import ReportReplicas
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.rows import partitions_changed
from minkad.core.state import State


def report(state: State, command: ReportReplicas) -> list[Record]:
    """A partition whose leader hosts it goes from ASSIGNED to ONLINE. A node that has deleted its replica no longer has
    anything of the partition (OfflineReplica → NonExistentReplica).
    """
    rows: dict[int, Partition] = {}
    merged: dict[int, Record] = {}
    node = command.node_id
    for result in command.results:
        partition = state.row(result.partition_id)
        if partition is None or partition.id in rows:
            continue
        if partition.id in state.tombstones:
            if _is_deleted(partition, node, result):
                row = PartitionChange(partition).note_deleted(node).row()
                merged[partition.id] = Record(tombstone_changed=row)
            continue
        if _is_online(partition, node, result):
            rows[partition.id] = PartitionChange(partition).confirm_leader().row()
        elif _is_deleted(partition, node, result):
            rows[partition.id] = PartitionChange(partition).note_deleted(node).row()
    return [*partitions_changed(rows.values()), *merged.values()]


def _is_online(partition: Partition, node: str, result: ReplicaResult) -> bool:
    return (
        result.outcome == ReplicaOutcome.REPLICA_OUTCOME_HOSTED
        and partition.state == PartitionState.PARTITION_STATE_ASSIGNED
        and partition.leader == node
        and partition.partition_epoch == result.partition_epoch
    )


def _is_deleted(partition: Partition, node: str, result: ReplicaResult) -> bool:
    """Whether the answer says that the replica is deleted, and it is still to be. If the node was assigned the
    partition again meanwhile, it is sent the row again.
    """
    return (
        result.outcome == ReplicaOutcome.REPLICA_OUTCOME_DELETED
        and node in partition.removing_replicas
        and node not in partition.replicas
    )
