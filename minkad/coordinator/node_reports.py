"""What the nodes have reported in their heartbeats since this node became the active controller."""

from collections.abc import Iterator, Sequence

from minka.v1.cluster_pb2 import Node
from minka.v1.coordinator_pb2 import DamagedReplica, DiskSpace, HeartbeatRequest, MigrationProgress, ReplicaStats
from minka.v1.load_api_pb2 import WaitingPart
from minkad.core.state import State, is_up

_FEW_STATS = 1000


class NodeReports:
    """`committed` is the table as it is recorded, `decided` as it will be."""

    def __init__(self, committed: State, decided: State) -> None:
        self._committed = committed
        self._decided = decided
        self.applied: dict[str, int] = {}  # by node: the Raft index up to which it has applied the log
        self.disks: dict[str, DiskSpace] = {}
        self._replicas: dict[tuple[str, int], ReplicaStats] = {}
        self._fresh: set[int] = set()
        self._progress: dict[str, list[MigrationProgress]] = {}
        self._damaged: dict[str, list[DamagedReplica]] = {}
        self._waiting_parts: dict[str, Sequence[WaitingPart]] = {}

    def note(self, node: Node, request: HeartbeatRequest) -> None:
        """Keep what a heartbeat of the node says."""
        self.applied[node.id] = request.applied_index
        self.disks[node.id] = request.disk
        for stats in request.replicas:
            self._replicas[(node.id, stats.partition_id)] = stats
            self._fresh.add(stats.partition_id)
        self._damaged[node.id] = list(request.damaged)
        self._progress[node.id] = list(request.migrations)

    def note_waiting(self, node: str, parts: Sequence[WaitingPart]) -> None:
        """Keep which parts of loads a node can't take in yet, and why."""
        self._waiting_parts[node] = parts

    def forget_gone(self) -> None:
        """Drop the reports about partitions that were merged into others, and those of former leaders, before they are
        many.
        """
        if len(self._replicas) > 4 * len(self._decided.partitions) + _FEW_STATS:
            leaders = {(row.leader, row.id) for row in self._decided.partitions.values()}
            self._replicas = {key: stats for key, stats in self._replicas.items() if key in leaders}

    def progress(self) -> list[MigrationProgress]:
        """What the sources of running migrations last reported."""
        return [p for reported in self._progress.values() for p in reported]

    def damaged(self) -> list[DamagedReplica]:
        """The damaged replicas that their nodes last reported, in the order of the partitions."""
        found = [
            DamagedReplica(partition_id=one.partition_id, reason=one.reason, node_id=node)
            for node, damaged in self._damaged.items()
            for one in damaged
            if is_up(self._committed.nodes.get(node))
        ]
        return sorted(found, key=lambda one: (one.partition_id, one.node_id))

    def waiting_parts(self) -> list[WaitingPart]:
        """The parts of loads that nodes can't take in yet, as the nodes that are up last reported."""
        up = (node for node in self._waiting_parts if is_up(self._committed.nodes.get(node)))
        return [part for node in up for part in self._waiting_parts[node]]

    def sizes(self) -> dict[int, int]:
        """Bytes by partition id, as the leaders last reported."""
        return {s.partition_id: s.bytes for s in self.leader_stats()}

    def low_disks(self) -> list[str]:
        """The nodes that have last said that their disks are low."""
        return [node_id for node_id, disk in self.disks.items() if disk.is_low and node_id in self._decided.nodes]

    def leader_stats(self) -> list[ReplicaStats]:
        """What the leader of each partition last reported about it."""
        return list(self.each_leaders_stats())

    def each_leaders_stats(self) -> Iterator[ReplicaStats]:
        """The same, one by one."""
        for row in list(self._committed.partitions.values()):
            stats = self.of_leader(row.leader, row.id)
            if stats is not None:
                yield stats

    def of_leader(self, leader: str, partition_id: int) -> ReplicaStats | None:
        """What this leader last reported about the partition."""
        return self._replicas.get((leader, partition_id))

    def take_fresh(self) -> set[int]:
        """The partitions about which something was reported since the last call."""
        fresh, self._fresh = self._fresh, set()
        return fresh
