"""Limited memory is divided among requests: some get memory, some wait, and stalled ones lose theirs."""

import asyncio
from typing import Any

import pytest

from minka.errors import Code, MinkaError
from minkad.process import memory
from minkad.process.memory import Memory, Share

MIB = 1024 * 1024
pytestmark = pytest.mark.timeout(20)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def turns() -> None:
    """Give the other tasks turns until none of them can continue."""
    for _ in range(10):
        await asyncio.sleep(0)


def soon(work: Any) -> "asyncio.Task[Any]":
    return asyncio.get_running_loop().create_task(work)


async def test_many_greedy_shares_leave_room_for_one_that_has_nothing() -> None:
    pool = Memory(256 * MIB, Clock())
    greedy = [pool.share() for _ in range(200)]
    for share in greedy * 500:
        if share.has_room(100_000):
            share.take(100_000)
    assert pool.used < 256 * MIB
    assert pool.share().has_room(4 * MIB)
    assert not greedy[0].has_room(4 * MIB)


async def test_a_request_larger_than_the_memory_is_served_alone() -> None:
    pool = Memory(64 * MIB, Clock())
    assert pool.share().has_room(100 * MIB)
    pool.share().take(40 * MIB)
    assert not pool.share().has_room(100 * MIB)


async def test_freed_memory_goes_to_the_waiting_share_that_has_held_least() -> None:
    clock = Clock()
    pool = Memory(64 * MIB, clock)
    full, slow, quick = pool.share(), pool.share(), pool.share()
    slow.take(MIB)
    clock.now = 100.0
    slow.give(MIB)
    full.take(60 * MIB)
    waiting = [soon(share.reserve(20 * MIB)) for share in (slow, quick)]
    await turns()
    assert not any(one.done() for one in waiting)
    full.give(40 * MIB)
    await turns()
    assert [one.done() for one in waiting] == [False, True]
    assert quick.held > 20 * MIB
    full.give(20 * MIB)
    quick.give(20 * MIB)
    assert await waiting[0]


async def test_a_later_request_does_not_overtake_waiting_ones() -> None:
    pool = Memory(64 * MIB, Clock())
    full, first, second = pool.share(), pool.share(), pool.share()
    full.take(50 * MIB)
    waiting = soon(first.reserve(15 * MIB))
    await turns()
    assert second.fits(MIB)
    assert not second.has_room(MIB)
    assert await second.reserve(MIB), "a small request gets memory although a large one waits"
    full.give(50 * MIB)
    assert await waiting


async def test_a_wait_that_times_out_takes_no_memory() -> None:
    pool = Memory(64 * MIB, Clock())
    full, late = pool.share(), pool.share()
    full.take(63 * MIB)
    assert not await late.reserve(10 * MIB, until=asyncio.get_running_loop().time() + 0.01)
    cancelled = soon(late.reserve(10 * MIB))
    await turns()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    used = pool.used
    full.give(63 * MIB)
    await turns()
    assert pool.used == used - 63 * MIB


async def test_stalled_streams_are_ended_when_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_RELIEF_S", 0.001)
    clock = Clock()
    pool = Memory(64 * MIB, clock)
    ended: list[str] = []
    shares: dict[str, Share] = {}

    def holder(name: str, since: float | None) -> None:
        def end() -> None:
            ended.append(name)
            shares[name].close()

        share = shares[name] = pool.share(end)
        share.take(15 * MIB)
        share.sending_since = since

    holder("stalled for long", 0.0)
    holder("stalled, too", 1.0)
    holder("slow", 9.0)
    holder("is not sending", None)
    clock.now = 10.0
    assert await pool.share().reserve(15 * MIB)
    assert ended
    assert set(ended) <= {"stalled for long", "stalled, too"}
    assert pool.ended == len(ended)


async def test_the_number_of_open_shares_is_limited() -> None:
    pool = Memory(64 * MIB, Clock())

    def open_many() -> None:
        for _ in range(100_000):
            pool.share()

    with pytest.raises(MinkaError) as caught:
        open_many()
    assert caught.value.code is Code.OVERLOADED
    assert pool.used <= 17 * MIB


async def test_memory_is_returned_to_the_system_after_much_was_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_RELIEF_S", 0.001)
    trimmed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def trim() -> None:
        loop.call_soon_threadsafe(trimmed.set)

    pool = Memory(64 * MIB, Clock(), trim)
    share = pool.share()
    share.take(8 * MIB)
    await asyncio.sleep(0.01)  # several rounds of the relief task
    assert not trimmed.is_set()
    share.give(8 * MIB)
    await trimmed.wait()


def test_a_closed_share_no_longer_counts() -> None:
    pool = Memory(64 * MIB, Clock())
    share = pool.share()
    share.take(MIB)
    share.close()
    share.take(MIB)
    share.give(5)
    assert pool.used == 0


def test_the_number_of_shares_is_at_most_that_of_file_descriptors() -> None:
    memory = Memory(MIB * 1024, lambda: 0.0, most_shares=2)
    assert memory.max_shares == 2
    memory.share()
    first = memory.share()
    with pytest.raises(MinkaError) as refusal:
        memory.share()
    assert refusal.value.code is Code.OVERLOADED
    first.close()
    memory.share()
