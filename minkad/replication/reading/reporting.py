"""A node's reports about its replicas: for the controller, for the metrics, and for the history of its load."""

from collections.abc import Iterable, Mapping
from typing import Final

from minka.v1.admin_pb2 import CopyDescription, ReplicaEvent
from minka.v1.coordinator_pb2 import MigrationProgress, ReplicaStats
from minka.wire.history_rows import NO_LATENCY, PartitionInterval
from minkad.core.replication.leadership import Leader
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Role
from minkad.core.replication.story import Happened
from minkad.core.state import range_of
from minkad.process.turns import turn
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.reading.changed_figures import ChangedFigures
from minkad.replication.reading.replica_load import Traffic
from minkad.replication.sending.checkpoint_sender import CheckpointSenders
from minkad.replication.sending.replication_sender import ReplicationSenders
from minkad.replication.serving.routing import Routing
from minkad.replication.surroundings import Surroundings
from minkad.storage.size_estimate import Size

_MAX_STATS: Final = 500
_AT_ONCE: Final = 500  # replicas looked at before other tasks get a turn
_CHANGED_SHARE: Final = 16  # a size is reported when it has changed by more than 1/16
_QUIET: Final = Traffic()


class Reporting:
    """For the loop's thread."""

    def __init__(
        self,
        around: Surroundings,
        node: Node[HostedReplica],
        figures: ChangedFigures,
        senders: ReplicationSenders,
        checkpoints: CheckpointSenders,
        routing: Routing,
    ) -> None:
        self._node = node
        self._figures = figures
        self._senders = senders
        self._checkpoints = checkpoints
        self._routing = routing
        self._clock = around.clock
        self._unix_ms = around.unix_ms

    def stats(self, changed_only: bool) -> list[ReplicaStats]:
        """Stats of the partitions that this node leads; with `changed_only`, only of those that have changed since the
        last call. Each call returns at most 500; the next calls with `changed_only` return the others.
        """
        changed = self._figures.to_report
        if changed_only and not changed:
            return []
        ids = changed if changed_only else self._node.replicas.keys()
        found = (self._node.replicas.get(id_) for id_ in ids)
        leading = [replica for replica in found if replica is not None and replica.state.role is Role.LEADER]
        leading, rest = leading[:_MAX_STATS], leading[_MAX_STATS:]
        self._figures.to_report = {replica.id for replica in rest}
        return [_stats(replica) for replica in leading]

    def serving(self) -> int:
        """The number of partitions that this node serves as their leader while it has clearance."""
        return sum(replica.state.is_ready for replica in self._node.replicas.values())

    def stale_reads(self) -> int:
        """The number of partitions for which this node would answer a stale read now."""
        return sum(map(self._routing.answers_stale, self._node.replicas.values()))

    def copies(self, partition_ids: Iterable[int], *, stories: bool = False) -> list[CopyDescription]:
        """The copies of these partitions on this node, perhaps with their stories."""
        found = (self._node.replicas.get(id_) for id_ in partition_ids)
        copies = [_copy(one) for one in found if one is not None and one.state.role is not Role.REMOVED]
        if stories:
            began_ms = self._unix_ms() - 1000 * self._clock()
            for copy in copies:
                story = self._node.replicas[copy.partition_id].state.story.all()
                copy.story.extend(_event(happened, began_ms) for happened in story)
        return copies

    def migrations(self) -> list[MigrationProgress]:
        """The progress of the replicas to which this node, as their leader, sends a copy or hands a leadership over."""
        found: list[MigrationProgress] = []
        for leader in self._leaders(self._node.shared.migrating):
            for migration in leader.migrations():
                self._checkpoints.describe(leader.progress[migration.target], migration)
                found.append(migration)
        return found

    def follower_lags(self) -> dict[str, tuple[int, float]]:
        """By node that follows this node: the most entries that it lacks in any partition, and the longest time, in
        seconds, since it had the whole log of a partition.
        """
        found = dict.fromkeys(self._senders.followers(), (0, 0.0))
        now = self._clock()
        for leader in self._leaders(self._node.shared.unsettled):  # in all others, no present follower lags
            for node, (entries, seconds) in leader.lags(now).items():
                most = found.get(node, (0, 0.0))
                found[node] = max(entries, most[0]), max(seconds, most[1])
        return found

    def _leaders(self, partition_ids: Iterable[int]) -> list[Leader]:
        replicas = (self._node.replicas.get(id_) for id_ in partition_ids)
        return [leader for one in replicas if one is not None and (leader := one.state.leader) is not None]


class Intervals:
    """The traffic and size of the replicas in each interval, for the history. The history lacks the last interval of a
    removed replica.
    """

    def __init__(self, replicas: Mapping[int, HostedReplica]) -> None:
        self._replicas = replicas
        self._told: dict[int, int] = {}  # by partition id: the size in its last row, in bytes

    async def take(self, *, whole: bool) -> list[PartitionInterval]:
        """The rows of the replicas that have answered clients or changed in size since the last call. With `whole`,
        also the rows of all others that have data.
        """
        self._told = {id_: size for id_, size in self._told.items() if id_ in self._replicas}
        found: list[PartitionInterval] = []
        for number, replica in enumerate(list(self._replicas.values()), 1):
            if number % _AT_ONCE == 0:
                await turn()
            traffic, size, told = replica.load.take_traffic(), _owned_size(replica), self._told.get(replica.id, 0)
            has_changed = abs(size.bytes - told) > max(told, size.bytes) // _CHANGED_SHARE
            if traffic is not None or has_changed or (whole and size.bytes):
                self._told[replica.id] = size.bytes
                found.append(_interval(replica, traffic or _QUIET, size))
        return found


def _owned_size(replica: HostedReplica) -> Size:
    """The size of the replica's data, without the keys outside of its range, for example since a split. With such keys,
    the size is an estimate.
    """
    size = replica.data.size()
    if not replica.state.trim.has_foreign:
        return size
    share = replica.data.share(range_of(replica.state.row))
    return Size(int(size.bytes * share), int(size.keys * share))


def _copy(replica: HostedReplica) -> CopyDescription:
    end, unusable = replica.log.end, ""
    if not replica.state.is_usable:
        unusable = (
            str(replica.state.damage) if replica.state.damage is not None else f"its copy is {replica.state.copy.value}"
        )
    return CopyDescription(
        partition_id=replica.id,
        log_end_offset=end,
        log_end_epoch=replica.log.epoch_at(end),
        committed=replica.state.high_watermark,
        unusable=unusable,
    )


def _event(happened: Happened, began_ms: float) -> ReplicaEvent:
    """`began_ms`: the wall clock's time when the node's clock was 0."""
    return ReplicaEvent(
        at_ms=int(began_ms + 1000 * happened.at),
        what=happened.what,
        times=happened.times,
        leader_epoch=happened.leader_epoch,
        applied=happened.applied,
        committed=happened.high_watermark,
        durable=happened.durable,
        log_end=happened.end,
    )


def _stats(replica: HostedReplica) -> ReplicaStats:
    size = _owned_size(replica)
    ops, cpu_percent, too_busy = replica.load.reported()
    return ReplicaStats(
        partition_id=replica.id,
        bytes=size.bytes,
        keys=size.keys,
        log_end_offset=replica.log.end,
        applied_offset=replica.state.applied,
        ops=ops,
        cpu_percent=cpu_percent,
        not_split="; ".join(filter(None, (replica.not_split, too_busy))),
    )


def _interval(replica: HostedReplica, traffic: Traffic, size: Size) -> PartitionInterval:
    return PartitionInterval(
        partition_id=replica.id,
        keyspace_id=replica.state.row.keyspace_id,
        leads=replica.state.role is Role.LEADER,
        reads=traffic.reads,
        writes=traffic.writes,
        bytes_read=traffic.bytes_read,
        bytes_written=traffic.bytes_written,
        bytes=size.bytes,
        keys=size.keys,
        reads_took=traffic.reads_took or NO_LATENCY,
        writes_took=traffic.writes_took or NO_LATENCY,
    )
