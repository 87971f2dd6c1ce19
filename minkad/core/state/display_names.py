"""The names of things for people."""

from collections.abc import Mapping
from typing import Final

from minka.v1.cluster_pb2 import Keyspace, Partition

PAYLOADS_KEYSPACE: Final = "_duties"  # the cluster's own; people can't create keyspaces with names that begin with "_"


def partition_name(keyspaces: Mapping[int, Keyspace], partition: Partition) -> str:
    """The keyspace and the slot: flights/7."""
    return f"{keyspaces[partition.keyspace_id].name}/{partition.slot}"
