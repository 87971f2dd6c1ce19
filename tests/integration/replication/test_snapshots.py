"""A node keeps a snapshot until it is released or not renewed in time."""

import asyncio
import uuid
from pathlib import Path

import pytest

from minka.bulk.snapshot_reads import renewal_of
from minka.errors import Code, MinkaError
from minka.v1.snapshots_pb2 import DigestSnapshotRequest, RowBatch
from minkad.replication.reading import snapshots as module
from minkad.rpc.snapshots import SnapshotService
from minkad.storage import scanner as scanner_module
from minkad.storage.checkpoint import Checkpoint
from minkad.storage.data_database import DataDatabase
from minkad.storage.replica_store import Purpose
from minkad.storage.scan_process import ScanRequest
from minkad.storage.scanner import PROCESSES
from tests.integration.replication.harness import cluster
from tests.integration.replication.node import until
from tests.integration.replication.replicas import applied


async def test_a_snapshot_is_kept_while_it_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, {b"key": b"value"})
        snapshots = athens.manager.snapshots
        now, looks = [0.0], [0]

        def clock() -> float:
            looks[0] += 1
            return now[0]

        monkeypatch.setattr(snapshots, "_clock", clock)
        service, snapshot = SnapshotService(snapshots), await snapshots.open(1, 1, 0)

        async def renew() -> None:
            await service.Digest(renewal_of(snapshot), None)  # type: ignore[arg-type]  # `Digest` uses no context

        for _ in range(3):
            now[0] += 800
            await renew()
            before = looks[0]
            await until(lambda: looks[0] > before + 2)  # noqa: B023  # it is awaited here
        everything = DigestSnapshotRequest(snapshot_id=snapshot.snapshot_id, buckets=1)
        found = await service.Digest(everything, None)  # type: ignore[arg-type]  # as above
        assert [one.rows for one in found.buckets] == [1]
        now[0] += 901
        await until(lambda: not snapshots._kept)
        with pytest.raises(MinkaError) as gone:
            await renew()
        assert gone.value.code is Code.SNAPSHOT_GONE


@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_snapshot_that_is_released_before_it_is_taken_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    id_ = uuid.uuid4()
    monkeypatch.setattr(uuid, "uuid4", lambda: id_)
    async with cluster(tmp_path) as c:
        athens, byzantium = await c.add("athens", "byzantium")
        await c.create("athens", 1, followers=["byzantium"])
        await athens.put(1, {b"key": b"value"})
        snapshots = byzantium.manager.snapshots
        take = snapshots._store.take

        async def released_meanwhile(data: DataDatabase, purpose: Purpose, name: str) -> Checkpoint:
            taken = await take(data, purpose, name)
            await snapshots.release(name)
            return taken

        if is_begun:
            monkeypatch.setattr(snapshots._store, "take", released_meanwhile)
        else:
            await snapshots.release(id_.hex)
        opened = await athens.manager.snapshots.open(1, 1, 0)
        await applied(byzantium, opened.offset)
        assert not snapshots._kept
        assert not list((byzantium.path / "snapshots").glob("*"))
        assert athens.manager.snapshots._kept


@pytest.mark.parametrize("begins", ["before its turn", "in the middle"])
async def test_a_read_during_the_release_leaves_no_files(tmp_path: Path, begins: str) -> None:
    """A read that waits or runs during the release must not create the snapshot's folder again."""
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, {b"%d" % number: b"value" * 100 for number in range(1000)})
        snapshots = athens.manager.snapshots
        snapshot = await snapshots.open(1, 1, 0)
        everything = ScanRequest("", b"", b"", "rows", batch_bytes=1000)
        reading = snapshots.read(snapshot.snapshot_id, everything)
        assert await anext(reading) == b""  # the read has begun, but hasn't waited for its turn yet
        slots = snapshots._scanner._slots
        if begins == "before its turn":
            for _ in range(PROCESSES):
                await slots.acquire()
            renewal = asyncio.ensure_future(anext(reading))
            await until(lambda: snapshots._scanner._waiting == 1)
            await snapshots.release(snapshot.snapshot_id)
            for _ in range(PROCESSES):
                slots.release()
        else:
            await anext(reading)
            await snapshots.release(snapshot.snapshot_id)
            renewal = asyncio.ensure_future(anext(reading))
        with pytest.raises(MinkaError) as gone:
            await renewal
        assert gone.value.code is Code.SNAPSHOT_GONE
        assert not list((athens.path / "snapshots").glob("*"))
        with pytest.raises(MinkaError):  # a read that begins after the release fails, too
            await anext(snapshots.read(snapshot.snapshot_id, everything))
        assert not list((athens.path / "snapshots").glob("*"))


async def test_a_cancelled_open_leaves_no_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, {b"key": b"value"})
        snapshots = athens.manager.snapshots
        take, begun, goes_on = snapshots._store.take, asyncio.Event(), asyncio.Event()

        async def slow(data: DataDatabase, purpose: Purpose, name: str) -> Checkpoint:
            begun.set()
            await goes_on.wait()
            return await take(data, purpose, name)

        monkeypatch.setattr(snapshots._store, "take", slow)
        opening = asyncio.create_task(snapshots.open(1, 1, 0))
        await begun.wait()
        opening.cancel()
        await asyncio.wait([opening])
        goes_on.set()
        await until(lambda: not snapshots._making)
        assert not snapshots._kept
        assert not list((athens.path / "snapshots").glob("*"))


async def test_a_reader_that_takes_no_rows_does_not_block_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanner_module, "_UNTAKEN_S", 0.05)
    monkeypatch.setattr(scanner_module, "_LOOK_S", 0.01)
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, {b"%04d" % number: b"value" * 100 for number in range(1000)})
        snapshots = athens.manager.snapshots
        snapshot = await snapshots.open(1, 1, 0)
        everything = ScanRequest("", b"", b"", "rows", batch_bytes=1000)
        still = [snapshots.read(snapshot.snapshot_id, everything) for _ in range(PROCESSES)]
        for reading in still:
            assert (await anext(reading), bool(await anext(reading))) == (b"", True)
        rows = [RowBatch.FromString(some).rows async for some in snapshots.read(snapshot.snapshot_id, everything)]
        assert sum(rows) == 1000
        for reading in still:
            with pytest.raises(MinkaError) as refused:
                await anext(reading)
            assert refused.value.code is Code.OVERLOADED
        rows = [RowBatch.FromString(some).rows async for some in snapshots.read(snapshot.snapshot_id, everything)]
        assert sum(rows) == 1000
        assert snapshots._scanner._slots._value == PROCESSES
