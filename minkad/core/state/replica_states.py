"""The states of a replica and the valid transitions (Kafka Controller Internals: ReplicaStateChange).

The states aren't stored: they follow from the rows of the partition and of the node.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from minka.v1.cluster_pb2 import (
    PARTITION_STATE_NEW,
    Node,
    NodeState,
    Partition,
)

UP: Final = frozenset({NodeState.NODE_STATE_LIVE, NodeState.NODE_STATE_DRAINING})


class ReplicaStateName(Enum):
    """The states by Kafka's names."""

    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"


_S = ReplicaStateName

REPLICA_TRANSITIONS: Final[dict[ReplicaStateName, frozenset[ReplicaStateName]]] = {
    _S.NON_EXISTENT: frozenset({_S.NEW}),
    _S.NEW: frozenset({_S.ONLINE, _S.OFFLINE}),
    _S.ONLINE: frozenset({_S.ONLINE, _S.OFFLINE}),
    _S.OFFLINE: frozenset({_S.ONLINE, _S.NON_EXISTENT}),
}


def is_up(node: Node | None) -> bool:
    """True if the node may serve: it is LIVE, or DRAINING, which still serves."""
    return node is not None and node.state in UP


def invalid_replica_changes(
    old: Partition | None, new: Partition, nodes: Mapping[str, Node]
) -> list[tuple[str, ReplicaStateName, ReplicaStateName]]:
    """The invalid transitions that would follow if `new` replaced `old`: (node, state before, state after)."""
    if old is not None and _says_the_same(old, new):
        return []
    before, after = replica_states(old, nodes), replica_states(new, nodes)
    if before == after:
        return []
    changes = ((n, before.get(n, _S.NON_EXISTENT), after.get(n, _S.NON_EXISTENT)) for n in before | after)
    return [change for change in changes if not _is_valid(*change[1:])]


def _says_the_same(old: Partition, new: Partition) -> bool:
    """True if the rows are equal in all fields that `replica_states` reads."""
    return (
        old.replicas == new.replicas
        and old.adding_replicas == new.adding_replicas
        and old.removing_replicas == new.removing_replicas
        and (old.state == PARTITION_STATE_NEW) is (new.state == PARTITION_STATE_NEW)
    )


def replica_states(row: Partition | None, nodes: Mapping[str, Node]) -> dict[str, ReplicaStateName]:
    """The states of the partition's replicas, by node; all other nodes are NON_EXISTENT. A record may have thousands of
    rows, so this reads each field once.

    If a node fails while its replica is being added, the replica goes from Offline to New when the node is back: an
    unfinished copy is worth nothing, so the replica has been NonExistentReplica in between.
    """
    if row is None:
        return {}
    is_new, adding = row.state == PARTITION_STATE_NEW, row.adding_replicas
    up = _S.NEW if is_new else _S.ONLINE
    states = {n: up if is_up(nodes.get(n)) else _S.OFFLINE for n in row.replicas}
    states |= {n: _S.NEW for n in adding if states[n] is _S.ONLINE}
    return states | dict.fromkeys(row.removing_replicas, _S.OFFLINE)


def _is_valid(before: ReplicaStateName, after: ReplicaStateName) -> bool:
    return before is after or after in REPLICA_TRANSITIONS[before]
