"""What nodes answer when they were told what to host."""

from minka.v1.cluster_pb2 import MigrationState, Partition, PartitionState
from minka.v1.coordinator_pb2 import ReplicaOutcome, ReplicaResult
from minka.v1.records_pb2 import Record
from minkad.core.controller.commands import ReportReplicas
from minkad.core.controller.rows import changed, migration_in_state, partitions_changed
from minkad.core.state import State


def report(state: State, command: ReportReplicas, now_ms: int) -> list[Record]:
    """Hosted by its leader: ASSIGNED → ONLINE. Deleted: the node has nothing of the partition any more."""
    rows: list[Partition] = []
    migrations: list[Record] = []
    node, deleted = command.node_id, ReplicaOutcome.REPLICA_OUTCOME_DELETED
    for result in command.results:
        partition = state.partitions.get(result.partition_id)
        if partition is None:
            continue
        if _is_online(partition, node, result):
            rows.append(changed(partition, _go_online))
        elif result.outcome == deleted and node in partition.removing_replicas:
            rows.append(changed(partition, lambda row: row.removing_replicas.remove(node)))
            migration = state.running_migration(partition.id)
            handed_over = MigrationState.MIGRATION_STATE_HANDED_OVER
            if migration is not None and migration.state == handed_over and migration.source == node:
                migrations.append(
                    migration_in_state(migration, MigrationState.MIGRATION_STATE_COMPLETED, now_ms, "moved")
                )
    return [*partitions_changed(rows), *migrations]


def _is_online(partition: Partition, node: str, result: ReplicaResult) -> bool:
    return (
        result.outcome == ReplicaOutcome.REPLICA_OUTCOME_HOSTED
        and partition.state == PartitionState.PARTITION_STATE_ASSIGNED
        and partition.leader == node
        and partition.partition_epoch == result.partition_epoch
    )


def _go_online(row: Partition) -> None:
    row.state = PartitionState.PARTITION_STATE_ONLINE
