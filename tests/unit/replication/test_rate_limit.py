"""How fast checkpoints may leave."""

import asyncio
from functools import partial

from minkad.replication.shipping import RateLimit


def test_pieces_are_as_large_as_a_burst() -> None:
    """Without a limit all is one piece."""
    data = bytes(range(256)) * 100
    for limit, sizes in ((0, [25_600]), (100_000, [10_000, 10_000, 5_600]), (10**9, [25_600]), (1, [1024] * 25)):
        parts = list(RateLimit(lambda: 0.0, partial(int, limit)).parts(data))
        assert [len(part) for part in parts] == sizes
        assert b"".join(parts) == data
    assert not list(RateLimit(lambda: 0.0, lambda: 0).parts(b""))


def test_a_limit_that_changes_counts_from_the_next_piece_on() -> None:
    """Also within one chunk."""
    limits = iter([10_000, 20_000, 0])
    parts = RateLimit(lambda: 0.0, lambda: next(limits)).parts(bytes(10_000))
    assert [len(part) for part in parts] == [1024, 2000, 6976]


def test_a_large_chunk_takes_its_time() -> None:
    """At any limit, not just at those that let it through within a second."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        limit = RateLimit(loop.time, lambda: 50_000)
        started = loop.time()
        for part in limit.parts(bytes(25_000)):
            await limit.take(len(part))
        assert loop.time() - started >= 0.39, "half a second, and a tenth of it is saved up"

    asyncio.run(scenario())
