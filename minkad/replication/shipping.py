"""The leader's side of a checkpoint: taken while it serves, sent file by file with checksums as raw bytes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Operation
from minka.v1.coordinator_pb2 import MigrationPhase
from minkad.process.failpoints import failpoint
from minkad.replication.feed import Follower
from minkad.replication.frames import KeptFile, ShipHeader, ShipTrailer, decode_shipped, encode
from minkad.storage.checkpoint import Checkpoint
from minkad.storage.replica_store import Purpose

_PHASE = MigrationPhase

if TYPE_CHECKING:
    from minkad.replication.context import LeaderContext

log: Final = logging.getLogger(__name__)

_BURST_S: Final = 0.1
_LONGEST_WAIT_S: Final = 1.0  # so that a limit that was raised counts soon
_MIN_PART_BYTES: Final = 1024


class RateLimit:
    """As many bytes a second as the operation that moves a partition may send from here, for all that it moves. It may
    change at any time.
    """

    def __init__(self, clock: Callable[[], float], operation_moving: Callable[[int], Operation | None]) -> None:
        self._clock = clock
        self._operation_moving = operation_moving
        self._free_at: dict[int, float] = {}  # by operation

    def parts(self, partition_id: int, data: bytes) -> Iterator[bytes]:
        """The data in pieces that are sent one after the other: so that a low limit is kept, and progress is seen."""
        start = 0
        while start < len(data):
            operation = self._operation_moving(partition_id)
            limit = operation.rate_limit if operation is not None else 0
            end = start + max(int(limit * _BURST_S), _MIN_PART_BYTES) if limit else len(data)
            yield data[start:end]
            start = end

    async def take(self, partition_id: int, size: int) -> None:
        """Wait until so many bytes may be sent."""
        operation = self._operation_moving(partition_id)
        if operation is None or not operation.rate_limit:
            return
        now = self._clock()
        self._free_at = {id_: at for id_, at in self._free_at.items() if at > now - _BURST_S}
        earliest = self._free_at.get(operation.id, now - _BURST_S)
        free_at = self._free_at[operation.id] = min(earliest + size / operation.rate_limit, now + _LONGEST_WAIT_S)
        await asyncio.sleep(min(free_at - self._clock(), _LONGEST_WAIT_S))


class Shipment:
    """One checkpoint's way to one follower: a task, which tries once; when it fails, the follower is asked again where
    it stands.
    """

    def __init__(self, context: "LeaderContext", follower: Follower, kept: Sequence[KeptFile], failures: int) -> None:
        """`kept`: what the follower has of a checkpoint that broke. `failures`: tries in vain, one after the other."""
        self.phase = _PHASE.MIGRATION_PHASE_CHECKPOINT
        self.blocked_by = ""
        self.bytes_total = self.bytes_done = 0
        self.failures = failures
        self._context = context
        self._follower = follower
        self._kept = kept
        name = f"checkpoint of {follower.replica.id} to {follower.node_id}"
        self._task = asyncio.create_task(self._run(), name=name)

    @property
    def running(self) -> bool:
        """Whether it is under way."""
        return not self._task.done()

    def cancel(self) -> None:
        """Stop."""
        self._task.cancel()

    async def wait(self) -> None:
        """Until it has ended."""
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            offset = await self._ship()
        except MinkaError as error:
            self.blocked_by = str(error)
            names = {"partition": self._follower.replica.id, "target": self._follower.node_id, "reason": str(error)}
            log.warning("a checkpoint did not arrive; it is tried again", extra=names)
            settings = self._context.settings
            await asyncio.sleep(min(settings.first_backoff * 2.0 ** min(self.failures, 10), settings.longest_backoff))
            self.failures += 1
            self._follower.probe()
            return
        self.phase = _PHASE.MIGRATION_PHASE_FOLLOW
        self._follower.start(offset)

    async def _ship(self) -> int:
        """Send a checkpoint; the offset up to which the follower has everything with it."""
        replica = self._follower.replica
        async with self._context.shipping:
            # From here on the log is kept for the follower.
            replica.retain[self._follower.node_id] = replica.flushed
            taken = await self._take()
            try:
                self.bytes_total = taken.size
                self.phase = _PHASE.MIGRATION_PHASE_SHIP
                return await self._send(taken, await self._left(taken))
            except MinkaError as error:
                if error.code is Code.CORRUPT_DATA:
                    await self._verify(taken)
                raise
            finally:
                await taken.remove()

    async def _verify(self, taken: Checkpoint) -> None:
        """The target has read damage in what came: it is this leader's own, or it came about on the way."""
        data = self._follower.replica.data
        try:
            await taken.verify()
        except MinkaError as error:
            if error.code is Code.CORRUPT_DATA:
                data.condemn(error)
            raise

    async def _left(self, taken: Checkpoint) -> dict[str, int]:
        """The CRC-32 of the files that the follower has already: the same name, size and content."""
        there = {file.name: file for file in self._kept}
        left: dict[str, int] = {}
        for file in taken.files:
            kept = there.get(file.name)
            if kept is not None and kept.size == file.size and kept.checksum == await taken.checksum(file):
                left[file.name] = kept.checksum
                self.bytes_done += file.size
        return left

    @failpoint("migration.checkpoint")
    async def _take(self) -> Checkpoint:
        replica = self._follower.replica
        replica.open()
        return await self._context.store.take(replica.data, Purpose.SEND, f"{replica.id}-{self._follower.node_id}")

    @failpoint("migration.ship")
    async def _send(self, taken: Checkpoint, left: Mapping[str, int]) -> int:
        replica = self._follower.replica
        answer = decode_shipped(await self._context.links.ship(self._follower.node_id, self._messages(taken, left)))
        if not replica.log.base <= answer.offset <= replica.high_watermark:
            raise MinkaError(Code.INTERNAL, f"the target has a checkpoint up to {answer.offset}, which can't be")
        return answer.offset

    async def _messages(self, taken: Checkpoint, left: Mapping[str, int]) -> AsyncIterator[bytes]:
        files, partition_id = [(file.name, file.size) for file in taken.files], self._follower.replica.id
        yield encode(ShipHeader(partition_id, self._follower.leader_epoch, files, list(left)))
        sent: list[int] = []
        async for chunk, checksum in taken.read(self._context.settings.chunk_bytes, left):
            for part in self._context.rate_limit.parts(partition_id, chunk):
                await self._context.rate_limit.take(partition_id, len(part))
                yield part
                self.bytes_done += len(part)
            if checksum is not None:
                await self._file_shipped()
                sent.append(checksum)
        checksums = iter(sent)
        yield encode(ShipTrailer([left[name] if name in left else next(checksums) for name, _ in files]))

    @failpoint("migration.ship_file")
    async def _file_shipped(self) -> None:
        """Between two files."""
