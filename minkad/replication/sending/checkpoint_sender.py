"""Takes checkpoints while the leader serves, and sends them to followers: file by file, raw, with checksums."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Operation
from minka.v1.coordinator_pb2 import MigrationPhase, MigrationProgress
from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.instructions import CancelCheckpoint, SendCheckpoint
from minkad.core.replication.node import Node
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.process import tasks
from minkad.process.failpoints import failpoint
from minkad.process.rate_limits import RateLimits
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.sending.copy_rates import CopyRates
from minkad.replication.sending.links import ReplicationLinks
from minkad.replication.sending.pace import Pace
from minkad.replication.sending.peer_frames import ShipHeader, ShipTrailer, decode_shipped, encode
from minkad.replication.surroundings import Surroundings
from minkad.storage.checkpoint import Checkpoint
from minkad.storage.replica_store import Purpose, ReplicaStore

_PHASE = MigrationPhase

log: Final = logging.getLogger(__name__)
_LOOK_S: Final = 1.0  # between two looks whether a copy that waits may begin


@dataclass(frozen=True, slots=True)
class SendingContext:
    """The parts that all checkpoints from this node share."""

    node: Node[HostedReplica]
    store: ReplicaStore
    links: ReplicationLinks
    settings: ReplicationSettings
    slots: asyncio.Semaphore  # one for each checkpoint that may be taken and sent at the same time
    operation_moving: Callable[[int], Operation | None]  # the operation that moves this partition
    limits: RateLimits
    pace: Pace
    clock: Callable[[], float]


class CheckpointSenders:
    """By follower: the checkpoint that is being sent, or the last one, as long as the node follows."""

    def __init__(self, around: Surroundings, node: Node[HostedReplica], pace: Pace) -> None:
        settings = node.shared.settings
        slots = asyncio.Semaphore(settings.concurrent_shipping)
        limits, moving = RateLimits(around.clock), around.table.operation_moving
        self._context = SendingContext(
            node, around.store, around.links, settings, slots, moving, limits, pace, around.clock
        )
        self._senders: dict[Progress, CheckpointSender] = {}

    def send(self, instruction: SendCheckpoint) -> None:
        """Begin to send a checkpoint. At its end, `Node` gets the event."""
        progress, context = instruction.progress, self._context
        replica, before = context.node.replicas[progress.state.id], self._senders.get(progress)
        most, moving = context.settings.copy_log_bytes, context.operation_moving
        rates = before.rates if before else CopyRates(replica, progress.node_id, most, context.clock, moving)
        if instruction.was_outrun:
            rates.note_outrun(following=True)
        self._senders[progress] = CheckpointSender(context, replica, instruction, rates)

    def cancel(self, instruction: CancelCheckpoint) -> None:
        """The node no longer follows."""
        if (sender := self._senders.pop(instruction.progress, None)) is not None:
            sender.cancel()

    def describe(self, progress: Progress, migration: MigrationProgress) -> None:
        """Add the bytes and the phase of the transfer to the leader's report."""
        sender = self._senders.get(progress)
        if sender is not None:
            migration.bytes_total, migration.bytes_done = sender.bytes_total, sender.bytes_done
            if progress.is_replicating:
                sender.rates.describe_following(progress, migration)
                return
            migration.phase = sender.phase
            if sender.blocked_by:
                migration.blocked_by, migration.remedy = sender.blocked_by, sender.remedy

    async def close(self) -> None:
        """Stop all transfers, and wait until they have ended."""
        senders = list(self._senders.values())
        for sender in senders:
            sender.cancel()
        for sender in senders:
            await sender.wait()


class CheckpointSender:
    """A task that sends one checkpoint to one follower, and tries once."""

    def __init__(
        self, context: SendingContext, replica: HostedReplica, instruction: SendCheckpoint, rates: CopyRates
    ) -> None:
        self.rates = rates  # of all copies to this follower
        self.blocked_by = self.remedy = ""  # while the copy can't begin: the reason, and the remedy
        self.phase = _PHASE.MIGRATION_PHASE_CHECKPOINT
        self.bytes_total = self.bytes_done = 0
        self._context = context
        self._replica = replica
        self._progress = instruction.progress
        self._kept = instruction.kept
        name = f"checkpoint of {replica.id} to {self._progress.node_id}"
        self._task = tasks.start(self._run(), name)

    def cancel(self) -> None:
        self._task.cancel()

    async def wait(self) -> None:
        """Wait until the transfer has ended."""
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        progress, node = self._progress, self._context.node
        try:
            offset = await self._send()
        except MinkaError as error:
            names = {"partition": self._replica.id, "target": progress.node_id, "reason": str(error)}
            log.warning("a checkpoint did not arrive; it is tried again", extra=names)
            node.checkpoint_failed(progress, str(error), self._context.clock())
            return
        self.phase = _PHASE.MIGRATION_PHASE_FOLLOW
        node.checkpoint_sent(progress, offset, self._context.clock())

    async def _send(self) -> int:
        """Send a checkpoint. Returns the offset up to which the follower has the data afterwards."""
        replica, node = self._replica, self._progress.node_id
        await self._until_it_can_end()
        async with self._context.slots:
            self._context.node.keep_copy_log(replica, node, self.rates.most_log_bytes)
            taken = await self._take()
            try:
                self.bytes_total = taken.size
                self.phase = _PHASE.MIGRATION_PHASE_SHIP
                return await self._ship(taken, await self._left_out(taken))
            except MinkaError as error:
                if error.code is Code.CORRUPT_DATA:
                    await self._verify(taken)
                raise
            finally:
                self._context.pace.need(self, 0.0)
                self.rates.rest()
                await taken.remove()

    async def _until_it_can_end(self) -> None:
        """Wait while writes would outrun the copy: it would use disk and network in vain."""
        if not self.rates.waits_for_writes:
            return
        self.rates.rest()
        self.rates.look(0)
        is_known = False
        while not is_known or self.blocked_by:
            await asyncio.sleep(_LOOK_S)
            is_known = self.rates.look(0)
            self.blocked_by, self.remedy = self.rates.obstacle()
        self.rates.rest()

    def _look(self) -> None:
        """Between two pieces: measure the rates of the copy and of writes. Raises OVERLOADED if writes have outrun the
        copy.
        """
        is_new = self.rates.look(self.bytes_done)
        copy_log = self._replica.state.retention.copy_log(self._progress.node_id)
        if copy_log is not None and not is_new:
            return
        rate = self.rates.wanted(self.bytes_total - self.bytes_done, copy_log) if copy_log is not None else None
        if rate is None:
            self.rates.note_outrun()
            raise MinkaError(Code.OVERLOADED, self.rates.why_outrun())
        self._context.pace.need(self, rate)

    async def _verify(self, taken: Checkpoint) -> None:
        """The target has found damage in the checkpoint: find out whether it was damaged here already. If so, condemn
        this leader's data, and raise CORRUPT_DATA.
        """
        data = self._replica.data
        try:
            await taken.verify()
        except MinkaError as error:
            if error.code is Code.CORRUPT_DATA:
                data.condemn(error)
            raise

    async def _left_out(self, taken: Checkpoint) -> dict[str, int]:
        """The CRC-32, by name, of the files that need not be sent: the follower has them with this size and content."""
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
        self._replica.state.check_data()
        await self._replica.log_first()
        name = f"{self._replica.id}-{self._progress.node_id}"
        return await self._context.store.take(self._replica.data, Purpose.SEND, name)

    @failpoint("migration.ship")
    async def _ship(self, taken: Checkpoint, left_out: Mapping[str, int]) -> int:
        replica = self._replica
        messages = self._messages(taken, left_out)
        answer = decode_shipped(await self._context.links.ship(self._progress.node_id, messages))
        self._look()
        if not replica.log.base <= answer.offset <= replica.state.high_watermark:
            raise MinkaError(Code.INTERNAL, f"the target has a checkpoint up to {answer.offset}, which can't be")
        return answer.offset

    async def _messages(self, taken: Checkpoint, left_out: Mapping[str, int]) -> AsyncIterator[bytes]:
        files = [(file.name, file.size) for file in taken.files]
        yield encode(ShipHeader(self._replica.id, self._progress.leader_epoch, files, list(left_out)))
        sent: list[int] = []
        pace = self._context.pace
        async for chunk, checksum in taken.read(self._context.settings.chunk_bytes, left_out):
            async for part in self._context.limits.parts(chunk, self._limited):
                for piece in pace.parts(part):
                    await pace.take(len(piece))
                    yield piece
                    self.bytes_done += len(piece)
                    self._look()
            if checksum is not None:
                await self._file_shipped()
                sent.append(checksum)
        checksums = iter(sent)
        yield encode(ShipTrailer([left_out[name] if name in left_out else next(checksums) for name, _ in files]))

    def _limited(self) -> tuple[int, int]:
        operation = self._context.operation_moving(self._replica.id)
        return (0, 0) if operation is None else (operation.id, operation.rate_limit)

    @failpoint("migration.ship_file")
    async def _file_shipped(self) -> None:
        """A failpoint between two files."""
