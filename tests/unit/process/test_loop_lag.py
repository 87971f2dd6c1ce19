"""A turn of the event loop that takes long, and what the log says of it."""

import asyncio
import logging
import time

import pytest

from minkad.process import loop_lag
from minkad.process.loop_lag import LONG_S, LoopLag
from minkad.process.telemetry import Telemetry


def _busy() -> None:
    end = time.thread_time() + 3 * LONG_S
    while time.thread_time() < end:
        pass


async def test_what_ran_in_a_long_turn_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_lag, "_PACKAGES", (__file__,))
    with caplog.at_level(logging.WARNING):
        measuring = asyncio.create_task(LoopLag(Telemetry()).run())
        await asyncio.sleep(0)
        _busy()
        async with asyncio.timeout(10):
            while not caplog.records:  # noqa: ASYNC110  # the log tells nobody
                await asyncio.sleep(0.01)
        measuring.cancel()
    (record,) = caplog.records
    assert record.message == "a turn of the event loop took long"
    names = [frame.partition(":")[0] for frame in record.__dict__["in"].split(" < ")]
    assert names == ["_busy", test_what_ran_in_a_long_turn_is_logged.__name__]
