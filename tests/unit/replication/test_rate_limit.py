"""The rate at which checkpoints may be sent."""

import asyncio

import pytest

from minka.v1.cluster_pb2 import Operation
from minkad.replication.sending.rate_limit import RateLimit


def test_chunks_are_sent_in_pieces_of_the_size_of_a_burst() -> None:
    """If the operation has no limit, a chunk is sent in one piece."""
    data = bytes(range(256)) * 100
    for limit, sizes in ((0, [25_600]), (100_000, [10_000, 10_000, 5_600]), (10**9, [25_600]), (1, [1024] * 25)):
        parts = list(RateLimit(lambda: 0.0, {1: Operation(rate_limit=limit)}.get).parts(1, data))
        assert [len(part) for part in parts] == sizes
        assert b"".join(parts) == data
    assert not list(RateLimit(lambda: 0.0, lambda _: None).parts(1, b""))


def test_a_changed_limit_applies_from_the_next_piece_on() -> None:
    """If the limit changes while a chunk is sent, the rest of the chunk is sent at the new limit."""
    limits = iter([Operation(rate_limit=10_000), Operation(rate_limit=20_000), None])
    parts = RateLimit(lambda: 0.0, lambda _: next(limits)).parts(1, bytes(10_000))
    assert [len(part) for part in parts] == [1024, 2000, 6976]


async def test_a_large_chunk_is_sent_at_the_limit() -> None:
    """At 50,000 bytes a second, a chunk of 25,000 bytes takes half a second."""
    loop = asyncio.get_running_loop()
    limit = RateLimit(loop.time, lambda _: Operation(rate_limit=50_000))
    started = loop.time()
    for part in limit.parts(1, bytes(25_000)):
        await limit.take(1, len(part))
    assert loop.time() - started >= 0.39, "0.5 s, less 0.1 s that was saved up"


async def test_the_moves_of_an_operation_share_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the moves of the same operation share a limit. The moves of other operations don't slow them."""
    operations = {1: Operation(id=7, rate_limit=50_000), 2: Operation(id=8, rate_limit=50_000)}
    operations[3] = operations[1]
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(round(seconds, 3))

    monkeypatch.setattr(asyncio, "sleep", sleep)
    limit = RateLimit(lambda: 0.0, operations.get)
    for partition_id in (1, 2, 3, 4):
        await limit.take(partition_id, 15_000)
    assert waits == [0.2, 0.2, 0.5], "each operation has saved up 0.1 s"
