"""Objects that were set aside (`gc.freeze`) are left out by Python's garbage collector until memory has grown by a
quarter.
"""

import asyncio
import gc
import sys
import weakref
from collections.abc import Callable

import pytest

from minkad.process import garbage


class Cycle:
    """An object in a reference cycle: only a garbage collection frees it."""

    def __init__(self) -> None:
        self.itself = self


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # a collection sets no event
            await asyncio.sleep(0.001)


async def test_objects_set_aside_are_collected_once_memory_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_POLL_S", 0.001)
    monkeypatch.setattr(garbage, "_LOOK_S", 0.001)
    blocks, looks, is_flooded = [1000], [0], False

    def allocated() -> int:
        looks[0] += 1
        return blocks[0]

    monkeypatch.setattr(sys, "getallocatedblocks", allocated)
    cycle = Cycle()
    gone = weakref.ref(cycle)
    collector = asyncio.create_task(garbage.collect(lambda: is_flooded))
    try:
        await _until(lambda: looks[0] > 0)  # now `cycle` is set aside
        del cycle
        seen = looks[0]
        blocks[0] = 1250
        await _until(lambda: looks[0] >= seen + 3)
        assert gone() is not None
        blocks[0], is_flooded = 1251, True
        seen = looks[0]
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert looks[0] == seen, "a flood of clients' requests doesn't count as growth"
        is_flooded = False
        await _until(lambda: gone() is None)
    finally:
        collector.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collector
    assert gc.get_freeze_count() == 0
