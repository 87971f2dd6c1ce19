"""Lists of replicas, the preferred leader first."""

from collections.abc import Iterable

from minka.v1.cluster_pb2 import Partition


def holders(partition: Partition) -> list[str]:
    """The partition's replicas, without those that are being added."""
    replicas, adding = list(partition.replicas), partition.adding_replicas
    return [r for r in replicas if r not in adding] if adding else replicas


def replace(nodes: Iterable[str], old: str, new: str) -> list[str]:
    """The list with `new` in place of `old`. Each node is in the result once."""
    return list(dict.fromkeys(new if node == old else node for node in nodes))
