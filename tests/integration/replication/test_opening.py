"""The making and opening of databases, and their order."""

import asyncio
from pathlib import Path

import pytest

from minka.wire import kv_frames
from minka.wire.stored_values import values_of
from minkad.process import turns
from minkad.replication import resting
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
    """The number of open databases."""
    return sum(replica.data.is_open and not replica.data.in_memory for replica in node.manager.replicas.values())


def openings_of(node: TestNode) -> Openings:
    data = node.replica().data
    return data._openings


async def on_disk(c: Cluster, node: TestNode, *partition_ids: int) -> None:
    """Make partitions, and restart the node. Their data is then on disk, in closed databases; later entries are in the
    log.
    """
    await c.create(node.id, *partition_ids)
    for id_ in partition_ids:
        await node.put(id_, ROWS)
        await node.manager.flusher.flush(node.replica(id_))
        await node.put(id_, {b"later": b"%d" % id_})
    await node.kill()
    await node.start()


async def test_first_writes_make_no_database(tmp_path: Path) -> None:
    """There is no database after the first writes to many partitions. Everything is there after a crash, and after a
    graceful stop.
    """
    async with cluster(tmp_path) as c:
        athens, byzantium = await c.add("athens", "byzantium")
        ids = range(1, 41)
        await c.create("athens", *ids, followers=["byzantium"])
        await asyncio.gather(*(athens.put(id_, ROWS) for id_ in ids))
        await until(lambda: all(byzantium.replica(id_).applied == 1 for id_ in ids))
        assert not c.folders()
        for end in (athens.kill, athens.stop):
            await end()
            if not athens.running:
                await athens.start()
            assert not c.folders()
            await lead_again(c, athens, *ids)
            await byzantium.tell(*(c.rows[id_] for id_ in ids))
            for id_ in ids:  # each answers once it has applied what it had committed
                assert await athens.get(id_, *ROWS) == list(ROWS.values())
            assert await athens.count() == dict.fromkeys(ids, len(ROWS))


async def test_much_data_is_moved_to_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is trimmed when the data has a database."""
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


async def test_one_with_a_long_log_is_moved_to_a_database(tmp_path: Path) -> None:
    """The same keys are written again and again."""
    async with cluster(tmp_path, storage=StorageSettings(flush=5000)) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        for number in range(10):
            await athens.put(1, {b"a": b"%d" % number * 1000})
        await until(lambda: athens.replica().log.base > 0)


async def test_requests_wait_until_the_data_is_open(tmp_path: Path) -> None:
    """The start of the leadership waits, too; all other partitions go on."""
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await on_disk(c, athens, 1)
        await c.create("athens", 2)
        async with openings_of(athens).slot(lambda: 0):
            leading = asyncio.create_task(lead_again(c, athens, 1))
            await until(lambda: athens.replica().awaits_data)
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
    """The event loop has a turn between two of them."""
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


async def test_what_is_deleted_before_its_database_is_made_is_not_flushed(tmp_path: Path) -> None:
    """The node goes on."""
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
def resting_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "_INTERVAL_S", 0.005)


@pytest.mark.usefixtures("resting_at_once")
async def test_what_is_not_used_is_closed_and_opened_again(tmp_path: Path) -> None:
    """Leaders of closed partitions go on leading, even at a new leader_epoch, and the sizes are known."""
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


@pytest.mark.usefixtures("resting_at_once")
async def test_a_merge_of_partitions_that_are_at_rest(tmp_path: Path) -> None:
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
