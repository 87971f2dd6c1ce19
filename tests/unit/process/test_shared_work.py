"""Work that several callers wait for together."""

import asyncio

import pytest

from minka.errors import Code, MinkaError
from minkad.process.shared_work import SharedWork


class Digging:
    """Work that ends when it may, and counts its beginnings and ends."""

    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.may_end = asyncio.Event()
        self.error: MinkaError | None = None

    async def work(self) -> None:
        self.begun += 1
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        self.ended += 1


async def asked(shared: SharedWork, digging: Digging, count: int, key: str = "well") -> list[asyncio.Task[None]]:
    callers = [asyncio.create_task(shared.wait_for(key, digging.work, "digging")) for _ in range(count)]
    await asyncio.sleep(0.01)
    return callers


async def test_work_is_done_once_for_all_its_callers() -> None:
    shared, digging, other = SharedWork(), Digging(), Digging()
    callers = [*await asked(shared, digging, 3), *await asked(shared, other, 1, "ditch")]
    assert (digging.begun, other.begun) == (1, 1)
    for one in digging, other:
        one.may_end.set()
    await asyncio.gather(*callers)
    await asked(shared, digging, 1)
    assert digging.begun == 2, "the first work has ended, so the next caller begins another"


async def test_work_goes_on_without_its_callers() -> None:
    shared, digging = SharedWork(), Digging()
    callers = await asked(shared, digging, 2)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    (late,) = await asked(shared, digging, 1)
    digging.may_end.set()
    await late
    assert (digging.begun, digging.ended) == (1, 1)


async def test_all_callers_get_the_error() -> None:
    shared, digging = SharedWork(), Digging()
    digging.error = MinkaError(Code.UNKNOWN_FILE, "no well here")
    callers = await asked(shared, digging, 2)
    digging.may_end.set()
    assert await asyncio.gather(*callers, return_exceptions=True) == [digging.error] * 2


async def test_the_end_gives_work_up() -> None:
    shared, digging = SharedWork(), Digging()
    (caller,) = await asked(shared, digging, 1)
    await shared.close()
    with pytest.raises(asyncio.CancelledError):
        await caller
    digging.may_end.set()
    await asyncio.sleep(0)
    assert (digging.begun, digging.ended) == (1, 0)
