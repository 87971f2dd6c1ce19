"""Asserts that changes of rows are valid. `decide` refuses invalid changes before they become records."""

from collections.abc import Iterable, Mapping
from typing import Final

from minka.cluster.in_sync import eligible_replicas
from minka.v1.cluster_pb2 import (
    PARTITION_STATE_ASSIGNED,
    PARTITION_STATE_NEW,
    PARTITION_STATE_OFFLINE,
    Keyspace,
    Migration,
    MigrationState,
    Node,
    NodeState,
    Partition,
)
from minkad.core.state.partition_states import is_valid_partition_change
from minkad.core.state.replica_states import invalid_replica_changes, is_up

_N, _M = NodeState, MigrationState

NODE_TRANSITIONS: Final[dict[int, set[int]]] = {
    _N.NODE_STATE_JOINING: {_N.NODE_STATE_LIVE},
    # LIVE → LIVE and DRAINING → DRAINING: another process of the same node has registered
    _N.NODE_STATE_LIVE: {
        _N.NODE_STATE_LIVE,
        _N.NODE_STATE_DRAINING,
        _N.NODE_STATE_FAILED,
        _N.NODE_STATE_LEFT,
    },
    _N.NODE_STATE_DRAINING: {
        _N.NODE_STATE_LIVE,
        _N.NODE_STATE_DRAINING,
        _N.NODE_STATE_FAILED,
        _N.NODE_STATE_LEFT,
    },
    # → DRAINING: the node was being drained when it went away
    _N.NODE_STATE_FAILED: {_N.NODE_STATE_LIVE, _N.NODE_STATE_DRAINING},
    _N.NODE_STATE_LEFT: {_N.NODE_STATE_LIVE, _N.NODE_STATE_DRAINING},
}

MIGRATION_TRANSITIONS: Final[dict[int, set[int]]] = {
    _M.MIGRATION_STATE_PENDING: {
        _M.MIGRATION_STATE_COPYING,
        _M.MIGRATION_STATE_PREPARING,
        _M.MIGRATION_STATE_RELEASING,
        _M.MIGRATION_STATE_CANCELLED,
    },
    # Of duties
    # PREPARING → COMPLETED: the source is gone by now, so it has nothing to release
    _M.MIGRATION_STATE_PREPARING: {
        _M.MIGRATION_STATE_RELEASING,
        _M.MIGRATION_STATE_COMPLETED,
        _M.MIGRATION_STATE_CANCELLED,
    },
    _M.MIGRATION_STATE_RELEASING: {_M.MIGRATION_STATE_COMPLETED, _M.MIGRATION_STATE_CANCELLED},
    # Of partitions
    _M.MIGRATION_STATE_COPYING: {
        _M.MIGRATION_STATE_HANDED_OVER,
        _M.MIGRATION_STATE_CANCELLING,
        _M.MIGRATION_STATE_CANCELLED,
    },
    # CANCELLING → COPYING: the old replicas have died since, so the migration can't go back
    _M.MIGRATION_STATE_CANCELLING: {_M.MIGRATION_STATE_CANCELLED, _M.MIGRATION_STATE_COPYING},
    _M.MIGRATION_STATE_HANDED_OVER: {_M.MIGRATION_STATE_COMPLETED},
}
MIGRATIONS_UNDER_WAY: Final = (
    _M.MIGRATION_STATE_COPYING,
    _M.MIGRATION_STATE_HANDED_OVER,
    _M.MIGRATION_STATE_CANCELLING,
    _M.MIGRATION_STATE_PREPARING,
    _M.MIGRATION_STATE_RELEASING,
)
MIGRATIONS_ENDED: Final = (_M.MIGRATION_STATE_COMPLETED, _M.MIGRATION_STATE_CANCELLED)


def check_node_change(old: Node | None, new: Node, nodes: Iterable[Node]) -> None:
    """Assert that `new` may replace `old` among `nodes`."""
    if old is None:
        assert all(n.raft_id != new.raft_id for n in nodes), f"raft id {new.raft_id} is taken: {new}"
        return
    assert new.raft_id == old.raft_id, (old, new)
    assert new.state in NODE_TRANSITIONS[old.state], (old, new)


def check_partition_change(old: Partition | None, new: Partition, nodes: Mapping[str, Node]) -> None:
    """Assert that `new` may replace `old` (None: the partition is created), and that `new` alone is valid."""
    check_partition_row(old, new, nodes)
    if old is not None:
        bounds = (old.start_key, old.end_key, old.split_from, old.split_to)
        assert bounds == (new.start_key, new.end_key, new.split_from, new.split_to), (old, new)
        assert old.splitting or not new.splitting, (old, new)


def check_new_partition(new: Partition, nodes: Mapping[str, Node]) -> None:
    """Assert that a new partition may have this row: it is NewPartition, or has a leader at once, which is up."""
    first = (PARTITION_STATE_NEW, 0), (PARTITION_STATE_ASSIGNED, 1)
    assert (new.state, new.leader_epoch) in first, new
    assert not new.leader or is_up(nodes.get(new.leader)), new
    assert not new.removing_replicas, new
    check_partition(new)


def check_partition_row(old: Partition | None, new: Partition, nodes: Mapping[str, Node]) -> None:
    """Like `check_partition_change`, but for the partition's range, which isn't checked."""
    assert is_valid_partition_change(old, new), (old, new)
    assert not (invalid := invalid_replica_changes(old, new, nodes)), (invalid, old, new)
    check_partition(new)
    if old is None:
        assert new.state == PARTITION_STATE_NEW, new
        return
    assert new.partition_epoch == old.partition_epoch + 1, (old, new)
    assert (new.keyspace_id, new.slot) == (old.keyspace_id, old.slot), (old, new)
    assert new.leader_epoch >= old.leader_epoch, (old, new)
    assert new.generation >= old.generation, (old, new)
    elected = new.leader not in (old.leader, "") or (
        new.state == PARTITION_STATE_ASSIGNED and old.state != PARTITION_STATE_ASSIGNED
    )
    assert not elected or new.leader_epoch > old.leader_epoch, (old, new)
    unclean = new.unclean_elections - old.unclean_elections
    assert unclean in (0, 1), (old, new)
    # Except in an unclean election, one replica or more of the isr, with all acknowledged writes, stays in the isr.
    assert unclean or not old.isr or set(new.isr) & set(old.isr), (old, new)
    assert unclean or not elected or not old.isr or new.leader in old.isr, (old, new)
    # A replica that lacks acknowledged writes can't become eligible.
    eligible = set(eligible_replicas(new))
    assert eligible <= {*old.isr, *eligible_replicas(old)}, (old, new)
    assert not (eligible and unclean), (old, new)


def check_partition(row: Partition) -> None:
    """Assert that the row alone is valid."""
    replicas, isr, removing = set(row.replicas), set(row.isr), set(row.removing_replicas)
    target = set(row.target_replicas)
    has_no_leader = row.state in (PARTITION_STATE_NEW, PARTITION_STATE_OFFLINE)
    assert (row.leader == "") == has_no_leader, row
    assert not row.leader or row.leader in isr, row
    assert isr or row.state == PARTITION_STATE_NEW, row
    assert isr <= replicas - removing, row
    assert target <= replicas - removing, row
    assert set(row.adding_replicas) <= target - isr, row
    # A replica that is still assigned is removed only at the end of a reassignment.
    assert not replicas & removing or (target and not target & removing), row
    assert not row.successor or (row.leader and row.successor in isr - {row.leader}), row
    assert len(replicas) == len(row.replicas), row
    assert len(isr) == len(row.isr), row
    assert len(removing) == len(row.removing_replicas), row
    assert len(target) == len(row.target_replicas), row
    assert not row.end_key or row.start_key < row.end_key, row
    eligible = set(eligible_replicas(row))
    assert eligible <= replicas - isr - removing - set(row.adding_replicas), row
    assert not eligible or not row.splitting, row
    # A partition that is being split doesn't move: its replicas make the other half.
    assert not row.splitting or not (target or row.successor or row.adding_replicas), row
    assert not (row.merge_from or row.merge_into) or not (target or row.splitting), row
    assert not (row.merge_from and row.merge_into), row


def check_eligible(row: Partition, keyspace: Keyspace) -> None:
    """Assert that replicas outside of the isr are eligible only while the isr is too small for writes."""
    assert not eligible_replicas(row) or len(row.isr) < keyspace.min_insync, (row, keyspace)


def check_migration_change(old: Migration, new: Migration) -> None:
    """Assert that `new` may replace `old`."""
    assert new.state in MIGRATION_TRANSITIONS[old.state], (old, new)
    assert (new.source, new.target, new.index) == (old.source, old.target, old.index), (old, new)
