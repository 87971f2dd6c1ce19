"""Makes the parts of a node's data plane, and connects them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import UpdateReplicasRequest, UpdateReplicasResponse
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Role
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.process.turns import Turns
from minkad.replication.applying.committer import Committer, Marks
from minkad.replication.applying.compacting import Compacting
from minkad.replication.applying.flusher import Flusher
from minkad.replication.applying.hosted_replica import META_END, META_PREFIX, HostedReplica, ReplicaMeta, decode_meta
from minkad.replication.applying.opening import Opening
from minkad.replication.applying.partition_log import ends_of_logs
from minkad.replication.applying.reclaiming import Reclaiming
from minkad.replication.applying.resting import Resting
from minkad.replication.background_task import BackgroundTask
from minkad.replication.changing.adoption import Adoption
from minkad.replication.changing.damage import Damage
from minkad.replication.changing.deletions import Deletions
from minkad.replication.changing.hosting import Hosting
from minkad.replication.changing.ingesting import Ingesting
from minkad.replication.changing.isr_changes import IsrChanges
from minkad.replication.changing.load_check import LoadCheck
from minkad.replication.changing.sizing import SizeCheck
from minkad.replication.changing.splitting import Splitting
from minkad.replication.executor import Executor
from minkad.replication.reading.change_feed import Changes
from minkad.replication.reading.changed_figures import ChangedFigures
from minkad.replication.reading.inventory import Inventory
from minkad.replication.reading.reporting import Intervals, Reporting
from minkad.replication.reading.snapshots import Snapshots
from minkad.replication.sending.checkpoint_receiver import CheckpointReceiver
from minkad.replication.sending.checkpoint_sender import CheckpointSenders
from minkad.replication.sending.pace import Pace
from minkad.replication.sending.replication_receiver import ReplicationReceiver
from minkad.replication.sending.replication_sender import ReplicationSenders
from minkad.replication.serving.client_requests import Requests
from minkad.replication.serving.expiring import Expiring
from minkad.replication.serving.partition_waits import PartitionWaits
from minkad.replication.serving.routing import Routing
from minkad.replication.serving.writing import Writing
from minkad.replication.surroundings import Surroundings
from minkad.storage.scanner import Scanner

log: Final = logging.getLogger(__name__)

_MIB: Final = 1024 * 1024
_CLOSINGS_AT_ONCE: Final = 4
_REPLAYED_BYTES: Final = _MIB  # fewer unflushed bytes in memory aren't flushed at the end: the next start replays them
_REPLICATION: Final = ReplicationSettings()


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """All but `open_databases` are in bytes."""

    flush: int = 16 * _MIB  # a partition's data is flushed when this much of its log was applied since the last flush
    unflushed: int = 128 * _MIB  # with more unflushed data of all partitions together, the node flushes the largest
    max_pending: int = 256 * _MIB  # with more writes under way or waiting, the node refuses writes as OVERLOADED
    open_databases: int = 1000  # with more open databases, the node closes unused ones
    change_retention: int = 0  # at least this much of each partition's log is kept for readers of changes


class ReplicaManager:
    """For the loop's thread. The controller calls only `update_replicas`."""

    def __init__(
        self,
        around: Surroundings,
        settings: ReplicationSettings = _REPLICATION,
        storage: StorageSettings = StorageSettings(),
    ) -> None:
        """Each part is made after the parts that it uses. The executor uses nearly all parts, so it comes last."""
        self._around = around
        self._is_closing = False
        self.node = node = Node[HostedReplica](around.node_id, settings, around.table, around.with_load_files)
        self.replicas: Final = node.replicas
        self.waits, self.figures = waits, figures = PartitionWaits(), ChangedFigures()
        pace = Pace(around.clock, around.observer.waits, around.log_db.fail)

        # Replicas with their logs and data
        self.damage = Damage(around, node)
        self._hosting = Hosting(around, node, self.damage, storage.change_retention)
        self.opening = Opening(around, node)
        self.flusher = Flusher(node, around.log_db, storage.flush, storage.unflushed)
        self._compacting = Compacting(node, around.log_db, around.clock, figures)
        self.splitting = Splitting(around, node, self._hosting, waits)
        self.ingesting: Ingesting | None = None
        if around.loads is not None:
            self.ingesting = Ingesting(around, node, self.flusher, self.opening, around.loads)
        self.routing = Routing(around, node, waits)
        scanner = Scanner()
        self.snapshots = Snapshots(around, node, self.routing, waits, self.flusher, scanner)
        marks = Marks(self.splitting, self.snapshots, self.ingesting)
        self.committer = Committer(
            node, around.log_db, around.clock, self.opening, marks, self.flusher, self._compacting, figures, waits
        )

        # Other nodes
        self.checkpoint_receiver = CheckpointReceiver(around, node, self.damage, pace)
        self.receiver = ReplicationReceiver(around, node, self.checkpoint_receiver, self.committer)
        self.senders = ReplicationSenders(around, node)
        self.checkpoint_senders = CheckpointSenders(around, node, pace)

        # The controller
        self.deletions = Deletions(around, node, self.flusher, self.checkpoint_receiver)
        self._adoption = Adoption(around, node, self._hosting, self.deletions, waits)
        self.isr_changes = IsrChanges(around, node)
        self.reporting = Reporting(around, node, figures, self.senders, self.checkpoint_senders, self.routing)
        self.stats, self.migrations, self.damaged = self.reporting.stats, self.reporting.migrations, self.damage.all

        # Clients
        writing = Writing(around, node, self.committer, self.routing, storage.max_pending)
        self.requests = Requests(around, node, writing, self.routing, self.opening, waits)
        self.changes = Changes(node.replicas, scanner, around.loads)
        self.inventory = Inventory(around, node, self.deletions, waits)
        self.intervals = Intervals(node.replicas)

        self.load_check = LoadCheck(around, node, figures)
        expiring = Expiring(around, node, self.routing, writing, self.opening)
        self._background = self._periodic(storage.open_databases, expiring, pace)
        self.executor = self._executor()
        node.carry_out = self.executor.carry_out

    def _periodic(
        self, open_databases: int, expiring: Expiring, pace: Pace
    ) -> Sequence[BackgroundTask | IsrChanges | Pace]:
        """The parts that do something now and then."""
        return (
            SizeCheck(self._around, self.node, self.inventory, self.figures),
            self.load_check,
            Reclaiming(self._around, self.node, self.flusher),
            Resting(self._around, self.node, self.flusher, open_databases),
            expiring,
            self.isr_changes,
            pace,
        )

    def _executor(self) -> Executor:
        return Executor(
            self._around,
            self.node,
            self.senders,
            self.checkpoint_senders,
            self.isr_changes,
            self.receiver,
            self.committer,
            self.opening,
            self._compacting,
            self.figures,
            self.waits,
        )

    # Start and end

    async def start(self) -> None:
        """Recover the replicas from disk. A replica serves nothing until the controller has sent its row. Raises
        CORRUPT_DATA, STORAGE_FAILED.
        """
        await self._around.store.remove_leftovers()
        working = Turns(self._around.clock)
        ends: dict[int, int] = {}
        attached: list[tuple[HostedReplica, ReplicaMeta]] = []
        for partition_id, end in ends_of_logs(self._around.log_db):
            ends[partition_id] = end
            await working.turn()
        for _, value in self._around.log_db.scan(META_PREFIX, META_END):
            meta = decode_meta(value)
            row = Partition.FromString(meta.row)
            replica = self._hosting.recover(meta, ends.get(row.id, 0), row)
            if meta.complete and meta.attached_to:
                attached.append((replica, meta))
            await working.turn()
        for replica, meta in attached:
            self.splitting.recover(replica, meta)
        self.snapshots.start()
        if self.ingesting is not None:
            self.ingesting.start()
        for background in self._background:
            background.start()

    async def drain(self) -> None:
        """Refuse new requests of clients, and return once the earlier ones are answered."""
        await self.requests.drain()

    async def close(self) -> None:
        """Stop serving, then flush and close all data, so that the next start has little to replay. Once the disk has
        failed, the other databases are left as they are.
        """
        self._is_closing = True
        for background in self._background:
            await background.close()
        self.node.close(self._around.clock())
        await self.executor.close()
        await self.checkpoint_senders.close()
        await self.senders.close()
        await self.requests.close()
        self.committer.close()
        await self.opening.close()
        await self.damage.close()
        await self.splitting.close()
        await self.snapshots.close()
        if self.ingesting is not None:
            await self.ingesting.close()
        await self._compacting.close()
        await self.deletions.close()
        await self.flusher.close()
        slots = asyncio.Semaphore(_CLOSINGS_AT_ONCE)
        await asyncio.gather(*(self._close_one(replica, slots) for replica in self.replicas.values()))
        if self._around.log_db.error is None:
            await self._around.log_db.sync()

    async def _close_one(self, replica: HostedReplica, slots: asyncio.Semaphore) -> None:
        async with slots:
            if self._around.log_db.error is not None:
                return  # another try to write would take a second or more for each
            try:
                is_little = replica.data.in_memory and replica.unflushed < _REPLAYED_BYTES
                # The next start makes attached data again, from the parent's data and the log.
                is_little = is_little or replica.data.is_attached
                if replica.state.role is not Role.REMOVED and replica.state.damage is None and not is_little:
                    await self.flusher.flush(replica)
                await replica.data.close()
            except MinkaError as error:
                log.error("a partition was not closed", extra={"partition": replica.id, "reason": str(error)})
                if error.code is Code.STORAGE_FAILED:
                    self._around.log_db.fail(error)

    # What the controller and the table say

    async def update_replicas(self, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        """Take over the rows, and return once that is durable. Raises NOT_CONTROLLER for an older term, STORAGE_FAILED
        if the disk has failed, SHUTTING_DOWN once the node stops.
        """
        if self._is_closing:
            raise MinkaError(Code.SHUTTING_DOWN, "the node is stopping")
        return await self._adoption.update_replicas(request)

    def stop_leading(self) -> None:
        """See `Node.stop_leading`."""
        self.node.stop_leading(self._around.clock())

    def loads_changed(self) -> None:
        """Loads have begun, been committed, or ended, by this node's copy of the table."""
        if self.ingesting is not None:
            self.ingesting.loads_changed()

    def nodes_changed(self) -> None:
        """Nodes have come or gone, by this node's copy of the table."""
        self.isr_changes.nodes_changed()

    # Clients and other nodes

    def follow(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """A leader's stream: see `sending.peer_frames`."""
        return self.receiver.append(frames)

    async def install(self, messages: AsyncIterator[bytes]) -> bytes:
        """A leader's checkpoint: see `sending.peer_frames`."""
        return await self.checkpoint_receiver.install(messages)
