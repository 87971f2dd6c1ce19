"""Snapshots for readers of whole keyspaces: each is the data of a partition at one offset of its log.

The leader appends a `SnapshotMark` to the log. Each replica that comes to the mark keeps a checkpoint, by hard links,
under the snapshot's id. So all replicas keep the same data, and if a reader's node dies, the reader goes on at another
node.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError, with_rows
from minka.v1.snapshots_pb2 import PartitionSnapshot, RowBatch
from minkad.core.replication.entries import SnapshotMark, encode_mark
from minkad.core.replication.node import Node
from minkad.core.replication.replica_state import Role
from minkad.core.state import range_of
from minkad.process import tasks
from minkad.process.failpoints import failpoint
from minkad.replication.applying.flusher import Flusher
from minkad.replication.applying.hosted_replica import HostedReplica, Pending
from minkad.replication.background_task import BackgroundTask
from minkad.replication.serving.partition_waits import PartitionWaits
from minkad.replication.serving.routing import Routing
from minkad.replication.surroundings import Surroundings
from minkad.storage.applied import Applied
from minkad.storage.checkpoint import Checkpoint
from minkad.storage.replica_store import Purpose
from minkad.storage.scan_process import ScanRequest
from minkad.storage.scanner import Scanner

log: Final = logging.getLogger(__name__)

_KEPT_SECONDS: Final = 900.0  # a snapshot is removed this long after its last use
_MAX_SNAPSHOTS: Final = 1000  # on this node
_LATE_MS: Final = 60_000  # a replica that comes to a mark later than this keeps nothing
_MAX_RELEASED: Final = 10_000  # released ids that are remembered
_OPEN_SECONDS: Final = 30.0
_FLUSH_FIRST_BYTES: Final = 256 * 1024  # with more unflushed data, flush before the mark
_LOOK_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Kept:
    """A snapshot on this node."""

    taken: Checkpoint
    offset: int  # the data has the entries up to here
    taken_ms: int  # by the leader's wall clock; readers don't see rows that have expired by then
    range: KeyRange
    used_at: float  # the time of the last use, by the node's clock
    readers: int = 0  # scans under way
    is_released: bool = False  # the last reader removes the checkpoint


class Snapshots:
    """For the loop's thread."""

    def __init__(
        self,
        around: Surroundings,
        node: Node[HostedReplica],
        routing: Routing,
        waits: PartitionWaits,
        flusher: Flusher,
        scanner: Scanner,
    ) -> None:
        self._node = node
        self._routing = routing
        self._waits = waits
        self._flusher = flusher
        self._scanner = scanner
        self._log_db = around.log_db
        self._store = around.store
        self._disk = around.disk
        self._clock = around.clock
        self._unix_ms = around.unix_ms
        self._kept: dict[str, _Kept] = {}  # by snapshot id
        # Ids released before this node had the snapshot: a replica may come to a mark after the reader has ended.
        self._released: dict[str, None] = {}
        self._opening: dict[str, asyncio.Future[None]] = {}  # snapshots that this node, as the leader, is opening
        self._making: set[asyncio.Task[None]] = set()
        self._collecting = BackgroundTask("snapshots", self._collect, around.log_db.fail)

    def start(self) -> None:
        """Begin to remove snapshots that nobody uses."""
        self._collecting.start()

    async def close(self) -> None:
        """Stop. The next start removes the snapshots."""
        await self._collecting.close()
        for task in self._making:
            task.cancel()
        await asyncio.gather(*self._making, return_exceptions=True)
        await self._scanner.close()

    # The leader

    async def open(self, partition_id: int, generation: int, part_bytes: int) -> PartitionSnapshot:
        """Open a snapshot with all writes acknowledged before the call. Raises the refusals that send a client
        to another node; DISK_LOW, OVERLOADED, DEADLINE_EXCEEDED.
        """
        until = asyncio.get_running_loop().time() + _OPEN_SECONDS
        replica = await self._routing.serving(partition_id, generation, until)
        if not replica.log.end and not replica.data.exists():
            return _of(replica, "", 0, range_of(replica.state.row))
        self._check_room()
        if replica.unflushed >= _FLUSH_FIRST_BYTES or replica.data.in_memory:
            await self._flusher.flush(replica)  # a flush after the mark would make users' writes wait
            replica = await self._routing.serving(partition_id, generation, until)
        snapshot_id, range_ = uuid.uuid4().hex, range_of(replica.state.row)
        is_kept = self._opening[snapshot_id] = asyncio.get_running_loop().create_future()
        try:
            if len(replica.state.row.isr) >= replica.state.min_insync:
                self._append(replica, SnapshotMark(snapshot_id, self._unix_ms(), range_.start, range_.end))
            else:  # no mark can be committed now, but the committed entries can be read
                await self._keep(replica, snapshot_id, self._unix_ms(), range_)
            await self._until_kept(replica, is_kept, until)
        except BaseException:
            await self.release(snapshot_id)  # no reader knows the id
            raise
        finally:
            del self._opening[snapshot_id]
        kept = self._kept.get(snapshot_id)
        if kept is None:
            raise MinkaError(Code.DISK_LOW, "the snapshot was given up at once, for room")
        found = _of(replica, snapshot_id, kept.offset, range_)
        if part_bytes:
            found.cuts.extend(await self._cuts(kept, part_bytes))
        return found

    async def _until_kept(self, replica: HostedReplica, is_kept: asyncio.Future[None], until: float) -> None:
        epoch = replica.state.row.leader_epoch
        while not is_kept.done():
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                text = f"partition {replica.id}: no snapshot within {_OPEN_SECONDS:.0f} s"
                raise MinkaError(Code.DEADLINE_EXCEEDED, text)
            changed = self._waits.changed(replica.id)
            await asyncio.wait([is_kept, changed], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if replica.state.role is not Role.LEADER or replica.state.row.leader_epoch != epoch:
                text = f"partition {replica.id} has another leader since the snapshot was asked for"
                raise with_rows(MinkaError(Code.NOT_LEADER, text), [replica.state.row])
        is_kept.result()

    def _check_room(self) -> None:
        if self._disk.is_low:
            raise MinkaError(Code.DISK_LOW, "a snapshot keeps files that would be freed, and the disk is low")
        if len(self._kept) >= _MAX_SNAPSHOTS:
            raise MinkaError(Code.OVERLOADED, f"this node keeps {_MAX_SNAPSHOTS} snapshots")

    @failpoint("snapshot.mark")
    def _append(self, replica: HostedReplica, mark: SnapshotMark) -> None:
        self._node.append(replica, encode_mark(mark))

    async def _cuts(self, kept: _Kept, part_bytes: int) -> list[bytes]:
        path, (start, end) = str(kept.taken.path), kept.range
        async with aclosing(self._scan(kept, ScanRequest(path, start, end, "cuts", part_bytes=part_bytes))) as answers:
            return [cut async for answer in answers for cut in RowBatch.FromString(answer).cuts]

    # Each replica

    def make(self, replica: HostedReplica, mark: SnapshotMark, entry: Pending) -> None:
        """Carry out the mark, the next entry to apply. Applying goes on once the snapshot is kept."""
        task = tasks.start(self._make(replica, mark, entry), f"snapshot of {replica.id}", replica.broke)
        self._making.add(task)
        task.add_done_callback(self._making.discard)

    async def _make(self, replica: HostedReplica, mark: SnapshotMark, entry: Pending) -> None:
        data, is_passed = replica.data, False
        try:
            async with replica.lock:
                if not replica.still_has(data):
                    return
                data.write([], Applied(entry.offset, entry.leader_epoch))
                if mark.id in self._opening or self._unix_ms() - mark.taken_ms < _LATE_MS:
                    await self._keep_or_not(replica, mark)
                replica.passed(entry)
                self._node.applied(replica, entry.offset, 0, self._clock())
                is_passed = True
        except MinkaError as error:
            log.error("a snapshot's mark could not be passed", extra={"partition": replica.id, "reason": str(error)})
            if error.code is not Code.CORRUPT_DATA:
                self._log_db.fail(error)
        finally:
            self._node.mark_ended(replica, data, self._clock(), is_passed=is_passed)

    async def _keep_or_not(self, replica: HostedReplica, mark: SnapshotMark) -> None:
        """Keep the snapshot. If that fails, the replica goes on without it."""
        try:
            if mark.id not in self._opening:
                self._check_room()
            await self._keep(replica, mark.id, mark.taken_ms, KeyRange(mark.start, mark.end))
        except MinkaError as error:
            log.warning("no snapshot is kept", extra={"partition": replica.id, "reason": str(error)})
            if (opening := self._opening.get(mark.id)) is not None and not opening.done():
                opening.set_exception(error)

    @failpoint("snapshot.keep")
    async def _keep(self, replica: HostedReplica, snapshot_id: str, taken_ms: int, range_: KeyRange) -> None:
        await replica.log_first()
        await replica.data.open()
        offset = replica.data.applied.offset
        taken = await self._store.take(replica.data, Purpose.READ, snapshot_id)
        if snapshot_id in self._released:
            await taken.remove()
            return
        self._kept[snapshot_id] = _Kept(taken, offset, taken_ms, range_, self._clock())
        if (opening := self._opening.get(snapshot_id)) is not None and not opening.done():
            opening.set_result(None)

    # Readers

    async def read(self, snapshot_id: str, request: ScanRequest) -> AsyncGenerator[bytes, None]:
        """Scan a part of the snapshot; this method fills in the request's `path`. The first answer is empty: the scan
        waits for its turn after that. Raises SNAPSHOT_GONE, OVERLOADED, CORRUPT_DATA, STORAGE_FAILED.
        """
        kept = self._kept.get(snapshot_id)
        if kept is None:
            raise MinkaError(Code.SNAPSHOT_GONE, f"this node has no snapshot {snapshot_id}")
        start, end = kept.range.clip(KeyRange(request.start, request.end))
        asked = ScanRequest(
            str(kept.taken.path),
            start,
            end,
            *(request.kind, request.batch_bytes, request.buckets, request.wanted),
            at_ms=kept.taken_ms,
        )
        async with aclosing(self._scan(kept, asked)) as answers:
            async for answer in answers:
                yield answer

    async def _scan(self, kept: _Kept, request: ScanRequest) -> AsyncGenerator[bytes, None]:
        """Read a snapshot. Its folder must stay until the end: a scan would create a removed folder again. The first
        answer is empty: see `read`.
        """
        kept.readers += 1
        try:
            if not request.end or request.start < request.end:
                yield b""
                async with aclosing(self._scanner.scan(request)) as answers:
                    async for answer in answers:
                        if kept.is_released:
                            raise MinkaError(Code.SNAPSHOT_GONE, f"the snapshot {kept.taken.path.name} was released")
                        yield answer
        finally:
            kept.readers -= 1
            kept.used_at = self._clock()
            if kept.is_released:
                await self._remove(kept)

    @staticmethod
    async def _remove(kept: _Kept) -> None:
        if not kept.readers:
            await kept.taken.remove()

    async def release(self, snapshot_id: str) -> None:
        """Remove a snapshot as soon as nobody reads it. If this node has yet to come to its mark, keep nothing then."""
        if (kept := self._kept.pop(snapshot_id, None)) is not None:
            kept.is_released = True
            await self._remove(kept)
            return
        self._released[snapshot_id] = None
        if len(self._released) > _MAX_RELEASED:
            del self._released[next(iter(self._released))]

    async def _collect(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for snapshot_id, kept in list(self._kept.items()):
                is_old = self._clock() - kept.used_at > _KEPT_SECONDS and not kept.readers
                if is_old or self._disk.is_low:
                    log.info("a snapshot is given up", extra={"snapshot": snapshot_id, "for_room": self._disk.is_low})
                    await self.release(snapshot_id)


def _of(replica: HostedReplica, snapshot_id: str, offset: int, range_: KeyRange) -> PartitionSnapshot:
    row = replica.state.row
    others = [node for node in row.isr if node != row.leader]
    return PartitionSnapshot(
        snapshot_id=snapshot_id,
        partition_id=replica.id,
        offset=offset,
        start_key=range_.start,
        end_key=range_.end,
        nodes=[row.leader, *others],
        late_nodes=[node for node in row.replicas if node not in row.isr],
    )
