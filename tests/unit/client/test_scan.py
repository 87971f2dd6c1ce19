"""Reads, writes and scans of a keyspace by ranges, while its partitions are split and moved."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from random import Random
from typing import Any

import pytest

import minka
from minka.async_client import AsyncClient
from minka.engine import scan_pages
from minka.errors import Code, MinkaError
from minka.wire.kv_frames import Op

Make = Callable[..., Any]
NODES = ("athens", "byzantium", "cyrene")
AUTHORS = {name.encode(): name.upper().encode() for name in ("alice", "az", "b", "bob", "cyril", "d", "mary", "philip")}


def client_of(cluster: Any, **options: Any) -> AsyncClient:
    return AsyncClient(cluster.endpoints, keyspace="flights", rng=Random(1), **options)


async def scanned(client: AsyncClient, *bounds: bytes | str, **options: Any) -> list[bytes]:
    return [key async for key, _ in client.scan(*bounds, **options)]


def scans(cluster: Any) -> set[int]:
    """Return the ids of the partitions that the client has asked for pages."""
    frames = [frame for node in cluster.nodes.values() for frame in node.frames]
    return {group.partition_id for frame in frames for group in frame.groups if group.op == Op.SCAN}


async def test_the_names_from_a_to_c(range_cluster: Make) -> None:
    """The client asks only the partitions in the range, as in the example of the pattern Key-Range Partitions."""
    async with range_cluster(*NODES, points=[b"b", b"d"]) as cluster, client_of(cluster) as client:
        await client.put_many(AUTHORS)
        assert [node.data[b"bob"] for node in cluster.nodes.values()] == [b"BOB"] * 3
        assert await scanned(client, "a", "c") == [b"alice", b"az", b"b", b"bob"]
        assert scans(cluster) == {1, 2}
        assert await scanned(client, "d") == [b"d", b"mary", b"philip"]
        assert [pair async for pair in client.scan()] == sorted(AUTHORS.items())
        assert await scanned(client, reverse=True) == sorted(AUTHORS, reverse=True)
        assert await scanned(client, "az", "d", reverse=True) == [b"cyril", b"bob", b"b", b"az"]
        assert await scanned(client, "b", "b") == []
        assert await scanned(client, "c", "b") == []
        assert await client.get_many(AUTHORS) == AUTHORS


@pytest.mark.parametrize("page_rows", [1, 2, 3])
async def test_limits(range_cluster: Make, page_rows: int) -> None:
    async with range_cluster(*NODES, points=[b"b", b"d"]) as cluster, client_of(cluster) as client:
        await client.put_many(AUTHORS)
        for node in cluster.nodes.values():
            node.page_rows = page_rows
        keys = sorted(AUTHORS)
        for limit in range(1, 10):
            assert await scanned(client, limit=limit) == keys[:limit]
            assert await scanned(client, limit=limit, reverse=True) == keys[::-1][:limit]
        with pytest.raises(MinkaError, match="limit=0 isn't a positive int"):
            await scanned(client, limit=0)
        with pytest.raises(MinkaError, match="reverse=1 isn't a bool"):
            await scanned(client, reverse=1)


async def test_a_small_limit_asks_no_other_partition(range_cluster: Make) -> None:
    async with range_cluster(*NODES, points=[b"b", b"d"]) as cluster, client_of(cluster) as client:
        await client.put_many(AUTHORS)
        assert await scanned(client, limit=2) == [b"alice", b"az"]
        assert scans(cluster) == {1}
        assert await scanned(client, limit=1, reverse=True) == [b"philip"]
        assert scans(cluster) == {1, 3}


async def test_a_batch_is_divided_again_after_a_split(range_cluster: Make) -> None:
    async with range_cluster(*NODES) as cluster, client_of(cluster) as client:
        await client.put_many(AUTHORS)
        for key, leader in [(b"m", "byzantium"), (b"c", "cyrene"), (b"b", "athens"), (b"n", "cyrene")]:
            cluster.split(key, leader)
            writes = {key: key * 2 for key in AUTHORS}
            await client.put_many(writes)
            assert cluster.data == writes
            assert await client.get_many(AUTHORS) == writes
            assert (await client.get_stale(b"philip")).value == b"philipphilip"
            await client.put_many(AUTHORS)
        await client.delete_many(AUTHORS)
        assert not cluster.data


async def test_the_client_fetches_rows_that_a_refusal_does_not_bring(range_cluster: Make) -> None:
    """The client's table lacks two splits, and the refusal brings the row of only one of them."""
    async with range_cluster(*NODES) as cluster, client_of(cluster) as client:
        await client.put_many(AUTHORS)
        cluster.split(b"m", "byzantium")
        cluster.split(b"c", "cyrene")
        assert await client.get_many(AUTHORS) == AUTHORS
        assert await scanned(client) == sorted(AUTHORS)


@pytest.mark.parametrize("seed", range(10))
async def test_a_scan_returns_each_key_once_during_splits_and_moves(range_cluster: Make, seed: int) -> None:
    rng = Random(seed)
    keys = [b"%04d" % n for n in range(400)]
    async with range_cluster(*NODES, points=[b"0150"]) as cluster, client_of(cluster) as client:
        cluster.data.update(dict.fromkeys(keys, b""))
        for node in cluster.nodes.values():
            node.page_rows = rng.randint(1, 30)
        reverse = bool(seed % 2)
        found: list[bytes] = []
        async for key, _ in client.scan("0010", "0390", reverse=reverse):
            found.append(key)
            if rng.random() < 0.05:
                cluster.split(rng.choice(keys), rng.choice(NODES))
            if rng.random() < 0.05:
                rows = cluster.nodes["athens"].table.partitions
                cluster.lead(rng.choice(rows).id, rng.choice(NODES))
        wanted = keys[10:390]
        assert found == (wanted[::-1] if reverse else wanted)


async def test_a_scan_asks_ahead_for_pages_and_partitions(range_cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the consumer has got only the first row, the client has asked the first four partitions for pages."""
    monkeypatch.setattr(scan_pages, "PAGE_ROWS", 2)
    points = [b"%d" % n for n in range(1, 10)]
    async with range_cluster("athens", points=points) as cluster, client_of(cluster) as client:
        await client.put_many({b"%d%d" % (n, m): b"" for n in range(10) for m in range(10)})
        async with aclosing(client.scan()) as rows:
            assert await anext(rows) == (b"00", b"")
            async with asyncio.timeout(10):
                while scans(cluster) != {1, 2, 3, 4}:  # noqa: ASYNC110  # these scans set no event
                    await asyncio.sleep(0.002)
            await asyncio.sleep(0)
        assert scans(cluster) == {1, 2, 3, 4}
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("scan of")]


async def test_a_keyspace_by_hash_can_not_be_scanned(data_cluster: Make) -> None:
    async with data_cluster("athens") as cluster, client_of(cluster) as client:
        with pytest.raises(MinkaError) as refusal:
            await scanned(client)
        assert refusal.value.code is Code.NOT_BY_RANGES


async def test_a_refusal_ends_a_scan(range_cluster: Make) -> None:
    async with range_cluster("athens", points=[b"m"]) as cluster, client_of(cluster) as client:
        await client.put_many(AUTHORS)
        node = cluster.nodes["athens"]
        node.refuse = lambda group: MinkaError(Code.CORRUPT_DATA, "a block is bad") if group.partition_id == 2 else None
        found: list[bytes] = []

        async def scan() -> None:
            async for key, _ in client.scan():
                found.append(key)

        with pytest.raises(MinkaError, match=r"scan at athens .*: a block") as refusal:
            await scan()
        assert refusal.value.code is Code.CORRUPT_DATA
        assert found == sorted(AUTHORS)[:6]


async def test_a_scan_with_the_synchronous_client(range_cluster: Make) -> None:
    async with range_cluster(*NODES, points=[b"b", b"d"]) as cluster:

        def work() -> list[list[tuple[bytes, bytes]]]:
            with minka.Client(cluster.endpoints, keyspace="flights") as client:
                client.put_many(AUTHORS)
                first = []
                for pair in client.scan():
                    first.append(pair)
                    break
                return [first, list(client.scan(b"b", b"d")), list(client.scan(limit=1, reverse=True))]

        pairs = sorted(AUTHORS.items())
        assert await asyncio.to_thread(work) == [pairs[:1], pairs[2:5], pairs[-1:]]
