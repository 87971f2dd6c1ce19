"""Replicas on disks that are short of space."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from minka.errors import Code
from minka.v1.coordinator_pb2 import DiskSpace
from minkad.core.replication.settings import ReplicationSettings
from minkad.replication.manager import StorageSettings
from tests.integration.replication.harness import Cluster, cluster
from tests.integration.replication.node import Refused, TestNode, until
from tests.integration.replication.replicas import same_everywhere, three

MIB = 1024 * 1024


async def check_only_deletes(node: TestNode) -> None:
    """Check that the node refuses requests that need room, and no others."""
    for pairs in ({b"a": b"2"}, {b"a": None, b"b": b"2"}):
        with pytest.raises(Refused) as refusal:
            await node.put(1, pairs)
        assert refusal.value.error.code is Code.DISK_LOW
    await node.put(1, {b"b": None})
    assert await node.get(1, b"a", b"b") == [b"1", None]


def bytes_in(folder: Path) -> int:
    """The size of the tables; one that a compaction has just removed counts as empty."""
    total = 0
    for file in folder.glob("*.sst"):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


async def started(c: Cluster) -> list[TestNode]:
    nodes = await three(c)
    await nodes[0].put(1, {b"a": b"1", b"b": b"1"})
    await same_everywhere(c)
    return nodes


async def test_the_leaders_disk_is_low(tmp_path: Path) -> None:
    """Deletes go on at all replicas. Once there is room again, all writes go on."""
    async with cluster(tmp_path) as c:
        nodes = await started(c)
        c.low_disks.add("athens")
        await check_only_deletes(nodes[0])
        await same_everywhere(c)
        c.low_disks.clear()
        await nodes[0].put(1, {b"a": b"3"})


async def test_a_follower_without_which_too_few_would_be_in_sync(tmp_path: Path) -> None:
    """The follower stays in sync, so it gets the deletes, which make room."""
    async with cluster(tmp_path) as c:
        c.keyspace.min_insync = 3
        nodes = await started(c)
        c.low_disks.add("cyrene")
        await check_only_deletes(nodes[0])
        assert set(c.rows[1].isr) == {"athens", "byzantium", "cyrene"}
        await same_everywhere(c)


@pytest.mark.parametrize("log_is_kept", [True, False])
async def test_a_follower_without_which_enough_are_in_sync(tmp_path: Path, log_is_kept: bool) -> None:
    """Writes go on without the follower, which takes none of them, and comes back when it has room."""
    storage = StorageSettings(flush=MIB if log_is_kept else 20_000)
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=2.0, log_only_bytes=1000), storage) as c:
        c.keyspace.min_insync = 2
        nodes = await started(c)
        end = nodes[2].replica().log.end
        c.low_disks.add("cyrene")
        await until(lambda: set(nodes[0].replica().row.isr) == {"athens", "byzantium"})
        async with asyncio.timeout(20):
            for i in range(1_000_000):
                await nodes[0].put(1, {b"%d" % (i % 100): b"x" * 1000})
                if i >= 100 and (log_is_kept or nodes[0].replica().log.base > end):
                    break
        assert nodes[2].replica().log.end == end
        c.low_disks.clear()
        await same_everywhere(c)
        assert await nodes[0].get(1, b"99") == [b"x" * 1000]


async def test_a_checkpoint_is_taken_in_only_where_there_is_room(tmp_path: Path) -> None:
    """The waiting migration says why."""
    async with cluster(tmp_path, ReplicationSettings(log_only_bytes=1000)) as c:
        nodes = await three(c)
        await nodes[0].put(1, {b"%d" % i: b"x" * 1000 for i in range(100)})
        (ephesus,) = await c.add("ephesus")
        ephesus.disk.space = DiskSpace(total_bytes=1000, free_bytes=110, low_mark_bytes=100)
        c.add_replica(1, "ephesus")
        await c.tell_all(1)
        await until(lambda: any("DISK_LOW" in one.blocked_by for one in nodes[0].manager.migrations()))
        assert "ephesus" not in c.rows[1].isr
        ephesus.disk.measure()
        await until(lambda: "ephesus" in c.rows[1].isr)


async def test_what_is_deleted_gives_its_room_back_while_the_disk_is_low(tmp_path: Path) -> None:
    """Deleted data is removed without waiting for RocksDB's own compaction: also at a follower, where its size is never
    measured.
    """
    async with cluster(tmp_path) as c:
        nodes = await three(c)
        athens, cyrene = nodes[0], nodes[2]
        keys = [b"%d" % i for i in range(5000)]
        await athens.put(1, dict.fromkeys(keys, b"x" * 2000))
        await same_everywhere(c)
        await cyrene.manager.flusher.flush(cyrene.replica())
        folder = cyrene.path / "partitions" / "1"

        before = bytes_in(folder)
        await athens.put(1, dict.fromkeys(keys[1:]))
        await same_everywhere(c)
        cyrene.disk.space = DiskSpace(total_bytes=1 << 40, free_bytes=1 << 30, low_mark_bytes=1 << 31, is_low=True)
        await until(lambda: 0 < bytes_in(folder) < before / 10)
        assert await athens.get(1, *keys[:2]) == [b"x" * 2000, None]
