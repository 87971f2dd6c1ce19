"""The log line that reports a long turn of the event loop."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable

import pytest

from minkad.process import loop_lag
from minkad.process.loop_lag import LONG_S, LoopLag
from minkad.process.telemetry import Telemetry

_DATA = [number * 7919 % 3_000_017 for number in range(1_000_000)]


def _busy() -> None:
    end = time.thread_time() + 3 * LONG_S
    while time.thread_time() < end:
        pass


def _sorting() -> None:
    """Make one long call into C, which keeps the GIL."""
    sorted(_DATA)


def _innocent() -> None:
    sum(range(1000))


@pytest.mark.timeout(method="thread")  # the method "signal" would use SIGALRM, as LoopLag does
@pytest.mark.parametrize("long", [_busy, _sorting])
async def test_the_log_names_the_function_that_ran_in_a_long_turn(
    long: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_lag, "_PACKAGES", (__file__,))
    told: asyncio.Queue[logging.LogRecord] = asyncio.Queue()
    monkeypatch.setattr(loop_lag.log, "handle", told.put_nowait)
    before = signal.getsignal(signal.SIGALRM)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        measuring = group.create_task(LoopLag(Telemetry()).run())
        for callback in (long, _innocent):
            asyncio.get_running_loop().call_soon(callback)
        record = await told.get()
        measuring.cancel()
    assert signal.getsignal(signal.SIGALRM) is before
    assert record.getMessage() == "a turn of the event loop took long"
    names = [frame.partition(":")[0] for frame in record.__dict__["in"].split(" < ")]
    assert names == [long.__name__]
