"""How each node carries out a split (Key-Range Partitions, Patterns of Distributed Systems).

As soon as the leader takes over the row, it serves only the lower half, and appends a marker: after the marker, the
parent's log has no writes to the upper half. So the upper half of the parent's data no longer changes on any replica
that has applied the marker, and the child can begin as a part of the parent's data: its data is attached, and its new
writes are in memory. The child serves at once. In the background, each replica makes the child's own database, by hard
links, without copying bytes. The child's log begins after the marker's offset and leader_epoch:

    parent's log   1 ........ marker 500 | writes to the lower half: 501, 502 ...
    child's log              (base 500)  | writes to the upper half: 501, 502 ...

After a crash before that, the log database still has the child's log, and the fact that its data is attached. The
parent's data has the upper half, or will have it once the parent's log is applied up to the marker. While parent and
child share data, neither carries out a mark, since a mark may remove keys, or bring others.
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
_DETACH_AFTER_SECONDS: Final = 0.05  # at a partition's first replica; twice as long at the second, and so on


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
        """Stop. Unfinished children are made again after the next start."""
        self._closing = True
        under_way = [*self._making.values(), *self._detaching]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    # Each replica

    def make(self, parent: HostedReplica, marker: SplitMarker, entry: Pending) -> None:
        """Carry out the marker, the next entry to apply. Applying goes on once the child is made."""
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
                    return  # the parent was deleted, or a checkpoint has replaced it
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
            self._node.mark_ended(parent, data, self._clock(), is_passed=is_passed)

    async def _make_child(self, parent: HostedReplica, child_id: int, entry: Pending) -> None:
        """Make the child, unless it exists already: from this marker, or from a checkpoint of the child's leader."""
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
        """Attach the child's data, and begin its log after the marker. Once that is durable, the child gets a role."""
        data = self._hosting.new_data(child.id)
        self._attach(child, data, parent, Applied(entry.offset, entry.leader_epoch), parent.data.versions)
        self._node.child_attached(child, data, entry.offset, entry.leader_epoch, self._clock())
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
        """Attach the child again: it was attached when the node stopped, so its own folder isn't complete."""
        parent = self._node.replicas.get(meta.attached_to)
        if parent is None or not parent.state.is_complete or parent.log.end < meta.base:
            text = f"partition {child.id}: partition {meta.attached_to}, to which it was attached, is gone"
            self._node.data_lost(child, self._clock())
            child.data.condemn(MinkaError(Code.CORRUPT_DATA, text))
            return
        self._node.child_recovered(parent, meta.base)
        self._attach(child, child.data, parent, Applied(meta.base, meta.base_epoch), meta.versions)
        self._detach_soon(child, parent.id)

    # The child's own database

    def _detach_soon(self, child: HostedReplica, parent_id: int) -> None:
        self._begin(child, self._detach(child, parent_id), f"detaching {child.id}")

    def _begin(self, child: HostedReplica, work: Coroutine[Any, Any, None], name: str) -> None:
        task = tasks.start(work, name, child.broke)
        self._detaching.add(task)
        task.add_done_callback(self._detaching.discard)

    async def _detach(self, child: HostedReplica, parent_id: int) -> None:
        """Make the child's own database, after a delay that differs by node. This takes a processor for some
        milliseconds, and should not make the child's new clients wait at all nodes at the same time.
        """
        data, nodes = child.data, list(child.state.row.replicas)
        place = nodes.index(self._node.id) if self._node.id in nodes else len(nodes)
        await asyncio.sleep((1 + place) * _DETACH_AFTER_SECONDS)
        try:
            if data.is_attached:
                await data.detach()
        except MinkaError as error:
            if error.code is not Code.SHUTTING_DOWN:  # that means the child was deleted or replaced meanwhile
                log.error("a child could not be detached", extra={"partition": child.id, "reason": str(error)})
            if error.code is Code.STORAGE_FAILED:
                self._log_db.fail(error)
        if not data.is_attached:
            self._node.detached(child, parent_id, self._clock())

    def _lost(self, child: HostedReplica, parent_id: int) -> None:
        """The child was condemned. Record that durably before the parent's data may change: otherwise, after a crash,
        the node would attach the child again, to data that lacks the child's keys.
        """
        if self._closing or child.state.role is Role.REMOVED:
            return  # the next start attaches the child again, or its deletion lets the parent's data go
        self._node.data_lost(child, self._clock())
        child.stage_meta(self._log_db)
        self._begin(child, self._let_go(child, child.data, parent_id), f"giving up {child.id}")

    async def _let_go(self, child: HostedReplica, data: DataDatabase, parent_id: int) -> None:
        with suppress(MinkaError):  # the log database has failed, and the node ends
            await self._log_db.sync()
            data.let_go()
            self._node.detached(child, parent_id, self._clock())

    async def _copy(self, child: HostedReplica, parent: HostedReplica, offset: int) -> None:
        """Put a copy of the parent's data, as of `offset` or later, into the child's folder."""
        while parent.state.applied < offset:
            if parent.state.damage is not None or parent.state.role is Role.REMOVED:
                text = f"partition {child.id}: partition {parent.id}, to which it is attached, can't be used"
                raise MinkaError(Code.CORRUPT_DATA, text)
            self._node.apply(parent)
            await asyncio.wait([self._waits.changed(parent.id)], timeout=_POLL_SECONDS)
        await parent.log_first()
        await self.put_in_place(child, await self.take(parent, child))
        await child.log_first()  # the child's writes are about to be flushed

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
        """Record that the child has its own database."""
        if child.still_has(child.data):  # with the meta of a deleted replica, the next start would recover it
            child.stage_meta(self._log_db)
        await self._log_db.sync()


def _lacks(child: HostedReplica) -> bool:
    return not child.state.is_made and child.state.role is not Role.REMOVED
