"""Counts the answers that a Redis client doesn't take, until they have left, and watches if the client takes any."""

import asyncio
import time
from typing import Final

from minkad.process.memory import Share

_PROGRESS_S: Final = 0.5


class Untaken:
    """The untaken answers of one connection, counted while the transport has too many of them."""

    def __init__(self, transport: asyncio.Transport, share: Share) -> None:
        self.is_there = False
        self._transport = transport
        self._share = share
        self._bytes = 0  # taken from the share; the client may have taken some of them since
        self._progress: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The client stops taking answers."""
        self.is_there = True
        self._share.sending_since = time.monotonic()
        self.add(self._transport.get_write_buffer_size())
        self._watch_later(0)

    def add(self, size: int) -> None:
        """`size` more bytes wait."""
        self._bytes += size
        self._share.take(size)

    def end(self) -> None:
        """The client has taken all answers."""
        self.is_there = False
        self.stop_watching()
        self._share.give(self._bytes)
        self._share.sending_since, self._bytes = None, 0

    def stop_watching(self) -> None:
        """The connection is over."""
        if self._progress is not None:
            self._progress.cancel()
            self._progress = None

    def _watch_later(self, taken: int) -> None:
        self._progress = asyncio.get_running_loop().call_later(_PROGRESS_S, self._watch, taken)

    def _watch(self, taken: int) -> None:
        """Check that a slow client takes at least some bytes. `taken`: the bytes taken at the last check."""
        now_taken = self._bytes - self._transport.get_write_buffer_size()
        if now_taken > taken:
            self._share.sending_since = time.monotonic()
        self._watch_later(now_taken)
