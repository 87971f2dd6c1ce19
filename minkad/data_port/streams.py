"""A connection as a stream of messages: a task waits for messages to come, or until the other side takes more."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from minka.errors import Code, MinkaError
from minka.wire.data_port import Connection, Kind

_UNREAD_BYTES: Final = 4 * 1024 * 1024  # messages that the task has not taken; with more, reading pauses


class MessageStream:
    """A `Receiver`, for at most one task that reads and one task that writes."""

    connection: Connection

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()  # that the task has not taken
        self._unread_bytes = 0  # of these messages; above the limit, reading is paused
        self._has_ended = False
        self._error: MinkaError | None = None  # set if the connection was lost before the other side's end
        self._wake: asyncio.Future[None] | None = None  # the reading task waits for it
        self._writable = asyncio.Event()  # not set while the other side doesn't take what is sent
        self._writable.set()

    # The receiver

    def received(self, content: bytes) -> None:
        """A message has come."""
        self._messages.append(content)
        self._unread_bytes += len(content)
        if self._unread_bytes > _UNREAD_BYTES:
            self.connection.pause_reading()
        self._wake_up()

    def ended(self) -> None:
        """Nothing more comes."""
        self._has_ended = True
        self._wake_up()

    def lost(self, error: MinkaError | None) -> None:
        """The connection is over."""
        if not self._has_ended:
            self._error = error or MinkaError(Code.UNREACHABLE, "the other side has closed the connection")
        self._has_ended = True
        self._writable.set()
        self._wake_up()

    def paused(self) -> None:
        """The other side doesn't take the messages sent to it."""
        self._writable.clear()

    def resumed(self) -> None:
        """All sent messages have left."""
        self._writable.set()

    # For tasks

    async def messages(self) -> AsyncIterator[bytes]:
        """The messages, until the other side's end. Raises the error if the connection is lost before."""
        while True:
            while self._messages:
                message = self._messages.popleft()
                was_full = self._unread_bytes > _UNREAD_BYTES
                self._unread_bytes -= len(message)
                if was_full and self._unread_bytes <= _UNREAD_BYTES:
                    self.connection.resume_reading()
                yield message
            if self._has_ended:
                if self._error is not None:
                    raise self._error
                return
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    async def send_all(self, messages: AsyncIterator[bytes]) -> None:
        """Send the messages as fast as the other side takes them, until the last message or the connection's end."""
        async for message in messages:
            self.connection.send(message)
            await self._writable.wait()
            if self.connection.is_over:
                return

    def end(self) -> None:
        """Tell the other side that nothing more comes."""
        self.connection.send(b"", Kind.END)

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
