"""The rates at which checkpoints may be sent, and files uploaded."""

import asyncio

import pytest

from minkad.process.rate_limits import RateLimits


async def sizes(limits: RateLimits, size: int, owner: int, limit: int) -> list[int]:
    """Pass this many bytes; return the sizes of the parts."""
    return [len(part) async for part in limits.parts(bytes(size), lambda: (owner, limit))]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let time stand still. Returns the waits so far, in seconds."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(round(seconds, 3))

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return waits


async def test_data_passes_in_parts_of_the_size_of_a_burst(waits: list[float]) -> None:
    """Without a limit, the data passes in one part."""
    data = bytes(range(256)) * 100
    for limit, parts in ((0, [25_600]), (100_000, [10_000, 10_000, 5_600]), (10**9, [25_600]), (1, [1024] * 25)):
        found = [part async for part in RateLimits(lambda: 0.0).parts(data, lambda limit=limit: (1, limit))]  # type: ignore[misc]
        assert [len(part) for part in found] == parts
        assert b"".join(found) == data
    assert not await sizes(RateLimits(lambda: 0.0), 0, 1, 0)


async def test_a_changed_limit_applies_from_the_next_part_on(waits: list[float]) -> None:
    """If the limit changes while data passes, the rest of the data passes at the new limit."""
    limits = iter([10_000, 20_000, 0])
    parts = RateLimits(lambda: 0.0).parts(bytes(10_000), lambda: (1, next(limits)))
    assert [len(part) async for part in parts] == [1024, 2000, 6976]


async def test_much_data_passes_at_the_limit() -> None:
    """At 50,000 bytes a second, 25,000 bytes take half a second."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert await sizes(RateLimits(loop.time), 25_000, 7, 50_000) == [5000] * 5
    assert loop.time() - started >= 0.39, "0.5 s, less 0.1 s that was saved up"


async def test_all_data_of_an_owner_shares_its_limit(waits: list[float]) -> None:
    """The data of other owners isn't slowed."""
    limits = RateLimits(lambda: 0.0)
    for owner in (7, 8, 7):
        await sizes(limits, 15_000, owner, 50_000)
    await sizes(limits, 15_000, 0, 0)
    assert waits == [0.0, 0.1, 0.2] * 2 + [0.3, 0.4, 0.5], "each owner has saved up 0.1 s"
