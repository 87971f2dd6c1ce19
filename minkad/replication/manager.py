"""Everything that one node hosts: makes the parts of the data plane, and connects them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import UpdateReplicasRequest, UpdateReplicasResponse
from minka.wire.kv_frames import Request, Response
from minkad.core.replication import instructions as i
from minkad.core.replication.entries import IngestMark, SlowMark, SplitMarker
from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.instructions import Outbox
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Role
from minkad.core.replication.replicas import Replicas
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.process.memory import Share
from minkad.process.rate_limits import RateLimits
from minkad.replication.applying.committer import Committer
from minkad.replication.applying.compacting import Trimming
from minkad.replication.applying.flusher import Flusher
from minkad.replication.applying.hosted_replica import META_END, META_PREFIX, Replica, ReplicaMeta, decode_meta
from minkad.replication.applying.opening import Opening
from minkad.replication.applying.partition_log import PartitionLog, ends_of_logs
from minkad.replication.applying.reclaiming import Reclaiming
from minkad.replication.applying.resting import Resting
from minkad.replication.changing.adoption import Adoption, Turns
from minkad.replication.changing.damage import Damage
from minkad.replication.changing.deletions import Deletions
from minkad.replication.changing.ingesting import Ingesting
from minkad.replication.changing.isr_changes import IsrChanges
from minkad.replication.changing.load_check import LoadCheck
from minkad.replication.changing.sizing import SizeCheck
from minkad.replication.changing.splitting import Splitting
from minkad.replication.executor import Executor
from minkad.replication.reading.change_feed import Changes
from minkad.replication.reading.inventory import Inventory
from minkad.replication.reading.reporting import Intervals, Reporting
from minkad.replication.reading.snapshots import Snapshots
from minkad.replication.sending.checkpoint_receiver import CheckpointReceiver
from minkad.replication.sending.checkpoint_sender import CheckpointSenders, SendingContext
from minkad.replication.sending.pace import Pace
from minkad.replication.sending.replication_receiver import IncomingStream, ReplicationReceiver
from minkad.replication.sending.replication_sender import ReplicationSender, SenderContext
from minkad.replication.serving.client_requests import Requests
from minkad.replication.serving.expiring import Expiring
from minkad.replication.serving.routing import Routing
from minkad.replication.serving.writing import Writing
from minkad.replication.surroundings import LoadSources, Surroundings
from minkad.storage.data_database import DataDatabase
from minkad.storage.scanner import Scanner
from minkad.storage.size_estimate import Size

log: Final = logging.getLogger(__name__)

_MIB: Final = 1024 * 1024
_CLOSINGS_AT_ONCE: Final = 4
_REPLAYED_BYTES: Final = _MIB  # of a log: a smaller log in memory alone is applied again at the next start
_REPLICATION: Final = ReplicationSettings()


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Sizes in bytes, and a number of databases."""

    flush: int = 16 * _MIB  # bytes of a partition's log after which its data is flushed
    unflushed: int = 128 * _MIB  # the same for all partitions together
    max_pending: int = 256 * _MIB  # writes that wait for a sync or at a closed gate
    open_databases: int = 1000  # that stay open although they are unused
    change_retention: int = 0  # the newest entries of each partition's log that are kept for readers of changes


class ReplicaManager:
    """For the loop's thread. `update_replicas` is the only way in for the controller."""

    def __init__(
        self,
        around: Surroundings,
        settings: ReplicationSettings = _REPLICATION,
        storage: StorageSettings = StorageSettings(),
    ) -> None:
        self._around = around
        self._settings = settings
        self._storage = storage
        self._closing = False
        self.replicas: dict[int, Replica] = {}
        self.senders: dict[str, ReplicationSender] = {}
        outbox = Outbox(self._carry_out_soon)
        self._node = Node(around.node_id, settings, around.table, outbox)
        self._core = Replicas(self._node)
        isr_changed = around.observer.isr_changed
        self._adoption = Adoption(
            self._core, around.log_db, self._new_replica, around.clock, isr_changed, self._adopted
        )
        adopt = self._adoption.adopt
        self.executor = Executor(outbox, self._core, self.replicas, around.controller, around.clock, adopt)
        self._build_pipeline()
        self._build_replication()
        self._build_restructuring()
        self._build_readers()
        self._build_checks()
        self._adoption.connect(self.replicas, self.requests, self.deletions)
        self.executor.handle(
            {
                i.StartSending: lambda start: self._sender_to(start.progress).start(start.progress),
                i.StopSending: lambda stop: self._sender_to(stop.progress).stop(stop.progress),
                i.Send: lambda send: self._sender_to(send.progress).send(send.progress),
                i.SendWatermark: lambda told: self._sender_to(told.progress).send_watermark(
                    told.progress, told.at_once
                ),
                i.SendCheckpoint: self.checkpoint_senders.send,
                i.CancelCheckpoint: lambda cancel: self.checkpoint_senders.cancel(cancel.progress),
                i.IsrProposal: self.isr_changes.propose,
                i.GateOpened: self._gate_opened,
                i.SyncEpoch: self._sync_epoch,
                i.OpenData: self.opening.instructed,
                i.Sync: self._sync,
                i.Answer: _answer,
                i.Apply: lambda apply: self.committer.apply(self.replicas[apply.partition_id]),
                i.Changed: lambda changed: self.requests.notify(changed.partition_id),
                i.GiveUp: self._give_up,
            }
        )

    # How the parts are connected

    def _build_pipeline(self) -> None:
        """The parts between a client's request and its answer."""
        around, replicas, carry_out = self._around, self.replicas, self.executor.carry_out
        self.opening = Opening(around, replicas, self._core, carry_out, self._take_next_load)
        self.flusher = Flusher(around.log_db, self._node, replicas, self._storage.flush, self._storage.unflushed)
        self.committer = Committer(
            around.log_db, around.clock, carry_out, self._on_applied, self._on_mark, self.opening.begin
        )
        self._pace = Pace(around.clock, around.observer.waits, around.log_db.fail)
        self.checkpoint_receiver = CheckpointReceiver(around, replicas, self._new_data, self._pace)
        self.receiver = ReplicationReceiver(replicas, self.committer, self.checkpoint_receiver, around.clock, carry_out)
        self._routing = routing = Routing(around, replicas, self.receiver, self._newest_row)
        writing = Writing(around, self.committer, routing, self._storage.max_pending, self._rows_written)
        self._expiring = Expiring(around, replicas, routing, writing, self.opening.wait)
        self.requests = Requests(around, replicas, writing, routing, self.opening.wait)

    def _build_replication(self) -> None:
        """The parts that send to other nodes or tell them about replicas."""
        around, replicas, settings = self._around, self.replicas, self._settings
        self._sender_context = SenderContext(
            around.links, replicas, around.table.has_clearance, around.clock, self.executor.carry_out
        )
        slots = asyncio.Semaphore(settings.concurrent_shipping)
        limits, moving = RateLimits(around.clock), around.table.operation_moving
        sending = SendingContext(around.store, around.links, settings, slots, moving, limits, self._pace, around.clock)
        self.checkpoint_senders = CheckpointSenders(sending, replicas)
        self.isr_changes = IsrChanges(around, replicas, self._node.unsettled, settings, self._adoption.adopt)
        self.reporting = Reporting(
            replicas,
            self._node.unsettled,
            self._node.migrating,
            self._followers,
            self.checkpoint_senders,
            self._routing.answers_stale,
            around.clock,
        )
        self.stats, self.migrations = self.reporting.stats, self.reporting.migrations
        self.serving, self.stale_reads = self.reporting.serving, self.reporting.stale_reads
        self.copies = self.reporting.copies
        self.follower_lags = self.reporting.follower_lags

    def _build_restructuring(self) -> None:
        """The parts that change the data of a replica, apart from writes."""
        around, replicas = self._around, self.replicas
        self._damage = Damage(around, replicas, self.committer, self._new_data, self.requests.notify)
        self.damaged = self._damage.all
        self.deletions = Deletions(
            around, replicas, self._node.failed, self.flusher, self.checkpoint_receiver, self._adoption.remove
        )
        self._trimming = Trimming(around.log_db, self._on_trimmed)
        self.splitting = Splitting(
            around,
            replicas,
            self._core,
            self.committer,
            self._adoption.adopt,
            self._adoption.host,
            self._new_data,
            self.requests.changed,
        )
        self.ingesting: Ingesting | None = None
        if around.loads is not None:
            self.ingesting = Ingesting(
                around, replicas, self.committer, self.flusher.flush, around.loads, self.opening.begin
            )

    def _build_readers(self) -> None:
        """The parts that read whole partitions."""
        around, replicas = self._around, self.replicas
        self.inventory = Inventory(replicas, around.store, self.deletions, self.requests.changed)
        self.intervals = Intervals(replicas)
        scanner = Scanner()
        self.snapshots = Snapshots(around, self.committer, self.requests, scanner, self.flusher.flush)
        self.changes = Changes(replicas, scanner, lambda number, name: _file_in(around.loads, number, name))

    def _build_checks(self) -> None:
        """The periodic checks."""
        around, replicas, adopt = self._around, self.replicas, self._adoption.adopt
        self._size_check = SizeCheck(around, replicas, self.inventory.split_keys, adopt, self.reporting.changed)
        self.load_check = LoadCheck(around, replicas, self._node.used, adopt, self.reporting.changed)
        self._resting = Resting(around, replicas, self.flusher.flush, self._storage.open_databases)
        self._reclaiming = Reclaiming(replicas, around.disk, self.flusher, around.log_db.fail)
        checks = (self._size_check, self.load_check, self._reclaiming, self._resting)
        self._background = (*checks, self._expiring, self.isr_changes, self._pace)

    def _new_replica(self, row: Partition) -> Replica:
        return self._replica_of(row, PartitionLog(self._around.log_db, row.id), self._new_data(row.id))

    def _replica_of(self, row: Partition, partition_log: PartitionLog, data: DataDatabase) -> Replica:
        return Replica(self._node, row, partition_log, data, self._storage.change_retention)

    def _new_data(self, partition_id: int, size: Size | None = None) -> DataDatabase:
        return self._around.store.data(partition_id, size, lambda: self._damage.found(partition_id))

    # Start and end

    async def start(self) -> None:
        """Recover the replicas that are on disk. Each is served only after the controller has sent its row. Raises
        CORRUPT_DATA, STORAGE_FAILED.
        """
        await self._around.store.remove_leftovers()
        working = Turns(self._around.clock)
        ends: dict[int, int] = {}
        attached: dict[int, ReplicaMeta] = {}
        for partition_id, end in ends_of_logs(self._around.log_db):
            ends[partition_id] = end
            await working.turn()
        for _, value in self._around.log_db.scan(META_PREFIX, META_END):
            meta = decode_meta(value)
            row = Partition.FromString(meta.row)
            partition_log = PartitionLog(self._around.log_db, row.id, meta.base, meta.base_epoch)
            replica = self._replica_of(row, partition_log, self._new_data(row.id, Size(meta.bytes, meta.keys)))
            replica.recover(meta, ends.get(row.id, 0))
            self._adoption.add(replica)
            if meta.complete and meta.attached_to:
                attached[row.id] = meta
            await working.turn()
        for partition_id, meta in attached.items():
            self.splitting.recover(self.replicas[partition_id], meta)
        self.snapshots.start()
        if self.ingesting is not None:
            self.ingesting.start()
        for background in self._background:
            background.start()

    async def drain(self) -> None:
        """Refuse new requests of clients, and return as soon as those under way are answered."""
        await self.requests.drain()

    async def close(self) -> None:
        """Stop serving, flush and close everything, so that the next start has little to replay. If the disk fails
        meanwhile, leaves the rest as it is.
        """
        self._closing = True
        for background in self._background:
            await background.close()
        now = self._around.clock()
        for replica in self.replicas.values():
            if replica.leader is not None:
                replica.leader.close(now)
        self.executor.carry_out()
        await self.executor.close()
        await self.checkpoint_senders.close()
        for sender in self.senders.values():
            await sender.close()
        await self.requests.close()
        self.committer.close()
        await self.opening.close()
        await self._damage.close()
        await self.splitting.close()
        await self.snapshots.close()
        if self.ingesting is not None:
            await self.ingesting.close()
        await self._trimming.close()
        await self.deletions.close()
        await self.flusher.close()
        slots = asyncio.Semaphore(_CLOSINGS_AT_ONCE)
        await asyncio.gather(*(self._close_one(replica, slots) for replica in self.replicas.values()))
        if self._around.log_db.error is None:
            await self._around.log_db.sync()

    async def _close_one(self, replica: Replica, slots: asyncio.Semaphore) -> None:
        async with slots:
            if self._around.log_db.error is not None:
                return  # else each would try to write again, for a second or more
            try:
                is_little = replica.data.in_memory and replica.unflushed < _REPLAYED_BYTES
                is_little = is_little or replica.data.is_attached  # it will be made from its parent's data and its log
                if replica.role is not Role.REMOVED and replica.damage is None and not is_little:
                    await self.flusher.flush(replica)
                await replica.data.close()
            except MinkaError as error:
                log.error("a partition was not closed", extra={"partition": replica.id, "reason": str(error)})
                if error.code is Code.STORAGE_FAILED:
                    self._around.log_db.fail(error)

    # What the controller and the table say

    async def update_replicas(self, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        """Become what the rows say, durably, then return. Raises NOT_CONTROLLER for an older term, STORAGE_FAILED when
        the disk has failed, SHUTTING_DOWN once the node stops.
        """
        if self._closing:
            raise MinkaError(Code.SHUTTING_DOWN, "the node is stopping")
        return await self._adoption.update_replicas(request)

    def stop_leading(self) -> None:
        """Other nodes may lead the partitions by now: this one leads again only at newer leader_epochs."""
        self._core.stop_leading(self._around.clock())

    def loads_changed(self) -> None:
        """Loads have begun, been committed, or ended, by this node's copy of the table."""
        if self.ingesting is not None:
            self.ingesting.loads_changed()

    def nodes_changed(self) -> None:
        """Nodes have come or gone, by this node's copy of the table."""
        self.isr_changes.nodes_changed()

    def _newest_row(self, partition_id: int) -> Partition | None:
        replica = self.replicas.get(partition_id)
        rows = [self._core.departed(partition_id), self._around.table.row(partition_id)]
        rows.append(replica.row if replica is not None else None)
        return max((row for row in rows if row is not None), key=lambda row: row.partition_epoch, default=None)

    # Clients and other nodes

    async def handle(self, request: Request, share: Share) -> Response:
        """Carry out the reads and writes of one client's frame; the response has a result for each group. The bodies of
        answers are taken from `share`.
        """
        return await self.requests.handle(request, share)

    def follow(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """A leader's stream: see `frames`."""
        return self.receiver.append(frames)

    async def install(self, messages: AsyncIterator[bytes]) -> bytes:
        """A leader's checkpoint: see `frames`."""
        return await self.checkpoint_receiver.install(messages)

    # The effects of a change of a replica

    def _adopted(self, replica: Replica) -> None:
        self.reporting.changed(replica)
        self._size_check.changed(replica.id)
        self.receiver.row_changed(replica)
        self._trimming.compact_soon(replica)
        self._take_next_load(replica)
        self.executor.carry_out()

    def _on_applied(self, replica: Replica, size: int) -> None:
        self.reporting.changed(replica)
        self._size_check.changed(replica.id)
        self.flusher.applied(replica, size)
        self._core.has_applied(replica, self._around.clock())
        if replica.applied >= replica.ready_at:
            self.requests.notify(replica.id)
        self._trimming.compact_soon(replica)
        self._take_next_load(replica)

    def _on_trimmed(self, replica: Replica) -> None:
        self.reporting.changed(replica)
        self._size_check.changed(replica.id)
        self.requests.notify(replica.id)
        self._core.tick(replica.id, self._around.clock())  # there may be more to trim

    def _rows_written(self, replica: Replica, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> None:
        self._expiring.written(replica, keys, rows)

    def _on_mark(self, replica: Replica, mark: SlowMark) -> None:
        if isinstance(mark, SplitMarker):
            self.splitting.make(replica)
        elif isinstance(mark, IngestMark):
            assert self.ingesting is not None, mark
            self.ingesting.make(replica, mark)
        else:
            self.snapshots.make(replica, mark)

    def _take_next_load(self, replica: Replica) -> None:
        if self.ingesting is not None:
            self.ingesting.take_next(replica)

    # Instructions

    def _carry_out_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self.executor.carry_out)

    def _followers(self) -> list[str]:
        """The nodes that follow a partition that this node leads."""
        return [name for name, sender in self.senders.items() if sender.is_followed]

    def _sender_to(self, progress: Progress) -> ReplicationSender:
        sender = self.senders.get(progress.node_id)
        if sender is None:
            sender = self.senders[progress.node_id] = ReplicationSender(progress.node_id, self._sender_context)
        return sender

    def _sync(self, sync: i.Sync) -> None:
        if (replica := self.replicas.get(sync.partition_id)) is not None:
            self.committer.sync(replica, to_disk=sync.on_disk)

    def _sync_epoch(self, sync: i.SyncEpoch) -> None:
        def synced(stored: asyncio.Future[None]) -> None:
            replica = self.replicas.get(sync.partition_id)
            leader = replica.leader if replica is not None else None
            if stored.exception() is None and leader is not None and leader.leader_epoch == sync.leader_epoch:
                leader.epoch_durable()

        self._around.log_db.sync().add_done_callback(synced)

    def _gate_opened(self, opened: i.GateOpened) -> None:
        self._around.observer.writes_waited(opened.seconds)
        names = {
            "partition": opened.partition_id,
            "target": opened.successor,
            "ms": round(opened.seconds * 1e3, 1),
        }
        log.info("writes waited", extra=names)

    def _give_up(self, give_up: i.GiveUp) -> None:
        if (replica := self.replicas.get(give_up.partition_id)) is not None:
            self.committer.give_up(replica, Code.OUTCOME_UNKNOWN, give_up.reason)


def _answer(answer: i.Answer) -> None:
    assert isinstance(answer.stream, IncomingStream), answer
    answer.stream.answer(answer.ack)


def _file_in(loads: LoadSources | None, number: int, name: str) -> Path | None:
    """The path of a load's file, if it is here."""
    if loads is None or all(file.name != name for file in loads.spool.files(number)):
        return None
    return loads.spool.path(number, name)
