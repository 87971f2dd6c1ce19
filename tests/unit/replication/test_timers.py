"""Timers wake each replica at the time that it asked for, or later."""

import asyncio
import time

from minkad.core.replication.instructions import WakeAt
from minkad.replication.timers import Timers


def slow_clock() -> float:
    """By this clock, all timers of the loop fire early. Half of uvloop's timers do so, since they count whole
    milliseconds.
    """
    return 0.8 * time.monotonic()


async def test_a_timer_that_fires_early_is_set_again() -> None:
    """A timer that fires early finds nothing due. If it weren't set again, the replica would never wake."""
    woken: asyncio.Queue[tuple[int, float]] = asyncio.Queue()
    timers = Timers(lambda partition_id, now: woken.put_nowait((partition_id, now)), slow_clock)
    at = slow_clock() + 0.02
    timers.wake_at(WakeAt(7, at))
    async with asyncio.timeout(10):
        partition_id, now = await woken.get()
    assert partition_id == 7
    assert now >= at
    assert woken.empty()
    timers.close()
