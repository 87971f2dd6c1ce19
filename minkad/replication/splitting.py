"""What a split does on the nodes (Key-Range Partitions, Patterns of Distributed Systems).

As soon as the leader takes over the row, it serves only the lower half, and appends a marker: after it the log has
nothing of the upper half. Each replica that comes to the marker makes the new partition of its data at that offset, by
hard links, before it goes on. So all of them make the same, and no bytes are copied. The log of the new partition
begins after the marker's offset and leader_epoch.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minkad.core.replication.entries import SplitMarker
from minkad.core.replication.split import awaits_child, provisional_row
from minkad.core.replication.state import Copy, Role
from minkad.process.failpoints import failpoint
from minkad.replication.committer import Committer
from minkad.replication.context import Surroundings
from minkad.replication.replica import Pending, Replica
from minkad.storage.applied import Applied
from minkad.storage.checkpoint import Checkpoint
from minkad.storage.data_database import DataDatabase
from minkad.storage.replica_store import Purpose

log: Final = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.1
_FLUSH_FIRST_BYTES: Final = 256 * 1024


class Splitting:
    """For the loop's thread."""

    def __init__(
        self,
        around: Surroundings,
        replicas: Mapping[int, Replica],
        committer: Committer,
        learn: Callable[[Partition], None],
        host: Callable[[Partition], Replica],
        new_data: Callable[[int], DataDatabase],
        changed: Callable[[int], asyncio.Future[None]],
        flush: Callable[[Replica], Awaitable[None]],
    ) -> None:
        """`learn` takes over a row, `host` makes a replica that isn't here. The future of `changed` is done when a
        partition's row or replica changes.
        """
        self._replicas = replicas
        self._log_db = around.log_db
        self._store = around.store
        self._learn = learn
        self._committer = committer
        self._host = host
        self._new_data = new_data
        self._changed = changed
        self._flush = flush
        self._flushing: dict[int, asyncio.Task[None]] = {}  # by parent
        self._rows: dict[int, Partition] = {}  # by parent: its newest row, to be taken over after the flush
        self._making: dict[int, asyncio.Task[None]] = {}  # by parent

    async def close(self) -> None:
        """Stop; what is half made is made again after the next start."""
        tasks = [*self._flushing.values(), *self._making.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def prepare(self, parent: Replica, row: Partition) -> bool:
        """If the row begins a split, flush first what a checkpoint would have to wait for, while all is served as
        before. True if the replica leads and takes over the row only after the flush.
        """
        is_new = row.splitting and row.split_to and row.split_to != parent.row.split_to
        if not is_new or row.leader_epoch != parent.row.leader_epoch:
            return False
        is_little = parent.unflushed < _FLUSH_FIRST_BYTES and not parent.data.in_memory
        if is_little and parent.id not in self._flushing:
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
        self._learn(self._rows.pop(parent.id))

    # Each replica

    def make(self, parent: Replica) -> None:
        """The next entry to apply is a marker: applying goes on after it when the child is made."""
        entry = parent.begin_mark()
        task = asyncio.create_task(self._make(parent, entry), name=f"split of {parent.id}")
        self._making[parent.id] = task
        task.add_done_callback(lambda ended: self._made(parent, ended))

    def _made(self, parent: Replica, task: asyncio.Task[None]) -> None:
        if self._making.get(parent.id) is task:  # the next marker may have come already
            del self._making[parent.id]

    async def _make(self, parent: Replica, entry: Pending) -> None:
        data = parent.data
        marker = entry.write
        assert isinstance(marker, SplitMarker), entry
        try:
            while parent.row.partition_epoch < marker.partition_epoch and parent.data is data:
                await asyncio.wait([self._changed(parent.id)], timeout=_POLL_SECONDS)  # the row is on its way
            async with parent.lock:
                if not parent.still_has(data):
                    return  # it was deleted, or replaced by a checkpoint
                data.write([], Applied(entry.offset, entry.leader_epoch))
                if awaits_child(parent.row, marker):
                    await self._make_child(parent, marker.child_id, entry)
                parent.passed(entry)
                parent.trim.suspect()
        except MinkaError as error:
            log.error("a partition could not be split", extra={"partition": parent.id, "reason": str(error)})
            if error.code is not Code.CORRUPT_DATA:
                self._log_db.fail(error)
            return
        finally:
            parent.end_mark()
        self._committer.passed_mark(parent)

    async def _make_child(self, parent: Replica, child_id: int, entry: Pending) -> None:
        """Make the child durably, unless it is made already or came as its leader's checkpoint."""
        child = self._replicas.get(child_id) or self._host(provisional_row(parent.row, child_id))
        if child.is_made:
            return
        known = self._log_db.sync()  # the log database must know of the child before its folder is there
        await parent.log_first()
        taken = await self.take(parent)
        async with child.lock:
            await known
            if _lacks(child) and parent.row.split_to == child_id:
                await self.put_in_place(child, taken)
                await self.take_over(child, entry)
                log.info("a partition was made by a split", extra={"partition": child_id, "parent": parent.id})
            else:
                await taken.remove()

    @failpoint("split.take")
    async def take(self, parent: Replica) -> Checkpoint:
        """The parent's data as it is at the marker."""
        return await self._store.take(parent.data, Purpose.SPLIT, str(parent.row.split_to))

    @failpoint("split.put_in_place")
    async def put_in_place(self, child: Replica, taken: Checkpoint) -> None:
        """Make the checkpoint the child's data."""
        await child.data.close()
        await taken.move(child.data.path)

    @failpoint("split.take_over")
    async def take_over(self, child: Replica, entry: Pending) -> None:
        """The child's log begins after the marker; from here on it has a role."""
        child.data = self._new_data(child.id)
        await child.data.open()
        child.copy = Copy.MAKING  # until it is durable, a row that comes again gives it no role
        child.begin_at(entry.offset, entry.leader_epoch)
        child.trim.suspect()
        child.stage_meta(self._log_db)
        await self._log_db.sync()
        if child.copy is Copy.MAKING:
            child.copy = Copy.WHOLE
        self._learn(child.row)


def _lacks(child: Replica) -> bool:
    return not child.is_made and child.role is not Role.REMOVED
