"""State that the replicas of one node share."""

from collections.abc import Collection
from typing import Protocol

from minka.errors import MinkaError
from minka.v1.cluster_pb2 import Keyspace
from minkad.core.replication.copy_logs import CopyLogs
from minkad.core.replication.instructions import Apply, Outbox
from minkad.core.replication.replica_state import Applying, ReplicaState
from minkad.core.replication.replication_settings import ReplicationSettings


class ClusterView(Protocol):
    """The cluster as this node's own copy of the table shows it now."""

    def keyspace(self, keyspace_id: int) -> Keyspace | None:
        """The keyspace; None while it is unknown here."""

    def last_clearance(self, now: float) -> float:
        """The last moment up to `now`, by this node's clock, at which it had clearance; -inf if it has given its
        clearance up, or never had one.
        """

    def is_absent(self, node_id: str) -> bool:
        """True if a node has failed, or left."""

    def low_disks(self) -> Collection[str]:
        """The nodes that are short of disk space."""


class InSyncSet(Protocol):
    """The in-sync set of a partition that this node leads."""

    def may_be_in_sync(self) -> set[str]:
        """The nodes of the in-sync set, and those that may have joined it."""

    def recount(self) -> None:
        """The replicas that may be in sync have changed."""


class Node:
    """The replicas of one node, and their shared state. For one thread."""

    def __init__(self, id: str, settings: ReplicationSettings, view: ClusterView, outbox: Outbox) -> None:  # noqa: A002
        self.id = id
        self.settings = settings
        self.view = view
        self.outbox = outbox
        self.states: dict[int, ReplicaState] = {}  # by partition
        self.in_sync_sets: dict[int, InSyncSet] = {}  # by partition, for those that this node leads
        self.unsettled: set[int] = set()  # the partitions led here for which `Leader.check` is to be called
        self.migrating: set[int] = set()  # the partitions led here that may have `Leader.migrations`
        self.used: set[int] = set()  # the partitions that were read or written lately
        self.copy_logs = CopyLogs()
        self.failed: dict[int, MinkaError] = {}  # by partition: why it can't be served

    def apply(self, state: ReplicaState) -> None:
        """Ask to apply the replica's committed entries, unless that is under way."""
        if state.applied < state.high_watermark and state.applying is Applying.IDLE:
            state.applying = Applying.QUEUED
            self.outbox.put(Apply(state.id))

    def is_made(self, partition_id: int) -> bool:
        """True if this node has made the child of a split, or has a copy of it."""
        state = self.states.get(partition_id)
        return state is not None and state.is_made
