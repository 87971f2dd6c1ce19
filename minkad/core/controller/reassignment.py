"""Moves a partition from its old assigned replicas (OAR) to new ones (RAR), step by step (Kafka Controller Internals:
onPartitionReassignment).

Each step is a record of its own, and the next step is read from the row alone. So a new active controller goes on where
the last one stopped:

    1, 2, 3   `begin`: AR = OAR + RAR, `target_replicas` = RAR; every replica is told; RAR - OAR → NewReplica
    4, 5      the leader adds them to the isr as they catch up: RAR → OnlineReplica
    6, 7      the leader is not in RAR: it gets a `successor` in RAR and hands over
    8, 9      `removing_replicas` = OAR - RAR, out of the isr: → OfflineReplica, and they are told to delete
    10        AR = RAR, last, since only AR has the OAR
    11        they have deleted (→ NonExistentReplica), or their nodes are gone: the migration is COMPLETED
    12        every node has the table through the log
"""

from collections.abc import Collection, Mapping, Sequence

from minka.cluster.in_sync import has_everything
from minka.v1.cluster_pb2 import Migration, MigrationState, NodeState, Partition
from minka.v1.records_pb2 import Record
from minkad.core.controller.mover import MigrationCaps, Most
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.rows import migration_in_state, partitions_changed
from minkad.core.controller.selectors import (
    Live,
    preferred_replica_partition_leader_selector,
    reassigned_partition_leader_selector,
)
from minkad.core.placement.moving import has_leader
from minkad.core.state import State, is_up, partition_name, replace

_M = MigrationState


class PartitionMover:
    """A partition gets other replicas; the `Mover` of partitions."""

    def name(self, state: State, id_: int) -> str:
        """The partition's name, such as flights/7; after it was merged into another one: partition 7."""
        partition = state.partitions.get(id_)
        return f"partition {id_}" if partition is None else partition_name(state.keyspaces, partition)

    def impossible(self, state: State, migration: Migration) -> str | None:
        """The replicas aren't as expected: an earlier migration was cancelled."""
        replicas = state.partitions[migration.partition_id].replicas
        if migration.source and migration.source not in replicas:
            return f"{migration.source} no longer holds a replica of it"
        if migration.target and not migration.target_replicas and migration.target in replicas:
            return f"{migration.target} holds a replica of it already"
        return None

    def obstacle(self, state: State, migration: Migration) -> str | None:
        """The partition can't be copied now, or not to these nodes."""
        partition = state.partitions[migration.partition_id]
        if not has_leader(partition):
            return _offline(partition)
        if partition.splitting:
            return "it is being split"
        if partition.merge_from or partition.merge_into:
            return "it is being merged"
        for node_id in _added_by(partition, _target_of(partition, migration)):
            if node_id in partition.removing_replicas:
                return f"{node_id} is still deleting an older copy"
            node = state.nodes.get(node_id)
            if node is None or node.state != NodeState.NODE_STATE_LIVE:
                return f"{node_id} is not LIVE"
        return None

    def hosts(self, state: State, migration: Migration, live: Live) -> list[str]:
        """The partition's leader and RAR - OAR, until it is handed over."""
        if migration.state not in (_M.MIGRATION_STATE_PENDING, _M.MIGRATION_STATE_COPYING):
            return []
        partition = state.partitions[migration.partition_id]
        joining = list(partition.adding_replicas)
        if migration.state == _M.MIGRATION_STATE_PENDING:
            joining = _added_by(partition, _target_of(partition, migration))
        nodes = [partition.leader, *joining]
        return nodes if joining and all(node in live.up for node in nodes) else []

    def most(self, state: State, migration: Migration, caps: MigrationCaps) -> Most:
        """The caps on copies, which cost disks and network."""
        return Most(caps.per_node, caps.cluster)

    def busy_besides(self, state: State) -> Mapping[str, int]:
        """Nothing: a migration ends only when its copy is complete and the old replicas are deleted."""
        return {}

    def begin(self, state: State, migrations: Sequence[Migration], now_ms: int) -> list[Record]:
        """Steps 1 to 3."""
        return [record for migration in migrations for record in self._begin(state, migration, now_ms)]

    def _begin(self, state: State, migration: Migration, now_ms: int) -> list[Record]:
        partition = state.partitions[migration.partition_id]
        target = _target_of(partition, migration)
        begun = Migration()
        begun.CopyFrom(migration)
        begun.original_replicas[:], begun.target_replicas[:] = partition.replicas, target
        return [
            *partitions_changed([PartitionChange(partition).reassign_to(target).row()]),
            migration_in_state(begun, _M.MIGRATION_STATE_COPYING, now_ms),
        ]

    def go_on(self, state: State, migrations: Sequence[Migration], live: Live, now_ms: int) -> list[Record]:
        """Steps 4 to 11, or the way back."""
        return [record for migration in migrations for record in self._go_on(state, migration, live, now_ms)]

    def _go_on(self, state: State, migration: Migration, live: Live, now_ms: int) -> list[Record]:
        partition = state.partitions[migration.partition_id]
        if migration.state == _M.MIGRATION_STATE_HANDED_OVER:
            return _finish(partition, migration, live, now_ms)
        if migration.state == _M.MIGRATION_STATE_CANCELLING:
            return self._go_on_back(state, migration, live, now_ms)
        if missing_in_sync(partition, migration.original_replicas, live.up) or not partition.leader:
            return []  # step 4
        if (successor := _next_leader(partition, migration, live)) is not None:
            if partition.successor == successor:
                return []  # step 7
            return partitions_changed([PartitionChange(partition).appoint(successor).row()])
        if partition.leader not in partition.target_replicas:
            return []
        return [
            *partitions_changed([PartitionChange(partition).remove_old_replicas().row()]),
            migration_in_state(migration, _M.MIGRATION_STATE_HANDED_OVER, now_ms),
        ]

    def waits_for(self, state: State, migration: Migration, now_ms: int | None) -> tuple[str, str]:
        """It waits for a replica that has the data, or that has to be in sync."""
        partition = state.partitions[migration.partition_id]
        if not has_leader(partition):
            return _offline(partition), f"start {' or '.join(has_everything(partition))}"
        up = {node_id for node_id in partition.replicas if is_up(state.nodes.get(node_id))}
        for node_id in missing_in_sync(partition, migration.original_replicas, up):
            if node_id not in up:
                node = state.nodes.get(node_id)
                since = f": {node.state_reason}" if node is not None and node.state_reason else ""
                cancel = f"minkactl operations cancel {migration.operation_id}"
                return f"{node_id} is to be in sync and is not LIVE{since}", f"start {node_id}, or {cancel}"
        return "", ""

    def refusal_to_go_back(self, state: State, migration: Migration, live: Live) -> str | None:
        """Replicas in sync must not be dropped if too few of the original replicas are in sync."""
        partition, original = state.partitions[migration.partition_id], migration.original_replicas
        if all(node in original for node in partition.isr):
            return None
        in_sync = [node for node in partition.isr if node in live.up]
        left = [node for node in in_sync if node in original]
        needed = max(1, min(state.keyspaces[partition.keyspace_id].min_insync, len(in_sync)))
        if len(left) >= needed:
            return None
        alive = f"only {', '.join(left)}" if left else "none"
        return f"of its former replicas {', '.join(original)} {alive} is alive and in sync, and {needed} must be"

    def go_back(self, state: State, migration: Migration, live: Live, now_ms: int, reason: str) -> list[Record]:
        """Go back to OAR, and remove the copies of the new replicas (→ CANCELLED). A leader that isn't in OAR hands
        over first (→ CANCELLING), and serves until then.
        """
        partition, original = state.partitions[migration.partition_id], migration.original_replicas
        if not partition.leader or partition.leader in original:
            row = PartitionChange(partition).go_back_to(original).row()
            ends = _M.MIGRATION_STATE_CANCELLED
        else:
            successor = live.first(node for node in original if node in partition.isr)
            assert successor is not None, partition
            row = PartitionChange(partition).appoint(successor).row()
            ends = _M.MIGRATION_STATE_CANCELLING
        record = [] if ends == migration.state else [migration_in_state(migration, ends, now_ms, reason)]
        return [*partitions_changed([row]), *record]

    def _go_on_back(self, state: State, migration: Migration, live: Live, now_ms: int) -> list[Record]:
        """The next step of a migration that is CANCELLING; none while its leader hands over. If too few replicas of OAR
        are left alive, it goes forward again (→ COPYING).
        """
        if self.refusal_to_go_back(state, migration, live) is not None:
            return [migration_in_state(migration, _M.MIGRATION_STATE_COPYING, now_ms)]
        if state.partitions[migration.partition_id].successor in migration.original_replicas:
            return []
        return self.go_back(state, migration, live, now_ms, migration.outcome)


def missing_in_sync(partition: Partition, original: Collection[str], up: Collection[str]) -> list[str]:
    """The nodes of RAR for which the migration waits: they have not joined the isr, or they are down, so the leader
    will soon remove them from the isr.

    The migration doesn't wait for a replica of OAR (`original`) that is down and not in the isr, if RAR has at least as
    many live replicas in sync as OAR. So (a b c) → (a b d) completes while b is down, as soon as d is in sync.
    """
    in_sync = [node for node in partition.isr if node in up]
    missing = [node for node in partition.target_replicas if node not in in_sync]
    away = {node for node in missing if node in original and node not in up and node not in partition.isr}
    if sum(node in partition.target_replicas for node in in_sync) < sum(node in original for node in in_sync):
        return missing
    return [node for node in missing if node not in away]


def _target_of(partition: Partition, migration: Migration) -> list[str]:
    """The RAR of a migration that has not begun: its own list, or the replicas with its target in its source's
    place.
    """
    if migration.target_replicas:
        return list(migration.target_replicas)
    return replace(partition.replicas, migration.source, migration.target)


def _added_by(partition: Partition, target: Sequence[str]) -> list[str]:
    """RAR - OAR."""
    return [node for node in target if node not in partition.replicas]


def _next_leader(partition: Partition, migration: Migration, live: Live) -> str | None:
    """Step 6: the next leader by RAR; None if the leader stays. If only the order changes, the first replica is to
    lead.
    """
    selection = None
    if partition.leader not in partition.target_replicas:
        selection = reassigned_partition_leader_selector(partition, live)
    elif set(migration.original_replicas) == set(partition.target_replicas):
        selection = preferred_replica_partition_leader_selector(partition, live)
    return selection.leader if selection is not None and selection.leader != partition.leader else None


def _finish(partition: Partition, migration: Migration, live: Live, now_ms: int) -> list[Record]:
    """Steps 10 and 11."""
    if partition.target_replicas:
        return partitions_changed([PartitionChange(partition).assign_target().row()])
    to_delete = [node for node in partition.removing_replicas if node in migration.original_replicas]
    if any(node in live.up for node in to_delete):
        return []
    outcome = f"moved; {', '.join(to_delete)} will delete its copy when it is back" if to_delete else "moved"
    completed = migration_in_state(migration, _M.MIGRATION_STATE_COMPLETED, now_ms, outcome)
    completed.migration_changed.left_behind[:] = to_delete
    return [completed]


def _offline(partition: Partition) -> str:
    return f"it is OFFLINE, and its data is on {', '.join(has_everything(partition))}"
