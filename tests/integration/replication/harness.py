"""A cluster of nodes without a coordinator: the test acts as the controller."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from google.protobuf import text_format

from minka.errors import Code, MinkaError, with_rows
from minka.v1.cluster_pb2 import Durability, Keyspace, Operation, Partition, PartitionState
from minka.v1.coordinator_pb2 import (
    AlterIsrRequest,
    AlterIsrResponse,
    FinishMergeRequest,
    FinishMergeResponse,
    FinishSplitRequest,
    FinishSplitResponse,
    HandOverRequest,
    HandOverResponse,
    IsrChange,
    IsrResult,
    ProposeSplitRequest,
    ProposeSplitResponse,
    UpdateReplicasResponse,
)
from minka.wire.data_port import Hello, connect
from minkad.config.addresses import split_address
from minkad.core.controller import merges
from minkad.core.controller_methods import (
    ALTER_ISR,
    FINISH_MERGE,
    FINISH_SPLIT,
    HAND_OVER,
    PROPOSE_SPLIT,
    Method,
    Request,
    Response,
)
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.core.state import State
from minkad.data_port.streams import MessageStream
from minkad.replication.manager import StorageSettings
from tests import strict_replicas  # noqa: F401  # each event is followed by a check
from tests.integration.replication.node import TestNode

SOON = ReplicationSettings(lag_timeout=0.5)  # an absent follower leaves the in-sync set soon; a slow one may, too


class Cluster:
    """The nodes, and the rows that the controller would have."""

    def __init__(
        self, path: Path, settings: ReplicationSettings | None = None, storage: StorageSettings | None = None
    ) -> None:
        self.path = path
        self.settings = settings or ReplicationSettings(lag_timeout=60.0)
        self.storage = storage or StorageSettings()
        self.nodes: dict[str, TestNode] = {}
        self.ports: dict[str, int] = {}
        self._clients: list[MessageStream] = []
        self.clients_memory_bytes = 256 * 1024 * 1024
        self.rows: dict[int, Partition] = {}
        self.keyspace = Keyspace(min_insync=1, durability=Durability.DURABILITY_SYNC)
        self.low_disks: set[str] = set()
        self.operation: Operation | None = None  # if set, the operation that moves all partitions
        self.dead: set[str] = set()  # nodes that the controller keeps out of in-sync sets
        self.failed: set[str] = set()  # nodes that are FAILED in the table
        self.requests = 0  # the number of requests to change in-sync sets
        self.isr_changes: list[IsrChange] = []
        # Each list has the errors of the next requests of its kind, one for each request. A request raises an error of
        # `before_…` and isn't recorded; it raises an error of `after_…` once it is recorded.
        self.before_alter_isr: list[MinkaError] = []
        self.after_alter_isr: list[MinkaError] = []
        self.hand_overs: list[HandOverRequest] = []
        self.before_hand_over: list[MinkaError] = []
        self.after_hand_over: list[MinkaError] = []
        self.proposed: list[ProposeSplitRequest] = []
        self.before_finish_split: list[MinkaError] = []
        self.gone: dict[int, Partition] = {}  # the last rows of partitions that were merged into others
        self.before_finish_merge: list[MinkaError] = []
        self.after_finish_merge: list[MinkaError] = []

    async def add(self, *node_ids: str) -> list[TestNode]:
        """Start nodes with these ids."""
        for node_id in node_ids:
            self.nodes[node_id] = TestNode(self, node_id, self.path / node_id)
            await self.nodes[node_id].start()
        return [self.nodes[node_id] for node_id in node_ids]

    def hold_hand_over(self) -> None:
        """Refuse hand-overs until `before_hand_over` is cleared."""
        self.before_hand_over = [MinkaError(Code.STALE_GENERATION, "the test refuses hand-overs")] * 100_000

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
        """Describe all rows, nodes and replicas, one per line."""
        lines = [f"row {row}" for row in map(_one_line, self.rows.values())]
        for node in self.nodes.values():
            lines.append(f"{node.id} {'runs' if node.running else 'has stopped'}: {node.log_db.error}")
            for replica in node.manager.replicas.values():
                state = replica.state
                lines.append(f"  {state} {state.applying.value} {state.copy.value} {_one_line(state.row)}")
                for name, progress in state.leader.progress.items() if state.leader is not None else ():
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
        """Make the row that begins the move of the leader's replica to the node `target`."""

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
        """Make the row that removes this replica."""

        def change(row: Partition) -> None:
            for nodes in (row.replicas, row.isr):
                if node in nodes:
                    nodes.remove(node)
            row.removing_replicas.append(node)

        return self.change(partition_id, change)

    def cancel(self, partition_id: int, target: str) -> Partition:
        """Make the row that cancels a move before its hand-over."""

        def change(row: Partition) -> None:
            for nodes in (row.replicas, row.adding_replicas, row.isr):
                if target in nodes:
                    nodes.remove(target)
            row.ClearField("target_replicas")
            row.ClearField("successor")
            row.removing_replicas.append(target)

        return self.change(partition_id, change)

    def succeed(self, partition_id: int, successor: str) -> Partition:
        """Make the row that tells the leader to hand over."""
        return self.change(partition_id, lambda row: setattr(row, "successor", successor))

    def elect(self, partition_id: int, leader: str, *, without: Sequence[str] = ()) -> Partition:
        """Make the row in which `leader` leads at a new leader_epoch; the nodes in `without` leave the in-sync set."""

        def change(row: Partition) -> None:
            row.leader = leader
            row.leader_epoch += 1
            row.ClearField("successor")
            row.isr[:] = [node for node in row.isr if node not in without]

        return self.change(partition_id, change)

    async def move(self, target: str, *partition_ids: int) -> None:
        """Begin migrations like the controller: send the new rows to the sources and the target."""
        rows = [self.add_target(id_, target) for id_ in partition_ids]
        by_source: dict[str, list[Partition]] = {}
        for row in rows:
            by_source.setdefault(row.leader, []).append(row)
        await asyncio.gather(
            self.nodes[target].tell(*rows), *(self.nodes[node].tell(*rows) for node, rows in by_source.items())
        )

    async def fail(self, node_id: str) -> None:
        """Act like the controller when a node fails: let other nodes lead its partitions. The new leaders take the
        failed node out of the in-sync sets.
        """
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
        """Act like the controller when the node is back: let the node lead its partitions again, at new epochs."""
        self.dead.discard(node_id)
        self.failed.discard(node_id)
        for row in list(self.rows.values()):
            if row.leader == node_id:
                self.elect(row.id, node_id)
        await self.tell_all(*self.rows)

    async def call(self, method: Method[Request, Response], request: Request) -> Response:
        """Answer a node's request like the active controller."""
        handlers: dict[Method[Any, Any], Callable[[Any], Awaitable[Any]]] = {
            ALTER_ISR: self.alter_isr,
            PROPOSE_SPLIT: self.propose_split,
            FINISH_SPLIT: self.finish_split,
            FINISH_MERGE: self.finish_merge,
            HAND_OVER: self.hand_over,
        }
        return cast(Response, await handlers[method](request))

    async def alter_isr(self, request: AlterIsrRequest) -> AlterIsrResponse:
        """Change in-sync sets like the controller; tell each node that has a replica."""
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
        elif node_id not in change.isr:  # the leader's copy is damaged, so another node has to lead
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

    async def propose_split(self, request: ProposeSplitRequest) -> ProposeSplitResponse:
        """Begin a split as the controller does, and send the new rows to each node with a replica."""
        self.proposed.append(request)
        row = self.rows[request.partition_id]
        if row.splitting or row.generation != request.generation:
            raise with_rows(MinkaError(Code.SPLIT_REFUSED, "the partition is being split"), [row])
        halves = self.split(row.id, request.key)
        for half in halves:
            for node in half.replicas:
                self.tell_later(node, half)
        return ProposeSplitResponse(partitions=halves)

    async def finish_split(self, request: FinishSplitRequest) -> FinishSplitResponse:
        """End a split as the controller does, and send the new rows to each node with a replica."""
        if self.before_finish_split:
            raise self.before_finish_split.pop(0)
        child = self.rows[request.partition_id]
        if child.splitting:
            if (child.leader, child.leader_epoch) != (request.node_id, request.leader_epoch):
                raise with_rows(MinkaError(Code.STALE_EPOCH, "another node leads the new partition"), [child])
            if child.partition_epoch != request.partition_epoch:
                raise with_rows(MinkaError(Code.STALE_EPOCH, "the row has changed"), [child])
            for id_ in (child.split_from, child.id):
                row = self.change(id_, lambda row: row.ClearField("splitting"))
                for node in row.replicas:
                    self.tell_later(node, row)
        return FinishSplitResponse(partitions=[self.rows[child.split_from], self.rows[child.id]])

    def merge(self, before_id: int, behind_id: int) -> None:
        """Make the rows that begin a merge of two partitions."""
        self.change(before_id, lambda row: setattr(row, "merge_from", behind_id))
        self.change(behind_id, lambda row: setattr(row, "merge_into", before_id))

    async def finish_merge(self, request: FinishMergeRequest) -> FinishMergeResponse:
        """End a merge like the controller; tell each node that has a replica."""
        if self.before_finish_merge:
            raise self.before_finish_merge.pop(0)
        left = self.rows[request.partition_id]
        if request.merged_id not in self.gone:
            right = self.rows[request.merged_id]
            epochs = (left.partition_epoch, right.partition_epoch)
            if epochs != (request.partition_epoch, request.merged_epoch) or not left.merge_from:
                raise with_rows(MinkaError(Code.STALE_EPOCH, "the row of a partition has changed"), [left, right])
            state = State(next_partition_id=max(self.rows) + 1)
            state.partitions.update(self.rows)
            command = FinishMergeRequest(
                node_id=request.node_id,
                partition_id=left.id,
                partition_epoch=epochs[0],
                merged_id=right.id,
                merged_epoch=epochs[1],
            )
            (record,) = next(merges.finish(state, command, 0))
            self.rows[left.id] = left = record.partitions_merged.remaining
            self.gone[right.id] = record.partitions_merged.gone
            del self.rows[right.id]
        if self.after_finish_merge:
            raise self.after_finish_merge.pop(0)
        gone = self.gone[request.merged_id]
        for row, nodes in ((left, left.replicas), (gone, gone.removing_replicas)):
            for node in nodes:
                self.tell_later(node, row)
        return FinishMergeResponse(partitions=[left, gone])

    async def hand_over(self, request: HandOverRequest) -> HandOverResponse:
        """Record a hand-over like the controller; tell each node that has a replica."""
        self.hand_overs.append(request)
        if self.before_hand_over:
            raise self.before_hand_over.pop(0)
        row = self.rows[request.partition_id]
        if row.leader != request.target:
            if row.partition_epoch != request.partition_epoch:
                raise with_rows(MinkaError(Code.STALE_EPOCH, "the row has changed"), [row])
            row = self.change(request.partition_id, lambda row: _hand_over(row, request))
        if self.after_hand_over:
            raise self.after_hand_over.pop(0)
        for node in {*row.replicas, *row.removing_replicas}:
            self.tell_later(node, row)
        return HandOverResponse(partition=row)

    def tell_later(self, node_id: str, row: Partition) -> None:
        if not self.nodes[node_id].running:
            return
        task = asyncio.create_task(self.nodes[node_id].tell(row))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    async def tell_all(self, *partition_ids: int) -> None:
        """Send the present rows of these partitions to all running nodes, and wait for the answers."""
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
    """Create a cluster, and stop it after the block. If the test fails, the error gets a note with the
    cluster's state.
    """
    made = Cluster(path, settings, storage)
    try:
        yield made
    except BaseException as error:
        error.add_note(made.standing())
        raise
    finally:
        await made.close()
