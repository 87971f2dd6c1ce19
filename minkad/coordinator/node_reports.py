"""The nodes' reports in their heartbeats since this node became the active controller."""

from collections.abc import Iterator, Sequence
from typing import Final

from minka.cluster.clocks import of_most
from minka.v1.cluster_pb2 import Node
from minka.v1.coordinator_pb2 import DamagedReplica, DiskSpace, HeartbeatRequest, MigrationProgress, ReplicaStats
from minka.v1.load_api_pb2 import WaitingPart
from minkad.core.state import State, is_up

_FEW_GONE: Final = 1000


class NodeReports:
    """`committed` is the recorded table, `decided` the table after all proposals."""

    def __init__(self, committed: State, decided: State) -> None:
        self._committed = committed
        self._decided = decided
        self.applied: dict[str, int] = {}  # by node: the Raft index up to which it has applied the log
        self._most_applied = 0  # the greatest index in `applied`, ever
        self._standing_since: dict[str, float] = {}  # by node that lags: the time since which it has applied nothing
        self.disks: dict[str, DiskSpace] = {}
        self.clocks_ms: dict[str, int] = {}  # by node: see ClockOffset
        self._low_disks: dict[str, None] = {}
        self._stats: dict[int, ReplicaStats] = {}  # by partition, as its leader last reported
        self._fresh: set[int] = set()  # partitions with reports since the last `take_fresh`
        self._progress: dict[str, dict[tuple[int, str], MigrationProgress]] = {}  # by node, partition and target
        self._damaged: dict[str, dict[int, DamagedReplica]] = {}  # by node and partition
        self._waiting_parts: dict[str, Sequence[WaitingPart]] = {}

    def note(self, node: Node, request: HeartbeatRequest, now: float) -> bool:
        """Keep the reports in a node's heartbeat, which came at `now`. False if the heartbeat has only the changes
        since heartbeats that a former controller got.
        """
        self._note_applied(node.id, request.applied_index, now)
        self.disks[node.id] = request.disk
        if request.HasField("clock_ahead_ms"):
            self.clocks_ms[node.id] = request.clock_ahead_ms
        if request.disk.is_low:
            self._low_disks[node.id] = None
        else:
            self._low_disks.pop(node.id, None)
        led = self._committed.partitions.led.get(node.id, {})
        for stats in request.replicas:
            if stats.partition_id in led:  # a former leader may not know yet that another one leads
                self._stats[stats.partition_id] = stats
                self._fresh.add(stats.partition_id)
        is_known = node.id in self._progress or request.from_start
        if request.from_start:
            self._progress[node.id], self._damaged[node.id] = {}, {}
        if is_known:
            self._note_changes(node.id, request)
        return is_known

    def _note_applied(self, node: str, applied: int, now: float) -> None:
        self._most_applied = max(self._most_applied, applied)
        if applied != self.applied.get(node) or applied == self._most_applied:
            self._standing_since.pop(node, None)
        else:
            self._standing_since.setdefault(node, now)
        self.applied[node] = applied

    def behind(self, node: str, now: float) -> float:
        """The seconds for which the node has applied nothing although there is more; 0 if it applies."""
        return now - self._standing_since.get(node, now)

    def clocks_of_most(self) -> int | None:
        """The offset around which most nodes' clocks are, in milliseconds (see ClockOffset); None if unknown."""
        nodes = self._committed.nodes
        known = [ms for node, ms in self.clocks_ms.items() if is_up(nodes.get(node))]
        return of_most(known, sum(map(is_up, nodes.values())))

    def _note_changes(self, node: str, request: HeartbeatRequest) -> None:
        progress, damaged = self._progress[node], self._damaged[node]
        for migration in request.migrations:
            progress[migration.partition_id, migration.target] = migration
        for ended in request.ended_migrations:
            progress.pop((ended.partition_id, ended.target), None)
        for one in request.damaged:
            damaged[one.partition_id] = one
        for partition_id in request.mended_ids:
            damaged.pop(partition_id, None)

    def note_waiting(self, node: str, parts: Sequence[WaitingPart]) -> None:
        """Keep the parts of loads that a node can't take in yet, with the reasons."""
        self._waiting_parts[node] = parts

    def forget_gone(self) -> None:
        """Drop the reports about partitions that are gone, once there are more than _FEW_GONE."""
        if len(self._stats) > len(self._decided.partitions) + _FEW_GONE:
            self._stats = {id_: stats for id_, stats in self._stats.items() if id_ in self._decided.partitions}

    def progress(self) -> list[MigrationProgress]:
        """The last reports of the sources of running migrations."""
        return [migration for reported in self._progress.values() for migration in reported.values()]

    def damaged(self) -> list[DamagedReplica]:
        """The damaged replicas that their nodes last reported, ordered by partition."""
        found = [
            DamagedReplica(partition_id=one.partition_id, reason=one.reason, node_id=node)
            for node, damaged in self._damaged.items()
            for one in damaged.values()
            if is_up(self._committed.nodes.get(node))
        ]
        return sorted(found, key=lambda one: (one.partition_id, one.node_id))

    def waiting_parts(self) -> list[WaitingPart]:
        """The parts of loads that nodes can't take in yet, as the nodes that are up last reported."""
        up = (node for node in self._waiting_parts if is_up(self._committed.nodes.get(node)))
        return [part for node in up for part in self._waiting_parts[node]]

    def sizes(self) -> dict[int, int]:
        """Bytes by partition id, as the leaders last reported."""
        return {stats.partition_id: stats.bytes for stats in self.leader_stats()}

    def size(self, partition_id: int) -> int:
        """Bytes of a partition, as its leader last reported; 0 without a report."""
        stats = self._stats.get(partition_id)
        return 0 if stats is None else stats.bytes

    def low_disks(self) -> list[str]:
        """The nodes that last reported a low disk."""
        return [node_id for node_id in self._low_disks if node_id in self._decided.nodes]

    def leader_stats(self) -> Iterator[ReplicaStats]:
        """The last report of each partition's leader. A former leader's report counts until the new leader has
        reported.
        """
        for partition_id, stats in list(self._stats.items()):
            if partition_id in self._committed.partitions:
                yield stats

    def of(self, partition_id: int) -> ReplicaStats | None:
        """The last report of the partition's leader."""
        return self._stats.get(partition_id)

    def take_fresh(self) -> set[int]:
        """The partitions with reports since the last call."""
        fresh, self._fresh = self._fresh, set()
        return fresh
