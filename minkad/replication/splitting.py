"""What a split is on the nodes (Key-Range Partitions, Patterns of Distributed Systems).

The leader serves only the lower half from the moment at which it takes over the row, and appends a marker: behind it
the log has nothing of the upper half. Each replica that comes to the marker makes the new partition of its data as it
is there, by hard links, before it goes on. So all of them make the same, and nobody waits for bytes to be copied. The
log of the new partition begins behind the marker's offset and leader_epoch.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition, PartitionState
from minka.v1.coordinator_pb2 import FinishSplitRequest
from minkad.process.failpoints import failpoint
from minkad.replication.committer import Committer
from minkad.replication.context import LeaderContext
from minkad.replication.entries import SplitMarker, encode_mark
from minkad.replication.leadership import Leadership
from minkad.replication.replica import Pending, Replica, Role
from minkad.storage.checkpoint import Checkpoint
from minkad.storage.data_database import Applied, DataDatabase
from minkad.storage.log_database import LogDatabase
from minkad.storage.replica_store import Purpose, ReplicaStore

log: Final = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.1
_FLUSH_FIRST_BYTES: Final = 256 * 1024


class Splitting:
    """For the loop's thread."""

    def __init__(
        self,
        node_id: str,
        replicas: Mapping[int, Replica],
        leaderships: Mapping[int, Leadership],
        log_db: LogDatabase,
        store: ReplicaStore,
        context: LeaderContext,
        committer: Committer,
        host: Callable[[Partition], Replica],
        new_data: Callable[[int], DataDatabase],
        changed: Callable[[int], asyncio.Future[None]],
        flush: Callable[[Replica], Awaitable[None]],
        finish_split: Callable[[FinishSplitRequest], Awaitable[list[Partition]]],
    ) -> None:
        """`host` makes a replica that isn't there; `changed` is done when a partition's row or replica changes."""
        self._node_id = node_id
        self._replicas = replicas
        self._leaderships = leaderships
        self._log_db = log_db
        self._store = store
        self._context = context
        self._committer = committer
        self._host = host
        self._new_data = new_data
        self._changed = changed
        self._flush = flush
        self._finish_split = finish_split
        self._flushing: dict[int, asyncio.Task[None]] = {}  # by parent
        self._rows: dict[int, Partition] = {}  # the newest of those that are flushed
        self._making: dict[int, asyncio.Task[None]] = {}  # by parent
        self._finishing: dict[int, asyncio.Task[None]] = {}  # by child

    async def close(self) -> None:
        """Stop; what is half made is made anew after the next start."""
        tasks = [*self._flushing.values(), *self._making.values(), *self._finishing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def prepare(self, parent: Replica, row: Partition) -> bool:
        """A row says that the partition is to be split: flush what a checkpoint would have to wait for, while all is
        served as before. Whether this is the leader, which takes over the row behind that.
        """
        is_new = row.splitting and row.split_to and row.split_to != parent.row.split_to
        if not is_new or row.leader_epoch != parent.row.leader_epoch:
            return False
        if parent.id not in self._flushing and parent.unflushed < _FLUSH_FIRST_BYTES:
            return False
        self._rows[parent.id] = row
        if parent.id not in self._flushing:
            task = asyncio.create_task(self._flush_first(parent), name=f"flush of {parent.id} before its split")
            self._flushing[parent.id] = task
            task.add_done_callback(lambda _: self._flushing.pop(parent.id))
        return parent.role is Role.LEADER

    async def _flush_first(self, parent: Replica) -> None:
        try:
            await self._flush(parent)
        except MinkaError as error:
            log.error("a partition could not be flushed", extra={"partition": parent.id, "reason": str(error)})
            if error.code is not Code.CORRUPT_DATA:
                self._log_db.fail(error)
        self._context.learn(self._rows.pop(parent.id))

    def look(self, replica: Replica) -> None:
        """The replica has another row or is further than before: do what is this node's to do."""
        if not replica.row.splitting or replica.role is not Role.LEADER:
            return
        if replica.row.split_to:
            self._mark(replica, self._leaderships[replica.id])
        elif replica.id not in self._finishing:
            task = asyncio.create_task(self._finish(replica), name=f"end of the split that made {replica.id}")
            self._finishing[replica.id] = task
            task.add_done_callback(lambda ended: self._finished(replica, ended))

    def _finished(self, child: Replica, task: asyncio.Task[None]) -> None:
        del self._finishing[child.id]
        if not task.cancelled():
            self.look(child)  # it may lead again by now

    def _mark(self, parent: Replica, leadership: Leadership) -> None:
        """Append the marker, unless there is one.

        There is one in the log where an earlier leader's was committed, or is about to be; once this leader has applied
        the log that it began with, the child is made in that case.
        """
        child = self._replicas.get(parent.row.split_to)
        is_made = child is not None and child.is_made
        if is_made or not parent.is_ready or leadership.marked == parent.row.split_to:
            return
        leadership.marked = parent.row.split_to
        self._append_marker(parent)

    @failpoint("split.mark")
    def _append_marker(self, parent: Replica) -> None:
        marker = SplitMarker(parent.row.split_to, parent.row.partition_epoch)
        body, epoch = encode_mark(marker), parent.row.leader_epoch
        offset = parent.log.append(epoch, body)
        parent.pending.append(Pending(offset, epoch, marker, len(body), None, 0))
        self._committer.staged(parent, is_barrier=True)

    # Each replica

    def make(self, parent: Replica) -> None:
        """The next entry to apply is a marker: the replica goes on behind it when the child is made."""
        assert not parent.making, f"partition {parent.id} is making another one already"
        parent.making = True
        task = asyncio.create_task(self._make(parent), name=f"split of {parent.id}")
        self._making[parent.id] = task
        task.add_done_callback(lambda ended: self._made(parent, ended))

    def _made(self, parent: Replica, task: asyncio.Task[None]) -> None:
        if self._making.get(parent.id) is task:  # the next marker may have come already
            del self._making[parent.id]

    async def _make(self, parent: Replica) -> None:
        entry, data = parent.pending[0], parent.data
        marker = entry.write
        assert isinstance(marker, SplitMarker), entry
        try:
            while parent.row.partition_epoch < marker.partition_epoch and parent.data is data:
                await asyncio.wait([self._changed(parent.id)], timeout=_POLL_SECONDS)  # the row is on its way
            async with parent.lock:
                if parent.role is Role.REMOVED or parent.data is not data:
                    return  # it was deleted, or replaced by a checkpoint
                data.write([], Applied(entry.offset, entry.leader_epoch))
                if _is_awaited(parent.row, marker):
                    await self._make_child(parent, marker.child_id, entry)
                parent.passed(entry)
                parent.untrimmed = True
        except MinkaError as error:
            log.error("a partition could not be split", extra={"partition": parent.id, "reason": str(error)})
            if error.code is not Code.CORRUPT_DATA:
                self._log_db.fail(error)
            return
        finally:
            parent.making = False
        self._committer.passed_mark(parent)

    async def _make_child(self, parent: Replica, child_id: int, entry: Pending) -> None:
        """The child is there when this returns, durably, if it is yet to be made: not where it came as a checkpoint."""
        child = self._replicas.get(child_id) or self._host(_provisional(parent.row, child_id))
        if child.is_made:
            return
        known = self._log_db.sync()  # a folder of which the log database knows nothing would be foreign
        if parent.is_async:
            await known  # the data must not be durable before the log
        taken = await self._take(parent)
        async with child.lock:
            await known
            if _lacks(child) and parent.row.split_to == child_id:
                await self._put_in_place(child, taken)
                await self._take_over(child, entry)
                log.info("a partition was made by a split", extra={"partition": child_id, "parent": parent.id})
            else:
                await taken.remove()

    @failpoint("split.take")
    async def _take(self, parent: Replica) -> Checkpoint:
        return await self._store.take(parent.data, Purpose.SPLIT, str(parent.row.split_to))

    @failpoint("split.put_in_place")
    async def _put_in_place(self, child: Replica, taken: Checkpoint) -> None:
        await child.data.close()
        await taken.move(child.data.path)

    @failpoint("split.take_over")
    async def _take_over(self, child: Replica, entry: Pending) -> None:
        child.data = self._new_data(child.id)
        child.data.open()
        child.log.reset(entry.offset, entry.leader_epoch)
        child.complete = child.untrimmed = True
        child.durable = child.high_watermark = child.applied = child.flushed = entry.offset
        child.stage_meta(self._log_db)
        await self._log_db.sync()
        self._context.learn(child.row)  # it has a role now

    # The child's leader

    async def _finish(self, child: Replica) -> None:
        """Tell the controller once all of the in-sync set have made it, until it is recorded."""
        epoch, backoff = child.row.leader_epoch, self._context.settings.first_backoff
        while child.role is Role.LEADER and child.row.splitting and child.row.leader_epoch == epoch:
            if any(not follower.sending or follower.matched < child.log.base for follower in child.counted):
                await asyncio.wait([self._changed(child.id)], timeout=_POLL_SECONDS)
                continue
            try:
                for row in await self._ask_to_finish(child):
                    self._context.learn(row)
            except MinkaError as error:
                for row in error.partitions:
                    self._context.learn(row)
                log.info("the end of a split is tried again", extra={"partition": child.id, "reason": str(error)})
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, self._context.settings.longest_backoff)

    @failpoint("split.finish")
    async def _ask_to_finish(self, child: Replica) -> list[Partition]:
        request = FinishSplitRequest(node_id=self._node_id, partition_id=child.id, leader_epoch=child.row.leader_epoch)
        return await self._finish_split(request)


def _is_awaited(row: Partition, marker: SplitMarker) -> bool:
    """Whether the child is to be made here. Once the split has ended, who lacks it gets its leader's checkpoint."""
    return row.splitting and row.split_to == marker.child_id


def _lacks(child: Replica) -> bool:
    return not child.is_made and child.role is not Role.REMOVED


def _provisional(parent: Partition, child_id: int) -> Partition:
    """The row of a child of which the controller has yet to tell this node."""
    return Partition(
        id=child_id,
        keyspace_id=parent.keyspace_id,
        slot=child_id,
        replicas=parent.replicas,
        state=PartitionState.PARTITION_STATE_NEW,
        start_key=parent.end_key,
        split_from=parent.id,
        splitting=True,
    )
