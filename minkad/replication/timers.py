"""Wakes replicas at the times that they asked for."""

import asyncio
from collections.abc import Callable
from typing import Final

from minkad.core.replication.instructions import WakeAt

_TIMER_S: Final = 0.001  # uvloop counts in milliseconds


class Timers:
    """For the loop's thread."""

    def __init__(self, tick: Callable[[int, float], None], clock: Callable[[], float]) -> None:
        """`tick` gets the partition's id, and the time by `clock`."""
        self._tick = tick
        self._clock = clock
        self._closed = False

    def wake_at(self, wake: WakeAt) -> None:
        """Wake the replica at this time, or later."""
        delay = max(0.0, wake.at - self._clock())
        asyncio.get_running_loop().call_later(delay, self._ring, wake)

    def _ring(self, wake: WakeAt) -> None:
        if self._closed:
            return
        if (now := self._clock()) < wake.at:  # half of uvloop's timers are up to a millisecond early
            asyncio.get_running_loop().call_later(_TIMER_S, self._ring, wake)
        else:
            self._tick(wake.partition_id, now)

    def close(self) -> None:
        """Wake nothing from now on."""
        self._closed = True
