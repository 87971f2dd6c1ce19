"""How things are named for people."""

from collections.abc import Mapping

from minka.v1.cluster_pb2 import Keyspace, Partition


def partition_name(keyspaces: Mapping[int, Keyspace], partition: Partition) -> str:
    """The keyspace and the slot: flights/7."""
    return f"{keyspaces[partition.keyspace_id].name}/{partition.slot}"
