"""Scans over very many deleted keys."""

import asyncio
from pathlib import Path

import pytest

from minka.wire import kv_frames
from minkad.storage.rocks_data import MAX_PASSED
from tests.integration.replication.harness import cluster
from tests.integration.replication.node import TestNode

KEYS = [b"%06d" % n for n in range(3 * MAX_PASSED)]
LEFT = [KEYS[0], KEYS[-1]]
BATCH = 5000


async def page(node: TestNode, start: bytes, end: bytes, reverse: bool) -> kv_frames.ScanPage:
    body = kv_frames.encode(kv_frames.ScanBody(start, end, reverse, 1000, 1 << 20))
    return kv_frames.decode_page(await node.ask(kv_frames.Op.SCAN, 1, 1, body, 20_000))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("durability", [1, 2])
async def test_a_scan_over_deleted_keys_delays_only_itself(tmp_path: Path, durability: int, reverse: bool) -> None:
    """A page ends before the deleted keys. The next page waits until the node has cleared them away; other requests
    don't wait.
    """
    async with cluster(tmp_path) as c:
        c.keyspace.durability = durability  # type: ignore[assignment]  # an enum by its number
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        for value in (b"v", None):
            for place in range(0, len(KEYS), BATCH):
                await athens.put(1, {key: value for key in KEYS[place : place + BATCH] if key not in LEFT or value})
        first, last = reversed(LEFT) if reverse else LEFT
        found = await page(athens, b"", b"", reverse)
        assert found.keys == [first]
        start, end = (b"", found.start) if reverse else (found.end, b"")
        behind = asyncio.gather(*(page(athens, start, end, reverse) for _ in range(3)))
        await asyncio.sleep(0)
        assert await athens.get(1, KEYS[0], KEYS[1]) == [b"v", None]
        assert not behind.done()
        for found in await behind:
            assert (found.keys, found.start, found.end) == ([last], start, end)
