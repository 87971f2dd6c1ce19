"""Clients write to a partition faster than a copy of the partition proceeds."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from minka.v1.cluster_pb2 import Operation
from minka.v1.coordinator_pb2 import DiskSpace, MigrationProgress
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.replication.manager import StorageSettings
from tests.integration.replication.harness import Cluster, cluster
from tests.integration.replication.moves import ROWS, arrived, two
from tests.integration.replication.node import TestNode, until
from tests.integration.replication.writers import Writers

FLUSHES = StorageSettings(flush=20_000)
QUICK = ReplicationSettings(lag_timeout=0.2, log_only_bytes=1000)


def shipped(node: TestNode, release: asyncio.Event) -> list[str]:
    """Record the targets of the checkpoints that the node sends from now on. The first checkpoint waits for the
    event `release`.
    """
    begun: list[str] = []
    ship = node.links.ship

    async def counted(node_id: str, messages: AsyncIterator[bytes]) -> bytes:
        begun.append(node_id)

        async def held() -> AsyncIterator[bytes]:
            async for message in messages:
                if len(begun) == 1:
                    await release.wait()
                yield message

        return await ship(node_id, held())

    node.links.ship = counted  # type: ignore[method-assign]
    return begun


def migration(node: TestNode) -> MigrationProgress:
    (found,) = node.manager.migrations()
    return found


async def flushes(node: TestNode, count: int) -> None:
    """Wait for `count` more flushes of the node's replica."""
    for _ in range(count):
        before = node.replica().state.flushed
        await until(lambda before=before: node.replica().state.flushed > before)  # type: ignore[misc]


async def move(c: Cluster) -> None:
    c.add_target(1, "ephesus")
    await c.tell_all(1)


async def test_a_slow_copy_during_writes_begins_once(tmp_path: Path) -> None:
    """The copy begins only once, although the target lags for longer than `lag_timeout`."""
    async with cluster(tmp_path, QUICK, FLUSHES) as c:
        athens, _ = await two(c, ROWS)
        release = asyncio.Event()
        begun = shipped(athens, release)
        writers = Writers(c)
        await move(c)
        await until(lambda: bool(begun))
        await flushes(athens, 8)
        assert migration(athens).kept_log_bytes > 50_000
        release.set()
        await arrived(c)
        await writers.stop()
        assert begun == ["ephesus"]


async def test_a_too_low_rate_limit_is_reported_before_the_copy_begins(tmp_path: Path) -> None:
    """The leader names a rate limit that is too low for the writes, and sends no checkpoint until the limit is lifted.
    Until then, it keeps no log for the copy.
    """
    settings = ReplicationSettings(lag_timeout=0.2, log_only_bytes=1000, copy_log_bytes=1)
    async with cluster(tmp_path, settings, FLUSHES) as c:
        athens, _ = await two(c, ROWS)
        begun = shipped(athens, asyncio.Event())
        c.operation = Operation(id=7, rate_limit=1000)
        writers = Writers(c)
        await move(c)
        await until(lambda: bool(migration(athens).remedy))
        told = migration(athens)
        assert "at 0.0 MB/s would be outrun" in told.blocked_by
        assert "minkactl operations limit 7 " in told.remedy
        assert "minkactl operations cancel 7" in told.remedy
        await flushes(athens, 8)
        assert begun == []
        assert migration(athens).kept_log_bytes == 0
        assert athens.replica().state.retention.readers == set()
        athens.links.ship = type(athens.links).ship.__get__(athens.links)  # type: ignore[method-assign]
        c.operation = Operation(id=7)
        await arrived(c)
        await writers.stop()


async def test_the_progress_says_that_writes_have_outrun_the_former_copy(tmp_path: Path) -> None:
    settings = ReplicationSettings(lag_timeout=0.2, log_only_bytes=1000, copy_log_bytes=1)
    async with cluster(tmp_path, settings, FLUSHES) as c:
        athens, _ = await two(c, {b"a": b"1" * 20_000})
        release = asyncio.Event()
        begun = shipped(athens, release)
        writers = Writers(c)
        await move(c)
        await until(lambda: bool(begun))
        await until(lambda: athens.replica().state.retention.copy_log("ephesus") is None)
        await until(lambda: athens.replica().log.base > 1)
        release.set()
        await until(lambda: migration(athens).tries == 2)
        told = migration(athens)
        assert "have outrun the copy" in told.restarted_by
        await writers.stop()
        await arrived(c)


async def test_no_log_is_kept_for_copies_when_the_leaders_disk_is_low(tmp_path: Path) -> None:
    async with cluster(tmp_path, QUICK, FLUSHES) as c:
        athens, _ = await two(c, ROWS)
        release = asyncio.Event()
        begun = shipped(athens, release)
        writers = Writers(c)
        await move(c)
        await until(lambda: bool(begun))
        await flushes(athens, 8)
        held_at = athens.replica().log.base
        await writers.stop()
        athens.disk.space = DiskSpace(free_bytes=1, total_bytes=2, low_mark_bytes=1, is_low=True)
        await until(lambda: athens.replica().log.base > held_at)
        assert athens.replica().state.retention.copy_log("ephesus") is None
        release.set()
        await arrived(c)
