"""Decides if the node reads more from a Redis client: only if there is room for commands, and for waiting answers."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from minkad.data_port.resp.intake import Intake
from minkad.data_port.resp.untaken import Untaken
from minkad.process import tasks
from minkad.process.memory import Share

UNCOUNTED_BYTES: Final = 16 * 1024
"""If a connection holds at most this many bytes, they aren't counted: any connection takes a little."""

_UNANSWERED_BYTES: Final = 1024 * 1024  # of commands; with more, nothing is read until all are answered
_ROOM_BYTES: Final = 64 * 1024  # when memory is short, each command, and each read, waits for this much
_UNREAD_S: Final = 10.0  # a part of a command may be kept this much longer, since the node doesn't read the rest


class Receiving:
    """The receiving of one connection."""

    def __init__(
        self,
        transport: asyncio.Transport,
        share: Share,
        intake: Intake,
        untaken: Untaken,
        begin_next: Callable[[], bool],
    ) -> None:
        """`begin_next` lets the next command begin soon; it returns False if no command has come."""
        self.is_reading = True
        self.counted = 0  # bytes taken from the share
        self._granted = 0  # bytes taken from the share for the next command
        self._transport = transport
        self._share = share
        self._intake = intake
        self._untaken = untaken
        self._begin_next = begin_next
        self._waiting: asyncio.Task[None] | None = None  # waits for `_ROOM_BYTES`

    def count(self, held: int) -> None:
        """`held` bytes are held now."""
        counted = held if held > UNCOUNTED_BYTES else 0
        self._share.take_until_answered(counted - self.counted)
        self.counted = counted
        if self.is_reading or not self._intake.is_inside:
            self._note_part(0.0)
        if counted:
            self.read_or_not()

    def read_or_not(self) -> None:
        """Read more, or stop reading, or ask for room first."""
        if self._transport.is_closing():
            return
        has_plenty = self._share.has_plenty
        most = _UNANSWERED_BYTES if has_plenty else 0
        if self._untaken.is_there or self._intake.unread > most:
            self._pause()
        elif has_plenty:
            self._resume()
        elif not self.is_reading or self._intake.is_inside:
            self._pause()
            self._ask_for_room()

    def has_room(self) -> bool:
        """True if there is room to begin one more command. If not, `begin_next` is called when there is room."""
        if self._share.has_room(_ROOM_BYTES):
            return True
        self._ask_for_room()
        return False

    def take_leave(self) -> bool:
        """True if room was granted for a command; the room is given back."""
        granted, self._granted = self._granted, 0
        if granted:
            self._share.give(granted)
        return granted > 0

    def stop(self) -> None:
        """The connection is over."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._begin_next = _nothing  # breaks a cycle with the connection, which would wait for garbage collection

    def _note_part(self, patience_s: float) -> None:
        """Watch how long a part of a command is kept."""
        self._share.receiving_since = time.monotonic() + patience_s if self._intake.is_inside else None

    def _pause(self) -> None:
        if self.is_reading:
            self.is_reading = False
            # The client can't finish its command while nothing is read, so it gets more time. But not for ever: all
            # clients may wait for the memory of each other's commands.
            self._note_part(_UNREAD_S)
            self._transport.pause_reading()

    def _resume(self) -> None:
        if not self.is_reading and not self._transport.is_closing():
            self.is_reading = True
            self._note_part(0.0)
            self._transport.resume_reading()

    def _ask_for_room(self) -> None:
        if self._waiting is None:
            self._waiting = tasks.start(self._await_room(), "room for a client", lambda _: self._transport.abort())

    async def _await_room(self) -> None:
        await self._share.reserve(_ROOM_BYTES)
        self._waiting = None
        if self._begin_next():
            self._granted += _ROOM_BYTES
            return
        self._share.give(_ROOM_BYTES)
        if not self._intake.unread and not self._untaken.is_there:
            self._resume()


def _nothing() -> bool:
    return False
