"""The follower's side: where a replica stands, what it appends and cuts, and how old it may be."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Final

from minka import wire
from minka.errors import Code, MinkaError
from minkad.process.failpoints import failpoint
from minkad.process.turns import turn
from minkad.replication.committer import Committer
from minkad.replication.entries import is_mark
from minkad.replication.frames import Ack, Answer, Append, Standing, decode_frame, encode
from minkad.replication.receiving import Receiving
from minkad.replication.replica import NEVER, UNKNOWN, Replica, Role

_MANY: Final = 64  # partitions of a frame, after which others have the turn

log: Final = logging.getLogger(__name__)

_UNSTORED_BYTES: Final = 64 * 1024 * 1024  # appended here by all leaders and not written yet; then none is read on
_MAX_ASKED: Final = 65_536  # probes that came before the row


class Stream:
    """One leader's stream: the newest answer for each partition that is yet to be sent."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.unaligned: set[int] = set()  # partitions of which the leader has yet to say where their logs part
        self.known_at = NEVER  # all high watermarks as of this moment of our clock, or a later one, are known
        self._acks: dict[int, Ack] = {}
        self._beat = False

    def answer(self, ack: Ack) -> None:
        """Send it soon."""
        waiting = self._acks.get(ack.partition_id)
        if waiting is not None and waiting.lineage is not None and ack.lineage is None:
            return  # what comes behind the probe's answer follows from it
        self._acks[ack.partition_id] = ack
        self.wake.set()

    def beat(self) -> None:
        """Answer soon, if only with the time."""
        self._beat = True
        self.wake.set()

    def take(self) -> list[Ack] | None:
        """What to answer, None: nothing."""
        self.wake.clear()
        if not self._acks and not self._beat:
            return None
        acks, self._acks, self._beat = list(self._acks.values()), {}, False
        return acks


class Following:
    """Serves the leaders of what is followed here."""

    def __init__(
        self,
        replicas: Mapping[int, Replica],
        committer: Committer,
        receiving: Receiving,
        clock: Callable[[], float],
    ) -> None:
        self._replicas = replicas
        self._committer = committer
        self._receiving = receiving
        self._clock = clock
        self._streams: dict[int, Stream] = {}  # partition -> where its offsets are reported
        self._asked: dict[int, tuple[int, Stream]] = {}  # partition -> a probe that came before the row
        self._unstored = 0  # bytes of frames since all was stored, at most

    async def append(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """One stream from a leader's node: its frames in, the answers out. Raises INVALID_ARGUMENT, INTERNAL."""
        stream = Stream()
        reader = asyncio.create_task(self._read(frames, stream))
        reader.add_done_callback(lambda _: stream.wake.set())
        try:
            while True:
                await stream.wake.wait()
                acks = stream.take()
                if acks is not None:
                    yield encode(Answer(acks, self._clock()))
                if reader.done():
                    reader.result()
                    return
        finally:
            reader.cancel()
            for partition_id in [id_ for id_, other in self._streams.items() if other is stream]:
                self._drop(partition_id)
            self._asked = {key: value for key, value in self._asked.items() if value[1] is not stream}

    def new_leadership(self, replica: Replica) -> None:
        """Whatever its former leader told is over."""
        self._drop(replica.id)
        replica.leader_watermark = replica.high_watermark

    def told(self, replica: Replica) -> None:
        """The replica's row has changed: answer who asked for it before."""
        asked = self._asked.get(replica.id)
        if asked is not None and replica.role is Role.FOLLOWER and asked[0] == replica.row.leader_epoch:
            del self._asked[replica.id]
            self._answer_probe(replica, asked[1])

    def durable(self, replica: Replica) -> None:
        """More of a follower's log is durable."""
        stream = self._streams.get(replica.id)
        if stream is not None and replica.role is Role.FOLLOWER and replica.id not in stream.unaligned:
            stream.answer(Ack(replica.id, replica.row.leader_epoch, Standing.STORED, replica.durable))

    def damaged(self, replica: Replica) -> None:
        """A follower's data can't be used: its leader is to send a checkpoint."""
        stream = self._streams.get(replica.id)
        if stream is not None and replica.role is Role.FOLLOWER:
            epoch = replica.row.leader_epoch
            stream.answer(Ack(replica.id, epoch, Standing.NEEDS_CHECKPOINT, replica.durable))

    def age(self, replica: Replica) -> float:
        """How many seconds ago a follower's data was certainly the newest; infinite if that was never."""
        self._refresh(replica, self._streams.get(replica.id))
        return self._clock() - replica.fresh_at

    @staticmethod
    def _refresh(replica: Replica, stream: Stream | None) -> None:
        if replica.applied >= replica.mark:
            replica.fresh_at = max(replica.fresh_at, replica.mark_at)
        if stream is not None and replica.applied >= max(replica.leader_watermark, replica.epoch_start):
            replica.fresh_at = max(replica.fresh_at, stream.known_at)

    def _drop(self, partition_id: int) -> None:
        """Nothing more comes for it on its stream."""
        stream = self._streams.pop(partition_id, None)
        replica = self._replicas.get(partition_id)
        if replica is not None:
            self._refresh(replica, stream)

    async def _read(self, frames: AsyncIterator[bytes], stream: Stream) -> None:
        async for data in frames:
            try:
                frame = decode_frame(data)
            except wire.UNDECODABLE as error:
                raise MinkaError(Code.INVALID_ARGUMENT, f"a replication frame: {error}") from error
            for partition_id in frame.dropped:
                if self._streams.get(partition_id) is stream:
                    self._drop(partition_id)
            known_at = frame.echo or stream.known_at
            for append in frame.appends:
                self._take(append, stream, known_at)
            stream.known_at = known_at
            if len(frame.appends) >= _MANY:
                await turn()
            if frame.echo is not None:
                stream.beat()
            self._unstored += len(data)
            if self._unstored > _UNSTORED_BYTES:
                await self._committer.stored()
                self._unstored = 0

    def _take(self, append: Append, stream: Stream, known_at: float) -> None:
        replica = self._replicas.get(append.partition_id)
        follows = replica is not None and replica.role is Role.FOLLOWER
        if replica is None or not follows or replica.row.leader_epoch != append.leader_epoch:
            if append.probe:
                self._answer_later(append, stream)
            return  # one of the two is yet to be told of the newer row
        if append.probe:
            self._answer_probe(replica, stream)
        elif self._streams.get(replica.id) is stream and not replica.installing:
            self._append(replica, append, stream, known_at)

    def _answer_later(self, append: Append, stream: Stream) -> None:
        """When the row has come; a former leader that knows of no other asks in vain."""
        asked = self._asked.get(append.partition_id)
        if asked is None and len(self._asked) >= _MAX_ASKED:
            return
        if asked is None or asked[0] <= append.leader_epoch:
            self._asked[append.partition_id] = (append.leader_epoch, stream)

    def _answer_probe(self, replica: Replica, stream: Stream) -> None:
        self._streams[replica.id] = stream
        stream.unaligned.add(replica.id)
        replica.epoch_start = replica.mark = UNKNOWN  # until it is told
        if replica.log.base and not replica.data.exists():
            with suppress(MinkaError):
                replica.open()  # which says that it is damaged
        usable = replica.complete and not replica.installing and (replica.damage is None or replica.mending)
        standing = Standing.STORED if usable else Standing.NEEDS_CHECKPOINT
        kept = self._receiving.kept(replica.id)
        lineage = replica.log.lineage()
        stream.answer(Ack(replica.id, replica.row.leader_epoch, standing, replica.durable, lineage, kept))

    @failpoint("following.append")
    def _append(self, replica: Replica, append: Append, stream: Stream, known_at: float) -> None:
        log_ = replica.log
        if append.cut and append.prev_offset < log_.end and not self._cut(replica, append.prev_offset, stream):
            return
        if append.prev_offset != log_.end:
            text = (
                f"partition {replica.id}: the leader appends behind {append.prev_offset}, the log ends at {log_.end} "
                f"(base {log_.base}, durable {replica.durable}, applied {replica.applied})"
            )
            raise MinkaError(Code.INTERNAL, text)
        stream.unaligned.discard(replica.id)
        for entry in append.entries:
            log_.append(entry.leader_epoch, entry.body)
        if append.high_watermark != replica.leader_watermark or append.epoch_start != replica.epoch_start:
            self._refresh(replica, stream)
            replica.leader_watermark, replica.epoch_start = append.high_watermark, append.epoch_start
            if replica.applied >= replica.mark or replica.mark == UNKNOWN:
                replica.mark, replica.mark_at = max(append.high_watermark, append.epoch_start), known_at
        if append.entries or append.cut:
            is_barrier = replica.is_async and any(is_mark(entry.body) for entry in append.entries)
            self._committer.staged(replica, is_barrier=is_barrier)
        else:
            self._committer.advance(replica)

    def _cut(self, replica: Replica, end: int, stream: Stream) -> bool:
        """End the log where it is no longer the leader's; False if that can't be."""
        if replica.data.exists():
            try:
                replica.open()  # so that it is known what is committed for certain
            except MinkaError as error:
                if error.code is not Code.CORRUPT_DATA:
                    raise
                return False  # the leader hears of it
        if end >= replica.high_watermark:
            log.info("a log is cut", extra={"partition": replica.id, "at": end, "end": replica.log.end})
            replica.truncate(end)
            return True
        # What was committed is not the leader's: it was elected without having it, or disks have lost something.
        names = {"partition": replica.id, "committed": replica.high_watermark, "at_the_leader": end}
        log.error("the leader lacks what was committed here; this copy is replaced by the leader's", extra=names)
        stream.answer(Ack(replica.id, replica.row.leader_epoch, Standing.NEEDS_CHECKPOINT, replica.durable))
        return False
