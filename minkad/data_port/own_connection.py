"""A connection of a client to the node in its own process: what goes over the data port elsewhere stays in memory."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from minka.v1.admin_pb2 import GetTableRequest, GetTableResponse
from minka.wire.data_port import Connection, Deaf, Receiver


@dataclass(frozen=True)
class ThisNode:
    """This node, as a client in its process sees it: an `OwnNode`. `table` answers like Metadata.GetTable,
    and `serve` makes the node's side of a connection.
    """

    address: str
    data_address: str
    table: Callable[[GetTableRequest], Awaitable[GetTableResponse]]
    serve: Callable[[Connection], Receiver]

    async def connect(self, receiver: Receiver) -> Connection:
        """A connection for reads and writes. Raises OVERLOADED."""
        return connect_here(receiver, self.serve)


def connect_here(receiver: Receiver, serve: Callable[[Connection], Receiver]) -> Connection:
    """A connection whose client is `receiver`. `serve` makes the receiver of the node's side. Raises its MinkaError."""
    ours = Connection(receiver)
    theirs = Connection(Deaf())
    theirs.receiver = serve(theirs)
    here, there = _End(ours), _End(theirs)
    here.other, there.other = there, here
    ours.connection_made(here)
    theirs.connection_made(there)
    return ours


class _End(asyncio.Transport):
    """One end of a connection. The protocol of the other end gets what is written here in a later turn of the loop."""

    other: "_End"

    def __init__(self, protocol: Connection) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._arrived: deque[bytes] = deque()  # from the other end, and not read yet
        self._is_reading = True
        self._is_over = False
        self._is_full = False
        self._high = 0

    # Writing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """With more than `high` unread bytes, the protocol pauses until the other end has read all."""
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        """The bytes that the other end hasn't read."""
        return sum(map(len, self.other._arrived))

    def write(self, data: Any) -> None:
        """Let the other end read these bytes."""
        if self._is_over:
            return
        self.other._arrived.append(bytes(data))
        self._loop.call_soon(self.other._read)
        if not self._is_full and self.get_write_buffer_size() > self._high:
            self._is_full = True
            self._protocol.pause_writing()

    def _was_read(self) -> None:
        if self._is_full and not self._is_over:
            self._is_full = False
            self._protocol.resume_writing()

    # Reading

    def pause_reading(self) -> None:
        """Give the protocol nothing more."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Give the protocol what has arrived."""
        self._is_reading = True
        self._loop.call_soon(self._read)

    def _read(self) -> None:
        while self._arrived and self._is_reading and not self._is_over:
            self._protocol.data_received(self._arrived.popleft())
        if not self._arrived:
            self.other._was_read()

    # The end

    def close(self) -> None:
        """End the connection once the other end has got everything that it reads by then."""
        for end in (self, self.other):
            self._loop.call_soon(end._end)

    def abort(self) -> None:
        """End the connection."""
        self.close()

    def is_closing(self) -> bool:
        """True after the end."""
        return self._is_over

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._arrived.clear()
            self._protocol.connection_lost(None)
