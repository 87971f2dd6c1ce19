"""Crashes and restarts: no acknowledged write is lost, and no node serves a half-installed copy."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import UpdateReplicasResponse
from minkad.replication.applying import committer
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.manager import StorageSettings
from minkad.storage.data_database import DataDatabase
from minkad.storage.size_estimate import Size
from tests.integration.replication.crashes import crash, lead_again, restart_from
from tests.integration.replication.harness import SOON, cluster
from tests.integration.replication.node import Refused, TestNode, until
from tests.unit.storage.crash import crashed_copy

MIB = 1024 * 1024
ROWS: dict[bytes, bytes | None] = {b"key %05d" % i: b"%d" % i * 100 for i in range(3000)}


@pytest.mark.parametrize("flush", [1000, 100_000, 16 * MIB])
async def test_acknowledged_writes_survive_crashes(tmp_path: Path, flush: int) -> None:
    """After several crashes, all acknowledged writes are still there: in tables, in the log, or in both."""
    async with cluster(tmp_path, storage=StorageSettings(flush=flush)) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1, 2)
        rows: dict[bytes, bytes | None] = {}
        for life in range(4):
            for i in range(10):
                more: dict[bytes, bytes | None] = {b"%d/%d/%d" % (life, i, j): b"x" * 1000 for j in range(20)}
                more[b"%d/%d/5" % (life - 1, i)] = None
                await athens.put(1, more)
                rows.update(more)
            await athens.put(2, {b"life": b"%d" % life})
            await crash(c, athens)
            await lead_again(c, athens, 1, 2)
            assert await athens.get(1, *rows) == list(rows.values())
            assert await athens.get(2, b"life") == [b"%d" % life]
        assert (await athens.count())[1] == sum(value is not None for value in rows.values())


async def test_a_restarted_node_serves_nothing_until_told(tmp_path: Path) -> None:
    """A restarted node serves a partition only when the controller lets it lead."""
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, {b"a": b"1"})
        await crash(c, athens)
        with pytest.raises(Refused):
            await athens.get(1, b"a", timeout_ms=50)
        assert athens.manager.stats(changed_only=False) == []
        assert await athens.count() == {1: 0}  # the row is only in the log
        await lead_again(c, athens, 1)
        assert await athens.get(1, b"a") == [b"1"]
        assert await athens.count() == {1: 1}


async def test_a_graceful_stop_leaves_nothing_to_replay(tmp_path: Path) -> None:
    """After a graceful stop, the log is empty. The next start opens no database, and still knows the sizes."""
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        await athens.stop()
        await athens.start()
        assert athens.log_db.scan(b"p", b"q") == []
        await lead_again(c, athens, 1)
        replica = athens.manager.replicas[1]
        assert not replica.data.is_open
        (stats,) = athens.manager.stats(changed_only=False)
        assert abs(stats.keys - len(ROWS)) <= 1
        await athens.put(1, {b"new": b"x"})
        assert await athens.get(1, b"new", b"key 00001") == [b"x", ROWS[b"key 00001"]]
        assert replica.log.end == 2


async def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    """The node reports CORRUPT_DATA if a partition's folder is missing: an empty partition would hide the loss."""
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        await athens.stop()
        shutil.rmtree(tmp_path / "athens" / "partitions")
        await athens.start()
        (result,) = (await athens.tell(c.elect(1, "athens"))).failed
        assert "CORRUPT_DATA" in result.error
        with pytest.raises(Refused):
            await athens.get(1, b"a", timeout_ms=50)


async def test_data_without_a_log_is_not_served(tmp_path: Path) -> None:
    """A node that has lost its log starts only when a person has removed the log's mark. The node counts the keys of
    its data without serving them, and deletes the data when the controller says so.
    """
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        await athens.stop()
        shutil.rmtree(tmp_path / "athens" / "log")
        with pytest.raises(MinkaError, match="CORRUPT_DATA"):
            await athens.start()
        (tmp_path / "athens" / "log.mark").unlink()
        await athens.start()
        assert await athens.count() == {1: len(ROWS)}
        assert len((await athens.tell(c.elect(1, "athens"))).failed) == 1
        elsewhere = c.change(1, lambda row: row.replicas.__setitem__(0, "byzantium"))
        assert (await athens.tell(elsewhere)).deleted_ids == [1]
        assert await athens.count() == {}


async def test_the_row_of_a_new_copy_that_comes_during_the_deletion_of_the_old_one_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        deletions, goes_on = athens.manager.deletions, asyncio.Event()
        delete = deletions.delete_replica

        async def delete_late(replica: HostedReplica) -> None:
            await goes_on.wait()
            await delete(replica)

        monkeypatch.setattr(deletions, "delete_replica", delete_late)
        removed = asyncio.create_task(athens.tell(c.change(1, lambda row: row.replicas.__setitem__(0, "byzantium"))))
        await until(lambda: 1 in deletions)
        again = c.change(1, lambda row: row.replicas.__setitem__(0, "athens"))
        told = asyncio.create_task(athens.tell(again))
        assert await asyncio.wait([told], timeout=0.2) == (set(), {told})
        goes_on.set()
        assert list((await removed).deleted_ids) == [1]
        assert [one.partition_id for one in (await told).failed] == [1]
        assert not (await told).deleted_ids
        assert list((await athens.tell(again)).hosted_ids) == [1]


async def test_a_folder_is_not_removed_while_it_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The removal of a folder waits until the count of its keys has ended. Else RocksDB, which the count uses, would
    write files into the folder after the removal, and nobody would remove them.
    """
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        await athens.stop()
        shutil.rmtree(tmp_path / "athens" / "log")
        (tmp_path / "athens" / "log.mark").unlink()
        await athens.start()
        elsewhere = c.change(1, lambda row: row.replicas.__setitem__(0, "byzantium"))
        told: list[asyncio.Task[UpdateReplicasResponse]] = []
        count = DataDatabase.count

        async def counted_late(data: DataDatabase) -> Size:
            told.append(asyncio.create_task(athens.tell(elsewhere)))
            assert await asyncio.wait(told, timeout=0.2) == (set(), set(told))
            return await count(data)

        monkeypatch.setattr(DataDatabase, "count", counted_late)
        assert await athens.count() == {1: len(ROWS)}
        assert (await told[0]).deleted_ids == [1]
        assert not (tmp_path / "athens" / "partitions" / "1").exists()


def snapshots_around(node: TestNode, owner: object, *names: str) -> list[Path]:
    """Return a list that gets copies of the node's folder, as a crash would leave it: before and after each call of
    these methods.
    """
    copies: list[Path] = []

    def copy() -> None:
        copies.append(crashed_copy(node.path, node.path.with_name(f"{node.id}-{len(copies)}")))

    def wrap(method: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def wrapped(*args: object) -> object:
            copy()
            result = await method(*args)
            copy()
            return result

        return wrapped

    for name in names:
        setattr(owner, name, wrap(getattr(owner, name)))
    return copies


STEPS = ("clear", "put_in_place", "take_over")


@pytest.mark.parametrize("which", range(2 * len(STEPS)))
async def test_the_target_dies_during_the_installation(tmp_path: Path, which: int) -> None:
    """The target may die at any step of the installation; in the end it has all rows."""
    async with cluster(tmp_path, SOON) as c:
        athens, ephesus = await c.add("athens", "ephesus")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        copies = snapshots_around(ephesus, ephesus.manager.checkpoint_receiver, *STEPS)
        c.hold_hand_over()
        await c.move("ephesus", 1)
        await until(lambda: len(c.hand_overs) >= 1)
        assert len(copies) == 2 * len(STEPS)
        await restart_from(ephesus, copies[which])
        await athens.put(1, {b"later": b"x"})
        await ephesus.tell(c.rows[1])
        c.before_hand_over.clear()
        await until(lambda: c.rows[1].leader == "ephesus")
        rows = {**ROWS, b"later": b"x"}
        assert await ephesus.get(1, *rows, generation=2) == list(rows.values())
        assert (await ephesus.count())[1] == len(rows)


@pytest.mark.parametrize("which", range(1, 5))
async def test_an_incomplete_installation_is_never_served(tmp_path: Path, which: int) -> None:
    """A node whose installation is incomplete refuses to lead, even if the controller says that it leads."""
    async with cluster(tmp_path) as c:
        athens, ephesus = await c.add("athens", "ephesus")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        copies = snapshots_around(ephesus, ephesus.manager.checkpoint_receiver, *STEPS)
        c.hold_hand_over()
        await c.move("ephesus", 1)
        await until(lambda: len(c.hand_overs) >= 1)
        await athens.stop()
        await restart_from(ephesus, copies[which])
        (result,) = (await ephesus.tell(c.elect(1, "ephesus", without=["athens"]))).failed
        assert "being replaced" in result.error
        await athens.start()


@pytest.mark.parametrize("which", range(2))
async def test_the_source_dies_during_the_deletion(tmp_path: Path, which: int) -> None:
    """A source that dies during the deletion deletes the rest when the controller sends the row again."""
    async with cluster(tmp_path) as c:
        athens, ephesus = await c.add("athens", "ephesus")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        copies = snapshots_around(athens, athens.manager.deletions, "delete_replica")
        await c.move("ephesus", 1)
        await until(lambda: len(copies) == 2)
        await restart_from(athens, copies[which])
        if which == 0:
            assert (await athens.count()).keys() == {1}
        assert (await athens.tell(c.rows[1])).deleted_ids == [1]
        assert await athens.count() == {}
        assert athens.log_db.scan(b"m", b"q") == []
        assert (await ephesus.count()) == {1: len(ROWS)}


async def test_the_target_dies_before_it_leads(tmp_path: Path) -> None:
    """A target that dies just before it leads has all entries that it acknowledged as a follower."""
    async with cluster(tmp_path) as c:
        athens, ephesus = await c.add("athens", "ephesus")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        c.hold_hand_over()
        await c.move("ephesus", 1)
        await until(lambda: len(c.hand_overs) >= 1)
        for i in range(20):
            await athens.put(1, {b"later %d" % i: b"x"})
        c.before_hand_over.clear()
        await until(lambda: c.rows[1].leader == "ephesus")
        await crash(c, ephesus)
        await lead_again(c, ephesus, 1)
        rows = {**ROWS, **{b"later %d" % i: b"x" for i in range(20)}}
        assert await ephesus.get(1, *rows, generation=2) == list(rows.values())


async def test_a_stop_before_a_committed_write_is_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node stops before it has applied a committed write. The write is in the log, so the next start applies it."""
    monkeypatch.setattr(committer, "_STALL_RETRY_SECONDS", 0.0)
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, {b"a": b"1"})
        replica = athens.replica()
        monkeypatch.setattr(DataDatabase, "is_stalled", lambda data: data.is_open)
        write = asyncio.create_task(athens.put(1, {b"b": b"2"}))
        await until(lambda: replica.state.applied < replica.state.high_watermark)
        failures: list[MinkaError] = []
        athens.log_db.on_failure = failures.append
        await athens.stop()
        assert not failures
        with pytest.raises(Refused):
            await write
        monkeypatch.undo()
        await athens.start()
        await lead_again(c, athens, 1)
        assert await athens.get(1, b"a", b"b") == [b"1", b"2"]


async def test_a_full_disk_stops_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the log can't be written, the node acknowledges no write, and the log database reports its failure once."""
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, {b"a": b"1"})
        failures: list[str] = []
        athens.log_db.on_failure = lambda error: failures.append(error.code.name)

        def full() -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(athens.log_db, "flush_wal", full)
        for _ in range(2):
            with pytest.raises(Refused) as caught:
                await athens.put(1, {b"b": b"2"}, timeout_ms=500)
            assert caught.value.error.code in (Code.OUTCOME_UNKNOWN, Code.STORAGE_FAILED)
        assert failures == ["STORAGE_FAILED"]
        assert await athens.get(1, b"a", b"b") == [b"1", None]
