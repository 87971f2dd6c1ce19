"""Writes and reads at one node."""

import asyncio
from pathlib import Path

from tests.integration.shard.harness import cluster


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Values, missing keys, deletions."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            (athens,) = await c.add("athens")
            await c.create("athens", 1)
            await athens.put(1, {b"a": b"1", b"b": b"2"})
            await athens.put(1, {b"b": None, b"c": b"3"})
            assert await athens.get(1, b"a", b"b", b"c", b"d") == [b"1", None, b"3", None]

    asyncio.run(scenario())


def test_a_move(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, ephesus = await c.add("athens", "ephesus")
            await c.create("athens", 1)
            await athens.put(1, {b"%d" % i: b"v%d" % i for i in range(1000)})
            await c.move("ephesus", 1)
            await ephesus.get(1, b"5", generation=2) == [b"v5"]
            assert await ephesus.count() == {1: 1000}

    asyncio.run(scenario())
