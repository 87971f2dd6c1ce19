"""What a merge is on the nodes (Key-Range Partitions, Patterns of Distributed Systems).

The leader of both partitions copies what the one behind has through the log of the one before, whose replicas thereby
have it as they have all else: first the rows, then what was written meanwhile, from the other's log. At the end writes
to the one behind wait, for as long as the last of them take and the controller takes to record it. Reads don't wait.
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
from minkad.failpoints import failpoint
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
_AHEAD: Final = 8  # entries appended and not applied; users' writes come behind them
_NEAR: Final = 64  # entries of the log behind, from which on writes wait
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
        before = self._replicas.get(replica.row.merge_into) if replica.row.merge_into else replica
        if before is None or not before.row.merge_from or before.id in self._tasks:
            return
        behind = self._replicas.get(before.row.merge_from)
        if behind is None or not _is_due(before, behind):
            return
        task = asyncio.create_task(self._run(before, behind), name=f"merge of {behind.id} into {before.id}")
        self._tasks[before.id] = task
        task.add_done_callback(lambda ended: self._ended(before, ended))

    def _ended(self, before: Replica, task: asyncio.Task[None]) -> None:
        del self._tasks[before.id]
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("a merge ended", exc_info=error, extra={"partition": before.id})
            self._log_db.fail(MinkaError(Code.INTERNAL, f"{task.get_name()}: {error!r}"))
            return
        self.look(before)  # it may lead again by now

    async def _run(self, before: Replica, behind: Replica) -> None:
        merge = _Merge(before, behind)
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
                    names = {"partition": before.id, "behind": behind.id, "reason": str(error)}
                    log.warning("a merge begins anew", extra=names)
                    await asyncio.sleep(backoff)
        finally:
            behind.retain.pop(merge.name, None)
            self._thaw(merge)

    # Copying

    async def _copy(self, merge: "_Merge") -> None:
        """All that is there at the beginning; what comes then is read from the log."""
        behind = merge.behind
        self._start(merge)
        start, end = merge.range
        is_all = False
        while not is_all and merge.goes_on():
            try:
                keys, values, is_all = behind.data.page(start, end, False, _PAGE_ROWS, _PAGE_BYTES, MAX_PASSED)
            except DeletedAheadError:
                await self._clear(behind, KeyRange(start, end), False)
                continue
            if keys:
                await self._append(merge, encode(WriteBody(keys, list(values))))
                start = keys[-1] + b"\x00"
        while merge.goes_on() and behind.applied - merge.copied > _NEAR:
            await self._catch_up(merge)

    @failpoint("merge.copy")
    def _start(self, merge: "_Merge") -> None:
        self._keep(merge.before, range_of(merge.before.row))
        behind = merge.behind
        merge.copied = behind.retain[merge.name] = behind.applied

    async def _catch_up(self, merge: "_Merge") -> None:
        """What was applied behind since the last time."""
        behind = merge.behind
        while merge.goes_on() and merge.copied < behind.applied:
            for entry in behind.log.read(merge.copied + 1, behind.applied, _PAGE_BYTES):
                if isinstance(decode_entry(entry.body), WriteBody):
                    await self._append(merge, entry.body)
                merge.copied += 1
            behind.retain[merge.name] = merge.copied

    async def _append(self, merge: "_Merge", body: bytes) -> None:
        before, appended = merge.before, merge.appended
        await self._until(merge, lambda: len(appended) < _AHEAD or before.applied >= appended[0])
        if not merge.goes_on():
            return
        epoch = before.row.leader_epoch
        offset = before.log.append(epoch, body)
        before.pending.append(Pending(offset, epoch, decode_entry(body), len(body), None, 0))
        appended.append(offset)
        self._committer.staged(before)

    async def _until(self, merge: "_Merge", condition: Callable[[], bool]) -> None:
        """Also while one of the two is handed over: its log is to come to an end."""
        while merge.goes_on() and (not condition() or merge.before.fenced or merge.behind.fenced):
            futures = [self._changed(merge.before.id), self._changed(merge.behind.id)]
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
        before, behind = merge.before, merge.behind
        behind.frozen = True
        try:
            async with asyncio.timeout(self._context.settings.fence_timeout):
                await self._until(merge, lambda: behind.applied == behind.log.end)
                await self._catch_up(merge)
                if before.is_async:  # the copies of the other, which are on the disk, are going to be deleted
                    self._keep(before, KeyRange(before.row.start_key, merge.range.end))
                end = before.log.end
                await self._until(merge, lambda: before.applied >= end)
        except TimeoutError:
            log.info("a merge waits for the last writes", extra={"partition": before.id, "behind": behind.id})
            return False
        return merge.goes_on()

    async def _record(self, merge: "_Merge") -> bool:
        """Ask until the outcome is known. Writes wait until then: they must not come behind what is recorded."""
        before, behind = merge.before, merge.behind
        request = FinishMergeRequest(
            node_id=self._node_id,
            partition_id=before.id,
            partition_epoch=before.row.partition_epoch,
            merged_id=behind.id,
            merged_epoch=behind.row.partition_epoch,
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
                names = {"partition": before.id, "behind": behind.id, "reason": str(error)}
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
        """Of both at once: from here on one serves what the other did."""
        for row in rows:
            self._context.learn(row)

    def _thaw(self, merge: "_Merge") -> None:
        """Writes go on; where it is part of the other by now, it leads no more."""
        behind = merge.behind
        if not behind.frozen or self._closing:
            return
        behind.frozen = False
        self._context.changed(behind)


class _Merge:
    """Two replicas here, while both are led at the leader_epochs at which it began."""

    def __init__(self, before: Replica, behind: Replica) -> None:
        self.before = before
        self.behind = behind
        self.name = f"merge into {before.id}"
        self.range = KeyRange(behind.row.start_key, behind.row.end_key)
        self.copied = 0  # up to this offset of the log behind
        self.appended: deque[int] = deque(maxlen=_AHEAD)  # the last offsets of what was copied
        self._epochs = (before.row.leader_epoch, behind.row.leader_epoch)

    def goes_on(self) -> bool:
        """Whether this node is still to do it."""
        epochs = (self.before.row.leader_epoch, self.behind.row.leader_epoch)
        return epochs == self._epochs and _is_due(self.before, self.behind)

    def is_as_in(self, request: FinishMergeRequest) -> bool:
        """Whether no newer row of either is known here than the request says."""
        epochs = (self.before.row.partition_epoch, self.behind.row.partition_epoch)
        return epochs == (request.partition_epoch, request.merged_epoch)


def _is_due(before: Replica, behind: Replica) -> bool:
    is_pair = (before.row.merge_from, behind.row.merge_into) == (behind.id, before.id)
    return is_pair and before.is_ready and behind.is_ready
