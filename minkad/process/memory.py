"""The memory of clients' requests and answers at a node: all counted together, until the bytes have left.

Each stream and each call has a share. No share has a guaranteed part: its limit depends on the free memory. So the
shares together can't take all memory, and an empty share always finds some (the dynamic thresholds of Choudhury and
Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998). If several shares wait, the share
that has held least comes first: slow clients wait for each other, and a quick client doesn't wait for them. A client
that takes no answers at all loses its stream when others wait for memory, as a slow client of Redis or NATS does.
"""

import asyncio
import ctypes
from collections.abc import Callable
from typing import Final

from minka.errors import Code, MinkaError

STALLED_S: Final = 2.0  # a stream that stood still for this long may be ended when others wait
_RELIEF_S: Final = 0.25  # between two looks for such streams
_LITTLE: Final = 96 * 1024  # a share with at most this counts as empty
_FIRST_PART: Final = 2  # an empty share gets at most half of the free memory,
_MORE_PART: Final = 16  # and any other share stays below a sixteenth of it
_SHARE_BYTES: Final = 32 * 1024  # about the memory of a stream or call, besides its content
_SHARES_PART: Final = 4  # at most a quarter of the memory is for these bytes of all shares


class Memory:
    """The memory of all clients, and the shares that wait for some. For the loop's thread."""

    def __init__(
        self,
        limit: int,
        clock: Callable[[], float],
        trim: Callable[[], None] | None = None,
        most_shares: int | None = None,
    ) -> None:
        """`limit` in bytes. `trim` returns free memory to the system; it is called on a thread while shares wait, and
        after much was given back. `most_shares`: a limit of shares, in addition to the limit by memory.
        """
        self.limit: Final = limit
        self._most_shares = most_shares
        self.used = 0
        self.ended = 0  # streams that were ended because others waited for memory
        self._clock = clock
        self._trim = trim
        self._trimming: asyncio.Future[None] | None = None
        self._shares: set[Share] = set()
        self._waiting: dict[asyncio.Future[None], tuple[Share, int, Callable[[], int]]] = {}  # see `wait`
        self._is_admitting = False  # True: `_admit` is about to be called
        self._relief: asyncio.TimerHandle | None = None  # calls `_relieve`

    def share(self, on_revoke: Callable[[], object] = lambda: None) -> "Share":
        """A share for a stream or a call, which must close the share. `on_revoke` is called if the stream must end,
        since others need its memory.

        Raises OVERLOADED if there are too many shares.
        """
        if len(self._shares) >= self.max_shares:
            raise MinkaError(Code.OVERLOADED, f"{len(self._shares)} streams or calls of clients are open at this node")
        share = Share(self, on_revoke)
        self._shares.add(share)
        share.take(_SHARE_BYTES)
        return share

    @property
    def max_shares(self) -> int:
        """The most shares at once."""
        most = self.limit // (_SHARE_BYTES * _SHARES_PART) + 1
        return most if self._most_shares is None else min(most, self._most_shares)

    @property
    def now(self) -> float:
        """Seconds of the memory's clock."""
        return self._clock()

    def close(self, share: "Share") -> None:
        """Forget a share that holds nothing."""
        self._shares.discard(share)

    def moved(self, size: int) -> None:
        """Count `size` more bytes; below 0: fewer bytes."""
        self.used += size
        if size < 0 and self._waiting:
            self._admit_soon()
        if self._relief is None and self._is_much:
            self._relief = asyncio.get_running_loop().call_later(_RELIEF_S, self._relieve)

    @property
    def _is_much(self) -> bool:
        return self.used * _MORE_PART > self.limit

    @property
    def is_waited_for(self) -> bool:
        """True if a share waits for memory: it comes before shares that ask now."""
        return bool(self._waiting)

    async def wait(self, share: "Share", size: int, timeout: float | None, same_answer: Callable[[], int]) -> bool:
        """Take `size` bytes for the share when they fit and its turn has come; False if that takes longer than
        `timeout`. `same_answer`: see `Share.fits`.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting[future] = share, size, same_answer
        self._admit_soon()
        if self._relief is None:
            self._relief = loop.call_later(_RELIEF_S, self._relieve)
        try:
            await asyncio.wait([future], timeout=timeout)
        except asyncio.CancelledError:
            if future.done():
                share.give(size)
            raise
        finally:
            self._waiting.pop(future, None)
        return future.done()

    def _admit_soon(self) -> None:
        if not self._is_admitting:
            self._is_admitting = True
            asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        self._is_admitting = False
        now = self._clock()
        for future, (share, size, same_answer) in sorted(
            self._waiting.items(), key=lambda waiter: waiter[1][0].mean(now)
        ):
            if share.fits(size, same_answer()):
                share.take(size)
                del self._waiting[future]
                future.set_result(None)

    def _relieve(self) -> None:
        """While a share waits and more than half of the memory is used, end streams that take nothing. Return free
        memory to the system meanwhile, and again after most of the memory was given back.
        """
        self._relief = None
        now = self._clock()
        stalled = [share for share in self._shares if share.is_stalled(now)] if self._waiting else []
        used = self.used
        for share in sorted(stalled, key=lambda share: share.held, reverse=True):
            if 2 * used <= self.limit:
                break
            used -= share.held  # the share gives these bytes back when its stream has ended
            self.ended += 1
            share.revoke()
        self._admit()
        is_over = not (self._waiting or self._is_much)
        is_trimming = self._trimming is not None and not self._trimming.done()
        if self._trim is not None and not is_trimming and (self._waiting or is_over):
            self._trimming = asyncio.get_running_loop().run_in_executor(None, self._trim)
        if not is_over:
            self._relief = asyncio.get_running_loop().call_later(_RELIEF_S, self._relieve)


def malloc_trim() -> None:
    """Give free pages back to the system. On its own, glibc keeps all pages below a block in use: after large answers
    to many clients the process stayed at four times its size.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # None: another libc
        trim(0)


class Share:
    """The share of one stream or call."""

    __slots__ = (
        "_at",
        "_began",
        "_byte_seconds",
        "_is_closed",
        "_memory",
        "_on_revoke",
        "held",
        "held_until_answered",
        "is_revoked",
        "receiving_since",
        "sending_since",
    )

    def __init__(self, memory: Memory, on_revoke: Callable[[], object]) -> None:
        self.held = 0  # bytes
        self.held_until_answered = 0  # of these: bytes that leave only after a request is answered
        self.sending_since: float | None = None  # since when a piece of an answer is on its way, by the memory's clock
        self.receiving_since: float | None = None  # when the last piece of an incomplete request came
        self.is_revoked = False
        self._began = self._at = memory.now  # `_at`: when `held` last changed
        self._byte_seconds = 0.0  # held bytes times seconds, summed up until `_at`
        self._memory = memory
        self._on_revoke = on_revoke
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """True if the stream or call is over: nobody takes its answers."""
        return self._is_closed

    @property
    def has_plenty(self) -> bool:
        """True if there is room for any answer: a quick check that is nearly always true."""
        limit = self._memory.limit
        return self._memory.used * 2 <= limit and (self.held - self.held_until_answered) * 64 <= limit

    @property
    def has_plenty_for_requests(self) -> bool:
        """Like `has_plenty`, for more requests. Requests that aren't answered yet count here: answers don't wait until
        they leave, but the client may wait.
        """
        return self.has_plenty and self.held * 64 <= self._memory.limit

    def has_room(self, size: int, same_answer: int = 0) -> bool:
        """True if the share may take `size` more bytes now. `same_answer`: see `fits`."""
        return self.has_plenty or (not self._memory.is_waited_for and self.fits(size, same_answer))

    def fits(self, size: int, same_answer: int = 0) -> bool:
        """True if the share may take `size` more bytes in its turn. `same_answer`: the bytes that it already holds for
        the answer. They don't count, since they leave only together with the further bytes.
        """
        free = self._memory.limit - self._memory.used
        held = self.held - self.held_until_answered - same_answer
        if held <= _LITTLE:
            others = self._memory.used - self.held
            return size * _FIRST_PART <= free or others * _MORE_PART <= self._memory.limit  # any size, if alone
        return (held + size) * _MORE_PART <= free

    async def reserve(self, size: int, until: float | None = None, same_answer: Callable[[], int] = lambda: 0) -> bool:
        """Take `size` bytes as soon as there is room. False if there is no room by `until`, a time of the loop's clock.
        `same_answer`: see `fits`.
        """
        if self.has_room(size, same_answer()):
            self.take(size)
            return True
        left = None if until is None else max(0.0, until - asyncio.get_running_loop().time())
        return await self._memory.wait(self, size, left, same_answer)

    def take(self, size: int) -> None:
        """Count `size` bytes that are here already, with or without room."""
        if not self._is_closed:
            now = self._memory.now
            self._byte_seconds += self.held * (now - self._at)
            self._at = now
            self.held += size
            self._memory.moved(size)

    def take_until_answered(self, size: int) -> None:
        """Count bytes that leave only after the request is answered: the request doesn't wait for them. Below zero:
        count the bytes off.
        """
        self.held_until_answered += size
        self.take(size)

    def give(self, size: int) -> None:
        """Count off `size` bytes, which have left."""
        self.take(-size)

    def mean(self, now: float) -> float:
        """The mean number of bytes that the share has held."""
        return (self._byte_seconds + self.held * (now - self._at)) / (now - self._began + 1.0)

    def close(self) -> None:
        """Give back all held bytes; bytes taken from now on don't count."""
        self.give(self.held)
        self._is_closed = True
        self._memory.close(self)

    def is_stalled(self, now: float) -> bool:
        """True if for `STALLED_S` the client has taken nothing, or has sent nothing of the rest of a request."""
        since = [at for at in (self.sending_since, self.receiving_since) if at is not None]
        return not self.is_revoked and any(now - at > STALLED_S for at in since)

    def revoke(self) -> None:
        """End the stream."""
        self.is_revoked = True
        self._on_revoke()
