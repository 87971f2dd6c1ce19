"""How things are named for people."""

from collections.abc import Mapping

from minka.v1.cluster_pb2 import Keyspace, Operation, OperationKind, Partition

_KINDS = {
    OperationKind.OPERATION_KIND_REASSIGN: "reassign",
    OperationKind.OPERATION_KIND_ELECT_LEADERS: "elect-leaders",
    OperationKind.OPERATION_KIND_DRAIN: "drain",
    OperationKind.OPERATION_KIND_SPLIT: "split",
    OperationKind.OPERATION_KIND_MERGE: "merge",
}


def partition_name(keyspaces: Mapping[int, Keyspace], partition: Partition) -> str:
    """The keyspace and the slot: flights/7."""
    return f"{keyspaces[partition.keyspace_id].name}/{partition.slot}"


def operation_name(keyspaces: Mapping[int, Keyspace], operation: Operation) -> str:
    """What it does, as the command that began it is called: drain cyrene --decommission."""
    words = [_KINDS.get(operation.kind, "an operation"), operation.node]
    if operation.keyspace_id in keyspaces:
        words.append(keyspaces[operation.keyspace_id].name)
    if operation.decommission:
        words.append("--decommission")
    return " ".join(word for word in words if word)
