"""The rest of the node, as the data plane sees it."""

from collections.abc import Callable, Collection, Container, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from minka.v1.cluster_pb2 import Operation, Partition
from minka.v1.load_api_pb2 import PullFileRequest
from minkad.core.controller_methods import Method, Request, Response
from minkad.core.replication.shared_state import ClusterView
from minkad.core.state import OwnTable
from minkad.loads.fetching import Fetching
from minkad.loads.spool import Spool
from minkad.replication.sending.links import ReplicationLinks
from minkad.storage.disk_space import DiskWatch
from minkad.storage.log_database import LogDatabase
from minkad.storage.replica_store import ReplicaStore


class Controller(Protocol):
    """Requests to the active controller. A call may raise a MinkaError. If the error's code is a refusal, the caller
    counts the request as not recorded; with any other code, the outcome counts as unknown. So an implementation that
    doesn't know the outcome must not raise a refusal.
    """

    async def call(self, method: Method[Request, Response], request: Request) -> Response:
        """The controller's response."""


class ClusterTable(ClusterView, Protocol):
    """This node's own copy of the table, and its clearance."""

    def has_clearance(self) -> bool:
        """True if this node may serve now."""

    def row(self, partition_id: int) -> Partition | None:
        """The partition's row."""

    def is_gone(self, partition_id: int) -> bool:
        """True if the partition was merged into another one."""

    def operation_moving(self, partition_id: int) -> Operation | None:
        """The operation that moves the partition, if there is one."""


class Observer(Protocol):
    """The events that the node counts in its metrics."""

    def writes_waited(self, seconds: float) -> None:
        """Writes to a partition have waited for `seconds`, for a hand-over."""

    def waits(self) -> Sequence[tuple[float, int]]:
        """Two pairs, counted since the start: the total seconds and the number of clients' requests; the total seconds
        and the number of the loop's delays.
        """

    def isr_changed(self, old: Collection[str], new: Collection[str]) -> None:
        """The in-sync set of a partition that this node leads has changed."""

    def damage_found(self) -> None:
        """The data of a replica was found damaged."""


@dataclass(frozen=True, slots=True)
class LoadSources:
    """The data plane's access to loads and their files."""

    spool: Spool
    fetching: Fetching
    table: OwnTable
    pull: Callable[[str, PullFileRequest], Coroutine[Any, Any, None]]  # lets another node fetch a file


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The data plane's access to the rest of the node."""

    node_id: str
    store: ReplicaStore
    log_db: LogDatabase
    disk: DiskWatch
    links: ReplicationLinks
    table: ClusterTable
    controller: Controller
    observer: Observer
    clock: Callable[[], float]  # monotonic, in seconds
    unix_ms: Callable[[], int]  # the wall clock, in milliseconds since 1970
    clock_is_checked: Callable[[], bool]  # True once the wall clock was compared with other nodes' clocks
    loads: LoadSources | None = None  # None: this node takes in no loads

    @property
    def with_load_files(self) -> Container[int]:
        """The partitions with files of loads on this node; changes later."""
        return self.loads.spool.partitions if self.loads is not None else ()
