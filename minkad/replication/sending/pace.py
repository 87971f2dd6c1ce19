"""Bounds the rate of checkpoints to and from a node: as fast as possible while clients don't wait noticeably longer."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Final

from minka.errors import MinkaError
from minkad.replication.background_task import BackgroundTask

Waited = tuple[float, int]

LOOK_S: Final = 0.25
LEAST_RATE: Final = 8e6  # bytes a second, at least, however long clients wait
_FIRST_RATE: Final = 16e6  # bytes a second, when clients come during a copy, or a copy begins while clients are there
_STEP: Final = 0.5e6  # bytes a second, added at each look with usual waits; four looks a second add 2 MB/s
_CUT: Final = 0.7  # the rate is multiplied by this at each look with too long waits
_WORSE: Final = 1.4  # a wait is too long above this multiple of its usual mean: so a p99 that has doubled is noticed
_LEAST_WAIT_S: Final = 0.0005  # a shorter wait is never too long
_SMOOTH: Final = 0.1  # the weight of the newest look in the usual wait, about the mean of the last three seconds
_REST_LOOKS: Final = 4  # the first looks after the end of a copy, which don't count for the usual wait
_QUIET_LOOKS: Final = 4  # after this many looks without clients' requests, the rate is unbounded
_PART_BYTES: Final = 128 * 1024  # a piece, while the rate is bounded: larger ones would be bursts
_BURST_S: Final = 0.02  # after a pause, at most the bytes of this time may go at once


class Pace:
    """One pace for all checkpoints of a node, sent and received. It watches two waits: the mean time of clients'
    requests, and the mean delay of the loop, where requests wait before their time is taken. It learns the usual value
    of each wait while nothing is copied. During a copy, the rate grows in steps while both waits are usual, and is
    reduced when one of them is too long (AIMD, as in the congestion windows of TCP and LEDBAT). Without clients'
    requests the rate is unbounded.
    """

    def __init__(
        self, clock: Callable[[], float], waits: Callable[[], Sequence[Waited]], fail: Callable[[MinkaError], None]
    ) -> None:
        """`waits` returns the total seconds since the start, and the number: first those of clients' requests, then
        those of each other wait.
        """
        self.rate = inf  # bytes a second, for all copies together
        self._clock = clock
        self._waits = waits
        self._seen = waits()  # at the last look
        self._usual: list[float | None] = [None] * len(self._seen)  # the usual mean of each wait; None: not known yet
        self._needed: dict[object, float] = {}  # by copy: the rate without which the copy would not end
        self._free_at = 0.0  # the next bytes may go at this time
        self._taken = 0  # bytes since the last look
        self._looks_at_rest = 0  # in a row, at which nothing had been copied
        self._quiet_looks = _QUIET_LOOKS  # in a row, without clients' requests
        self._task = BackgroundTask("pace of checkpoints", self._run, fail)
        self.start, self.close = self._task.start, self._task.close

    def parts(self, data: bytes) -> Iterator[bytes]:
        """The data in pieces. Call `take` for each."""
        if self.rate == inf:
            yield data
            return
        for start in range(0, len(data), _PART_BYTES):
            yield data[start : start + _PART_BYTES]

    def need(self, copy: object, rate: float) -> None:
        """Without this rate, in bytes a second, writes would outrun the copy: it gets the rate, even if clients wait
        for it. 0: the copy needs nothing, or has ended.
        """
        if rate:
            self._needed[copy] = rate
        else:
            self._needed.pop(copy, None)

    async def take(self, size: int) -> None:
        """Wait until `size` more bytes may be copied."""
        self._taken += size
        if self.rate == inf:
            return
        now = self._clock()
        rate = max(self.rate, sum(self._needed.values()))
        self._free_at = max(self._free_at, now - _BURST_S) + size / rate
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Compare the waits since the last look with the usual waits, and set the rate."""
        now, before = self._waits(), self._seen
        self._seen = now
        copied, self._taken = self._taken, 0
        self._looks_at_rest = 0 if copied else self._looks_at_rest + 1
        means = [
            (new[0] - old[0]) / (new[1] - old[1]) if new[1] > old[1] else None
            for new, old in zip(now, before, strict=True)
        ]
        if means[0] is None:
            self._quiet_looks += 1
            if self._quiet_looks >= _QUIET_LOOKS:
                self.rate = inf
            return
        self._quiet_looks = 0
        if not copied:
            self.rate = _FIRST_RATE
            if self._looks_at_rest > _REST_LOOKS or self._usual[0] is None:
                self._usual = [_smoothed(usual, mean) for usual, mean in zip(self._usual, means, strict=True)]
        elif self.rate == inf:
            self.rate = _FIRST_RATE
        elif any(map(_is_worse, self._usual, means)):
            self.rate = max(LEAST_RATE, _CUT * min(self.rate, copied / LOOK_S))
        elif copied / LOOK_S > self.rate / 2:  # a copy at a lower rate isn't slowed down by this pace
            self.rate += _STEP


def _smoothed(usual: float | None, mean: float | None) -> float | None:
    if usual is None or mean is None:
        return mean if usual is None else usual
    return usual + _SMOOTH * (mean - usual)


def _is_worse(usual: float | None, mean: float | None) -> bool:
    return usual is not None and mean is not None and mean > max(_LEAST_WAIT_S, _WORSE * usual)
