"""The source's side of a migration: checkpoint, ship, follow, fence, hand over.

Source: Fixed Partitions, Patterns of Distributed Systems ("Moving partitions to newly added members"); a move by
checkpoint and catch-up.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import HandOverRequest, MigrationProgress
from minkad.failpoints import failpoint
from minkad.shard.feed import Feed
from minkad.shard.frames import Ack, ShipHeader, ShipTrailer, Standing, decode_shipped, encode
from minkad.shard.links import ReplicationLinks
from minkad.shard.replica import Replica
from minkad.storage import checkpoint
from minkad.storage.checkpoint import Checkpoint

log: Final = logging.getLogger(__name__)

# What the controller answers when it has decided not to: the hand-over was not recorded.
_REFUSALS: Final = frozenset(
    {
        Code.STALE_GENERATION,
        Code.NOT_LEADER,
        Code.UNKNOWN_PARTITION,
        Code.UNKNOWN_NODE,
        Code.NOT_REGISTERED,
        Code.OVERLOADED,
        Code.INVALID_ARGUMENT,
    }
)


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """Seconds and bytes."""

    concurrent_shipping: int = 4  # checkpoints taken and sent at a time by this node
    chunk_bytes: int = 256 * 1024
    log_only_bytes: int = 256 * 1024  # a partition with no more than this in its log is sent without a checkpoint
    fence_timeout: float = 0.5  # the longest that writes wait for the target to catch up
    first_backoff: float = 0.05
    longest_backoff: float = 1.0


@dataclass(frozen=True, slots=True)
class MigrationContext:
    """What all migrations of a node share."""

    node_id: str
    outgoing: Path
    links: ReplicationLinks
    settings: MigrationSettings
    shipping: asyncio.Semaphore
    hand_over: Callable[[HandOverRequest], Awaitable[Partition]]
    clock: Callable[[], float]
    learn: Callable[[Partition], None]  # a newer row
    changed: Callable[[Replica], None]  # fenced or not: whoever waits looks again
    on_fence: Callable[[float], None]  # how long writes waited at this node, in seconds


class Migration:
    """One replica's way to one node: a task that tries until it is cancelled or the row has changed."""

    def __init__(self, context: MigrationContext, replica: Replica, target: str, feed: Feed) -> None:
        self.target = target
        self.replica = replica
        self.leader_epoch = replica.row.leader_epoch
        self._context = context
        self._feed = feed
        self._phase = "checkpoint"
        self._blocked_by = ""
        self._bytes_total = self._bytes_done = 0
        self._fenced_at = 0.0
        self._follower = feed.add(replica)
        self._backoff = context.settings.first_backoff
        self._task = asyncio.create_task(self._run(), name=f"migration of {replica.id} to {target}")

    def progress(self) -> MigrationProgress:
        """As it is reported."""
        return MigrationProgress(
            partition_id=self.replica.id,
            target=self.target,
            bytes_total=self._bytes_total,
            bytes_done=self._bytes_done,
            lag=self._follower.lag,
            phase=self._phase,
            blocked_by=self._blocked_by or self._follower.error,
        )

    def look(self) -> None:
        """The replica is further than before."""
        self._follower.changed.set()
        self._feed.wake()

    def cancel(self) -> None:
        """Stop, and let writes go on if they wait. The row has decided."""
        self._task.cancel()
        self._unfence()
        self._feed.remove(self._follower)

    async def wait(self) -> None:
        """Until it has ended."""
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._bring_up()
                if await self._fence() and await self._hand_over():
                    return
            except MinkaError as error:
                self._block(str(error))
            self._unfence()
            await asyncio.sleep(self._backoff)
            self._backoff = min(2 * self._backoff, self._context.settings.longest_backoff)

    def _block(self, reason: str) -> None:
        if not self._blocked_by:
            names = {"partition": self.replica.id, "target": self.target, "phase": self._phase, "reason": reason}
            log.warning("a migration is blocked; it goes on trying", extra=names)
        self._blocked_by = reason

    def _advance(self, phase: str) -> None:
        if self._blocked_by:
            log.info("a migration goes on", extra={"partition": self.replica.id, "target": self.target})
        self._phase, self._blocked_by = phase, ""

    # Checkpoint, ship, follow

    async def _bring_up(self) -> None:
        """Until the target has nearly everything. Raises what stops a checkpoint."""
        follower = self._follower
        while not follower.is_near:
            if not follower.sending:
                follower.start(await self._start_offset())
                self._backoff = self._context.settings.first_backoff
                self._advance("follow")
            follower.changed.clear()
            if not follower.is_near:
                await follower.changed.wait()

    async def _start_offset(self) -> int:
        """What the target has already, with a checkpoint if that can't be helped."""
        standing = await self._standing()
        if standing.standing == Standing.FRESH and self._is_short():
            return 0
        known = self.replica.log.base <= standing.offset <= self.replica.durable
        if standing.standing == Standing.DURABLE and known:
            return standing.offset
        return await self._ship()

    def _is_short(self) -> bool:
        """Whether the log from its first entry on is little enough to be applied instead of a checkpoint."""
        log, end = self.replica.log, self.replica.durable
        if log.base > 0 or end == 0:
            return end == 0
        limit = self._context.settings.log_only_bytes
        entries = log.read(1, end, limit)
        return entries[-1].offset == end and sum(len(entry.body) for entry in entries) <= limit

    async def _standing(self) -> Ack:
        """The target's answer to a probe; it may come as late as the target is told of the partition."""
        follower = self._follower
        follower.probe()
        while follower.standing is None:
            follower.changed.clear()
            await follower.changed.wait()
        return follower.standing

    async def _ship(self) -> int:
        """Send a checkpoint; the offset up to which the target has everything with it."""
        self._advance("checkpoint")
        self._bytes_total = self._bytes_done = 0
        async with self._context.shipping:
            # From here on the log is kept for the target.
            self.replica.retain[self.target] = self.replica.flushed
            taken = await self._take()
            try:
                self._bytes_total = taken.size
                self._advance("ship")
                return await self._send(taken)
            finally:
                await taken.remove()

    @failpoint("migration.checkpoint")
    async def _take(self) -> Checkpoint:
        self.replica.open()
        path = self._context.outgoing / f"{self.replica.id}-{self.target}"
        return await checkpoint.take(self.replica.data, path)

    @failpoint("migration.ship")
    async def _send(self, taken: Checkpoint) -> int:
        answer = decode_shipped(await self._context.links.ship(self.target, self._messages(taken)))
        if not self.replica.log.base <= answer.offset <= self.replica.durable:
            raise MinkaError(Code.INTERNAL, f"the target has a checkpoint up to {answer.offset}, which can't be")
        return answer.offset

    async def _messages(self, taken: Checkpoint) -> AsyncIterator[bytes]:
        files = [(file.name, file.size) for file in taken.files]
        yield encode(ShipHeader(self.replica.id, self.leader_epoch, files))
        checksums: list[int] = []
        async for chunk, checksum in taken.read(self._context.settings.chunk_bytes):
            if chunk:
                yield chunk
                self._bytes_done += len(chunk)
            if checksum is not None:
                await self._file_shipped()
                checksums.append(checksum)
        yield encode(ShipTrailer(checksums))

    @failpoint("migration.ship_file")
    async def _file_shipped(self) -> None:
        """Between two files."""

    # Fence, hand over

    @failpoint("migration.fence")
    async def _fence(self) -> bool:
        """Let writes wait, until the target has all before them, durably; False if that takes too long."""
        replica, follower = self.replica, self._follower
        self._fenced_at = self._context.clock()
        replica.fenced = True
        try:
            async with asyncio.timeout(self._context.settings.fence_timeout):
                while follower.matched < replica.log.end or replica.applied < replica.log.end:
                    follower.changed.clear()
                    await follower.changed.wait()
                    if not follower.sending:
                        return False
        except TimeoutError:
            self._block(f"the target did not catch up within {self._context.settings.fence_timeout} s")
            return False
        return True

    async def _hand_over(self) -> bool:
        """Ask until the outcome is known; whether the target leads now. Nothing is served meanwhile."""
        replica = self.replica
        self._advance("hand over")
        replica.handing_over = True
        request = HandOverRequest(
            node_id=self._context.node_id,
            partition_id=replica.id,
            leader_epoch=self.leader_epoch,
            partition_epoch=replica.row.partition_epoch,
            target=self.target,
        )
        in_doubt = False
        backoff = self._context.settings.first_backoff
        while replica.row.partition_epoch == request.partition_epoch:
            try:
                self._received(await self._ask(request))
                return True
            except MinkaError as error:
                for row in error.partitions:
                    self._received(row)
                if error.code in _REFUSALS and not in_doubt:
                    raise
                in_doubt = True
                self._block(f"waiting for the outcome of the hand-over: {error}")
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, self._context.settings.longest_backoff)
        return False  # a newer row still has this node as leader and the target as follower

    @failpoint("migration.hand_over")
    async def _ask(self, request: HandOverRequest) -> Partition:
        return await self._context.hand_over(request)

    @failpoint("migration.row_received")
    def _received(self, row: Partition) -> None:
        if row.id == self.replica.id:
            self._context.learn(row)

    def _unfence(self) -> None:
        """Called when the fence is lifted, whether by giving up or by a row that has decided."""
        replica = self.replica
        if not replica.fenced:
            return
        replica.fenced = replica.handing_over = False
        seconds = self._context.clock() - self._fenced_at
        self._context.on_fence(seconds)
        log.info("writes waited", extra={"partition": replica.id, "target": self.target, "ms": round(seconds * 1e3, 1)})
        self._context.changed(replica)
