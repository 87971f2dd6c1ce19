"""A turn of the event loop that takes long, and what the log says of it."""

import asyncio
import logging
import signal
import time

import pytest

from minkad.process import loop_lag
from minkad.process.loop_lag import LONG_S, LoopLag
from minkad.process.telemetry import Telemetry


def _busy() -> None:
    end = time.thread_time() + 3 * LONG_S
    while time.thread_time() < end:
        pass


async def test_what_ran_in_a_long_turn_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_lag, "_PACKAGES", (__file__,))
    told: asyncio.Queue[logging.LogRecord] = asyncio.Queue()
    monkeypatch.setattr(loop_lag.log, "handle", told.put_nowait)
    before = signal.getsignal(signal.SIGUSR2)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        measuring = group.create_task(LoopLag(Telemetry()).run())
        asyncio.get_running_loop().call_soon(_busy)
        record = await told.get()
        measuring.cancel()
    assert signal.getsignal(signal.SIGUSR2) is before
    assert record.getMessage() == "a turn of the event loop took long"
    names = [frame.partition(":")[0] for frame in record.__dict__["in"].split(" < ")]
    assert names == [_busy.__name__]
