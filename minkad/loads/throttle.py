"""The rate of uploads to this node: slower while clients wait longer."""

import asyncio
from collections.abc import Callable
from typing import Final

_BURST_S: Final = 0.1
_LOOK_S: Final = 0.25
_WORSE: Final = 3.0  # times the usual wait of clients
_LEAST_WAIT_S: Final = 0.002  # a shorter wait is never too long
_LEAST_RATE: Final = 1024.0 * 1024
_EASE: Final = 1.25
_SMOOTH: Final = 0.2  # weight of the newest look in the usual wait


class Throttle:
    """Clients' wait is the mean time of their requests at this node. The throttle learns the usual wait while nothing
    is uploaded: 2 ms, for example. While uploads run and the wait is over 6 ms, each look halves the rate; otherwise
    each look raises the rate by a quarter, until it no longer limits uploads. (Additive increase would be too slow for
    loads that take a minute.)
    """

    def __init__(self, clock: Callable[[], float], client_seconds: Callable[[], tuple[float, int]]) -> None:
        """`client_seconds` returns the total seconds of all clients' requests since the start, and their number."""
        self._clock = clock
        self._client_seconds = client_seconds
        self._free_at = 0.0  # when all bytes taken so far have come, at the rate
        self._rate = float("inf")  # bytes a second, for all loads together
        self._usual: float | None = None  # the usual wait, in seconds; None until a look has found requests
        self._looked_at = float("-inf")
        self._seen = (0.0, 0)  # the result of `client_seconds` at the last look
        self._taken = 0  # bytes since the last look

    async def take(self, size: int) -> None:
        """Wait until `size` more bytes may come."""
        now = self._clock()
        self._adjust_rate(now)
        self._taken += size
        if self._rate == float("inf"):
            return
        self._free_at = max(self._free_at, now - _BURST_S) + size / self._rate
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)

    def _adjust_rate(self, now: float) -> None:
        since = now - self._looked_at
        if since < _LOOK_S:
            return
        seconds, count = self._client_seconds()
        new_seconds, new_count = seconds - self._seen[0], count - self._seen[1]
        self._seen, self._looked_at = (seconds, count), now
        rate, self._taken = self._taken / since, 0
        if not new_count:
            self._rate *= _EASE
            return
        wait = new_seconds / new_count
        if since > 4 * _LOOK_S or self._usual is None:  # nothing was uploaded
            usual = wait if self._usual is None else self._usual
            self._usual = usual + _SMOOTH * (wait - usual)
        elif wait > max(_LEAST_WAIT_S, _WORSE * self._usual):
            self._rate = max(_LEAST_RATE, min(self._rate, rate) / 2)
        else:
            self._rate *= _EASE
            if self._rate > 4 * max(rate, _LEAST_RATE):
                self._rate = float("inf")
