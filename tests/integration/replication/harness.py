"""Nodes without a coordinator: the test plays the controller."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from minka import operations, wire
from minka.data_port import Connection, Hello, connect
from minka.errors import Code, MinkaError
from minka.operations import Outcome, Versioned, decode_outcomes, decode_versioned
from minka.v1.cluster_pb2 import Durability, Keyspace, Operation, Partition, PartitionState
from minka.v1.coordinator_pb2 import (
    AlterIsrRequest,
    AlterIsrResponse,
    FinishMergeRequest,
    FinishSplitRequest,
    HandOverRequest,
    IsrChange,
    IsrResult,
    ProposeSplitRequest,
    UpdateReplicasRequest,
    UpdateReplicasResponse,
)
from minka.v1.errors_pb2 import Error
from minkactl.playground import free_addresses
from minkad.config.addresses import split_address
from minkad.core.controller import FinishMerge, merges
from minkad.core.replication.leader import Leader
from minkad.core.replication.settings import ReplicationSettings
from minkad.core.state import State
from minkad.data_port.port import DataPort
from minkad.data_port.replication import DataLinks
from minkad.data_port.streams import MessageStream
from minkad.process.memory import Memory, Share
from minkad.process.telemetry import Telemetry
from minkad.replication.context import Surroundings
from minkad.replication.frames import Answer, decode_answer, encode
from minkad.replication.manager import ReplicaManager, StorageSettings
from minkad.replication.replica import Replica
from minkad.storage.disk_space import DiskWatch
from minkad.storage.log_database import LogDatabase
from minkad.storage.replica_store import ReplicaStore
from minkad.storage.row_cache import RowCache
from tests.unit.storage.crash import crashed_copy

_BLOCK_CACHE = 8 << 20  # bytes
_ROW_CACHE = 1 << 20


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.002)


def led(node: "TestNode", partition_id: int = 1) -> Leader:
    """The node's leadership."""
    leader = node.replica(partition_id).leader
    assert leader is not None, f"{node.id} doesn't lead partition {partition_id}"
    return leader


def share() -> Share:
    """The share of a client that is alone."""
    return Memory(256 * 1024 * 1024, time.monotonic).share()


def free_port() -> int:
    """A port on which no process listens."""
    return int(free_addresses(1)[0].rpartition(":")[2])


class Refused(Exception):
    """A group's error, as a client sees it."""

    def __init__(self, error: MinkaError) -> None:
        super().__init__(str(error))
        self.error = error


class TestedLinks(DataLinks):
    """Links of a node from which nothing gets to other nodes while `whole` is not set."""

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
    """A manager that acknowledges nothing of what leaders send while it is mute."""

    mute = False

    async def follow(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for data in super().follow(frames):
            answer = decode_answer(data)
            acks = [ack for ack in answer.acks if ack.lineage is not None]  # only answers to a leader's probes have one
            yield encode(Answer(acks, answer.stamp)) if self.mute else data


class TestNode:
    """A replica manager behind a data port. `stop` and `start` restart it; `kill` ends it as kill -9 does."""

    __test__ = False

    def __init__(self, cluster: "Cluster", node_id: str, path: Path) -> None:
        self.cluster = cluster
        self.id = node_id
        self.path = path
        self.clearance = True
        self.running = False
        self.is_mute = False  # no answer of it reaches anybody
        self.port = free_port()
        self.unix_ms = 1_000_000  # its wall clock
        self.write_pauses: list[float] = []
        self.asking: set[asyncio.Task[Any]] = set()  # the test's tasks that wait for an answer

    async def start(self) -> None:
        """Open the databases, and listen."""
        self.log_db = LogDatabase.open(self.path / "log")
        self.disk = DiskWatch(self.path, 0)  # the test alone makes it low
        telemetry = self.telemetry = Telemetry()
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
        )
        self.manager = TestedManager(around, self.cluster.settings, self.cluster.storage)
        await self.manager.start()
        self.running = True
        memory = self.clients_memory = Memory(self.cluster.clients_memory_bytes, time.monotonic)
        for _ in range(20):
            try:
                self.data_port = DataPort(f"127.0.0.1:{self.port}", "test", self.manager, telemetry, memory, None)
                break
            except MinkaError:
                self.port = free_port()
        await self.data_port.start()
        self.cluster.ports[self.id] = self.port

    # What the data plane needs of the rest of the node

    def has_clearance(self) -> bool:
        return self.clearance

    def row(self, partition_id: int) -> Partition | None:
        return None

    def is_gone(self, partition_id: int) -> bool:
        return partition_id in self.cluster.gone

    def keyspace(self, keyspace_id: int) -> Keyspace | None:
        return self.cluster.keyspace

    def is_absent(self, node_id: str) -> bool:
        return node_id in self.cluster.dead & self.cluster.failed

    def operation_moving(self, partition_id: int) -> Operation | None:
        return None

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
        await self.manager.close()
        for task in self.asking:
            task.cancel()
        self.log_db.close()

    async def kill(self) -> None:
        """Stop as kill -9 does: the disk has what was written until now. `start` brings the node back."""
        # After the copy it must say nothing: neither to clients as a leader, nor to leaders as a follower.
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

    def replica(self, partition_id: int = 1) -> Replica:
        """The node's replica of the partition, as it is in memory."""
        return self.manager.replicas[partition_id]

    async def tell(self, *rows: Partition, term: int = 1) -> UpdateReplicasResponse:
        """Tell the node these rows, as the controller does."""
        return await self.manager.update_replicas(UpdateReplicasRequest(controller_term=term, partitions=rows))

    async def ask(self, op: wire.Op, partition_id: int, generation: int, body: bytes, timeout_ms: int = 5000) -> bytes:
        """Send one group, and return the answer's body. Raises Refused."""
        group = wire.Group(op, partition_id, generation, body)
        task = asyncio.current_task()
        assert task is not None
        self.asking.add(task)
        try:
            response = await self.manager.handle(wire.Request(1, timeout_ms, [group]), share())
        except asyncio.CancelledError:
            if self.running:
                raise
            task.uncancel()
            raise Refused(MinkaError(Code.OUTCOME_UNKNOWN, f"{self.id} is gone")) from None
        finally:
            self.asking.discard(task)
        if self.is_mute:
            raise Refused(MinkaError(Code.OUTCOME_UNKNOWN, f"{self.id} is gone"))
        (result,) = response.results
        if result.error is not None:
            raise Refused(MinkaError.from_proto(Error.FromString(result.error)))
        return result.body or b""

    async def put(
        self, partition_id: int, pairs: Mapping[bytes, bytes | None], generation: int = 1, timeout_ms: int = 5000
    ) -> None:
        """Write a batch; a value of None deletes its key. Raises Refused."""
        body = wire.encode(wire.WriteBody(list(pairs), list(pairs.values())))
        await self.ask(wire.Op.WRITE, partition_id, generation, body, timeout_ms)

    async def get(
        self, partition_id: int, *keys: bytes, generation: int = 1, timeout_ms: int = 5000
    ) -> list[bytes | None]:
        """Read keys. Raises Refused."""
        body = await self.ask(wire.Op.READ, partition_id, generation, wire.encode(list(keys)), timeout_ms)
        return wire.decode_values(body)

    async def operate(self, partition_id: int, *asked: operations.Operation, generation: int = 1) -> list[Outcome]:
        """Carry out operations. Raises Refused."""
        body = await self.ask(wire.Op.OPERATE, partition_id, generation, wire.encode(asked))
        return decode_outcomes(body)

    async def versions(self, partition_id: int, *keys: bytes, generation: int = 1) -> list[Versioned | None]:
        """Read keys with their versions. Raises Refused."""
        body = await self.ask(wire.Op.READ_VERSIONED, partition_id, generation, wire.encode(list(keys)))
        return decode_versioned(body)

    async def get_stale(self, partition_id: int, *keys: bytes, generation: int = 1) -> wire.StaleResult:
        """Read what this replica has of the keys. Raises Refused."""
        body = await self.ask(wire.Op.READ_STALE, partition_id, generation, wire.encode(list(keys)))
        return wire.decode_stale(body)

    async def count(self) -> dict[int, int]:
        """The number of keys on disk, by partition."""
        return {count.partition_id: count.keys for count in await self.manager.inventory.count_keys([])}


class Cluster:
    """The nodes, and the rows as the controller has them."""

    def __init__(
        self, path: Path, settings: ReplicationSettings | None = None, storage: StorageSettings | None = None
    ) -> None:
        self.path = path
        self.settings = settings or ReplicationSettings(lag_timeout=0.5)
        self.storage = storage or StorageSettings()
        self.nodes: dict[str, TestNode] = {}
        self.ports: dict[str, int] = {}
        self._clients: list[MessageStream] = []
        self.clients_memory_bytes = 256 * 1024 * 1024
        self.rows: dict[int, Partition] = {}
        self.keyspace = Keyspace(min_insync=1, durability=Durability.DURABILITY_SYNC)
        self.low_disks: set[str] = set()
        self.dead: set[str] = set()  # nodes that the controller does not take into an in-sync set
        self.failed: set[str] = set()  # those that the table says are FAILED
        self.requests = 0  # to change in-sync sets
        self.isr_changes: list[IsrChange] = []
        self.before_alter_isr: list[MinkaError] = []  # raised instead of recording a change, one for each request
        self.after_alter_isr: list[MinkaError] = []  # raised although the change was recorded, one for each request
        self.hand_overs: list[HandOverRequest] = []
        self.before_hand_over: list[MinkaError] = []  # raised instead of recording, one for each request
        self.after_hand_over: list[MinkaError] = []  # raised although it was recorded
        self.proposed: list[ProposeSplitRequest] = []
        self.before_finish_split: list[MinkaError] = []  # raised instead of recording, one for each request
        self.gone: dict[int, Partition] = {}  # the last rows of partitions that were merged into others
        self.before_finish_merge: list[MinkaError] = []  # raised instead of recording, one for each request
        self.after_finish_merge: list[MinkaError] = []  # raised although it was recorded

    async def add(self, *node_ids: str) -> list[TestNode]:
        """Start nodes."""
        for node_id in node_ids:
            self.nodes[node_id] = TestNode(self, node_id, self.path / node_id)
            await self.nodes[node_id].start()
        return [self.nodes[node_id] for node_id in node_ids]

    def hold_hand_over(self) -> None:
        """Refuse hand-overs until `before_hand_over` is cleared."""
        self.before_hand_over = [MinkaError(Code.STALE_GENERATION, "not yet")] * 100_000

    def folders(self) -> set[str]:
        """The partitions' folders on the nodes' disks."""
        return {
            f"{node}/{kind}/{entry.name}"
            for node in self.nodes
            for kind in ("partitions", "incoming", "outgoing")
            if (self.path / node / kind).exists()
            for entry in (self.path / node / kind).iterdir()
        }

    async def connect(self, node_id: str, hello: Hello) -> MessageStream:
        """Connect to the node's data port."""
        stream = MessageStream()
        stream.connection = await connect(split_address(self.address_of(node_id)), None, hello, stream)
        self._clients.append(stream)
        return stream

    def address_of(self, node_id: str) -> str:
        """The address of the node's data port."""
        return f"127.0.0.1:{self.ports[node_id]}"

    def standing(self) -> str:
        """The state of all rows, nodes and replicas, one per line."""
        lines = [f"row {row}" for row in map(_one_line, self.rows.values())]
        for node in self.nodes.values():
            lines.append(f"{node.id} {'runs' if node.running else 'has stopped'}: {node.log_db.error}")
            for replica in node.manager.replicas.values():
                lines.append(f"  {replica} {replica.applying.value} {replica.copy.value} {_one_line(replica.row)}")
                for name, progress in replica.leader.progress.items() if replica.leader is not None else ():
                    lines.append(f"  {name} follows {replica.id} up to {progress.matched} {progress.stage.name}")
        return "\n".join(lines)

    async def close(self) -> None:
        """Stop all nodes, and end the clients' connections."""
        for stream in self._clients:
            stream.connection.abort()
        for node in self.nodes.values():
            await node.stop()

    async def create(self, leader: str, *partition_ids: int, followers: Sequence[str] = ()) -> list[Partition]:
        """Create partitions; all of their replicas are in sync."""
        for id_ in partition_ids:
            self.rows[id_] = Partition(
                id=id_,
                replicas=[leader, *followers],
                isr=[leader, *followers],
                leader=leader,
                leader_epoch=1,
                partition_epoch=1,
                generation=1,
                state=PartitionState.PARTITION_STATE_ASSIGNED,
            )
        rows = [self.rows[id_] for id_ in partition_ids]
        await asyncio.gather(*(self.nodes[node].tell(*rows) for node in (leader, *followers)))
        return rows

    def change(self, partition_id: int, change: Callable[[Partition], None]) -> Partition:
        """Make the partition's next row with this change."""
        row = Partition()
        row.CopyFrom(self.rows[partition_id])
        change(row)
        row.partition_epoch += 1
        self.rows[partition_id] = row
        return row

    def add_target(self, partition_id: int, target: str) -> Partition:
        """Make the row that begins a move of the leader's replica."""

        def change(row: Partition) -> None:
            row.target_replicas[:] = [target if node == row.leader else node for node in row.replicas]
            row.replicas.append(target)
            row.adding_replicas.append(target)

        return self.change(partition_id, change)

    def add_replica(self, partition_id: int, node: str) -> Partition:
        """Make the row with one more replica."""

        def change(row: Partition) -> None:
            row.replicas.append(node)
            row.adding_replicas.append(node)

        return self.change(partition_id, change)

    def remove_replica(self, partition_id: int, node: str) -> Partition:
        """Make the row without this replica, which is to be removed."""

        def change(row: Partition) -> None:
            for nodes in (row.replicas, row.isr):
                if node in nodes:
                    nodes.remove(node)
            row.removing_replicas.append(node)

        return self.change(partition_id, change)

    def cancel(self, partition_id: int, target: str) -> Partition:
        """Make the row that ends a move before its hand-over."""

        def change(row: Partition) -> None:
            for nodes in (row.replicas, row.adding_replicas, row.isr):
                if target in nodes:
                    nodes.remove(target)
            row.ClearField("target_replicas")
            row.ClearField("successor")
            row.removing_replicas.append(target)

        return self.change(partition_id, change)

    def succeed(self, partition_id: int, successor: str) -> Partition:
        """Make the row by which the leader is to hand over."""
        return self.change(partition_id, lambda row: setattr(row, "successor", successor))

    def elect(self, partition_id: int, leader: str, *, without: Sequence[str] = ()) -> Partition:
        """Make the row of a new leadership, without some nodes in its in-sync set."""

        def change(row: Partition) -> None:
            row.leader = leader
            row.leader_epoch += 1
            row.ClearField("successor")
            row.isr[:] = [node for node in row.isr if node not in without]

        return self.change(partition_id, change)

    async def move(self, target: str, *partition_ids: int) -> None:
        """Begin migrations as the controller does: both sides are told."""
        rows = [self.add_target(id_, target) for id_ in partition_ids]
        by_source: dict[str, list[Partition]] = {}
        for row in rows:
            by_source.setdefault(row.leader, []).append(row)
        await asyncio.gather(
            self.nodes[target].tell(*rows), *(self.nodes[node].tell(*rows) for node, rows in by_source.items())
        )

    async def fail(self, node_id: str) -> None:
        """Do as the controller does when a node fails: other nodes lead, and take it out of the in-sync sets."""
        self.dead.add(node_id)
        self.failed.add(node_id)
        for row in list(self.rows.values()):
            others = [node for node in row.isr if node not in self.dead]
            if row.leader == node_id and others:
                self.elect(row.id, others[0])
        await self.tell_all(*self.rows)
        for node in self.nodes.values():
            if node.running:
                node.manager.nodes_changed()

    async def back(self, node_id: str) -> None:
        """Do as the controller does when the node is back: it leads its partitions again, at new epochs."""
        self.dead.discard(node_id)
        self.failed.discard(node_id)
        for row in list(self.rows.values()):
            if row.leader == node_id:
                self.elect(row.id, node_id)
        await self.tell_all(*self.rows)

    async def alter_isr(self, request: AlterIsrRequest) -> AlterIsrResponse:
        """Change in-sync sets as the controller does; each node that has a replica is told at once."""
        self.requests += 1
        if self.before_alter_isr:
            raise self.before_alter_isr.pop(0)
        results = [self._alter(request.node_id, change) for change in request.changes]
        if self.after_alter_isr:
            raise self.after_alter_isr.pop(0)
        return AlterIsrResponse(results=results)

    def _alter(self, node_id: str, change: IsrChange) -> IsrResult:
        row = self.rows[change.partition_id]
        result = IsrResult(partition_id=row.id, partition=row)
        if row.leader != node_id or (row.leader_epoch, row.partition_epoch) != (
            change.leader_epoch,
            change.partition_epoch,
        ):
            result.error = Code.STALE_EPOCH.name
        elif not set(change.isr) <= set(row.replicas) - set(row.removing_replicas) - self.dead or (
            row.splitting and not row.split_to and set(change.isr) - set(row.isr)
        ):
            result.error = Code.INELIGIBLE_REPLICA.name
        elif node_id not in change.isr:  # its copy is damaged, so another node is to lead
            self.isr_changes.append(change)
            out = [node for node in row.isr if node not in change.isr]
            elected = self.elect(row.id, change.isr[0], without=out)
            for node in elected.replicas:
                self.tell_later(node, elected)
            result.partition.CopyFrom(elected)
        else:
            self.isr_changes.append(change)
            for id_ in (row.id, row.split_to or row.split_from) if row.splitting else (row.id,):
                changed = self.change(id_, lambda row: _alter_isr(row, change.isr))
                for node in row.replicas:
                    self.tell_later(node, changed)
            result.partition.CopyFrom(self.rows[row.id])
        return result

    def split(self, partition_id: int, key: bytes) -> tuple[Partition, Partition]:
        """Make the rows of a split."""
        child_id = max(self.rows) + 1
        child = Partition()
        child.CopyFrom(self.rows[partition_id])

        def change(row: Partition) -> None:
            row.end_key, row.split_to, row.splitting = key, child_id, True
            row.generation += 1

        parent = self.change(partition_id, change)
        child.id = child.slot = child_id
        child.start_key, child.split_from, child.splitting = key, partition_id, True
        child.generation, child.partition_epoch = parent.generation, 1
        child.ClearField("split_to")
        self.rows[child_id] = child
        return parent, child

    async def propose_split(self, request: ProposeSplitRequest) -> list[Partition]:
        """Begin a split as the controller does; each node that has a replica is told at once."""
        self.proposed.append(request)
        row = self.rows[request.partition_id]
        if row.splitting or row.generation != request.generation:
            raise MinkaError(Code.SPLIT_REFUSED, "not now", partitions=[row])
        halves = self.split(row.id, request.key)
        for half in halves:
            for node in half.replicas:
                self.tell_later(node, half)
        return list(halves)

    async def finish_split(self, request: FinishSplitRequest) -> list[Partition]:
        """End a split as the controller does; each node that has a replica is told at once."""
        if self.before_finish_split:
            raise self.before_finish_split.pop(0)
        child = self.rows[request.partition_id]
        if child.splitting:
            if (child.leader, child.leader_epoch) != (request.node_id, request.leader_epoch):
                raise MinkaError(Code.STALE_EPOCH, "another leads", partitions=[child])
            if child.partition_epoch != request.partition_epoch:
                raise MinkaError(Code.STALE_EPOCH, "the row is another", partitions=[child])
            for id_ in (child.split_from, child.id):
                row = self.change(id_, lambda row: row.ClearField("splitting"))
                for node in row.replicas:
                    self.tell_later(node, row)
        return [self.rows[child.split_from], self.rows[child.id]]

    def merge(self, before_id: int, behind_id: int) -> None:
        """Make the rows of two partitions that are to be merged."""
        self.change(before_id, lambda row: setattr(row, "merge_from", behind_id))
        self.change(behind_id, lambda row: setattr(row, "merge_into", before_id))

    async def finish_merge(self, request: FinishMergeRequest) -> list[Partition]:
        """End a merge as the controller does; each node that has a replica is told at once."""
        if self.before_finish_merge:
            raise self.before_finish_merge.pop(0)
        left = self.rows[request.partition_id]
        if request.merged_id not in self.gone:
            right = self.rows[request.merged_id]
            epochs = (left.partition_epoch, right.partition_epoch)
            if epochs != (request.partition_epoch, request.merged_epoch) or not left.merge_from:
                raise MinkaError(Code.STALE_EPOCH, "a row has changed", partitions=[left, right])
            state = State(next_partition_id=max(self.rows) + 1)
            state.partitions.update(self.rows)
            command = FinishMerge(request.node_id, left.id, epochs[0], right.id, epochs[1])
            (record,) = merges.finish(state, command, 0)
            self.rows[left.id] = left = record.partitions_merged.remaining
            self.gone[right.id] = record.partitions_merged.gone
            del self.rows[right.id]
        if self.after_finish_merge:
            raise self.after_finish_merge.pop(0)
        gone = self.gone[request.merged_id]
        for row, nodes in ((left, left.replicas), (gone, gone.removing_replicas)):
            for node in nodes:
                self.tell_later(node, row)
        return [left, gone]

    async def hand_over(self, request: HandOverRequest) -> Partition:
        """Record a hand-over as the controller does; each node that has a replica is told at once."""
        self.hand_overs.append(request)
        if self.before_hand_over:
            raise self.before_hand_over.pop(0)
        row = self.rows[request.partition_id]
        if row.leader != request.target:
            if row.partition_epoch != request.partition_epoch:
                raise MinkaError(Code.STALE_EPOCH, "the row has changed", partitions=[row])
            row = self.change(request.partition_id, lambda row: _hand_over(row, request))
        if self.after_hand_over:
            raise self.after_hand_over.pop(0)
        for node in {*row.replicas, *row.removing_replicas}:
            self.tell_later(node, row)
        return row

    def tell_later(self, node_id: str, row: Partition) -> None:
        if not self.nodes[node_id].running:
            return
        task = asyncio.create_task(self.nodes[node_id].tell(row))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    async def tell_all(self, *partition_ids: int) -> None:
        """Tell all running nodes the present rows."""
        rows = [self.rows[id_] for id_ in partition_ids]
        await asyncio.gather(*(node.tell(*rows) for node in self.nodes.values() if node.running))


_tasks: set[asyncio.Task[UpdateReplicasResponse]] = set()


def _one_line(row: Partition) -> str:
    return text_format.MessageToString(row, as_one_line=True)


def _without(node: str, row: Partition) -> None:
    row.isr.remove(node)


def _alter_isr(row: Partition, isr: Sequence[str]) -> None:
    row.isr[:] = isr
    if set(row.adding_replicas) <= set(isr):
        row.ClearField("adding_replicas")
        if row.target_replicas and row.leader not in row.target_replicas:
            row.successor = next((node for node in row.target_replicas if node in isr), "")


def _hand_over(row: Partition, request: HandOverRequest) -> None:
    row.leader = request.target
    row.leader_epoch += 1
    row.ClearField("successor")
    if row.target_replicas:
        left = [node for node in row.replicas if node not in row.target_replicas]
        row.replicas[:] = row.target_replicas
        row.isr[:] = [node for node in row.isr if node not in left]
        row.removing_replicas.extend(left)
        row.generation += 1
        row.ClearField("target_replicas")


@asynccontextmanager
async def cluster(
    path: Path, settings: ReplicationSettings | None = None, storage: StorageSettings | None = None
) -> AsyncIterator[Cluster]:
    """A cluster for the length of a test; if the test fails, the error gets a note with the cluster's state."""
    made = Cluster(path, settings, storage)
    try:
        yield made
    except BaseException as error:
        error.add_note(made.standing())
        raise
    finally:
        await made.close()
