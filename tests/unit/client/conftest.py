"""Servers for tests of the client library: real gRPC servers on 127.0.0.1 that answer as the test tells them."""

import asyncio
import functools
import itertools
import math
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import grpc
import pytest

from minka.cluster.hashing import murmur3
from minka.cluster.key_ranges import KeyRange, ranges_at
from minka.errors import Code, MinkaError, error_to_proto, with_rows
from minka.testing.loopback_ports import free_addresses
from minka.v1 import admin_pb2, admin_pb2_grpc, cluster_pb2, duty_api_pb2_grpc
from minka.v1.cluster_pb2 import HashFunction, Keyspace, Partition, Partitioning, PartitionTable
from minka.wire import kv_frames
from minka.wire.data_port import PREFACE, Connection, Purpose, decode_hello
from minka.wire.key_operations import (
    Add,
    Expire,
    If,
    Lifetime,
    OnlyIf,
    Operation,
    Outcome,
    Refusal,
    Set,
    SetAllIfAbsent,
    Versioned,
    decode_operations,
)
from tests.unit.client.asking import BadCalls

_versions = itertools.count(1000)


def _listen(server: Any) -> str:
    """Bind to a free port and return the address."""
    (address,) = free_addresses(1)
    server.add_insecure_port(address)
    return address


@dataclass
class ControlNode:
    """A node that answers each control method as `answers` says: with a message, a MinkaError, or a function."""

    address: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)

    def __getattr__(self, method: str) -> Any:
        return lambda request, context: self._answer(method, request, context)

    def _answer(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.asked.append((method, request))
        answer = self.answers[method]
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, MinkaError):
            context.set_trailing_metadata((("minka-error-bin", error_to_proto(answer).SerializeToString()),))
            context.abort(grpc.StatusCode[answer.code.info.grpc_status], answer.message)
        return answer


@pytest.fixture
def control_node() -> Iterator[Callable[[], ControlNode]]:
    """Start control nodes, and stop them after the test."""
    servers: list[grpc.Server] = []

    def start() -> ControlNode:
        server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        node: Any = ControlNode()
        admin_pb2_grpc.add_AdminServicer_to_server(node, server)
        admin_pb2_grpc.add_MetadataServicer_to_server(node, server)
        admin_pb2_grpc.add_InventoryServicer_to_server(node, server)
        duty_api_pb2_grpc.add_DutiesServicer_to_server(node, server)
        node.address = _listen(server)
        server.start()
        servers.append(server)
        return cast(ControlNode, node)

    yield start
    for server in servers:
        server.stop(None).wait()


@pytest.fixture
def free_address() -> Callable[[], str]:
    """A function that returns addresses at which no process listens."""
    return lambda: free_addresses(1)[0]


class DataNode(admin_pb2_grpc.MetadataServicer):
    """A node that serves the partition table, and data from a dict. A test sets how the node fails."""

    def __init__(self, name: str, table: PartitionTable) -> None:
        self.name = name
        self.table = table  # the table as this node knows it
        self.data: dict[bytes, bytes] = {}
        self.versions: dict[bytes, int] = {}
        self.expires_ms: dict[bytes, int] = {}
        self.now_ms = 0  # the time by this node's clock
        self.streams = 0  # open streams
        self.frames: list[kv_frames.Request] = []
        self.tables_asked = 0
        self.tables_given = 0  # answers to requests for the table, including empty ones
        self.whole_tables_given = 0
        self.rows_given: list[int] = []  # for each answer with a table: its number of rows
        self.writes: Counter[bytes] = Counter()
        self.refuse: Callable[[kv_frames.Group], MinkaError | None] = lambda group: None
        self.refused_keyspaces: set[str] = set()  # a request that names one of these keyspaces is refused
        self.go_on = asyncio.Event()  # while this is cleared, requests wait
        self.go_on.set()
        self.nonsense: Callable[[kv_frames.Request], bytes] | None = None  # if given, makes a malformed answer
        self.holds_writes: asyncio.Event | None = None  # if given, writes wait until this event is set
        self.ends_stream = False  # if true, the node ends the stream instead of answering
        self.age_ms = 0  # the age that the node states in answers to stale reads
        self.page_rows = 10**9  # the most rows in one page of a scan
        self.largest_read = 10**9  # the most bytes of values in one result
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)])
        admin_pb2_grpc.add_MetadataServicer_to_server(self, self._server)
        self.address = _listen(self._server)
        (self.data_address,) = free_addresses(1)
        self._connections: set[Connection] = set()
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._server.start()
        host, _, port = self.data_address.rpartition(":")
        self._data_port = await asyncio.get_running_loop().create_server(self._connected, host, int(port))

    async def stop(self) -> None:
        """Break every connection."""
        self._data_port.close()
        for connection in list(self._connections):
            connection.abort()
        await self._server.stop(None)

    def _connected(self) -> Connection:
        serving = _Serving(self)
        connection = serving.connection = Connection(serving, PREFACE)
        self._connections.add(connection)
        return connection

    async def GetTable(self, request: admin_pb2.GetTableRequest, context: Any) -> admin_pb2.GetTableResponse:
        self.tables_asked += 1
        await self.go_on.wait()
        if refused := self.refused_keyspaces & {one.keyspace for one in request.keyspaces}:
            error = MinkaError(Code.INVALID_ARGUMENT, f"no keyspace has such a name: {sorted(refused)}")
            details = (("minka-error-bin", error_to_proto(error).SerializeToString()),)
            await context.abort(grpc.StatusCode[error.code.info.grpc_status], error.message, details)
        self.tables_given += 1
        if request.known_version == self.table.version:
            return admin_pb2.GetTableResponse()
        self.whole_tables_given += 1
        answer = admin_pb2.GetTableResponse(table=self.table)
        if request.keyspaces:
            rows = [row for row in self.table.partitions if self._is_wanted(row, request)]
            del answer.table.partitions[:]
            answer.table.partitions.extend(rows)
        self.rows_given.append(len(answer.table.partitions))
        assert request.accepts_zlib
        return admin_pb2.GetTableResponse(zlib=zlib.compress(answer.SerializeToString()))

    def _is_wanted(self, row: Partition, request: admin_pb2.GetTableRequest) -> bool:
        keyspace = next(one for one in self.table.keyspaces if one.id == row.keyspace_id)
        wanted = next((one for one in request.keyspaces if one.keyspace == keyspace.name), None)
        some = wanted is not None and 0 < wanted.whole_up_to < keyspace.partition_count
        return wanted is not None and (not some or row.slot in wanted.slots)

    def closed(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self.streams -= 1
        self._connections.discard(connection)

    def requested(self, connection: Connection, data: bytes) -> None:
        """Answer a client's frame."""
        request = kv_frames.decode_request(data)
        self.frames.append(request)
        if self.ends_stream:
            connection.close()
            return
        task = asyncio.create_task(self._answer(request, connection))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, request: kv_frames.Request, connection: Connection) -> None:
        await self.go_on.wait()
        if self.holds_writes and any(group.op in kv_frames.WRITING for group in request.groups):
            await self.holds_writes.wait()
        results = [self._do(group) for group in request.groups]
        answer = kv_frames.encode(kv_frames.Response(request.id, results))
        connection.send(self.nonsense(request) if self.nonsense else answer)

    def _do(self, group: kv_frames.Group) -> kv_frames.GroupResult:
        error = self.refuse(group) or self._routed_wrong(group)
        if error is not None:
            return kv_frames.GroupResult(error_to_proto(error).SerializeToString(), None)
        if group.op == kv_frames.Op.WRITE:
            body = kv_frames.decode_write(group.body)
            self.writes.update(body.keys)
            for key, value in zip(body.keys, body.values, strict=True):
                if value is None:
                    self.data.pop(key, None)
                else:
                    self.data[key] = value
            return kv_frames.GroupResult(None, None)
        if group.op == kv_frames.Op.OPERATE:
            return kv_frames.GroupResult(
                None, kv_frames.encode([self._operate(one) for one in decode_operations(group.body)])
            )
        if group.op == kv_frames.Op.READ_VERSIONED:
            return kv_frames.GroupResult(
                None, kv_frames.encode([self._versioned(key) for key in kv_frames.decode_read(group.body)])
            )
        if group.op == kv_frames.Op.SCAN:
            return self._scan(group)
        values = [self.data.get(key) for key in kv_frames.decode_read(group.body)]
        if group.op == kv_frames.Op.READ_STALE:
            return kv_frames.GroupResult(None, kv_frames.encode(kv_frames.StaleResult(self.age_ms, values)))
        if sum(len(value or b"") for value in values) > self.largest_read:
            return kv_frames.GroupResult(
                error_to_proto(MinkaError(Code.TOO_LARGE, "the values exceed the limit")).SerializeToString(), None
            )
        return kv_frames.GroupResult(None, kv_frames.encode(values))

    def _versioned(self, key: bytes) -> Versioned | None:
        value = self.data.get(key)
        if value is None:
            return None
        return Versioned(value, self.versions.get(key, 1), self.expires_ms.get(key, 0))

    def _operate(self, operation: Operation) -> Outcome:
        """Carry out the operations that the client can send."""
        assert isinstance(operation, Set | Add | Expire)
        key = operation.key
        there, version = self.data.get(key), self.versions.get(key, 0)
        if isinstance(operation, Add):
            if not (there or b"0").isdigit():
                return Outcome(False, version, refusal=Refusal.NOT_AN_INTEGER)
            number = int(there or 0) + operation.by
            return self._changed(key, b"%d" % number, number)
        if isinstance(operation, Expire):
            done = there is not None
            if operation.condition is OnlyIf.LIMITED:
                done = key in self.expires_ms
            if done:
                self._lives(key, operation.lifetime, operation.ms)
            return Outcome(done, version)
        holds = {
            If.ALWAYS: True,
            If.ABSENT: there is None,
            If.VALUE: there == operation.expected,
            If.VERSION: version == operation.version,
        }[operation.condition]
        if not holds:
            return Outcome(False, version)
        self._lives(key, operation.lifetime, operation.ms)
        return self._changed(key, operation.value, 0)

    def _lives(self, key: bytes, lifetime: Lifetime, ms: int) -> None:
        if lifetime is Lifetime.UNLIMITED:
            self.expires_ms.pop(key, None)
        else:
            assert lifetime is Lifetime.FOR
            self.expires_ms[key] = self.now_ms + ms

    def _changed(self, key: bytes, value: bytes | None, number: int) -> Outcome:
        self.writes[key] += 1
        if value is None:
            self.data.pop(key, None)
            self.versions.pop(key, None)
            return Outcome(True, 0)
        self.data[key] = value
        self.versions[key] = next(_versions)
        return Outcome(True, self.versions[key], number)

    def _scan(self, group: kv_frames.Group) -> kv_frames.GroupResult:
        row = next(row for row in self.table.partitions if row.id == group.partition_id)
        body = kv_frames.decode_scan(group.body)
        start, end = KeyRange(body.start, body.end).clip(KeyRange(row.start_key, row.end_key))
        keys = sorted((key for key in self.data if KeyRange(start, end).contains(key)), reverse=body.reverse)
        if len(keys) > min(body.max_rows, self.page_rows):
            keys = keys[: min(body.max_rows, self.page_rows)]
            start, end = (keys[-1], end) if body.reverse else (start, keys[-1] + b"\x00")
        page = kv_frames.ScanPage(keys, [self.data[key] for key in keys], start, end)
        return kv_frames.GroupResult(None, kv_frames.encode(page))

    def _routed_wrong(self, group: kv_frames.Group) -> MinkaError | None:
        row = next(row for row in self.table.partitions if row.id == group.partition_id)
        if row.leader != self.name and group.op != kv_frames.Op.READ_STALE:
            return with_rows(MinkaError(Code.NOT_LEADER, f"{row.leader} leads partition {row.id}"), [row])
        if group.generation < row.generation:
            other = [one for one in self.table.partitions if one.id == row.split_to]
            return with_rows(MinkaError(Code.STALE_GENERATION, "the partition has changed"), [row, *other])
        if group.op != kv_frames.Op.SCAN:
            keys = _keys_of(group)
            assert all(KeyRange(row.start_key, row.end_key).contains(key) for key in keys)
        return None


def _keys_of(group: kv_frames.Group) -> list[bytes]:
    if group.op == kv_frames.Op.WRITE:
        return kv_frames.decode_write(group.body).keys
    if group.op != kv_frames.Op.OPERATE:
        return kv_frames.decode_read(group.body)
    return [one.key for one in decode_operations(group.body) if not isinstance(one, SetAllIfAbsent)]


class _Serving:
    """A connection to a `DataNode`."""

    connection: Connection

    def __init__(self, node: DataNode) -> None:
        self._node = node
        self._is_greeted = False
        node.streams += 1

    def received(self, content: bytes) -> None:
        if self._is_greeted:
            self._node.requested(self.connection, content)
        else:
            hello = decode_hello(content)
            assert (hello.purpose, hello.cluster_id) == (Purpose.KV, "test")
            self._is_greeted = True

    def lost(self, error: MinkaError | None) -> None:
        self._node.closed(self.connection)

    def ended(self) -> None: ...
    def paused(self) -> None: ...
    def resumed(self) -> None: ...


class DataCluster:
    """Data nodes, each with its own copy of the partition table. All share one dict of data, so a move needn't copy
    data.
    """

    def __init__(self, names: Sequence[str], partition_count: int) -> None:
        self.partition_count = partition_count
        table = PartitionTable(
            cluster=cluster_pb2.Cluster(id="test", name="test"),
            version=1,
            keyspaces=[
                Keyspace(id=1, name="flights", partition_count=partition_count, hash=HashFunction.HASH_FUNCTION_MURMUR3)
            ],
            partitions=[
                Partition(
                    id=i,
                    keyspace_id=1,
                    slot=i,
                    leader=names[i % len(names)],
                    isr=names,
                    partition_epoch=1,
                    generation=1,
                )
                for i in range(partition_count)
            ],
        )
        self.nodes = {name: DataNode(name, PartitionTable()) for name in names}
        table.nodes.extend(
            cluster_pb2.Node(id=name, address=node.address, data_address=node.data_address)
            for name, node in self.nodes.items()
        )
        shared: dict[bytes, bytes] = {}
        versions: dict[bytes, int] = {}
        expires_ms: dict[bytes, int] = {}
        for node in self.nodes.values():
            node.table.CopyFrom(table)
            node.data, node.versions, node.expires_ms = shared, versions, expires_ms
        self.data = shared

    async def __aenter__(self) -> "DataCluster":
        for node in self.nodes.values():
            await node.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        for node in self.nodes.values():
            node.go_on.set()
            await node.stop()

    @property
    def endpoints(self) -> list[str]:
        return [node.address for node in self.nodes.values()]

    def key_of(self, partition_id: int, number: int = 0) -> bytes:
        """Return a key of this partition: another key for each `number`."""
        count = self.partition_count
        keys = (b"key-%d" % n for n in itertools.count())
        return next(itertools.islice((k for k in keys if murmur3(k) % count == partition_id), number, None))

    def lead(self, partition_id: int, leader: str, told: Sequence[str] | None = None) -> None:
        """Make `leader` the leader ("": nobody leads). Only the nodes in `told` get the new row (None: all nodes)."""
        for name in self.nodes if told is None else told:
            table = self.nodes[name].table
            table.version += 1
            row = next(row for row in table.partitions if row.id == partition_id)
            row.leader = leader
            row.partition_epoch += 1
            row.generation += 1


class RangeCluster(DataCluster):
    """Data nodes with a keyspace by ranges. The first node leads the first partition, the second node the second one,
    and so on.
    """

    def __init__(self, names: Sequence[str], points: Sequence[bytes]) -> None:
        super().__init__(names, len(points) + 1)
        for node in self.nodes.values():
            (keyspace,) = node.table.keyspaces
            keyspace.partitioning = Partitioning.PARTITIONING_RANGES
            keyspace.partition_count, keyspace.hash = 0, HashFunction.HASH_FUNCTION_UNSPECIFIED
            for row, range_ in zip(node.table.partitions, ranges_at(points), strict=True):
                row.id += 1
                row.slot, (row.start_key, row.end_key) = row.id, range_

    def split(self, key: bytes, leader: str) -> None:
        """Split at `key`: a new partition begins there. Every node knows the partition, and that `leader` leads it."""
        for node in self.nodes.values():
            rows = node.table.partitions
            parent = next(row for row in rows if KeyRange(row.start_key, row.end_key).contains(key))
            if parent.start_key == key:
                return
            child = rows.add()
            child.CopyFrom(parent)
            child.id = child.slot = parent.split_to = max(row.id for row in rows) + 1
            child.start_key = parent.end_key = key
            child.leader, child.partition_epoch = leader, 1
            parent.partition_epoch += 1
            parent.generation = child.generation = parent.generation + 1
            node.table.version += 1


@pytest.fixture
def range_cluster() -> Callable[..., RangeCluster]:
    """Make a cluster of data nodes with a keyspace by ranges; enter it with `async with`."""

    def make(*names: str, points: Sequence[bytes] = ()) -> RangeCluster:
        return RangeCluster(names, points)

    return make


@pytest.fixture
def data_cluster() -> Callable[..., DataCluster]:
    """Make a cluster of data nodes, within the test's event loop; enter it with `async with`."""

    def make(*names: str, partitions: int = 6) -> DataCluster:
        return DataCluster(names, partitions)

    return make


@pytest.fixture
def bad_calls() -> BadCalls:
    """Calls that a client refuses with INVALID_ARGUMENT because an argument has the wrong type."""
    times: list[Any] = ["5", timedelta(seconds=1), -1, math.nan, math.inf, 1e300, 10**400]
    calls: BadCalls = [
        (lambda client: client.put_many([1, 2]), "pairs of keys and values are wanted: "),
        (lambda client: client.put_many([("a", b"1", b"2")]), "pairs of keys and values are wanted: "),
        (lambda client: client.put_many([([], b"1")]), "pairs of keys and values are wanted: "),
        (lambda client: client.put_many(None), "pairs of keys and values are wanted, not NoneType"),
        (lambda client: client.put_many(""), "pairs of keys and values are wanted, not str"),
        (lambda client: client.put("a", b"v", if_absent="no"), "if_absent is str, not bool"),
        (lambda client: client.put("a", b"v", if_absent=0), "if_absent is int, not bool"),
    ]
    for method in ("get_many", "get_many_versioned", "delete_many"):
        for keys in ("abc", b"abc", "", None, 5):
            why = f"several keys are wanted, not {type(keys).__name__}"
            calls.append((functools.partial(_call, method, keys), why))
    for method, argument in (("get", "a"), ("put_many", {}), ("delete_many", []), ("get_many", []), ("increment", "a")):
        for time in times:
            calls.append(
                (
                    functools.partial(_call, method, argument, timeout=time),
                    "timeout=.* isn't a positive time in seconds",
                )
            )
    return calls


def _call(method: str, argument: Any, client: Any, **options: Any) -> Any:
    return getattr(client, method)(argument, **options)


@pytest.fixture
def cluster(data_cluster: Callable[..., DataCluster]) -> Iterator[Any]:
    """A cluster of two data nodes, served by another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> Any:
        return await data_cluster("athens", "byzantium").__aenter__()

    nodes = asyncio.run_coroutine_threadsafe(start(), loop).result()
    yield nodes
    asyncio.run_coroutine_threadsafe(nodes.__aexit__(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
