"""A node's reports about its replicas in one stream of heartbeats: each heartbeat has the changes since the last."""

from collections.abc import Hashable, Mapping
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from minka.v1.coordinator_pb2 import DamagedReplica, HeartbeatRequest, MigrationProgress, ReplicaStats

MOST_IN_ONE: Final = 500  # changes of a kind in one heartbeat; the others come with the next ones

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class DataPlane(Protocol):
    """The source of this node's reports about its replicas."""

    def stats(self, changed_only: bool) -> list[ReplicaStats]:
        """Sizes and offsets of the partitions that this node leads; with `changed_only`, only of the partitions that
        have changed since the last call. If there are many, each call returns a part of them.
        """

    def migrations(self) -> list[MigrationProgress]:
        """The progress of the migrations from this node."""

    def damaged(self) -> list[DamagedReplica]:
        """The damaged replicas; this node serves nothing of them."""

    def stop_leading(self) -> None:
        """Lead nothing at the leader_epochs known so far: other nodes may lead these partitions by now."""


class Told(Generic[K, V]):
    """The values that the active controller knows from this stream."""

    def __init__(self) -> None:
        self._told: dict[K, V] = {}

    def changes(self, now: Mapping[K, V]) -> tuple[list[V], list[K]]:
        """The values to tell the controller, and the keys that are gone; at most MOST_IN_ONE of each. From here on the
        controller counts as told.
        """
        if not now and not self._told:
            return [], []
        changed = list(islice((key for key, value in now.items() if self._told.get(key) != value), MOST_IN_ONE))
        gone = list(islice((key for key in self._told if key not in now), MOST_IN_ONE))
        for key in changed:
            self._told[key] = now[key]
        for key in gone:
            del self._told[key]
        return [now[key] for key in changed], gone


class HeartbeatReports:
    """The reports on one stream. Nothing on a stream is lost unless it ends, so everything sent counts as told."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._begins = True
        self._migrations: Told[tuple[int, str], MigrationProgress] = Told()
        self._damaged: Told[int, DamagedReplica] = Told()

    def begin_again(self) -> None:
        """Report everything again: the controller lacks the reports so far."""
        self._begins = True

    def add_to(self, request: HeartbeatRequest) -> None:
        """Add the changes to the heartbeat that is sent next."""
        if self._begins:
            request.from_start = True
            self._migrations, self._damaged = Told(), Told()
        request.replicas.extend(self._data_plane.stats(not self._begins))
        self._begins = False
        progress = {(one.partition_id, one.target): one for one in self._data_plane.migrations()}
        moved, ended = self._migrations.changes(progress)
        request.migrations.extend(moved)
        for partition_id, target in ended:
            request.ended_migrations.add(partition_id=partition_id, target=target)
        damaged, mended = self._damaged.changes({one.partition_id: one for one in self._data_plane.damaged()})
        request.damaged.extend(damaged)
        request.mended_ids.extend(mended)
