"""Replicas on disks that are short of space."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from minka.errors import Code
from minka.v1.coordinator_pb2 import DiskSpace
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.replication.manager import StorageSettings
from tests.integration.replication.harness import Cluster, cluster
from tests.integration.replication.node import Refused, TestNode, until
from tests.integration.replication.replicas import same_everywhere, three

MIB = 1024 * 1024


async def check_only_deletes(node: TestNode) -> None:
    """Check that the node refuses writes that need room, and accepts deletes and reads."""
    for pairs in ({b"a": b"2"}, {b"a": None, b"b": b"2"}):
        with pytest.raises(Refused) as refusal:
            await node.put(1, pairs)
        assert refusal.value.error.code is Code.DISK_LOW
    await node.put(1, {b"b": None})
    assert await node.get(1, b"a", b"b") == [b"1", None]


def bytes_in(folder: Path) -> int:
    """The size of all tables in the folder; a table that a compaction has just removed counts as empty."""
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


async def test_a_leader_with_a_low_disk_accepts_only_deletes(tmp_path: Path) -> None:
    """A leader whose disk is low accepts only deletes. When its disk has room again, it accepts all writes."""
    async with cluster(tmp_path) as c:
        nodes = await started(c)
        c.low_disks.add("athens")
        await check_only_deletes(nodes[0])
        await same_everywhere(c)
        c.low_disks.clear()
        await nodes[0].put(1, {b"a": b"3"})


async def test_a_needed_follower_with_a_low_disk_stays_in_sync(tmp_path: Path) -> None:
    """If too few replicas would be in sync without the follower, it stays in sync. So it gets the deletes, which make
    room.
    """
    async with cluster(tmp_path) as c:
        c.keyspace.min_insync = 3
        nodes = await started(c)
        c.low_disks.add("cyrene")
        await check_only_deletes(nodes[0])
        assert set(c.rows[1].isr) == {"athens", "byzantium", "cyrene"}
        await same_everywhere(c)


@pytest.mark.parametrize("log_is_kept", [True, False])
async def test_an_unneeded_follower_with_a_low_disk_leaves_the_set(tmp_path: Path, log_is_kept: bool) -> None:
    """If enough replicas are in sync without the follower, it leaves the set, and writes continue without it. The
    follower gets these writes when its disk has room again.
    """
    storage = StorageSettings(flush=MIB if log_is_kept else 20_000)
    async with cluster(tmp_path, ReplicationSettings(lag_timeout=2.0, log_only_bytes=1000), storage) as c:
        c.keyspace.min_insync = 2
        nodes = await started(c)
        end = nodes[2].replica().log.end
        c.low_disks.add("cyrene")
        await until(lambda: set(nodes[0].replica().state.row.isr) == {"athens", "byzantium"})
        async with asyncio.timeout(20):
            for i in range(1_000_000):
                await nodes[0].put(1, {b"%d" % (i % 100): b"x" * 1000})
                if i >= 100 and (log_is_kept or nodes[0].replica().log.base > end):
                    break
        assert nodes[2].replica().log.end == end
        c.low_disks.clear()
        await same_everywhere(c)
        assert await nodes[0].get(1, b"99") == [b"x" * 1000]


async def test_a_node_takes_a_checkpoint_only_if_it_has_room(tmp_path: Path) -> None:
    """A node without room refuses a checkpoint, and the migration reports this until the node has room."""
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


async def test_deleted_data_frees_its_room_while_the_disk_is_low(tmp_path: Path) -> None:
    """While its disk is low, a node compacts deleted data away, without waiting for RocksDB's own compaction. A
    follower does so, too, although followers never measure the size of their data.
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
