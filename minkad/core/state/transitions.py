"""Which changes of a row are valid. `decide` refuses the others; here they are asserted."""

from collections.abc import Iterable
from typing import Final

from minka.v1.cluster_pb2 import Migration, MigrationState, Node, NodeState, Partition, PartitionState

_N, _P, _M = NodeState, PartitionState, MigrationState

NODE_TRANSITIONS: Final[dict[int, set[int]]] = {
    _N.NODE_STATE_JOINING: {_N.NODE_STATE_LIVE},
    # LIVE → LIVE: another process of the same node has registered
    _N.NODE_STATE_LIVE: {_N.NODE_STATE_LIVE, _N.NODE_STATE_FAILED, _N.NODE_STATE_LEFT},
    _N.NODE_STATE_FAILED: {_N.NODE_STATE_LIVE},
    _N.NODE_STATE_LEFT: {_N.NODE_STATE_LIVE},
}

PARTITION_TRANSITIONS: Final[dict[int, set[int]]] = {
    _P.PARTITION_STATE_ASSIGNED: {
        _P.PARTITION_STATE_ASSIGNED,
        _P.PARTITION_STATE_ONLINE,
        _P.PARTITION_STATE_OFFLINE,
    },
    _P.PARTITION_STATE_ONLINE: {
        _P.PARTITION_STATE_ONLINE,
        _P.PARTITION_STATE_OFFLINE,
        _P.PARTITION_STATE_ASSIGNED,
    },
    _P.PARTITION_STATE_OFFLINE: {_P.PARTITION_STATE_OFFLINE, _P.PARTITION_STATE_ASSIGNED},
}

MIGRATION_TRANSITIONS: Final[dict[int, set[int]]] = {
    _M.MIGRATION_STATE_PENDING: {_M.MIGRATION_STATE_COPYING, _M.MIGRATION_STATE_CANCELLED},
    _M.MIGRATION_STATE_COPYING: {_M.MIGRATION_STATE_HANDED_OVER, _M.MIGRATION_STATE_CANCELLED},
    _M.MIGRATION_STATE_HANDED_OVER: {_M.MIGRATION_STATE_COMPLETED},
}


def check_node_change(old: Node | None, new: Node, nodes: Iterable[Node]) -> None:
    """Assert that `new` may replace `old` among `nodes`."""
    if old is None:
        assert all(n.raft_id != new.raft_id for n in nodes), f"raft id {new.raft_id} is taken: {new}"
        return
    assert new.raft_id == old.raft_id, (old, new)
    assert new.state in NODE_TRANSITIONS[old.state], (old, new)


def check_partition_change(old: Partition, new: Partition) -> None:
    """Assert that `new` may replace `old`, and that it makes sense by itself."""
    assert new.partition_epoch == old.partition_epoch + 1, (old, new)
    assert new.state in PARTITION_TRANSITIONS[old.state], (old, new)
    assert (new.keyspace_id, new.slot) == (old.keyspace_id, old.slot), (old, new)
    assert new.leader_epoch >= old.leader_epoch, (old, new)
    assert new.generation >= old.generation, (old, new)
    if new.leader not in (old.leader, ""):
        assert new.leader_epoch > old.leader_epoch, (old, new)
    assert (new.leader == "") == (new.state == PartitionState.PARTITION_STATE_OFFLINE), new
    assert new.leader == "" or new.leader in new.isr, new
    assert new.isr, new
    assert set(new.isr) <= set(new.replicas), new
    assert set(new.adding_replicas) <= set(new.replicas) - set(new.isr), new
    assert not set(new.removing_replicas) & set(new.replicas), new
    assert len(set(new.replicas)) == len(new.replicas), new


def check_migration_change(old: Migration, new: Migration) -> None:
    """Assert that `new` may replace `old`."""
    assert new.state in MIGRATION_TRANSITIONS[old.state], (old, new)
    assert (new.source, new.target) == (old.source, old.target), (old, new)
