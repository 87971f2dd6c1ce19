"""The replicas of the partitions of a new keyspace, placed at once."""

from collections.abc import Sequence

from minka.v1.cluster_pb2 import Node
from minkad.core.placement.assign import Placement


def assign_replicas(nodes: Sequence[Node], partition_count: int, replicas: int) -> list[list[str]]:
    """Return the replicas of each slot in order, the preferred leader first."""
    placement = Placement(nodes, partition_count, replicas)
    for slot in range(partition_count):
        placement.place(slot)
    return placement.even_out()
