"""The executor wakes each replica at the time that it asked for, or later."""

import asyncio
import time
from typing import cast

from minkad.core.replication.instructions import WakeAt
from minkad.core.replication.replicas import Replicas
from minkad.replication.executor import Executor
from minkad.replication.surroundings import Controller
from tests.unit.core.replication.bench import Bench


def slow_clock() -> float:
    """By this clock, all timers of the loop fire early. Half of uvloop's timers do so, since they count whole
    milliseconds.
    """
    return 0.8 * time.monotonic()


class Woken(Replicas):
    """Replicas that only note the times at which they are woken."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.node)
        self.woken: asyncio.Queue[tuple[int, float]] = asyncio.Queue()

    def tick(self, partition_id: int, now: float) -> None:
        self.woken.put_nowait((partition_id, now))


async def test_a_timer_that_fires_early_is_set_again() -> None:
    """A timer that fires early finds nothing due. If the executor didn't set it again, the replica would never wake."""
    bench = Bench()
    replicas = Woken(bench)
    executor = Executor(bench.outbox, replicas, {}, cast(Controller, None), slow_clock, lambda _: None)
    at = slow_clock() + 0.02
    bench.outbox.put(WakeAt(7, at))
    executor.carry_out()
    async with asyncio.timeout(10):
        partition_id, now = await replicas.woken.get()
    assert partition_id == 7
    assert now >= at
    assert replicas.woken.empty()
    await executor.close()
