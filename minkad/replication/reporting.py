"""What a node tells the controller and its metrics about its replicas."""

from collections.abc import Callable, Mapping
from typing import Final

from minka.v1.coordinator_pb2 import DamagedReplica, MigrationProgress, ReplicaStats
from minkad.core.replication.leader import Leader
from minkad.core.replication.state import Role
from minkad.replication.checkpoint_sender import CheckpointSenders
from minkad.replication.intervals import owned_size
from minkad.replication.replica import Replica

_MAX_STATS: Final = 500


class Reporting:
    """For the loop's thread."""

    def __init__(
        self, replicas: Mapping[int, Replica], checkpoints: CheckpointSenders, clock: Callable[[], float]
    ) -> None:
        self._replicas = replicas
        self._checkpoints = checkpoints
        self._clock = clock
        self._changed: set[int] = set()
        self._noted: set[int] = set()  # those that had a `not_split` to report

    def changed(self, replica: Replica) -> None:
        """The replica's figures have changed."""
        self._changed.add(replica.id)

    def stats(self, changed_only: bool) -> list[ReplicaStats]:
        """Stats of the partitions that this node leads; with `changed_only`, of those that changed since the last call.
        One call returns at most 500; the others come with the next calls.
        """
        # `not_split` may change without a write to the replica.
        noted = {replica.id for replica in self._replicas.values() if replica.not_split}
        ids = self._changed | noted | self._noted if changed_only else self._replicas.keys()
        leading = [replica for id_ in ids if (replica := self._replicas.get(id_)) and replica.role is Role.LEADER]
        leading, rest = leading[:_MAX_STATS], leading[_MAX_STATS:]
        self._changed, self._noted = {replica.id for replica in rest}, noted
        return [_stats(replica) for replica in leading]

    def damaged(self) -> list[DamagedReplica]:
        """The replicas on this node that are damaged and serve nothing, with the reason."""
        return [
            DamagedReplica(partition_id=replica.id, reason=str(replica.damage))
            for replica in self._replicas.values()
            if replica.damage is not None and replica.role is not Role.REMOVED
        ]

    def serving(self) -> int:
        """How many partitions this node serves as their leader while it has clearance."""
        return sum(replica.is_ready for replica in self._replicas.values())

    def migrations(self) -> list[MigrationProgress]:
        """The progress of the replicas to which this node, as the leader, sends a copy or hands over."""
        found: list[MigrationProgress] = []
        for leader in self._leaders():
            for migration in leader.migrations():
                self._checkpoints.describe(leader.progress[migration.target], migration)
                found.append(migration)
        return found

    def follower_lags(self) -> dict[str, tuple[int, float]]:
        """By node that follows this one: the most entries that it lacks in a partition, and the most seconds for which
        it has lacked any in one.
        """
        found: dict[str, tuple[int, float]] = {}
        now = self._clock()
        for leader in self._leaders():
            for node, (entries, seconds) in leader.lags(now).items():
                most = found.get(node, (0, 0.0))
                found[node] = max(entries, most[0]), max(seconds, most[1])
        return found

    def _leaders(self) -> list[Leader]:
        return [leader for replica in self._replicas.values() if (leader := replica.leader) is not None]


def _stats(replica: Replica) -> ReplicaStats:
    size = owned_size(replica)
    ops, cpu_percent, too_busy = replica.load.reported()
    return ReplicaStats(
        partition_id=replica.id,
        bytes=size.bytes,
        keys=size.keys,
        log_end_offset=replica.log.end,
        applied_offset=replica.applied,
        ops=ops,
        cpu_percent=cpu_percent,
        not_split="; ".join(filter(None, (replica.not_split, too_busy))),
    )
