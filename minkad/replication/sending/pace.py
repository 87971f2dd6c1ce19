"""The rate of checkpoints to and from a node that clients use: as fast as possible without making clients wait
noticeably longer.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Final

from minka.errors import MinkaError
from minkad.replication.background_task import BackgroundTask

Waited = tuple[float, int]

LOOK_S: Final = 0.25
LEAST_RATE: Final = 8e6  # bytes a second, at least, however long clients wait
_FIRST_RATE: Final = 16e6  # when clients come, or a copy begins while they are there
_STEP: Final = 0.5e6  # added at each look at which clients don't wait longer than usual: 2 MB/s in a second
_CUT: Final = 0.7
_WORSE: Final = 1.4  # times the usual mean. A stall that doubles the p99 adds about as much to the mean
_LEAST_WAIT_S: Final = 0.0005  # a shorter wait is never too long
_SMOOTH: Final = 0.1  # weight of the newest look in the usual wait: the mean of the last three seconds
_REST_LOOKS: Final = 4  # looks after the end of a copy that don't count for the usual wait
_QUIET_LOOKS: Final = 4  # looks without clients, after which nothing is held back
_PART_BYTES: Final = 128 * 1024  # taken at once while the rate is bounded, to avoid bursts
_BURST_S: Final = 0.02


class Pace:
    """One for all checkpoints of a node, both ways. It watches two waits: the mean time of clients' requests here, and
    the mean delay of the loop, since requests wait for the loop before they are timed. It learns the usual value of
    each while nothing is copied. The rate grows in steps while both are usual, and is cut when one isn't (AIMD, as in
    the congestion windows of TCP and LEDBAT). Without clients the rate is unbounded.
    """

    def __init__(
        self, clock: Callable[[], float], waits: Callable[[], Sequence[Waited]], fail: Callable[[MinkaError], None]
    ) -> None:
        """`waits` returns the total seconds since the start, and their number, first of clients' requests, then of
        other waits. Without clients' requests the others don't matter.
        """
        self.rate = inf  # bytes a second
        self._clock = clock
        self._waits = waits
        self._seen = waits()
        self._usual: list[float | None] = [None] * len(self._seen)
        self._needed: dict[object, float] = {}  # by copy: the rate without which it would not end
        self._free_at = 0.0
        self._taken = 0  # bytes since the last look
        self._looks_at_rest = 0
        self._quiet_looks = _QUIET_LOOKS
        self._task = BackgroundTask("pace of checkpoints", self._run, fail)
        self.start, self.close = self._task.start, self._task.close

    def parts(self, data: bytes) -> Iterator[bytes]:
        """The data in pieces, to be taken one by one."""
        if self.rate == inf:
            yield data
            return
        for start in range(0, len(data), _PART_BYTES):
            yield data[start : start + _PART_BYTES]

    def need(self, copy: object, rate: float) -> None:
        """The copy needs this rate, in bytes a second, or the writes outrun it: clients wait for it instead. 0: it
        needs nothing, or has ended.
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
        """Compare clients' waits since the last look with the usual ones."""
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
        elif copied / LOOK_S > self.rate / 2:  # else something else slows the copy down
            self.rate += _STEP


def _smoothed(usual: float | None, mean: float | None) -> float | None:
    if usual is None or mean is None:
        return mean if usual is None else usual
    return usual + _SMOOTH * (mean - usual)


def _is_worse(usual: float | None, mean: float | None) -> bool:
    return usual is not None and mean is not None and mean > max(_LEAST_WAIT_S, _WORSE * usual)
