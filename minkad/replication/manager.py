"""Everything that one node hosts: it becomes what the controller's rows say, and serves what it leads."""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from minka.errors import Code, MinkaError
from minka.ranges import KeyRange
from minka.v1.cluster_pb2 import Durability, Operation, Partition
from minka.v1.coordinator_pb2 import (
    DamagedReplica,
    MigrationProgress,
    ReplicaOutcome,
    ReplicaResult,
    ReplicaStats,
    UpdateReplicasRequest,
    UpdateReplicasResponse,
)
from minka.wire import Request, Response
from minkad.core.state import range_of
from minkad.process import turns
from minkad.process.failpoints import failpoint
from minkad.process.memory import Share
from minkad.replication.changes import Changes
from minkad.replication.committer import Committer
from minkad.replication.context import ControllerCalls, KnownKeyspace, LeaderContext, ReplicationSettings
from minkad.replication.damage import Damage
from minkad.replication.deletions import Deletions
from minkad.replication.entries import IngestMark, SlowMark, SplitMarker
from minkad.replication.feed import Feed
from minkad.replication.flusher import Flusher
from minkad.replication.following import Following
from minkad.replication.in_sync import InSyncSets
from minkad.replication.ingesting import Ingesting, LoadSources
from minkad.replication.intervals import Intervals, owned_size
from minkad.replication.inventory import Inventory
from minkad.replication.leadership import Leadership
from minkad.replication.links import ReplicationLinks
from minkad.replication.load_check import LoadCheck
from minkad.replication.merging import Merging
from minkad.replication.partition_log import PartitionLog
from minkad.replication.receiving import Receiving
from minkad.replication.reclaiming import Reclaiming
from minkad.replication.replica import (
    META_END,
    META_PREFIX,
    NEVER,
    UNKNOWN,
    Replica,
    ReplicaMeta,
    Role,
    decode_meta,
    role_in,
)
from minkad.replication.requests import Requests
from minkad.replication.shipping import RateLimit
from minkad.replication.sizing import SizeCheck
from minkad.replication.snapshots import Snapshots
from minkad.replication.splitting import Splitting
from minkad.replication.trimming import Trimming
from minkad.storage.data_database import DataDatabase
from minkad.storage.disk_space import DiskWatch
from minkad.storage.log_database import LogDatabase
from minkad.storage.replica_store import ReplicaStore
from minkad.storage.scanner import Scanner
from minkad.storage.size_estimate import Size

log: Final = logging.getLogger(__name__)

_MIB: Final = 1024 * 1024
_TURN_SECONDS: Final = 0.003  # of work before the loop gets its turn
_READY_POLL_SECONDS: Final = 1.0
_CLOSINGS_AT_ONCE: Final = 4
_MAX_DEPARTED: Final = 10_000
_MAX_STATS: Final = 500
_REPLICATION: Final = ReplicationSettings()


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Bytes."""

    block_cache: int = 256 * _MIB  # shared by all partitions
    flush: int = 16 * _MIB  # of a partition's log, at which its data is flushed
    unflushed: int = 128 * _MIB  # of all partitions together
    max_pending: int = 256 * _MIB  # writes that wait for a sync or at a fence
    change_retention: int = 0  # of the newest entries of each partition's log, for who follows changes


class ReplicaManager:
    """For the loop's thread. `update_replicas` is the only way in for the controller."""

    def __init__(
        self,
        node_id: str,
        store: ReplicaStore,
        log_db: LogDatabase,
        links: ReplicationLinks,
        has_clearance: Callable[[], bool],
        controller: ControllerCalls,
        clock: Callable[[], float],
        disk: DiskWatch,
        settings: ReplicationSettings = _REPLICATION,
        storage: StorageSettings = StorageSettings(),
        known_row: Callable[[int], Partition | None] = lambda _: None,
        is_gone: Callable[[int], bool] = lambda _: False,
        known_keyspace: KnownKeyspace = lambda _: None,
        is_absent: Callable[[str], bool] = lambda _: False,
        operation_moving: Callable[[int], Operation | None] = lambda _: None,
        on_fence: Callable[[float], None] = lambda _: None,
        on_isr_change: Callable[[Collection[str], Collection[str]], None] = lambda _old, _new: None,
        low_disks: Callable[[], Collection[str]] = tuple,
        on_damage: Callable[[], None] = lambda: None,
        unix_ms: Callable[[], int] = lambda: 0,
        loads: LoadSources | None = None,
    ) -> None:
        """`known_row`, `known_keyspace`, `is_absent` (a node has failed, or left) and `operation_moving` (a partition)
        are by this node's copy of the table. `on_fence` is told how many seconds writes waited,
        `on_isr_change` the old and the new in-sync set of a partition that this node leads, `on_damage` of each copy
        that is found damaged. `low_disks`: the nodes that are short of disk space. `unix_ms`: the wall
        clock. Without `loads` there are none.
        """
        self._node_id = node_id
        self._store = store
        self._log_db = log_db
        self._links = links
        self._has_clearance = has_clearance
        self._known_row = known_row
        self._known_keyspace = known_keyspace
        self._clock = clock
        self._on_isr_change = on_isr_change
        self._change_retention = storage.change_retention
        self._replicas: dict[int, Replica] = {}
        self._departed: OrderedDict[int, Partition] = OrderedDict()  # the last rows of what is not here any more
        self._failed: dict[int, MinkaError] = {}
        self._feeds: dict[str, Feed] = {}
        self._leaderships: dict[int, Leadership] = {}
        self._controller_term = 0
        self._closing = False
        self._changed_stats: set[int] = set()
        self._noted: set[int] = set()  # of which there was a `not_split` to tell
        self._flusher = Flusher(log_db, self._replicas, storage.flush, storage.unflushed)
        self._committer = Committer(log_db, clock, self._on_durable, self._on_applied, self._on_mark)
        self._receiving = Receiving(self._replicas, log_db, store, self._new_data, disk.check_room)
        self._deletions = Deletions(
            self._replicas,
            self._failed,
            log_db,
            store,
            self._flusher,
            self._receiving,
            self._gone,
        )
        self._following = Following(self._replicas, self._committer, self._receiving, clock)
        self._requests = Requests(
            node_id,
            self._replicas,
            self._committer,
            self._following,
            has_clearance,
            self._newest_row,
            is_gone,
            self._learn_keyspace,
            self._clear,
            storage.max_pending,
            low_disks,
            clock,
        )
        self._damage = Damage(
            self._replicas,
            self._leaderships,
            self._committer,
            self._following,
            store,
            self._new_data,
            self._requests.notify,
            on_damage,
        )
        self._in_sync = InSyncSets(
            node_id,
            self._leaderships,
            settings,
            controller.alter_isr,
            has_clearance,
            self._adopt,
            clock,
            log_db.fail,
        )
        self._context = LeaderContext(
            node_id,
            store,
            links,
            settings,
            asyncio.Semaphore(settings.concurrent_shipping),
            RateLimit(clock, operation_moving),
            controller.hand_over,
            clock,
            self._feed_to,
            self._adopt,
            lambda replica: self._requests.notify(replica.id),
            self._committer.advance,
            self._in_sync.propose,
            on_fence,
            lambda id_: (replica := self._replicas.get(id_)) is not None and replica.is_made,
            is_absent,
            low_disks,
        )
        self.inventory = Inventory(self._replicas, log_db, store, self._requests.changed)
        self.intervals = Intervals(self._replicas)
        scanner = Scanner()
        self.snapshots = Snapshots(
            node_id,
            log_db,
            store,
            self._committer,
            self._requests,
            scanner,
            self._flusher.flush,
            disk,
            clock,
            unix_ms,
        )
        self.changes = Changes(self._replicas, scanner, lambda number, name: _file_in(loads, number, name))
        self._trimming = Trimming(log_db, self._committer, self._on_trimmed)
        self._splitting = Splitting(
            node_id,
            self._replicas,
            self._leaderships,
            log_db,
            store,
            self._context,
            self._committer,
            self._host,
            self._new_data,
            self._requests.changed,
            self._flusher.flush,
            controller.finish_split,
        )
        self._merging = Merging(
            node_id,
            self._replicas,
            self._context,
            self._committer,
            log_db,
            self._trimming.keep,
            self._requests.changed,
            self._clear,
            controller.finish_merge,
        )
        self.ingesting: Ingesting | None = None
        if loads is not None:
            self.ingesting = Ingesting(
                node_id,
                self._replicas,
                self._leaderships,
                self._context,
                self._committer,
                log_db,
                self._flusher.flush,
                loads,
            )
        self._size_check = SizeCheck(
            node_id,
            self._replicas,
            log_db,
            known_keyspace,
            self.inventory.split_keys,
            controller.propose_split,
            self._adopt,
            clock,
        )
        self._reclaiming = Reclaiming(self._replicas, disk, self._flusher.flush, log_db.fail)
        self._load_check = LoadCheck(
            node_id,
            self._replicas,
            log_db,
            known_keyspace,
            controller.propose_split,
            self._adopt,
            lambda replica: self._changed_stats.add(replica.id),
            clock,
        )

    # Start and end

    async def start(self) -> None:
        """Find what is on disk. Nothing is served until the controller has said what. Raises CORRUPT_DATA,
        STORAGE_FAILED.
        """
        await self._store.remove_leftovers()
        turn = self._turn()
        for _, value in self._log_db.scan(META_PREFIX, META_END):
            meta = decode_meta(value)
            replica = self._recovered(meta)
            self._replicas[replica.id] = replica
            await turn()
        self.snapshots.start()
        if self.ingesting is not None:
            self.ingesting.start()
        self._in_sync.start()
        self._size_check.start()
        self._load_check.start()
        self._reclaiming.start()

    def _recovered(self, meta: ReplicaMeta) -> Replica:
        row = Partition.FromString(meta.row)
        partition_log = PartitionLog(self._log_db, row.id, meta.base, meta.base_epoch)
        data = self._new_data(row.id, Size(meta.bytes, meta.keys))
        replica = self._new_replica(row, partition_log, data)
        replica.complete = meta.complete
        replica.untrimmed = meta.untrimmed
        replica.led_before = row.leader_epoch if row.leader == self._node_id else 0
        partition_log.recover()
        replica.durable = partition_log.end
        return replica

    async def drain(self) -> None:
        """Begin nothing for clients any more; returns once what was begun is answered."""
        await self._requests.drain()

    async def close(self) -> None:
        """Stop serving, flush and close everything, so that the next start has nothing to replay. When the disk fails
        meanwhile, the rest stays as it is.
        """
        self._closing = True
        await self._size_check.close()
        await self._load_check.close()
        await self._reclaiming.close()
        await self._in_sync.close()
        for leadership in list(self._leaderships.values()):
            leadership.close()
            await leadership.wait()
        for feed in self._feeds.values():
            await feed.close()
        await self._requests.close()
        self._committer.close()
        await self._damage.close()
        await self._splitting.close()
        await self.snapshots.close()
        if self.ingesting is not None:
            await self.ingesting.close()
        await self._merging.close()
        await self._trimming.close()
        await self._deletions.close()
        await self._flusher.close()
        slots = asyncio.Semaphore(_CLOSINGS_AT_ONCE)
        await asyncio.gather(*(self._close_one(replica, slots) for replica in self._replicas.values()))
        if self._log_db.error is None:
            await self._log_db.sync()

    async def _close_one(self, replica: Replica, slots: asyncio.Semaphore) -> None:
        async with slots:
            if self._log_db.error is not None:
                return  # each would try to write again, for a second and more
            try:
                if replica.role is not Role.REMOVED and replica.damage is None:
                    await self._flusher.flush(replica)
                await replica.data.close()
            except MinkaError as error:
                log.error("a partition was not closed", extra={"partition": replica.id, "reason": str(error)})
                if error.code is Code.STORAGE_FAILED:
                    self._log_db.fail(error)

    # What the controller says

    async def update_replicas(self, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        """Become what the rows say, durably; the answers come when it is so. Raises NOT_CONTROLLER for an older term,
        STORAGE_FAILED when the disk has failed, SHUTTING_DOWN once the node stops.
        """
        if self._closing:
            raise MinkaError(Code.SHUTTING_DOWN, "the node is stopping")
        if request.controller_term < self._controller_term:
            text = f"term {request.controller_term} of the controller is over, the newest is {self._controller_term}"
            raise MinkaError(Code.NOT_CONTROLLER, text)
        self._controller_term = request.controller_term
        turn = self._turn()
        for row in request.partitions:
            self._take(row)
            await turn()
        unknown = []
        for partition_id, epoch in zip(request.known_ids, request.known_epochs, strict=True):
            if not self._knows(partition_id, epoch):
                unknown.append(partition_id)
            await turn()
        await self._log_db.sync()
        results = []
        waiting: list[asyncio.Task[ReplicaResult]] = []
        for row in request.partitions:
            if (result := self._result_now(row)) is not None:
                results.append(result)
            else:
                waiting.append(asyncio.create_task(self._result(row)))
            await turn()
        results += await asyncio.gather(*waiting)
        return UpdateReplicasResponse(results=results, unknown_ids=unknown)

    def _knows(self, partition_id: int, epoch: int) -> bool:
        """Whether the replica is what its row of this epoch says, and from here on if need be."""
        replica = self._replicas.get(partition_id)
        if replica is None or replica.row.partition_epoch != epoch or partition_id in self._deletions:
            return False
        if replica.role is Role.IDLE:
            self._adopt(replica.row)  # recovered with this row, and now told
        return partition_id not in self._failed and (replica.role is not Role.IDLE or not replica.row.leader)

    def _result_now(self, row: Partition) -> ReplicaResult | None:
        """The result for a row that has nothing to wait for, as most have; None for the others."""
        replica = self._replicas.get(row.id)
        if replica is None or row.id in self._failed or replica.awaits_split:
            return None
        if replica.role is not Role.FOLLOWER and not replica.is_ready:
            return None
        return ReplicaResult(
            partition_id=row.id,
            partition_epoch=replica.row.partition_epoch,
            outcome=ReplicaOutcome.REPLICA_OUTCOME_HOSTED,
        )

    def _turn(self) -> Callable[[], Awaitable[None]]:
        """An awaitable that lets the loop run when a few milliseconds were worked."""
        until = self._clock() + _TURN_SECONDS

        async def turn() -> None:
            nonlocal until
            if self._clock() >= until:
                await turns.turn()
                until = self._clock() + _TURN_SECONDS

        return turn

    def _take(self, row: Partition) -> None:
        replica = self._replicas.get(row.id)
        if row.id in self._deletions:
            return  # if it is to be hosted again, the controller repeats it
        if replica is not None:
            if row.partition_epoch > replica.row.partition_epoch:
                if not self._splitting.prepare(replica, row):
                    self._adopt(row)
            elif row.partition_epoch == replica.row.partition_epoch and replica.role is Role.IDLE:
                self._adopt(row)  # recovered with this row, and now told
            return
        departed = self._departed.get(row.id)
        if departed is not None and departed.partition_epoch >= row.partition_epoch:
            return
        if role_in(row, self._node_id) is Role.REMOVED:
            self._depart(row)
        else:
            with contextlib.suppress(MinkaError):  # it is in `_failed`
                self._host(row)

    def _host(self, row: Partition) -> Replica:
        """A partition that was not here before."""
        replica = self._new_replica(row, PartitionLog(self._log_db, row.id), self._new_data(row.id))
        if replica.data.exists():
            text = f"{replica.data.path} has data of which the log database knows nothing"
            self._failed[row.id] = MinkaError(Code.CORRUPT_DATA, text)
            raise self._failed[row.id]
        self._replicas[row.id] = replica
        self._failed.pop(row.id, None)
        self._adopt(row)
        return replica

    def _adopt(self, row: Partition) -> None:
        """Take over a row that is as new as or newer than the replica's: serving changes at once."""
        replica = self._replicas.get(row.id)
        if replica is None or row.partition_epoch < replica.row.partition_epoch:
            return
        if row.leader == self._node_id and row.isr != replica.row.isr:
            self._on_isr_change(replica.row.isr, row.isr)
        old_role, old_epoch = replica.role, replica.row.leader_epoch
        was = replica.row
        before, after = range_of(was), range_of(row)
        has_grown = after != before and after.covers(before)
        given_up = was.merge_from > row.merge_from and not has_grown
        replica.untrimmed |= given_up or not after.covers(before)
        replica.row = row
        replica.role = self._role_in(replica)
        self._learn_keyspace(replica)
        if replica.role is not Role.REMOVED:
            replica.stage_meta(self._log_db)
        if replica.role is not old_role or row.leader_epoch != old_epoch:
            self._change_role(replica, old_role)
        elif (leadership := self._leaderships.get(row.id)) is not None:
            leadership.row_changed()
        if has_grown:
            self._has_grown(replica, was.merge_from)
        self._following.told(replica)
        self._requests.notify(replica.id)
        self._splitting.look(replica)
        self._merging.look(replica)
        self._trimming.look(replica)
        self._look_for_loads(replica)

    def _look_for_loads(self, replica: Replica) -> None:
        if self.ingesting is not None:
            self.ingesting.look(replica)

    def _has_grown(self, replica: Replica, other_id: int) -> None:
        """The replica's range is that of another one, too, which serves nothing from here on. How old a follower is
        will be known when it has what came through the log.
        """
        replica.fresh_at, replica.mark = NEVER, UNKNOWN
        other = self._replicas.get(other_id)
        if other is not None and other.role is Role.LEADER:
            other.role = Role.IDLE  # its last row is on its way
            self._change_role(other, Role.LEADER)

    def _role_in(self, replica: Replica) -> Role:
        row = replica.row
        role = role_in(row, self._node_id)
        if role is Role.REMOVED:
            return role
        if row.id in self._failed or replica.awaits_split:
            return Role.IDLE
        if role is Role.LEADER and row.leader_epoch <= replica.led_before:
            return Role.IDLE  # what it wrote at this epoch may be lost here and elsewhere not
        return role

    def _learn_keyspace(self, replica: Replica) -> None:
        keyspace = self._known_keyspace(replica.row.keyspace_id)
        replica.min_insync = 0 if keyspace is None else max(1, keyspace.min_insync)
        replica.is_async = keyspace is not None and keyspace.durability == Durability.DURABILITY_ASYNC

    def _change_role(self, replica: Replica, old: Role) -> None:
        self._changed_stats.add(replica.id)
        if (leadership := self._leaderships.pop(replica.id, None)) is not None:
            leadership.close()
        replica.keeping = replica.frozen = False
        self._following.new_leadership(replica)
        if old is Role.LEADER and replica.role is not Role.LEADER:
            self._committer.give_up(replica, Code.OUTCOME_UNKNOWN, "the node lost the leadership meanwhile")
        replica.log.keep_tail(replica.role is Role.FOLLOWER)
        if replica.role is Role.LEADER:
            self._lead(replica)

    @failpoint("replica.lead")
    def _lead(self, replica: Replica) -> None:
        """Serve once everything in the log is applied."""
        try:
            lost = replica.log.base > 0 and not replica.data.exists()
            if lost or not replica.complete or replica.log.end > replica.log.base:
                replica.open()
        except MinkaError as error:
            if error.code is not Code.CORRUPT_DATA:
                log.error("a partition can't be served", extra={"partition": replica.id, "reason": str(error)})
                self._failed[replica.id] = error
                replica.role = Role.IDLE
                return
            # It leads to hand over, or to be caught up with: it serves nothing.
        if not replica.data.is_open:
            replica.applied = replica.flushed = replica.log.base
        replica.ready_at = replica.log.end
        replica.ships_unsynced = False
        self._leaderships[replica.id] = leadership = Leadership(self._context, replica)
        self._log_db.sync().add_done_callback(lambda sync: self._leadership_is_durable(leadership, sync))

    def _leadership_is_durable(self, leadership: Leadership, sync: asyncio.Future[None]) -> None:
        """After a crash the node will know that it led at this epoch, and not do so again."""
        replica = leadership.replica
        if sync.exception() is None and self._leaderships.get(replica.id) is leadership:
            replica.ships_unsynced = True
            for follower in replica.followers.values():
                follower.look()

    def _feed_to(self, node_id: str) -> Feed:
        feed = self._feeds.get(node_id)
        if feed is None:
            feed = self._feeds[node_id] = Feed(node_id, self._links, self._has_clearance)
        return feed

    async def _result(self, row: Partition) -> ReplicaResult:
        replica = self._replicas.get(row.id)
        newest = replica.row if replica is not None else self._departed.get(row.id, row)
        result = ReplicaResult(partition_id=row.id, partition_epoch=newest.partition_epoch)
        try:
            if role_in(newest, self._node_id) is Role.REMOVED:
                await self._deletions.delete(newest)
                result.outcome = ReplicaOutcome.REPLICA_OUTCOME_DELETED
                return result
            if row.id in self._failed:
                raise self._failed[row.id]
            if replica is not None and replica.awaits_split:
                result.partition_epoch = 0  # it will be hosted, and is not yet
            elif replica is not None:
                await self._until_ready(replica)
                if replica.role is Role.IDLE and replica.row.leader == self._node_id:
                    text = f"leader_epoch {replica.row.leader_epoch} was led before the node's start"
                    raise MinkaError(Code.NOT_LEADER, text)
            result.outcome = ReplicaOutcome.REPLICA_OUTCOME_HOSTED
        except MinkaError as error:
            result.outcome, result.error = ReplicaOutcome.REPLICA_OUTCOME_FAILED, str(error)
        return result

    async def _until_ready(self, replica: Replica) -> None:
        """Until a leader has applied its log; not for what it has to hear of others for that."""
        while replica.role is Role.LEADER and not replica.is_ready:
            if replica.damage is not None and not replica.mending:
                raise replica.damage
            if replica.counted:
                return
            if self._log_db.error is not None:
                raise self._log_db.error
            await asyncio.wait([self._requests.changed(replica.id)], timeout=_READY_POLL_SECONDS)

    def _depart(self, row: Partition) -> None:
        self._departed[row.id] = row
        self._departed.move_to_end(row.id)
        if len(self._departed) > _MAX_DEPARTED:
            self._departed.popitem(last=False)

    def _gone(self, replica: Replica) -> None:
        self._depart(replica.row)
        self._requests.notify(replica.id)

    # Serving

    async def handle(self, request: Request, share: Share) -> Response:
        """Reads and writes of one client's frame; a result for each group. What is read counts for `share`."""
        return await self._requests.handle(request, share)

    def follow(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """A leader's stream: see `frames.APPEND_METHOD`."""
        return self._following.append(frames)

    async def install(self, messages: AsyncIterator[bytes]) -> bytes:
        """A leader's checkpoint: see `frames.SHIP_METHOD`."""
        return await self._receiving.install(messages)

    async def _clear(self, replica: Replica, wanted: KeyRange, reverse: bool) -> KeyRange:
        if replica.is_async:
            await self._log_db.sync()  # the data is flushed, and must not be durable before the log
        return await replica.data.clear(wanted, reverse)

    def _on_durable(self, replica: Replica) -> None:
        if replica.role is Role.FOLLOWER:
            self._following.durable(replica)
        elif replica.followers:
            self._leaderships[replica.id].look()

    def _on_applied(self, replica: Replica, size: int) -> None:
        self._changed_stats.add(replica.id)
        self._flusher.applied(replica, size)
        if replica.fenced:
            self._leaderships[replica.id].look()
        if replica.applied >= replica.ready_at:
            self._requests.notify(replica.id)
        self._splitting.look(replica)
        self._merging.look(replica)
        self._trimming.look(replica)
        self._look_for_loads(replica)

    def _on_trimmed(self, replica: Replica) -> None:
        self._changed_stats.add(replica.id)
        self._requests.notify(replica.id)

    def _on_mark(self, replica: Replica, mark: SlowMark) -> None:
        if isinstance(mark, SplitMarker):
            self._splitting.make(replica)
        elif isinstance(mark, IngestMark):
            assert self.ingesting is not None, mark
            self.ingesting.make(replica, mark)
        else:
            self.snapshots.make(replica, mark)

    def loads_changed(self) -> None:
        """Loads have begun, were committed, or have ended, by this node's copy of the table."""
        if self.ingesting is not None:
            self.ingesting.loads_changed()

    def nodes_changed(self) -> None:
        """Nodes have come or gone, by this node's copy of the table."""
        for leadership in list(self._leaderships.values()):
            leadership.shrink()

    # What it tells

    def stop_leading(self) -> None:
        """Others may lead what this node led: it goes on only at newer leader_epochs."""
        for replica in self._replicas.values():
            if replica.row.leader == self._node_id:
                replica.led_before = replica.row.leader_epoch
            if replica.role is Role.LEADER:
                replica.role = Role.IDLE
                self._change_role(replica, Role.LEADER)
                self._requests.notify(replica.id)

    def stats(self, changed_only: bool) -> list[ReplicaStats]:
        """Stats of the partitions that this node leads; with `changed_only`, of those that changed since the last call.
        One call takes so many as cost no time that matters; the others come with the next calls.
        """
        # Why one isn't split is found, and found to be over, without a write to it.
        noted = {replica.id for replica in self._replicas.values() if replica.not_split}
        ids = self._changed_stats | noted | self._noted if changed_only else self._replicas.keys()
        leading = [replica for id_ in ids if (replica := self._replicas.get(id_)) and replica.role is Role.LEADER]
        leading, rest = leading[:_MAX_STATS], leading[_MAX_STATS:]
        self._changed_stats, self._noted = {replica.id for replica in rest}, noted
        return [_stats(replica) for replica in leading]

    def damaged(self) -> list[DamagedReplica]:
        """The copies on this node of which nothing is served, and why."""
        return self._damage.all()

    def serving(self) -> int:
        """For how many partitions this node answers as their leader while it has clearance."""
        return sum(replica.is_ready for replica in self._replicas.values())

    def migrations(self) -> list[MigrationProgress]:
        """The progress of the replicas that this node, as the leader, is bringing up or handing over to."""
        return [progress for leadership in self._leaderships.values() for progress in leadership.progress()]

    def follower_lags(self) -> dict[str, tuple[int, float]]:
        """By node that follows this one: the entries that it lacks, and for how many seconds it has not had all, each
        of the partition where it is most.
        """
        found: dict[str, tuple[int, float]] = {}
        now = self._clock()
        for leadership in self._leaderships.values():
            for node, (entries, seconds) in leadership.lags(now).items():
                most = found.get(node, (0, 0.0))
                found[node] = max(entries, most[0]), max(seconds, most[1])
        return found

    def _newest_row(self, partition_id: int) -> Partition | None:
        replica = self._replicas.get(partition_id)
        rows = [self._departed.get(partition_id), self._known_row(partition_id), replica.row if replica else None]
        return max((row for row in rows if row is not None), key=lambda row: row.partition_epoch, default=None)

    def _new_replica(self, row: Partition, partition_log: PartitionLog, data: DataDatabase) -> Replica:
        replica = Replica(row, partition_log, data)
        replica.retain_bytes = self._change_retention
        return replica

    def _new_data(self, partition_id: int, size: Size | None = None) -> DataDatabase:
        return self._store.data(partition_id, size, lambda: self._damage.found(partition_id))


def _file_in(loads: LoadSources | None, number: int, name: str) -> Path | None:
    """The path of a load's file, if it is here."""
    if loads is None or all(file.name != name for file in loads.spool.files(number)):
        return None
    return loads.spool.path(number, name)


def _stats(replica: Replica) -> ReplicaStats:
    size = owned_size(replica)
    ops, cpu_percent, too_busy = replica.load.reported()
    return ReplicaStats(
        partition_id=replica.id,
        bytes=size.bytes,
        keys=size.keys,
        log_end_offset=replica.log.end,
        applied_offset=replica.applied,
        ops=ops,
        cpu_percent=cpu_percent,
        not_split="; ".join(filter(None, (replica.not_split, too_busy))),
    )
