"""The databases of partitions are created, opened and closed."""

import asyncio
from pathlib import Path

import pytest

from minka.wire import kv_frames
from minka.wire.stored_values import values_of
from minkad.process import turns
from minkad.replication.applying import resting
from minkad.replication.manager import StorageSettings
from minkad.storage import data_database, openings
from minkad.storage.openings import Openings
from tests.integration.replication.crashes import lead_again
from tests.integration.replication.halves import LOWER, UPPER
from tests.integration.replication.harness import Cluster, cluster
from tests.integration.replication.merges import GENERATION, merged, two
from tests.integration.replication.node import TestNode, until

ROWS: dict[bytes, bytes | None] = {b"key %d" % i: b"value %d" % i for i in range(20)}


def opened(node: TestNode) -> int:
    """The number of the node's open databases."""
    return sum(replica.data.is_open and not replica.data.in_memory for replica in node.manager.replicas.values())


def openings_of(node: TestNode) -> Openings:
    data = node.replica().data
    return data._openings


async def on_disk(c: Cluster, node: TestNode, *partition_ids: int) -> None:
    """Create partitions, and restart the node. Their rows are then in closed databases, and a later write is only in
    the log.
    """
    await c.create(node.id, *partition_ids)
    for id_ in partition_ids:
        await node.put(id_, ROWS)
        await node.manager.flusher.flush(node.replica(id_))
        await node.put(id_, {b"later": b"%d" % id_})
    await node.kill()
    await node.start()


async def test_first_writes_create_no_database(tmp_path: Path) -> None:
    """The first writes to a partition create no database. A crash or a graceful stop loses none of them."""
    async with cluster(tmp_path) as c:
        athens, byzantium = await c.add("athens", "byzantium")
        ids = range(1, 41)
        await c.create("athens", *ids, followers=["byzantium"])
        await asyncio.gather(*(athens.put(id_, ROWS) for id_ in ids))
        await until(lambda: all(byzantium.replica(id_).state.applied == 1 for id_ in ids))
        assert not c.folders()
        for end in (athens.kill, athens.stop):
            await end()
            if not athens.running:
                await athens.start()
            assert not c.folders()
            await lead_again(c, athens, *ids)
            await byzantium.tell(*(c.rows[id_] for id_ in ids))
            for id_ in ids:  # a partition answers when it has applied its committed entries
                assert await athens.get(id_, *ROWS) == list(ROWS.values())
            assert await athens.count() == dict.fromkeys(ids, len(ROWS))


async def test_data_that_is_too_large_for_memory_gets_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data that has grown too large for memory gets a database, and the log is trimmed."""
    monkeypatch.setattr(data_database, "_MEMORY_BYTES", 1000)
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, {b"a": b"x" * 900})
        assert not c.folders()
        await athens.put(1, {b"b": b"x" * 900})
        await until(lambda: athens.replica().log.base == 2)
        assert not athens.replica().data.in_memory
        assert await athens.get(1, b"a", b"b") == [b"x" * 900] * 2


async def test_a_partition_with_a_long_log_gets_a_database(tmp_path: Path) -> None:
    """Clients overwrite the same key again and again: the data stays small, but the log becomes long."""
    async with cluster(tmp_path, storage=StorageSettings(flush=5000)) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        for number in range(10):
            await athens.put(1, {b"a": b"%d" % number * 1000})
        await until(lambda: athens.replica().log.base > 0)


async def test_requests_wait_until_the_data_is_open(tmp_path: Path) -> None:
    """Requests and the beginning of the leadership wait until the database is open; other partitions are served."""
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await on_disk(c, athens, 1)
        await c.create("athens", 2)
        async with openings_of(athens).slot(lambda: 0):
            leading = asyncio.create_task(lead_again(c, athens, 1))
            await until(lambda: athens.replica().state.awaits_data)
            scan = kv_frames.encode(kv_frames.ScanBody(b"", b"", False, 1000, 1 << 20))
            reading = asyncio.create_task(athens.get(1, b"later"))
            scanning = asyncio.create_task(athens.ask(kv_frames.Op.SCAN, 1, 1, scan))
            writing = asyncio.create_task(athens.put(1, {b"new": b"x"}))
            await athens.put(2, ROWS)
            assert await athens.get(2, *ROWS) == list(ROWS.values())
            assert athens.replica().data.is_closed
            assert not any(task.done() for task in (leading, reading, scanning, writing))
        assert await reading == [b"1"]
        assert len(kv_frames.decode_page(await scanning).keys) == len(ROWS) + 1
        await asyncio.gather(leading, writing)


async def test_databases_are_opened_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop gets a turn between the openings of two databases."""
    count = 0

    async def counted() -> None:
        nonlocal count
        count += 1
        await turns.turn()

    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        ids = range(1, 9)
        await on_disk(c, athens, *ids)
        monkeypatch.setattr(openings, "turn", counted)
        await lead_again(c, athens, *ids)
        assert count >= len(ids)
        assert [await athens.get(id_, b"later") for id_ in ids] == [[b"%d" % id_] for id_ in ids]


async def test_a_flush_of_a_deleted_partition_does_nothing(tmp_path: Path) -> None:
    """The partition is deleted before its database is created. The flush ends without an error."""
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        replica, flusher = athens.replica(), athens.manager.flusher
        async with openings_of(athens).slot(lambda: 0):
            flushing = asyncio.create_task(flusher.flush(replica))
            replica.unflushed = 1 << 30
            flusher.applied(replica, 0)
            await asyncio.sleep(0)
            await replica.data.close()
            await flushing
        await flusher.close()
        assert athens.log_db.error is None


@pytest.fixture
def short_rest_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "_INTERVAL_S", 0.005)


@pytest.mark.usefixtures("short_rest_interval")
async def test_unused_databases_are_closed_and_opened_again(tmp_path: Path) -> None:
    """A leader whose database is closed still leads, even at a new leader_epoch, and knows the size of its data."""
    async with cluster(tmp_path, storage=StorageSettings(open_databases=1)) as c:
        athens, byzantium = await c.add("athens", "byzantium")
        ids = range(1, 6)
        await c.create("athens", *ids, followers=["byzantium"])
        for number in range(3):
            for id_ in ids:
                await athens.put(id_, ROWS | {b"round": b"%d" % number})
                for node in (athens, byzantium):
                    await node.replica(id_).data.open()
            for node in (athens, byzantium):
                await until(lambda node=node: opened(node) <= 1)  # type: ignore[misc]
            assert {stats.keys for stats in athens.manager.stats(changed_only=False)} == {len(ROWS) + 1}
            assert [await athens.get(id_, b"round") for id_ in ids] == [[b"%d" % number]] * 5
            assert values_of(await byzantium.replica(3).data.stored_many([b"round"])) == [b"%d" % number]
        await until(lambda: opened(athens) <= 1)
        await lead_again(c, athens, *ids)
        assert [await athens.get(id_, b"round") for id_ in ids] == [[b"2"]] * 5


@pytest.mark.usefixtures("short_rest_interval")
async def test_a_merge_of_partitions_with_closed_databases(tmp_path: Path) -> None:
    async with cluster(tmp_path, storage=StorageSettings(open_databases=0)) as c:
        (athens,) = await c.add("athens")
        await two(c)
        for id_ in (1, 2):
            await athens.manager.flusher.flush(athens.replica(id_))
        await until(lambda: not opened(athens))
        c.merge(1, 2)
        await c.tell_all(1, 2)
        await merged(c)
        rows = LOWER | UPPER
        assert await athens.get(1, *rows, generation=GENERATION) == list(rows.values())
