"""One node without a coordinator, and the requests that tests send to it."""

import asyncio
import math
import shutil
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minka.errors import Code, MinkaError, error_from_proto
from minka.testing.loopback_ports import free_addresses
from minka.v1.cluster_pb2 import Keyspace, Operation, Partition
from minka.v1.coordinator_pb2 import UpdateReplicasRequest, UpdateReplicasResponse
from minka.v1.errors_pb2 import Error
from minka.wire import key_operations, kv_frames
from minka.wire.data_port import Connection
from minka.wire.key_operations import Outcome, Versioned, decode_outcomes, decode_versioned
from minkad.core.replication.leadership import Leader
from minkad.data_port.port import DataPort
from minkad.data_port.replication import DataLinks
from minkad.process.memory import Memory, Share
from minkad.process.telemetry import Telemetry
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.manager import ReplicaManager
from minkad.replication.sending.peer_frames import Answer, decode_answer, encode
from minkad.replication.surroundings import Surroundings
from minkad.storage.disk_space import DiskWatch
from minkad.storage.log_database import LogDatabase
from minkad.storage.replica_store import ReplicaStore
from minkad.storage.row_cache import RowCache
from tests.unit.storage.crash import crashed_copy

if TYPE_CHECKING:
    from tests.integration.replication.harness import Cluster

_BLOCK_CACHE = 8 << 20  # bytes
_ROW_CACHE = 1 << 20


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.002)


def led(node: "TestNode", partition_id: int = 1) -> Leader:
    """Return the `Leader` of the node's replica. Fails if the node doesn't lead the partition."""
    leader = node.replica(partition_id).state.leader
    assert leader is not None, f"{node.id} doesn't lead partition {partition_id}"
    return leader


def share() -> Share:
    """Create the share of memory that a node would give to its only client."""
    return Memory(256 * 1024 * 1024, time.monotonic).share()


def free_port() -> int:
    """Return a port on which no process listens."""
    return int(free_addresses(1)[0].rpartition(":")[2])


class Refused(Exception):
    """Raised if the answer to a group of requests is an error."""

    def __init__(self, error: MinkaError) -> None:
        super().__init__(str(error))
        self.error = error


class TestedLinks(DataLinks):
    """The links of a node to its followers. While `whole` isn't set, they hold back all frames."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.whole = asyncio.Event()
        self.whole.set()

    def append(self, node_id: str, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        return super().append(node_id, self._held(frames))

    async def _held(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for frame in frames:
            await self.whole.wait()
            yield frame


class TestedManager(ReplicaManager):
    """A replica manager. While `mute` is set, it doesn't acknowledge leaders' entries; it still answers probes."""

    mute = False

    async def follow(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for data in super().follow(frames):
            answer = decode_answer(data)
            acks = [ack for ack in answer.acks if ack.lineage is not None]  # only answers to probes have a lineage
            yield encode(Answer(acks, answer.stamp)) if self.mute else data


class TestNode:
    """A replica manager with a data port. `stop` stops it gracefully, `kill` like kill -9; `start` starts it again."""

    __test__ = False

    def __init__(self, cluster: "Cluster", node_id: str, path: Path) -> None:
        self.cluster = cluster
        self.id = node_id
        self.path = path
        self._cleared_until = math.inf
        self.running = False
        self.is_mute = False  # if True, its answers to clients are lost
        self.port = free_port()
        self.unix_ms = 1_000_000  # its wall clock
        self.clock_is_checked = True
        self.clock_questions = 0  # how often the node asked if its clock is checked
        self.write_pauses: list[float] = []
        self.asking: set[asyncio.Task[Any]] = set()  # the test's tasks that wait for an answer

    @property
    def clearance(self) -> bool:
        """True if it has clearance; a test may change this."""
        return self._cleared_until == math.inf

    @clearance.setter
    def clearance(self, holds: bool) -> None:
        self._cleared_until = math.inf if holds else min(self._cleared_until, time.monotonic())

    async def start(self) -> None:
        """Open the databases, and listen."""
        self.log_db = LogDatabase.open(self.path / "log")
        self.disk = DiskWatch(self.path, 0)  # the disk is low only if a test makes it so
        telemetry = self.telemetry = Telemetry()
        self.log_db.on_sync = telemetry.log_sync.observe
        self.links = TestedLinks(self.cluster.address_of, "test", self.id, telemetry, lambda: None)
        around = Surroundings(
            self.id,
            ReplicaStore(self.path, _BLOCK_CACHE, RowCache(_ROW_CACHE)),
            self.log_db,
            self.disk,
            self.links,
            self,
            self.cluster,
            self,
            time.monotonic,
            lambda: self.unix_ms,
            self._is_clock_checked,
        )
        self.manager = TestedManager(around, self.cluster.settings, self.cluster.storage)
        await self.manager.start()
        self.running = True
        memory = self.clients_memory = Memory(self.cluster.clients_memory_bytes, time.monotonic)
        for _ in range(20):
            try:
                self.data_port = DataPort(
                    f"127.0.0.1:{self.port}", "test", self.id, self.manager, telemetry, memory, None
                )
                break
            except MinkaError:
                self.port = free_port()
        await self.data_port.start()
        self.cluster.ports[self.id] = self.port

    # Functions that the data plane gets from other parts of a real node

    def _is_clock_checked(self) -> bool:
        self.clock_questions += 1
        return self.clock_is_checked

    def has_clearance(self) -> bool:
        return self.clearance

    def last_clearance(self, now: float) -> float:
        return min(now, self._cleared_until)

    def row(self, partition_id: int) -> Partition | None:
        return None

    def is_gone(self, partition_id: int) -> bool:
        return partition_id in self.cluster.gone

    def keyspace(self, keyspace_id: int) -> Keyspace | None:
        return self.cluster.keyspace

    def is_absent(self, node_id: str) -> bool:
        return node_id in self.cluster.dead & self.cluster.failed

    def operation_moving(self, partition_id: int) -> Operation | None:
        return self.cluster.operation

    def low_disks(self) -> Collection[str]:
        return self.cluster.low_disks

    def writes_waited(self, seconds: float) -> None:
        self.write_pauses.append(seconds)

    def waits(self) -> list[tuple[float, int]]:
        return self.telemetry.waits()

    def isr_changed(self, old: Collection[str], new: Collection[str]) -> None:
        self.telemetry.isr_changed(old, new)

    def damage_found(self) -> None:
        self.telemetry.damage_found()

    async def stop(self) -> None:
        """Stop gracefully."""
        if not self.running:
            return
        self.running = False
        self.data_port.close()
        await self.data_port.wait_closed()
        await self.manager.close()
        for task in self.asking:
            task.cancel()
        self.log_db.close()

    async def kill(self) -> None:
        """Stop like kill -9: the disk keeps everything written until now. `start` starts the node again."""
        # After the copy of its folder, the node must neither answer clients nor acknowledge entries to leaders.
        self.clearance, self.is_mute = False, True
        self.data_port.close()
        left = crashed_copy(self.path, self.path.with_name(f"{self.id}-killed"))
        await self.stop()
        shutil.rmtree(self.path)
        left.rename(self.path)
        self.clearance, self.is_mute = True, False

    def connections(self) -> Collection[Connection]:
        """The open connections to its data port."""
        return self.data_port.connections

    def replica(self, partition_id: int = 1) -> HostedReplica:
        """The node's replica of the partition."""
        return self.manager.replicas[partition_id]

    async def tell(self, *rows: Partition, term: int = 1) -> UpdateReplicasResponse:
        """Send the node these rows, like the controller."""
        return await self.manager.update_replicas(UpdateReplicasRequest(controller_term=term, partitions=rows))

    async def ask(
        self, op: kv_frames.Op, partition_id: int, generation: int, body: bytes, timeout_ms: int = 5000
    ) -> bytes:
        """Send one group of requests; returns the answer's body. Raises Refused."""
        group = kv_frames.Group(op, partition_id, generation, body)
        task = asyncio.current_task()
        assert task is not None
        self.asking.add(task)
        try:
            (result,) = await self.answer([group], share(), timeout_ms)
        except asyncio.CancelledError:
            if self.running:
                raise
            task.uncancel()
            raise Refused(MinkaError(Code.OUTCOME_UNKNOWN, f"{self.id} has stopped")) from None
        finally:
            self.asking.discard(task)
        if self.is_mute:
            raise Refused(MinkaError(Code.OUTCOME_UNKNOWN, f"{self.id} has stopped"))
        if result.error is not None:
            raise Refused(error_from_proto(Error.FromString(result.error)))
        return result.body or b""

    async def answer(
        self, groups: list[kv_frames.Group], memory: Share, timeout_ms: int = 5000
    ) -> list[kv_frames.GroupResult]:
        """Send a frame with these groups; returns their results."""
        done = asyncio.Event()
        ticket = self.manager.requests.begin(groups, timeout_ms, memory, lambda _: done.set())
        await done.wait()
        return ticket.answers

    async def put(
        self, partition_id: int, pairs: Mapping[bytes, bytes | None], generation: int = 1, timeout_ms: int = 5000
    ) -> None:
        """Write a batch; a value of None deletes its key. Raises Refused."""
        body = kv_frames.encode(kv_frames.WriteBody(list(pairs), list(pairs.values())))
        await self.ask(kv_frames.Op.WRITE, partition_id, generation, body, timeout_ms)

    async def get(
        self, partition_id: int, *keys: bytes, generation: int = 1, timeout_ms: int = 5000
    ) -> list[bytes | None]:
        """Read keys. Raises Refused."""
        body = await self.ask(kv_frames.Op.READ, partition_id, generation, kv_frames.encode(list(keys)), timeout_ms)
        return kv_frames.decode_values(body)

    async def operate(self, partition_id: int, *asked: key_operations.Operation, generation: int = 1) -> list[Outcome]:
        """Carry out operations. Raises Refused."""
        body = await self.ask(kv_frames.Op.OPERATE, partition_id, generation, kv_frames.encode(asked))
        return decode_outcomes(body)

    async def versions(self, partition_id: int, *keys: bytes, generation: int = 1) -> list[Versioned | None]:
        """Read keys with their versions. Raises Refused."""
        body = await self.ask(kv_frames.Op.READ_VERSIONED, partition_id, generation, kv_frames.encode(list(keys)))
        return decode_versioned(body)

    async def get_stale(self, partition_id: int, *keys: bytes, generation: int = 1) -> kv_frames.StaleResult:
        """Read the keys from this replica, which may be stale. Raises Refused."""
        body = await self.ask(kv_frames.Op.READ_STALE, partition_id, generation, kv_frames.encode(list(keys)))
        return kv_frames.decode_stale(body)

    async def count(self) -> dict[int, int]:
        """The number of keys in the node's data, by partition."""
        return {count.partition_id: count.keys for count in await self.manager.inventory.count_keys([])}
