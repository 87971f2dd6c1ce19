"""A connection as a stream of messages, for a task: it waits for messages, and while the other side takes none."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from minka.errors import Code, MinkaError
from minka.wire.data_port import Connection, Kind

_UNREAD_BYTES: Final = 4 * 1024 * 1024  # of messages that the task has not taken; above this, none is read


class MessageStream:
    """A `Receiver`; for one task that reads and one that writes."""

    connection: Connection

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._unread_bytes = 0
        self._has_ended = False
        self._error: MinkaError | None = None
        self._wake: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
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
        """All that was sent has left."""
        self._writable.set()

    # For tasks

    async def messages(self) -> AsyncIterator[bytes]:
        """The messages until the other side ends them. Raises the error that ended the connection."""
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
        """Send the messages, as fast as the other side takes them, until they or the connection end."""
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
