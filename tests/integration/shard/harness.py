"""Nodes without a coordinator: the test plays the controller."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from minka import wire
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition, PartitionState
from minka.v1.coordinator_pb2 import HandOverRequest, UpdateReplicasRequest, UpdateReplicasResponse
from minka.v1.errors_pb2 import Error
from minkad.rpc.interceptor import Interceptor
from minkad.rpc.kv import kv_handler
from minkad.rpc.replication import GrpcLinks, replication_handler
from minkad.shard.manager import ReplicaManager, StorageSettings
from minkad.shard.migration import MigrationSettings
from minkad.storage.log_database import LogDatabase
from minkad.telemetry import Telemetry

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
_FIRST_PORT, _LAST_PORT = 21000, 27000


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.002)


def free_port() -> int:
    """A port below the ephemeral range that nobody listens on."""
    for port in range(_FIRST_PORT, _LAST_PORT):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


class Refused(Exception):
    """A group's error, as a client sees it."""

    def __init__(self, error: MinkaError) -> None:
        super().__init__(str(error))
        self.error = error


class TestNode:
    """A replica manager behind a gRPC server; `stop` and `start` restart it, `crash` loses what no sync has saved."""

    __test__ = False

    def __init__(self, cluster: "Cluster", node_id: str, path: Path) -> None:
        self.cluster = cluster
        self.id = node_id
        self.path = path
        self.clearance = True
        self.port = free_port()
        self.fences: list[float] = []

    async def start(self) -> None:
        """Open, and listen."""
        self.log_db = LogDatabase.open(self.path / "log")
        telemetry = Telemetry()
        identity = (("minka-cluster", "test"), ("minka-node", self.id))
        self.links = GrpcLinks(self.cluster.channel_to, identity, telemetry)
        self.manager = ReplicaManager(
            self.id,
            self.path,
            self.log_db,
            self.links,
            has_clearance=lambda: self.clearance,
            hand_over=self.cluster.hand_over,
            clock=time.monotonic,
            settings=self.cluster.settings,
            storage=self.cluster.storage,
            on_fence=self.fences.append,
        )
        await self.manager.start()
        self.server = grpc.aio.server(interceptors=[Interceptor("test")], options=OPTIONS)
        self.server.add_generic_rpc_handlers(
            (kv_handler(self.manager, telemetry), replication_handler(self.manager, telemetry))
        )
        for _ in range(20):
            try:
                self.server.add_insecure_port(f"127.0.0.1:{self.port}")
                break
            except RuntimeError:
                self.port = free_port()
        await self.server.start()
        self.cluster.ports[self.id] = self.port

    async def stop(self) -> None:
        """In order."""
        await self.server.stop(0)
        await self.manager.close()
        self.log_db.close()

    async def tell(self, *rows: Partition, term: int = 1) -> UpdateReplicasResponse:
        """What the controller says."""
        return await self.manager.update_replicas(UpdateReplicasRequest(controller_term=term, partitions=rows))

    async def ask(self, op: wire.Op, partition_id: int, generation: int, body: bytes, timeout_ms: int = 5000) -> bytes:
        """One group. Raises Refused."""
        group = wire.Group(op, partition_id, generation, body)
        response = await self.manager.handle(wire.Request(1, timeout_ms, [group]))
        (result,) = response.results
        if result.error is not None:
            raise Refused(MinkaError.from_proto(Error.FromString(result.error)))
        return result.body or b""

    async def put(
        self, partition_id: int, pairs: Mapping[bytes, bytes | None], generation: int = 1, timeout_ms: int = 5000
    ) -> None:
        """Write a batch; a value of None deletes. Raises Refused."""
        body = wire.encode(wire.WriteBody(list(pairs), list(pairs.values())))
        await self.ask(wire.Op.WRITE, partition_id, generation, body, timeout_ms)

    async def get(
        self, partition_id: int, *keys: bytes, generation: int = 1, timeout_ms: int = 5000
    ) -> list[bytes | None]:
        """Read. Raises Refused."""
        body = await self.ask(wire.Op.READ, partition_id, generation, wire.encode(list(keys)), timeout_ms)
        return wire.decode_values(body)

    async def count(self) -> dict[int, int]:
        """Keys on disk, by partition."""
        return {count.partition_id: count.keys for count in await self.manager.count_keys([])}


class Cluster:
    """The nodes, and the rows as the controller has them."""

    def __init__(
        self, path: Path, settings: MigrationSettings | None = None, storage: StorageSettings | None = None
    ) -> None:
        self.path = path
        self.settings = settings or MigrationSettings()
        self.storage = storage or StorageSettings(block_cache=8 << 20)
        self.nodes: dict[str, TestNode] = {}
        self.ports: dict[str, int] = {}
        self.rows: dict[int, Partition] = {}
        self.hand_overs: list[HandOverRequest] = []
        self.before_hand_over: list[MinkaError] = []  # raised instead, one a request
        self.after_hand_over: list[MinkaError] = []  # raised although it was recorded
        self._channels: dict[int, grpc.aio.Channel] = {}

    async def add(self, *node_ids: str) -> list[TestNode]:
        """Start nodes."""
        for node_id in node_ids:
            self.nodes[node_id] = TestNode(self, node_id, self.path / node_id)
            await self.nodes[node_id].start()
        return [self.nodes[node_id] for node_id in node_ids]

    def hold_hand_over(self) -> None:
        """Refuse, until `before_hand_over` is cleared."""
        self.before_hand_over = [MinkaError(Code.STALE_GENERATION, "not yet")] * 100_000

    def folders(self) -> set[str]:
        """What there is of partitions on the nodes' disks."""
        return {
            f"{node}/{kind}/{entry.name}"
            for node in self.nodes
            for kind in ("partitions", "incoming", "outgoing")
            if (self.path / node / kind).exists()
            for entry in (self.path / node / kind).iterdir()
        }

    def channel_to(self, node_id: str) -> grpc.aio.Channel:
        """One channel a port."""
        port = self.ports[node_id]
        if port not in self._channels:
            options = [*OPTIONS, ("grpc.initial_reconnect_backoff_ms", 20), ("grpc.max_reconnect_backoff_ms", 50)]
            self._channels[port] = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        return self._channels[port]

    async def close(self) -> None:
        """Stop what runs."""
        for node in self.nodes.values():
            await node.stop()
        for channel in self._channels.values():
            await channel.close()

    async def create(self, leader: str, *partition_ids: int) -> list[Partition]:
        """New partitions at one node."""
        for id_ in partition_ids:
            self.rows[id_] = Partition(
                id=id_,
                replicas=[leader],
                isr=[leader],
                leader=leader,
                leader_epoch=1,
                partition_epoch=1,
                generation=1,
                state=PartitionState.PARTITION_STATE_ASSIGNED,
            )
        rows = [self.rows[id_] for id_ in partition_ids]
        await self.nodes[leader].tell(*rows)
        return rows

    def change(self, partition_id: int, change: Callable[[Partition], None]) -> Partition:
        """The next row."""
        row = Partition()
        row.CopyFrom(self.rows[partition_id])
        change(row)
        row.partition_epoch += 1
        self.rows[partition_id] = row
        return row

    def add_target(self, partition_id: int, target: str) -> Partition:
        """The row that begins a migration."""

        def change(row: Partition) -> None:
            row.replicas.append(target)
            row.adding_replicas.append(target)

        return self.change(partition_id, change)

    def cancel(self, partition_id: int, target: str) -> Partition:
        """The row that ends one without a move."""

        def change(row: Partition) -> None:
            row.replicas.remove(target)
            row.adding_replicas.remove(target)
            row.removing_replicas.append(target)

        return self.change(partition_id, change)

    def elect(self, partition_id: int, leader: str) -> Partition:
        """The row of a new leadership."""

        def change(row: Partition) -> None:
            row.leader = leader
            row.leader_epoch += 1

        return self.change(partition_id, change)

    async def move(self, target: str, *partition_ids: int) -> None:
        """Begin migrations, as the controller does: both sides are told."""
        rows = [self.add_target(id_, target) for id_ in partition_ids]
        by_source: dict[str, list[Partition]] = {}
        for row in rows:
            by_source.setdefault(row.leader, []).append(row)
        await asyncio.gather(
            self.nodes[target].tell(*rows), *(self.nodes[node].tell(*rows) for node, rows in by_source.items())
        )

    async def hand_over(self, request: HandOverRequest) -> Partition:
        """The controller's part; it tells the target and the source at once."""
        self.hand_overs.append(request)
        if self.before_hand_over:
            raise self.before_hand_over.pop(0)
        row = self.rows[request.partition_id]
        if row.leader != request.target:
            if row.partition_epoch != request.partition_epoch:
                raise MinkaError(Code.STALE_GENERATION, "the row has changed", partitions=[row])
            row = self.change(request.partition_id, lambda row: _hand_over(row, request))
        if self.after_hand_over:
            raise self.after_hand_over.pop(0)
        self._tell_later(request.target, row)
        self._tell_later(request.node_id, row)
        return row

    def _tell_later(self, node_id: str, row: Partition) -> None:
        task = asyncio.create_task(self.nodes[node_id].tell(row))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    async def tell_all(self, *partition_ids: int) -> None:
        """Everybody is told of the rows as they are."""
        rows = [self.rows[id_] for id_ in partition_ids]
        await asyncio.gather(*(node.tell(*rows) for node in self.nodes.values()))


_tasks: set[asyncio.Task[UpdateReplicasResponse]] = set()


def _hand_over(row: Partition, request: HandOverRequest) -> None:
    row.replicas[:] = [request.target if node == request.node_id else node for node in row.replicas]
    row.replicas[:] = list(dict.fromkeys(row.replicas))
    row.isr[:] = [request.target]
    row.adding_replicas.remove(request.target)
    row.removing_replicas.append(request.node_id)
    row.leader = request.target
    row.leader_epoch += 1
    row.generation += 1


@asynccontextmanager
async def cluster(
    path: Path, settings: MigrationSettings | None = None, storage: StorageSettings | None = None
) -> AsyncIterator[Cluster]:
    """A cluster for the length of a test."""
    made = Cluster(path, settings, storage)
    try:
        yield made
    finally:
        await made.close()
