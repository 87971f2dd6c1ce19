"""A node refuses each read of damaged data, so no key of this data seems to be missing. The node builds the data again
when this is safe.
"""

import random
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minka.wire import kv_frames
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.storage.data_database import DataDatabase
from tests.integration.replication.crashes import lead_again, restart_from
from tests.integration.replication.harness import Cluster, cluster
from tests.integration.replication.node import Refused, TestNode, until
from tests.integration.replication.replicas import three, until_fresh
from tests.unit.storage.crash import crashed_copy
from tests.unit.storage.damages import a_file, a_folder, a_link_to_itself, flipped_at_its_start

ROWS: dict[bytes, bytes | None] = {b"key %04d" % i: random.Random(i).randbytes(200) for i in range(400)}
KEYS = list(ROWS)
SLOW = ReplicationSettings(lag_timeout=60.0)  # no replica leaves the in-sync set because of its lag


async def flushed(node: TestNode, partition_id: int = 1) -> None:
    """Flush the data into tables; this trims the log up to the previous flush."""
    await node.manager.flusher.flush(node.replica(partition_id))
    await node.log_db.sync()


def newest(node: TestNode, pattern: str, partition_id: int = 1) -> Path:
    return max((node.path / "partitions" / str(partition_id)).glob(pattern))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


async def alone(c: Cluster) -> TestNode:
    """Make a node whose rows are in tables, and stop it."""
    (athens,) = await c.add("athens")
    await c.create("athens", 1)
    await athens.put(1, ROWS)
    await flushed(athens)
    await athens.stop()
    return athens


async def trimmed(c: Cluster) -> list[TestNode]:
    """Make three replicas with rows. Their logs are trimmed, so some of the rows are no longer in the logs."""
    nodes = await three(c)
    for part in (KEYS[:200], KEYS[200:]):
        await nodes[0].put(1, {key: ROWS[key] for key in part})
        for node in nodes:
            await until(lambda node=node: node.replica().state.applied == nodes[0].replica().log.end)  # type: ignore[misc]
            await flushed(node)
    assert all(node.replica().log.base for node in nodes)
    return nodes


async def refusals(node: TestNode) -> set[str]:
    """Send all kinds of reads; returns the codes of the refusals. Fails if a read is answered."""
    codes: set[str] = set()

    async def expect(read: Awaitable[object]) -> None:
        try:
            found = await read
        except Refused as refused:
            codes.add(refused.error.code.name)
        except MinkaError as error:
            codes.add(error.code.name)
        else:
            pytest.fail(f"it answers {found}")

    scan = kv_frames.encode(kv_frames.ScanBody(b"", b"", False, 1000, 1 << 20))
    for _ in range(2):
        await expect(node.get(1, *KEYS[:5]))
        await expect(node.get(1, *KEYS))
        await expect(node.ask(kv_frames.Op.SCAN, 1, 1, scan))
        await expect(node.count())
        await expect(node.get_stale(1, KEYS[0]))
    return codes


async def whole_again(c: Cluster) -> None:
    """Wait until all three replicas are in sync; check that they have all rows, and that none is damaged."""
    await until(lambda: len(c.rows[1].isr) == 3)
    leader = c.nodes[c.rows[1].leader]
    assert await leader.get(1, *KEYS) == list(ROWS.values())
    for node in c.nodes.values():
        assert node.manager.damaged() == []
        await until(lambda node=node: node.replica().state.applied == leader.replica().state.applied)  # type: ignore[misc]
        assert (await node.count())[1] == len(ROWS)


@pytest.mark.parametrize(
    ("pattern", "harm"),
    [
        ("CURRENT", Path.unlink),
        ("CURRENT", truncate),
        ("MANIFEST-*", Path.unlink),
        ("MANIFEST-*", truncate),
        ("MANIFEST-*", zero),
        ("*.sst", Path.unlink),
        ("*.sst", truncate),
        ("*.sst", zero),
    ],
)
async def test_each_read_of_a_damaged_only_copy_is_refused(
    tmp_path: Path, pattern: str, harm: Callable[[Path], None]
) -> None:
    """The node refuses all reads, also after a restart, and its report of the damage names the folder. When the file is
    restored, the node serves the data.
    """
    async with cluster(tmp_path, SLOW) as c:
        athens = await alone(c)
        file = newest(athens, pattern)
        content = file.read_bytes()
        harm(file)
        for _ in range(2):
            await athens.start()
            await athens.tell(c.elect(1, "athens"))
            assert await refusals(athens) == {"CORRUPT_DATA"}
            (damaged,) = athens.manager.damaged()
            assert "partitions/1" in damaged.reason
            assert athens.telemetry.damages == 1
            await athens.stop()
        if pattern != "MANIFEST-*" or harm is Path.unlink:  # for a damaged MANIFEST, RocksDB removes other files
            file.write_bytes(content)
            await athens.start()
            await lead_again(c, athens, 1)
            assert await athens.get(1, *KEYS) == list(ROWS.values())


async def test_a_database_that_was_never_completely_made_is_not_damage(tmp_path: Path) -> None:
    """A kill ended the making of the first database, so the log still has all rows: nothing has to be reported."""
    async with cluster(tmp_path, SLOW) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        await athens.kill()
        folder = athens.path / "partitions" / "1"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in ("LOCK", "LOG", "IDENTITY", "MANIFEST-000001"):
            (folder / name).write_bytes(b"x")
        await athens.start()
        await lead_again(c, athens, 1)
        assert await athens.get(1, *KEYS) == list(ROWS.values())
        assert athens.telemetry.damages == 0
        await flushed(athens)
        assert await athens.get(1, *KEYS) == list(ROWS.values())


async def test_an_unmade_database_is_damage_once_the_log_was_trimmed(tmp_path: Path) -> None:
    """The log lacks rows that were in the database: that this folder was never completely made can't be true."""
    async with cluster(tmp_path, SLOW) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        for key in KEYS[:2]:
            await athens.put(1, {key: ROWS[key]})
            await flushed(athens)
        assert athens.replica().log.base
        await athens.kill()
        for file in (athens.path / "partitions" / "1").iterdir():
            if file.name not in ("LOCK", "LOG", "IDENTITY"):
                file.unlink()
        await athens.start()
        await athens.tell(c.elect(1, "athens"))
        with pytest.raises(Refused, match="CORRUPT_DATA"):
            await athens.get(1, KEYS[0])
        assert athens.telemetry.damages == 1


UNUSUAL = [
    ("CURRENT", a_folder),
    ("MANIFEST-*", a_link_to_itself),
    ("LOCK", a_folder),
    ("LOG", a_link_to_itself),
    ("*.json", a_folder),
    ("*.sst", a_folder),
    ("*.sst", flipped_at_its_start),
    (".", a_file),
    (".", a_link_to_itself),
]


def harmed(node: TestNode, pattern: str, harm: Callable[[Path], None]) -> None:
    folder = node.path / "partitions" / "1"
    harm(folder if pattern == "." else max(folder.glob(pattern)))


@pytest.mark.parametrize(("pattern", "harm"), UNUSUAL)
@pytest.mark.parametrize("is_in_log", [True, False])
async def test_unusual_damage_affects_only_one_partition(
    tmp_path: Path, pattern: str, harm: Callable[[Path], None], is_in_log: bool
) -> None:
    """The node builds the only copy of a partition again from its log, or refuses reads of this copy. It still serves
    the other partition.
    """
    async with cluster(tmp_path, SLOW) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1, 2)
        for partition_id in (1, 2):
            await athens.put(partition_id, ROWS)
            await athens.replica(partition_id).data.flush()
        if not is_in_log:
            await flushed(athens)
        await athens.kill()
        harmed(athens, pattern, harm)
        await athens.start()
        await athens.tell(*(c.elect(partition_id, "athens") for partition_id in (1, 2)))
        if is_in_log:
            assert await athens.get(1, *KEYS) == list(ROWS.values())
            await athens.replica().data.flush()
        else:
            with pytest.raises(Refused, match="CORRUPT_DATA"):
                await athens.get(1, *KEYS)
        assert await athens.get(2, *KEYS) == list(ROWS.values())
        assert athens.log_db.error is None
        assert len(athens.manager.damaged()) == (0 if is_in_log else 1)


@pytest.mark.parametrize(("pattern", "harm"), UNUSUAL)
async def test_a_replica_with_unusual_damage_gets_a_checkpoint(
    tmp_path: Path, pattern: str, harm: Callable[[Path], None]
) -> None:
    """The damaged replica takes a checkpoint from its leader."""
    async with cluster(tmp_path, SLOW) as c:
        _, byzantium, _ = await trimmed(c)
        await byzantium.kill()
        harmed(byzantium, pattern, harm)
        await byzantium.start()
        await byzantium.tell(c.rows[1])
        await until(lambda: "byzantium" not in c.rows[1].isr)
        await whole_again(c)
        assert byzantium.log_db.error is None


async def test_a_missing_folder_does_not_count_as_empty(tmp_path: Path) -> None:
    async with cluster(tmp_path, SLOW) as c:
        athens = await alone(c)
        shutil.rmtree(athens.path / "partitions")
        await athens.start()
        with pytest.raises(MinkaError, match="CORRUPT_DATA"):
            await athens.count()


async def test_all_reads_are_refused_after_a_read_found_a_damaged_block(tmp_path: Path) -> None:
    async with cluster(tmp_path, SLOW) as c:
        athens = await alone(c)
        await athens.start()
        await lead_again(c, athens, 1)
        flip(newest(athens, "*.sst"))
        with pytest.raises(Refused, match="CORRUPT_DATA"):
            await athens.get(1, *KEYS)
        assert await refusals(athens) == {"CORRUPT_DATA"}, "reads of keys in other blocks are refused, too"
        with pytest.raises(Refused, match="CORRUPT_DATA"):
            await athens.put(1, {b"new": b"x"})
        assert athens.log_db.error is None, "other partitions go on"


async def test_damaged_data_is_built_again_from_a_complete_log(tmp_path: Path) -> None:
    async with cluster(tmp_path, SLOW) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        await athens.replica().data.flush()
        flip(newest(athens, "*.sst"))
        assert await athens.get(1, *KEYS) == list(ROWS.values())
        assert athens.telemetry.damages == 1
        await athens.put(1, {b"new": b"x"})
        assert (await athens.count())[1] == len(ROWS) + 1
        await athens.replica().data.flush()
        await athens.kill()
        newest(athens, "MANIFEST-*").unlink()
        await athens.start()
        await lead_again(c, athens, 1)
        assert await athens.get(1, *KEYS, b"new") == [*ROWS.values(), b"x"]


async def test_a_copy_serves_nothing_until_its_log_is_applied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is built again from its log serves nothing until it has applied the whole log."""
    held = False
    monkeypatch.setattr(DataDatabase, "is_stalled", lambda _: held)
    async with cluster(tmp_path, SLOW) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        await athens.replica().data.flush()
        flip(newest(athens, "*.sst"))
        held = True
        for _ in range(2):
            with pytest.raises(Refused, match="nothing was done"):
                await athens.get(1, *KEYS, timeout_ms=1000)
        held = False
        assert await athens.get(1, *KEYS) == list(ROWS.values())


async def test_a_damaged_leader_lets_another_lead_and_is_rebuilt(tmp_path: Path) -> None:
    """The damaged leader leaves the in-sync set, and gets a checkpoint from the new leader."""
    async with cluster(tmp_path, SLOW) as c:
        athens, *_ = await trimmed(c)
        flip(newest(athens, "*.sst"))
        with pytest.raises(Refused) as caught:
            await athens.get(1, *KEYS)
        assert caught.value.error.code is Code.NOT_LEADER
        assert c.rows[1].leader != "athens"
        await whole_again(c)
        assert "athens" not in c.isr_changes[0].isr


async def test_a_damaged_follower_leaves_before_its_copy_is_replaced(tmp_path: Path) -> None:
    """Before a follower replaces its data, it must leave the in-sync set: if the leader died during the replacement, a
    follower without data could be elected.
    """
    async with cluster(tmp_path, SLOW) as c:
        athens, byzantium, _ = await trimmed(c)
        in_sync: list[bool] = []
        install = byzantium.manager.checkpoint_receiver.replace

        async def watched(*args: object) -> None:
            in_sync.append("byzantium" in c.rows[1].isr)
            await install(*args)  # type: ignore[arg-type]

        byzantium.manager.checkpoint_receiver.replace = watched  # type: ignore[method-assign, assignment]
        await until_fresh(byzantium, 60_000)
        flip(newest(byzantium, "*.sst"))
        with pytest.raises(Refused) as caught:
            await byzantium.get_stale(1, *KEYS)
        assert caught.value.error.code is Code.AGE_UNKNOWN, "the client asks another one"
        await until(lambda: bool(in_sync))
        await whole_again(c)
        assert in_sync == [False]
        assert athens.replica().state.row.leader == "athens"


async def test_followers_catch_up_from_the_log_of_a_damaged_leader_that_is_alone_in_sync(tmp_path: Path) -> None:
    async with cluster(tmp_path, SLOW) as c:
        athens, byzantium, cyrene = await trimmed(c)
        for node in (byzantium, cyrene):
            await node.stop()
            await c.fail(node.id)
        await athens.put(1, {b"alone": b"x"})
        flip(newest(athens, "*.sst"))
        with pytest.raises(Refused, match="CORRUPT_DATA"):
            await athens.get(1, *KEYS)
        await byzantium.start()
        await c.back("byzantium")
        await byzantium.tell(c.rows[1])
        await until(lambda: byzantium.replica().state.row.leader == "byzantium")
        assert await byzantium.get(1, *KEYS, b"alone") == [*ROWS.values(), b"x"]
        await until(lambda: "athens" in c.rows[1].isr)


async def test_a_damaged_checkpoint_replaces_nothing(tmp_path: Path) -> None:
    """The target finds the damage before it replaces its data. Then another node leads, and sends an undamaged
    checkpoint.
    """
    async with cluster(tmp_path, SLOW) as c:
        athens, *_ = await trimmed(c)
        (ephesus,) = await c.add("ephesus")
        flip(newest(athens, "*.sst"))
        c.add_replica(1, "ephesus")
        await c.tell_all(1)
        await until(lambda: c.rows[1].leader != "athens")
        await until(lambda: {"athens", "ephesus"} <= set(c.rows[1].isr))
        assert (await ephesus.count())[1] == len(ROWS)
        assert (await athens.count())[1] == len(ROWS)


async def test_a_follower_with_an_older_log_leaves_at_once(tmp_path: Path) -> None:
    """A follower that lacks entries which it has acknowledged leaves the in-sync set until it has caught up."""
    async with cluster(tmp_path, SLOW) as c:
        athens, byzantium, _ = await three(c)
        await athens.put(1, {b"a": b"1"})
        await until(lambda: byzantium.replica().state.durable == 1)
        old = crashed_copy(byzantium.path, tmp_path / "old")
        await athens.put(1, ROWS)
        await restart_from(byzantium, old)
        await byzantium.tell(c.rows[1])
        await until(lambda: len(c.isr_changes) == 2)
        assert ["byzantium" in change.isr for change in c.isr_changes] == [False, True]
        await until(lambda: byzantium.replica().state.applied == 2)
        assert (await byzantium.count())[1] == len(ROWS) + 1
