"""The target's side: where a replica stands, what it appends, and a checkpoint that takes the place of its data."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from minka.errors import Code, MinkaError
from minkad.failpoints import failpoint
from minkad.shard.committer import Committer
from minkad.shard.frames import (
    Ack,
    Append,
    ShipHeader,
    Shipped,
    Standing,
    decode_appends,
    decode_header,
    decode_trailer,
    encode,
)
from minkad.shard.replica import Replica, Role
from minkad.storage.checkpoint import CheckpointFile, Incoming
from minkad.storage.data_database import DataDatabase
from minkad.storage.log_database import LogDatabase

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024


class _Stream:
    """One leader's stream: the newest answer for each partition that is yet to be sent."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self._acks: dict[int, Ack] = {}

    def answer(self, ack: Ack) -> None:
        waiting = self._acks.get(ack.partition_id)
        if waiting is not None and waiting.answers_probe and not ack.answers_probe:
            return  # what comes behind the probe's answer follows from it
        self._acks[ack.partition_id] = ack
        self.wake.set()

    def take(self) -> list[Ack]:
        self.wake.clear()
        acks, self._acks = list(self._acks.values()), {}
        return acks


class Following:
    """Serves the leaders of what is followed here."""

    def __init__(
        self,
        replicas: Mapping[int, Replica],
        log_db: LogDatabase,
        committer: Committer,
        incoming: Path,
        new_data: Callable[[int], DataDatabase],
    ) -> None:
        self._replicas = replicas
        self._log_db = log_db
        self._committer = committer
        self._incoming = incoming
        self._new_data = new_data
        self._streams: dict[int, _Stream] = {}  # partition -> where its durable offset is reported
        self._asked: dict[int, tuple[int, _Stream]] = {}  # partition -> a probe that came before the row

    async def append(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """One stream from a leader's node: its frames in, the answers out. Raises INVALID_ARGUMENT, INTERNAL."""
        stream = _Stream()
        reader = asyncio.create_task(self._read(frames, stream))
        reader.add_done_callback(lambda _: stream.wake.set())
        try:
            while True:
                await stream.wake.wait()
                acks = stream.take()
                if acks:
                    yield encode(acks)
                if reader.done():
                    reader.result()
                    return
        finally:
            reader.cancel()
            self._forget(stream)

    def told(self, replica: Replica) -> None:
        """The replica's row has changed: answer who asked for it before."""
        asked = self._asked.get(replica.id)
        if asked is not None and replica.role is Role.FOLLOWER and asked[0] == replica.row.leader_epoch:
            del self._asked[replica.id]
            self._answer_probe(replica, asked[1])

    def durable(self, replica: Replica) -> None:
        """More of a follower's log is durable."""
        stream = self._streams.get(replica.id)
        if stream is not None and replica.role is Role.FOLLOWER:
            stream.answer(Ack(replica.id, replica.row.leader_epoch, Standing.DURABLE, replica.durable))

    def _forget(self, stream: _Stream) -> None:
        self._streams = {key: value for key, value in self._streams.items() if value is not stream}
        self._asked = {key: value for key, value in self._asked.items() if value[1] is not stream}

    async def _read(self, frames: AsyncIterator[bytes], stream: _Stream) -> None:
        async for frame in frames:
            try:
                appends = decode_appends(frame)
            except msgspec.MsgspecError as error:
                raise MinkaError(Code.INVALID_ARGUMENT, f"a replication frame: {error}") from error
            for append in appends:
                self._take(append, stream)

    def _take(self, append: Append, stream: _Stream) -> None:
        replica = self._replicas.get(append.partition_id)
        follows = replica is not None and replica.role is Role.FOLLOWER
        if replica is None or not follows or replica.row.leader_epoch != append.leader_epoch:
            if append.probe:
                self._asked[append.partition_id] = (append.leader_epoch, stream)
            return  # one of the two is yet to be told of the newer row
        if append.probe:
            self._answer_probe(replica, stream)
        elif not replica.installing:
            self._append(replica, append)

    def _answer_probe(self, replica: Replica, stream: _Stream) -> None:
        self._streams[replica.id] = stream
        standing = Standing.DURABLE
        if not replica.complete or replica.installing:
            standing = Standing.NEEDS_CHECKPOINT
        elif replica.log.end == 0:
            standing = Standing.FRESH
        elif replica.followed_epoch != replica.row.leader_epoch:
            standing = Standing.NEEDS_CHECKPOINT
        stream.answer(Ack(replica.id, replica.row.leader_epoch, standing, replica.durable, True))

    @failpoint("following.append")
    def _append(self, replica: Replica, append: Append) -> None:
        log, end = replica.log, replica.log.end
        if append.prev_offset > end:
            text = (
                f"partition {replica.id}: the leader appends behind {append.prev_offset}, the log ends at {end} "
                f"(base {log.base}, durable {replica.durable}, applied {replica.applied})"
            )
            raise MinkaError(Code.INTERNAL, text)
        if end == 0 and replica.followed_epoch != append.leader_epoch:
            replica.followed_epoch = append.leader_epoch
            replica.stage_meta(self._log_db)
        # After a new start of the stream, the leader repeats what was not acknowledged.
        for entry in append.entries[end - append.prev_offset :]:
            log.append(entry.leader_epoch, entry.body)
        replica.leader_watermark = append.high_watermark
        self._committer.staged(replica)

    async def install(self, messages: AsyncIterator[bytes]) -> bytes:
        """Take a checkpoint in and put it in place; a `Shipped`, encoded. Nothing is changed until all of it came.

        Raises NOT_LEADER, OVERLOADED, INVALID_ARGUMENT, CORRUPT_DATA, STORAGE_FAILED.
        """
        header = await _decoded_header(messages)
        replica = self._following(header)
        if replica.installing:
            raise MinkaError(Code.OVERLOADED, f"partition {header.partition_id} is being received already")
        replica.installing = True
        incoming = Incoming(self._incoming / str(replica.id), [CheckpointFile(*file) for file in header.files])
        try:
            await self._receive(incoming, messages)
            async with replica.lock:
                if self._following(header) is not replica:
                    raise MinkaError(Code.NOT_LEADER, f"partition {replica.id} has changed hands")
                await self._install(replica, incoming)
                return encode(Shipped(replica.durable))
        except BaseException:
            await incoming.discard()
            raise
        finally:
            replica.installing = False

    def _following(self, header: ShipHeader) -> Replica:
        replica = self._replicas.get(header.partition_id)
        if replica is None or replica.role is not Role.FOLLOWER or replica.row.leader_epoch != header.leader_epoch:
            text = f"partition {header.partition_id} is not followed here at leader_epoch {header.leader_epoch}"
            raise MinkaError(Code.NOT_LEADER, text)
        return replica

    @failpoint("following.receive")
    async def _receive(self, incoming: Incoming, messages: AsyncIterator[bytes]) -> None:
        found = await incoming.write(_content(incoming, messages))
        try:
            trailer = decode_trailer(await anext(messages))
        except (StopAsyncIteration, msgspec.MsgspecError) as error:
            raise MinkaError(Code.INVALID_ARGUMENT, "a checkpoint without its checksums") from error
        incoming.check(trailer.checksums, found)

    async def _install(self, replica: Replica, incoming: Incoming) -> None:
        await self._clear(replica)
        await self._put_in_place(replica, incoming)
        await self._take_over(replica)

    @failpoint("following.clear")
    async def _clear(self, replica: Replica) -> None:
        """From here on, durably, what is on disk is not to be used."""
        replica.complete = False
        replica.drop_pending()
        replica.log.reset(0, 0)
        replica.stage_meta(self._log_db)
        await self._log_db.sync()
        await replica.data.close()

    @failpoint("following.install")
    async def _put_in_place(self, replica: Replica, incoming: Incoming) -> None:
        await incoming.install(replica.data.path)
        replica.data = self._new_data(replica.id)
        replica.data.open()

    @failpoint("following.take_over")
    async def _take_over(self, replica: Replica) -> None:
        """The log goes on behind the checkpoint."""
        applied = replica.data.applied
        replica.log.reset(applied.offset, applied.leader_epoch)
        replica.complete = True
        replica.followed_epoch = replica.row.leader_epoch
        replica.durable = replica.high_watermark = replica.applied = replica.flushed = applied.offset
        replica.stage_meta(self._log_db)
        await self._log_db.sync()


async def _decoded_header(messages: AsyncIterator[bytes]) -> ShipHeader:
    try:
        return decode_header(await anext(messages))
    except (StopAsyncIteration, msgspec.MsgspecError) as error:
        raise MinkaError(Code.INVALID_ARGUMENT, "a checkpoint without its header") from error


async def _content(incoming: Incoming, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while not incoming.complete:
        try:
            yield await anext(messages)
        except StopAsyncIteration:
            return
