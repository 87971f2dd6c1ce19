"""A synchronous client that reads the nodes' histories of their partitions' traffic and sizes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import grpc

from minka.admin.control import Control
from minka.engine.grpc_calls import error_from_call
from minka.engine.sync_channels import Channels
from minka.errors import Code, MinkaError
from minka.tls import Tls
from minka.v1.cluster_pb2 import NodeState, PartitionTable
from minka.v1.history_pb2 import HistoryBlock, ReadHistoryRequest
from minka.v1.history_pb2_grpc import HistoryStub
from minka.wire.history_rows import PartitionInterval, unpack


@dataclass(frozen=True, slots=True)
class NodeInterval:
    """One interval of a node's history: it begins at `start_ms` (Unix milliseconds by the node's wall clock) and lasts
    `interval_ms`.

    At the end of the interval, `free_bytes` of `total_bytes` were free on the file system of the node's data_dir.
    `capacity_bytes` is the most that the node should hold by its configuration, 0 if unset; `cpu_ms` is the processor
    time, in milliseconds, that the node's process used in the interval. `partitions` has the partitions that answered
    clients or changed in size; in some intervals it has all partitions with data.
    """

    node: str
    start_ms: int
    interval_ms: int
    free_bytes: int = 0
    total_bytes: int = 0
    capacity_bytes: int = 0
    cpu_ms: int = 0
    partitions: list[PartitionInterval] = field(default_factory=list)


class HistoryClient:
    """Reads the nodes' histories, for one thread. `timeout` is the most seconds for a node's whole answer. All errors
    are `MinkaError`.
    """

    def __init__(self, endpoints: Sequence[str], *, tls: Tls | None = None, timeout: float = 120.0) -> None:
        self._control: Final = Control(endpoints, tls=tls)
        self._channels: Final = Channels(tls)
        self._timeout: Final = timeout
        self._table: PartitionTable | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._control.close()
        self._channels.close()

    def nodes(self) -> list[str]:
        """Fetch the table, and return the ids of the nodes that have not left the cluster. Raises the errors of
        `Control`.
        """
        self._table = self._control.table()
        return [node.id for node in self._table.nodes if node.state != NodeState.NODE_STATE_LEFT]

    def read(self, node: str, from_ms: int = 0, to_ms: int = 0) -> Iterator[NodeInterval]:
        """The intervals of one node that began at `from_ms` or later and before `to_ms` (0: to the end), in order.

        Raises MinkaError: UNREACHABLE or DEADLINE_EXCEEDED if the node doesn't answer, or stops answering after some
        intervals; INTERNAL if its version has no history (gRPC's UNIMPLEMENTED).
        """
        request = ReadHistoryRequest(from_ms=from_ms, to_ms=to_ms)
        stub = HistoryStub(self._channels.to(self._address(node)))
        try:
            yield from intervals_of(node, stub.Read(request, timeout=self._timeout))
        except grpc.RpcError as error:
            self._channels.check_open()
            raise error_from_call(error, node, repeatable=True) from error

    def read_all(
        self, from_ms: int = 0, to_ms: int = 0, *, on_missing: Callable[[str, MinkaError], None]
    ) -> Iterator[NodeInterval]:
        """The intervals of all nodes, node by node. If intervals of a node are missing, `on_missing` is called with the
        node and the reason. Raises the errors of `nodes`.
        """
        for node in self.nodes():
            try:
                yield from self.read(node, from_ms, to_ms)
            except MinkaError as error:
                on_missing(node, error)

    def _address(self, node: str) -> str:
        if self._table is None:
            self.nodes()
        assert self._table is not None, "nodes() has set it"
        address = next((one.address for one in self._table.nodes if one.id == node), "")
        if not address:
            raise MinkaError(Code.UNKNOWN_NODE, f"there is no node {node}", node=node)
        return address


def intervals_of(node: str, blocks: Iterable[HistoryBlock]) -> Iterator[NodeInterval]:
    """Join the blocks into intervals: an interval with many rows comes in several blocks. Raises the errors of
    `unpack`.
    """
    found: NodeInterval | None = None
    for block in blocks:
        rows = unpack(block.packed, block.rows, block.layout)
        if found is not None and block.part:
            found.partitions.extend(rows)
            continue
        if found is not None:
            yield found
        found = _interval(node, block, rows)
    if found is not None:
        yield found


def _interval(node: str, block: HistoryBlock, rows: list[PartitionInterval]) -> NodeInterval:
    return NodeInterval(
        node=node,
        start_ms=block.start_ms,
        interval_ms=block.interval_ms,
        free_bytes=block.free_bytes,
        total_bytes=block.total_bytes,
        capacity_bytes=block.capacity_bytes,
        cpu_ms=block.cpu_ms,
        partitions=rows,
    )
