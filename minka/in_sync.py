"""How well a partition is replicated, by its row; the metrics and minkactl both count it so."""

from minka.v1.cluster_pb2 import Keyspace, Partition


def missing_in_sync(row: Partition) -> int:
    """How many of its replicas are not in sync; above 0, the partition is under-replicated.

    While replicas are being added, it needs no more than it had before (as Kafka counts under-replicated partitions).
    """
    needed = min(len(row.target_replicas or row.replicas), len(row.replicas) - len(row.adding_replicas))
    return max(needed - len(row.isr), 0)


def is_under_min_insync(row: Partition, keyspace: Keyspace) -> bool:
    """Whether it has fewer replicas in sync than its keyspace wants for a write: writes are refused."""
    return len(row.isr) < max(1, keyspace.min_insync)
