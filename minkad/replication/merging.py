"""What a merge is on the nodes (Key-Range Partitions, Patterns of Distributed Systems).

The leader of both partitions copies what the right one has through the log of the left one, whose replicas thereby
have it as they have all else: first the rows, then what was written meanwhile, from the other's log. At the end writes
to the right one wait, for as long as the last of them take and the controller takes to record it. Reads don't wait.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from minka.errors import Code, MinkaError
from minka.ranges import KeyRange
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import FinishMergeRequest
from minka.wire import WriteBody, encode
from minkad.core.state import range_of
from minkad.process.failpoints import failpoint
from minkad.replication.committer import Committer
from minkad.replication.context import LeaderContext
from minkad.replication.entries import decode_entry
from minkad.replication.replica import Pending, Replica
from minkad.storage.data_database import MAX_PASSED
from minkad.storage.log_database import LogDatabase
from minkad.storage.rocks import DeletedAheadError

log: Final = logging.getLogger(__name__)

_PAGE_ROWS: Final = 1000
_PAGE_BYTES: Final = 256 * 1024
_AHEAD: Final = 8  # entries appended and not applied; users' writes come after them
_NEAR: Final = 64  # entries of the right one's log, from which on writes wait
_POLL_SECONDS: Final = 0.1
# What the controller answers when it knows of the rows as they are: the request can't succeed any more.
_DECIDED: Final = frozenset({Code.STALE_EPOCH, Code.NOT_LEADER, Code.UNKNOWN_PARTITION})


class Merging:
    """For the loop's thread."""

    def __init__(
        self,
        node_id: str,
        replicas: Mapping[int, Replica],
        context: LeaderContext,
        committer: Committer,
        log_db: LogDatabase,
        keep: Callable[[Replica, KeyRange], None],
        changed: Callable[[int], asyncio.Future[None]],
        clear: Callable[[Replica, KeyRange, bool], Awaitable[KeyRange]],
        finish_merge: Callable[[FinishMergeRequest], Awaitable[list[Partition]]],
    ) -> None:
        """`keep`: the log is to say which keys stay. `changed` is done when a partition's row or replica changes.
        `clear`: see `DataDatabase.clear`.
        """
        self._node_id = node_id
        self._replicas = replicas
        self._context = context
        self._committer = committer
        self._log_db = log_db
        self._keep = keep
        self._changed = changed
        self._clear = clear
        self._finish_merge = finish_merge
        self._closing = False
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by the partition that remains

    async def close(self) -> None:
        """Stop. Whoever leads next begins anew."""
        self._closing = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def look(self, replica: Replica) -> None:
        """The replica has another row, or is further than before: begin what is this node's to do."""
        left = self._replicas.get(replica.row.merge_into) if replica.row.merge_into else replica
        if left is None or not left.row.merge_from or left.id in self._tasks:
            return
        right = self._replicas.get(left.row.merge_from)
        if right is None or not _is_due(left, right):
            return
        task = asyncio.create_task(self._run(left, right), name=f"merge of {right.id} into {left.id}")
        self._tasks[left.id] = task
        task.add_done_callback(lambda ended: self._ended(left, ended))

    def _ended(self, left: Replica, task: asyncio.Task[None]) -> None:
        del self._tasks[left.id]
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("a merge ended", exc_info=error, extra={"partition": left.id})
            self._log_db.fail(MinkaError(Code.INTERNAL, f"{task.get_name()}: {error!r}"))
            return
        self.look(left)  # it may lead again by now

    async def _run(self, left: Replica, right: Replica) -> None:
        merge = _Merge(left, right)
        backoff = self._context.settings.first_backoff
        try:
            while merge.goes_on():
                try:
                    await self._copy(merge)
                    while merge.goes_on() and not await self._end(merge):
                        await asyncio.sleep(backoff)
                        backoff = min(2 * backoff, self._context.settings.longest_backoff)
                    return
                except MinkaError as error:
                    names = {"partition": left.id, "right": right.id, "reason": str(error)}
                    log.warning("a merge begins anew", extra=names)
                    await asyncio.sleep(backoff)
        finally:
            right.retain.pop(merge.name, None)
            self._thaw(merge)

    # Copying

    async def _copy(self, merge: "_Merge") -> None:
        """All that is there at the beginning; what comes then is read from the log."""
        right = merge.right
        self._start(merge)
        start, end = merge.range
        is_all = False
        while not is_all and merge.goes_on():
            try:
                keys, values, is_all = right.data.page(start, end, False, _PAGE_ROWS, _PAGE_BYTES, MAX_PASSED)
            except DeletedAheadError:
                await self._clear(right, KeyRange(start, end), False)
                continue
            if keys:
                await self._append(merge, encode(WriteBody(keys, list(values))))
                start = keys[-1] + b"\x00"
        while merge.goes_on() and right.applied - merge.copied > _NEAR:
            await self._catch_up(merge)

    @failpoint("merge.copy")
    def _start(self, merge: "_Merge") -> None:
        self._keep(merge.left, range_of(merge.left.row))
        right = merge.right
        merge.copied = right.retain[merge.name] = right.applied

    async def _catch_up(self, merge: "_Merge") -> None:
        """What was applied on the right since the last time."""
        right = merge.right
        while merge.goes_on() and merge.copied < right.applied:
            for entry in right.log.read(merge.copied + 1, right.applied, _PAGE_BYTES):
                if isinstance(decode_entry(entry.body), WriteBody):
                    await self._append(merge, entry.body)
                merge.copied += 1
            right.retain[merge.name] = merge.copied

    async def _append(self, merge: "_Merge", body: bytes) -> None:
        left, appended = merge.left, merge.appended
        await self._until(merge, lambda: len(appended) < _AHEAD or left.applied >= appended[0])
        if not merge.goes_on():
            return
        epoch = left.row.leader_epoch
        offset = left.log.append(epoch, body)
        left.pending.append(Pending(offset, epoch, decode_entry(body), len(body), None, 0))
        appended.append(offset)
        self._committer.staged(left)

    async def _until(self, merge: "_Merge", condition: Callable[[], bool]) -> None:
        """Also while one of the two is handed over: its log is to come to an end."""
        while merge.goes_on() and (not condition() or merge.left.fenced or merge.right.fenced):
            futures = [self._changed(merge.left.id), self._changed(merge.right.id)]
            await asyncio.wait(futures, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)

    # The end

    async def _end(self, merge: "_Merge") -> bool:
        """Let writes wait, copy the last of them, and have it recorded; False if that takes too long."""
        if not await self._freeze(merge):
            self._thaw(merge)
            return False
        return await self._record(merge)

    @failpoint("merge.freeze")
    async def _freeze(self, merge: "_Merge") -> bool:
        left, right = merge.left, merge.right
        right.frozen = True
        try:
            async with asyncio.timeout(self._context.settings.fence_timeout):
                await self._until(merge, lambda: right.applied == right.log.end)
                await self._catch_up(merge)
                if left.is_async:  # the copies of the other, which are on the disk, are going to be deleted
                    self._keep(left, KeyRange(left.row.start_key, merge.range.end))
                end = left.log.end
                await self._until(merge, lambda: left.applied >= end)
        except TimeoutError:
            log.info("a merge waits for the last writes", extra={"partition": left.id, "right": right.id})
            return False
        return merge.goes_on()

    async def _record(self, merge: "_Merge") -> bool:
        """Ask until the outcome is known. Writes wait until then: they must not come after what is recorded."""
        left, right = merge.left, merge.right
        request = FinishMergeRequest(
            node_id=self._node_id,
            partition_id=left.id,
            partition_epoch=left.row.partition_epoch,
            merged_id=right.id,
            merged_epoch=right.row.partition_epoch,
        )
        backoff, in_doubt = self._context.settings.first_backoff, False
        while merge.is_as_in(request):
            try:
                self._learn(await self._ask(request))
                return True
            except MinkaError as error:
                self._learn(error.partitions)
                if error.code in _DECIDED and not in_doubt:
                    break
                in_doubt = in_doubt or error.code not in _DECIDED
                names = {"partition": left.id, "right": right.id, "reason": str(error)}
                log.info("the end of a merge is tried again", extra=names)
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, self._context.settings.longest_backoff)
        self._thaw(merge)
        return False

    @failpoint("merge.finish")
    async def _ask(self, request: FinishMergeRequest) -> list[Partition]:
        return await self._finish_merge(request)

    @failpoint("merge.learn")
    def _learn(self, rows: Iterable[Partition]) -> None:
        """Take in both rows at once: from here on one partition serves what the other did."""
        for row in rows:
            self._context.learn(row)

    def _thaw(self, merge: "_Merge") -> None:
        """Writes go on; where it is part of the other by now, it leads no more."""
        right = merge.right
        if not right.frozen or self._closing:
            return
        right.frozen = False
        self._context.changed(right)


class _Merge:
    """Two replicas here, while both are led at the leader_epochs at which it began."""

    def __init__(self, left: Replica, right: Replica) -> None:
        self.left = left
        self.right = right
        self.name = f"merge into {left.id}"
        self.range = KeyRange(right.row.start_key, right.row.end_key)
        self.copied = 0  # up to this offset of the right one's log
        self.appended: deque[int] = deque(maxlen=_AHEAD)  # the last offsets of what was copied
        self._epochs = (left.row.leader_epoch, right.row.leader_epoch)

    def goes_on(self) -> bool:
        """Whether this node is still to do it."""
        epochs = (self.left.row.leader_epoch, self.right.row.leader_epoch)
        return epochs == self._epochs and _is_due(self.left, self.right)

    def is_as_in(self, request: FinishMergeRequest) -> bool:
        """Whether no newer row of either is known here than the request says."""
        epochs = (self.left.row.partition_epoch, self.right.row.partition_epoch)
        return epochs == (request.partition_epoch, request.merged_epoch)


def _is_due(left: Replica, right: Replica) -> bool:
    is_pair = (left.row.merge_from, right.row.merge_into) == (right.id, left.id)
    return is_pair and left.is_ready and right.is_ready
