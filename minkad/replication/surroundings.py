"""The rest of the node, as the data plane sees it."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from minka.v1.cluster_pb2 import Operation, Partition
from minka.v1.load_api_pb2 import PullFileRequest
from minkad.core.controller_methods import Method, Request, Response
from minkad.core.replication.node_state import ClusterView
from minkad.core.state import LoadTable
from minkad.loads.fetching import Fetching
from minkad.loads.spool import Spool
from minkad.replication.sending.links import ReplicationLinks
from minkad.storage.disk_space import DiskWatch
from minkad.storage.log_database import LogDatabase
from minkad.storage.replica_store import ReplicaStore


class Controller(Protocol):
    """Requests to the active controller. Each call may raise a MinkaError; unless its code is a refusal, the outcome
    counts as unknown. So an implementation must not raise a refusal when it doesn't know the outcome.
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
        """The total seconds of clients' requests since the start, and their number; then the same for the delays of the
        loop.
        """

    def isr_changed(self, old: Collection[str], new: Collection[str]) -> None:
        """The in-sync set of a partition that this node leads has changed."""

    def damage_found(self) -> None:
        """The data of a replica was found damaged."""


@dataclass(frozen=True, slots=True)
class LoadSources:
    """The data plane's access to loads and their files. `table` is this node's copy; `pull` has another node fetch a
    file.
    """

    spool: Spool
    fetching: Fetching
    table: Callable[[], LoadTable]
    pull: Callable[[str, PullFileRequest], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The data plane's access to the rest of the node. `clock` is monotonic, in seconds; `unix_ms` is the wall clock,
    in milliseconds since 1970; `clock_is_checked`: whether the wall clock was compared with other nodes' clocks.
    """

    node_id: str
    store: ReplicaStore
    log_db: LogDatabase
    disk: DiskWatch
    links: ReplicationLinks
    table: ClusterTable
    controller: Controller
    observer: Observer
    clock: Callable[[], float]
    unix_ms: Callable[[], int]
    clock_is_checked: Callable[[], bool]
    loads: LoadSources | None = None  # None: this node takes in no loads
