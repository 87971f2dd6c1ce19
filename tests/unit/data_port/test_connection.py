"""A connection gives its receiver frames only while the receiver reads."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from minka.wire.data_port import Connection, Kind
from tests.unit.client.asking import until


class Receiver:
    """Notes the frames, and pauses reading after each third one."""

    connection: Connection

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.has_ended = False

    def received(self, content: bytes) -> None:
        self.frames.append(content)
        if len(self.frames) % 3 == 0:
            self.connection.pause_reading()

    def ended(self) -> None:
        self.has_ended = True

    def lost(self, error: object) -> None: ...
    def paused(self) -> None: ...
    def resumed(self) -> None: ...


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Receiver, Connection]]:
    """A receiver, and the connection that sends to it."""
    loop = asyncio.get_running_loop()
    receiver, ends = Receiver(), socket.socketpair()
    _, receiver.connection = await loop.create_connection(lambda: Connection(receiver), sock=ends[0])
    _, sender = await loop.create_connection(lambda: Connection(Receiver()), sock=ends[1])
    yield receiver, sender
    sender.close()
    receiver.connection.abort()


async def test_frames_of_one_read_wait_while_the_receiver_does_not_read() -> None:
    async with connected() as (receiver, sender):
        for number in range(8):
            sender.send(b"%d" % number)  # all leave in one write
        sender.send(b"", Kind.END)
        await until(lambda: bool(receiver.frames))
        for count in 3, 6:
            assert receiver.frames == [b"%d" % number for number in range(count)]
            assert not receiver.connection.is_reading
            receiver.connection.resume_reading()
            assert len(receiver.frames) == count, "in a later turn of the loop, not within the call"
            await until(lambda: len(receiver.frames) % 3 != 0 or not receiver.connection.is_reading)
        await until(lambda: receiver.has_ended)
        assert receiver.frames == [b"%d" % number for number in range(8)]


async def test_frames_that_waited_come_before_newer_ones() -> None:
    async with connected() as (receiver, sender):
        for number in range(5):
            sender.send(b"%d" % number)
        await until(lambda: bool(receiver.frames))
        for number in range(5, 8):
            sender.send(b"%d" % number)
        receiver.connection.resume_reading()
        await until(lambda: len(receiver.frames) == 6)
        receiver.connection.resume_reading()
        await until(lambda: len(receiver.frames) == 8)
        assert receiver.frames == [b"%d" % number for number in range(8)]


async def test_a_bug_of_the_receiver_ends_the_connection_also_after_a_pause() -> None:
    async with connected() as (receiver, sender):
        for number in range(4):
            sender.send(b"%d" % number)
        await until(lambda: len(receiver.frames) == 3)
        failed: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        receiver.frames = cast("list[bytes]", None)
        receiver.connection.resume_reading()
        await until(lambda: sender.is_over)
        assert len(failed) == 1
