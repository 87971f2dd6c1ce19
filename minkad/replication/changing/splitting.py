"""A split, as the nodes carry it out (Key-Range Partitions, Patterns of Distributed Systems).

As soon as the leader takes over the row, it serves only the lower half, and appends a marker: after it the log has
nothing of the upper half. So the upper half of the data no longer changes, on any replica, and the new partition begins
as a part of its parent's data: attached to it, with its new writes in memory. It serves at once. Then each replica
makes a database of its own for it in the background, by hard links, without copying bytes. The log of the new partition
begins after the marker's offset and leader_epoch.

After a crash in between, the log database still has the new partition's log, and the fact that it is attached. The
upper half is in the parent's data, or will be as soon as the parent's log is applied up to the marker. So while the
data is shared, no mark in either log is carried out: a mark may remove keys, or bring others.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

from minka.errors import Code, MinkaError
from minkad.core.replication.entries import SplitMarker
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Role
from minkad.core.replication.split import awaits_child, provisional_row
from minkad.process import tasks
from minkad.process.failpoints import failpoint
from minkad.replication.applying.hosted_replica import HostedReplica, Pending, ReplicaMeta
from minkad.replication.changing.hosting import Hosting
from minkad.replication.serving.partition_waits import PartitionWaits
from minkad.replication.surroundings import Surroundings
from minkad.storage.applied import Applied
from minkad.storage.attached_data import Attachment
from minkad.storage.checkpoint import Checkpoint
from minkad.storage.data_database import DataDatabase
from minkad.storage.replica_store import Purpose
from minkad.storage.versions import Versions

log: Final = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.1
_DETACH_AFTER_SECONDS: Final = 0.05  # for a partition's first replica, twice that for its second, and so on


class Splitting:
    """For the loop's thread."""

    def __init__(
        self,
        around: Surroundings,
        node: Node[HostedReplica],
        hosting: Hosting,
        waits: PartitionWaits,
    ) -> None:
        self._node = node
        self._hosting = hosting
        self._waits = waits
        self._clock = around.clock
        self._log_db = around.log_db
        self._store = around.store
        self._making: dict[int, asyncio.Task[None]] = {}  # by parent
        self._detaching: set[asyncio.Task[None]] = set()
        self._closing = False

    async def close(self) -> None:
        """Stop; half-made children are made again after the next start."""
        self._closing = True
        under_way = [*self._making.values(), *self._detaching]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    # Each replica

    def make(self, parent: HostedReplica, marker: SplitMarker, entry: Pending) -> None:
        """The next entry to apply is a marker: applying goes on after the child is made."""
        task = tasks.start(self._make(parent, marker, entry), f"split of {parent.id}", parent.broke)
        self._making[parent.id] = task
        task.add_done_callback(lambda ended: self._made(parent, ended))

    def _made(self, parent: HostedReplica, task: asyncio.Task[None]) -> None:
        if self._making.get(parent.id) is task:  # the next marker may have come already
            del self._making[parent.id]

    async def _make(self, parent: HostedReplica, marker: SplitMarker, entry: Pending) -> None:
        data, is_passed = parent.data, False
        try:
            while parent.state.row.partition_epoch < marker.partition_epoch and parent.data is data:
                await asyncio.wait([self._waits.changed(parent.id)], timeout=_POLL_SECONDS)  # the row is on its way
            async with parent.lock:
                if not parent.still_has(data):
                    return  # it was deleted, or replaced by a checkpoint
                data.write([], Applied(entry.offset, entry.leader_epoch))
                if awaits_child(parent.state.row, marker):
                    await self._make_child(parent, marker.child_id, entry)
                parent.passed(entry)
                self._node.marker_carried_out(parent)
                self._node.applied(parent, entry.offset, 0, self._clock())
                is_passed = True
        except MinkaError as error:
            log.error("a partition could not be split", extra={"partition": parent.id, "reason": str(error)})
            if error.code is not Code.CORRUPT_DATA:
                self._log_db.fail(error)
        finally:
            self._node.mark_ended(parent, is_passed=is_passed)

    async def _make_child(self, parent: HostedReplica, child_id: int, entry: Pending) -> None:
        """Make the child, unless it exists already or came as its leader's checkpoint."""
        child = self._node.replicas.get(child_id) or self._hosting.host(provisional_row(parent.state.row, child_id))
        if child.state.is_made:
            return
        async with child.lock:
            if _lacks(child) and parent.state.row.split_to == child_id:
                await child.data.close()
                await self.attach(parent, child, entry)
                log.info("a partition was made by a split", extra={"partition": child_id, "parent": parent.id})

    @failpoint("split.attach")
    async def attach(self, parent: HostedReplica, child: HostedReplica, entry: Pending) -> None:
        """The child's log begins after the marker; once that is durable, it has a role."""
        data = self._hosting.new_data(child.id)
        self._attach(child, data, parent, Applied(entry.offset, entry.leader_epoch), parent.data.versions)
        self._node.child_attached(child, data, entry.offset, entry.leader_epoch)
        child.stage_meta(self._log_db)
        await self._log_db.sync()
        self._node.child_made(child, self._clock())
        self._detach_soon(child, parent.id)

    def _attach(
        self, child: HostedReplica, data: DataDatabase, parent: HostedReplica, at: Applied, versions: Versions
    ) -> None:
        copy, detached = partial(self._copy, child, parent, at.offset), partial(self.record, child)
        lost = partial(self._lost, child, parent.id)
        data.attach(Attachment(parent.data, parent.id, at, versions, copy, detached, lost))

    # After a start

    def recover(self, child: HostedReplica, meta: ReplicaMeta) -> None:
        """The child was attached when the node stopped: its own folder isn't complete."""
        parent = self._node.replicas.get(meta.attached_to)
        if parent is None or not parent.state.is_complete or parent.log.end < meta.base:
            text = f"partition {child.id}: partition {meta.attached_to}, to which it was attached, is gone"
            self._node.data_lost(child)
            child.data.condemn(MinkaError(Code.CORRUPT_DATA, text))
            return
        self._node.child_recovered(parent, meta.base)
        self._attach(child, child.data, parent, Applied(meta.base, meta.base_epoch), meta.versions)
        self._detach_soon(child, parent.id)

    # A database of its own

    def _detach_soon(self, child: HostedReplica, parent_id: int) -> None:
        self._begin(child, self._detach(child, parent_id), f"detaching {child.id}")

    def _begin(self, child: HostedReplica, work: Coroutine[Any, Any, None], name: str) -> None:
        task = tasks.start(work, name, child.broke)
        self._detaching.add(task)
        task.add_done_callback(self._detaching.discard)

    async def _detach(self, child: HostedReplica, parent_id: int) -> None:
        """The nodes do it one after the other: it takes a processor for some milliseconds, and the child's clients have
        just found the child.
        """
        data, nodes = child.data, list(child.state.row.replicas)
        place = nodes.index(self._node.id) if self._node.id in nodes else len(nodes)
        await asyncio.sleep((1 + place) * _DETACH_AFTER_SECONDS)
        try:
            if data.is_attached:
                await data.detach()
        except MinkaError as error:
            if error.code is not Code.SHUTTING_DOWN:  # else it was deleted or replaced meanwhile
                log.error("a child could not be detached", extra={"partition": child.id, "reason": str(error)})
            if error.code is Code.STORAGE_FAILED:
                self._log_db.fail(error)
        if not data.is_attached:
            self._node.detached(child, parent_id, self._clock())

    def _lost(self, child: HostedReplica, parent_id: int) -> None:
        """The child was condemned. This is made durable before its parent's data may change: otherwise a crash would
        attach the child again, to data without its keys.
        """
        if self._closing or child.state.role is Role.REMOVED:
            return  # the next start attaches it again, or its deletion lets go
        self._node.data_lost(child)
        child.stage_meta(self._log_db)
        self._begin(child, self._let_go(child, child.data, parent_id), f"giving up {child.id}")

    async def _let_go(self, child: HostedReplica, data: DataDatabase, parent_id: int) -> None:
        with suppress(MinkaError):  # the log database has failed, and the node ends
            await self._log_db.sync()
            data.let_go()
            self._node.detached(child, parent_id, self._clock())

    async def _copy(self, child: HostedReplica, parent: HostedReplica, offset: int) -> None:
        """Put a copy of the parent's data, as of this offset or later, where the child's database is opened."""
        while parent.state.applied < offset:
            if parent.state.damage is not None or parent.state.role is Role.REMOVED:
                text = f"partition {child.id}: partition {parent.id}, to which it is attached, can't be used"
                raise MinkaError(Code.CORRUPT_DATA, text)
            self._node.apply(parent)
            await asyncio.wait([self._waits.changed(parent.id)], timeout=_POLL_SECONDS)
        await parent.log_first()
        await self.put_in_place(child, await self.take(parent, child))
        await child.log_first()  # its writes are about to be flushed

    @failpoint("split.take")
    async def take(self, parent: HostedReplica, child: HostedReplica) -> Checkpoint:
        """The parent's data as it is now."""
        return await self._store.take(parent.data, Purpose.SPLIT, str(child.id))

    @staticmethod
    @failpoint("split.put_in_place")
    async def put_in_place(child: HostedReplica, taken: Checkpoint) -> None:
        """Make the checkpoint the child's data."""
        await taken.move(child.data.path)

    @failpoint("split.record")
    async def record(self, child: HostedReplica) -> None:
        """Record that the child has a database of its own."""
        if child.still_has(child.data):  # the meta of a deleted replica would make it a replica again
            child.stage_meta(self._log_db)
        await self._log_db.sync()


def _lacks(child: HostedReplica) -> bool:
    return not child.state.is_made and child.state.role is not Role.REMOVED
