"""What clients' requests and answers take of a node's memory: counted until the bytes have left, all together.

Each stream and each call has a share. Nobody is promised a part: what a share may have grows with what is free, so that
many can't take all, and who has nothing yet always finds some (the dynamic thresholds of Choudhury and Hahne, "Dynamic
Queue Length Thresholds for Shared-Memory Packet Switches", 1998). Who doesn't take its answers loses its stream when
others wait for memory, as a slow client of Redis or NATS does.
"""

import asyncio
from collections.abc import Callable
from typing import Final

STALLED_S: Final = 2.0  # a stream that has taken nothing for so long may be ended when others wait
_RELIEF_S: Final = 0.25  # between two looks for such streams
_LITTLE: Final = 64 * 1024  # a share with no more than this counts as one with nothing
_FIRST_PART: Final = 2  # a share with nothing gets up to a half of what is free,
_MORE_PART: Final = 16  # and any other stays below a sixteenth


class Memory:
    """For the loop's thread."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        """`limit` in bytes."""
        self.limit: Final = limit
        self.used = 0
        self.ended = 0  # streams, because others waited for what they held
        self._clock = clock
        self._shares: set[Share] = set()
        self._waiting: dict[Share, asyncio.Future[None]] = {}  # first come, first looked at
        self._looks = False
        self._relief: asyncio.TimerHandle | None = None

    def share(self, on_revoke: Callable[[], None] = lambda: None) -> "Share":
        """For a stream or a call; it has to be closed. `on_revoke`: it is to end, since others need what it holds."""
        share = Share(self, on_revoke)
        self._shares.add(share)
        return share

    def close(self, share: "Share") -> None:
        """Forget the share. It holds nothing."""
        self._shares.discard(share)

    def moved(self, size: int) -> None:
        """So many bytes more, or fewer, are used."""
        self.used += size
        if size < 0 and self._waiting and not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_soon(self._look)

    def changed(self, share: "Share") -> asyncio.Future[None]:
        """Done when there may be room for what the share wants. Wait for it with asyncio.wait: others do, too."""
        future = self._waiting.get(share)
        if future is None:
            loop = asyncio.get_running_loop()
            future = self._waiting[share] = loop.create_future()
            if self._relief is None:
                self._relief = loop.call_later(_RELIEF_S, self._relieve)
        return future

    def _look(self) -> None:
        self._looks = False
        for share in [share for share in self._waiting if share.has_room(share.wanted)]:
            self._waiting.pop(share).set_result(None)

    def _relieve(self) -> None:
        """End streams that take nothing, while somebody waits and more than a half is used."""
        self._relief = None
        now = self._clock()
        stalled = [share for share in self._shares if share.is_stalled(now)]
        for share in sorted(stalled, key=lambda share: share.held, reverse=True):
            if 2 * self.used <= self.limit:
                break
            self.ended += 1
            share.revoke()
        self._look()
        if self._waiting:
            self._relief = asyncio.get_running_loop().call_later(_RELIEF_S, self._relieve)


class Share:
    """What one stream or call holds."""

    __slots__ = ("_is_closed", "_memory", "_on_revoke", "held", "is_revoked", "sending_since", "wanted")

    def __init__(self, memory: Memory, on_revoke: Callable[[], None]) -> None:
        self.held = 0  # bytes
        self.wanted = 0  # bytes, by the last who waits
        self.sending_since: float | None = None  # the piece of an answer that is on its way, by the memory's clock
        self.is_revoked = False
        self._memory = memory
        self._on_revoke = on_revoke
        self._is_closed = False

    @property
    def has_plenty(self) -> bool:
        """Whether there is room for any answer: true for nearly everybody nearly always, and quickly said."""
        limit = self._memory.limit
        return self._memory.used * 2 <= limit and self.held * 64 <= limit

    def has_room(self, size: int) -> bool:
        """Whether it may take so many bytes more."""
        free = self._memory.limit - self._memory.used
        if self.held <= _LITTLE:
            return size * _FIRST_PART <= free
        return (self.held + size) * _MORE_PART <= free

    async def room(self, size: int, until: float | None = None) -> bool:
        """Wait until it may take so many bytes more; False when it may not by `until`, of the loop's clock."""
        loop = asyncio.get_running_loop()
        while not self.has_room(size):
            if self._is_closed or self.is_revoked:
                return False
            left = None if until is None else until - loop.time()
            if left is not None and left <= 0:
                return False
            self.wanted = size
            await asyncio.wait([self._memory.changed(self)], timeout=left)
        return True

    def take(self, size: int) -> None:
        """So many bytes are here, whether there was room or not."""
        if not self._is_closed:
            self.held += size
            self._memory.moved(size)

    def give(self, size: int) -> None:
        """So many bytes have left."""
        if not self._is_closed:
            self.held -= size
            self._memory.moved(-size)

    def keep(self, size: int) -> None:
        """Give all but so many bytes."""
        self.give(max(0, self.held - size))

    def close(self) -> None:
        """Nothing is held any more, and what is taken from now on doesn't count."""
        self.give(self.held)
        self._is_closed = True
        self._memory.close(self)

    def is_stalled(self, now: float) -> bool:
        """Whether whoever it is for has taken nothing for long."""
        return not self.is_revoked and self.sending_since is not None and now - self.sending_since > STALLED_S

    def revoke(self) -> None:
        """The stream is to end."""
        self.is_revoked = True
        self._on_revoke()
