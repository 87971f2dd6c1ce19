"""State that the replicas of one node share."""

from collections.abc import Collection, Container, Mapping
from typing import Protocol, TypeVar

from minka.errors import MinkaError
from minka.v1.cluster_pb2 import Keyspace
from minkad.core.replication.copy_logs import CopyLogs
from minkad.core.replication.instructions import Outbox
from minkad.core.replication.replica_state import Applying, ReplicaState
from minkad.core.replication.replication_settings import ReplicationSettings


class ClusterView(Protocol):
    """The cluster as this node's own copy of the table shows it now."""

    def keyspace(self, keyspace_id: int) -> Keyspace | None:
        """The keyspace; None while it is unknown here."""

    def last_clearance(self, now: float) -> float:
        """The last time up to `now`, by this node's clock, at which this node had clearance; -inf if the node has given
        its clearance up, or never had one.
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


State_co = TypeVar("State_co", bound=ReplicaState, covariant=True)


class HasState(Protocol[State_co]):
    """The shell's object for a replica."""

    @property
    def state(self) -> State_co:
        """The replica's state; see `Node` for who changes it."""


class SharedState:
    """State that the replicas of one node share."""

    def __init__(
        self,
        id: str,  # noqa: A002
        settings: ReplicationSettings,
        view: ClusterView,
        with_load_files: Container[int],
    ) -> None:
        self.id = id
        self.settings = settings
        self.view = view
        # The partitions with files of loads on this node. A leader's node has the file of each load whose mark is in
        # the leader's log; the other way round, a load whose file is here perhaps has no mark.
        self.with_load_files = with_load_files
        self.outbox = Outbox()
        self.replicas: Mapping[int, HasState[ReplicaState]] = {}  # by partition; `Node` adds and removes them
        self.due: list[ReplicaState] = []  # QUEUED replicas for which the node hasn't handed out `Apply` yet
        self.in_sync_sets: dict[int, InSyncSet] = {}  # by partition, for all partitions that this node leads
        self.unsettled: set[int] = set()  # partitions led here whose `Leader.check` may have work
        self.migrating: set[int] = set()  # partitions led here whose `Leader.migrations` may have any
        self.used: set[int] = set()  # partitions read or written lately
        self.copy_logs = CopyLogs()
        self.failed: dict[int, MinkaError] = {}  # by partition: the error because of which it has no role here

    def apply(self, state: ReplicaState) -> None:
        """Queue the replica to apply its committed entries, if it has any, and isn't queued or at a mark."""
        if state.applied < state.high_watermark and state.applying is Applying.IDLE:
            state.queue_apply()
            self.due.append(state)

    def is_made(self, partition_id: int) -> bool:
        """True if this node has made the child of a split, or has a copy of it."""
        replica = self.replicas.get(partition_id)
        return replica is not None and replica.state.is_made
