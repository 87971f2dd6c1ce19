"""A new replica gets its data as a checkpoint and from the log, although links break and nodes restart."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minka.wire import kv_frames
from minkad.core.replication.peer_messages import Append
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.replication.manager import StorageSettings
from minkad.replication.sending.peer_frames import decode_frame
from minkad.storage import checkpoint
from minkad.storage.applied import Applied
from minkad.storage.data_database import DataDatabase
from tests.integration.replication.harness import SOON, cluster
from tests.integration.replication.held_syncs import begins_later, held_syncs
from tests.integration.replication.moves import ROWS, arrived, check, two
from tests.integration.replication.node import TestNode, until
from tests.integration.replication.replicas import applied, same_everywhere, three
from tests.integration.replication.writers import Writers


async def test_replicas_are_added_and_removed_while_clients_write(tmp_path: Path) -> None:
    """The new replica gets a checkpoint and the log, and joins the in-sync set. The removed replica leaves no files."""
    storage = StorageSettings(flush=50_000)
    async with cluster(tmp_path, ReplicationSettings(log_only_bytes=1000), storage) as c:
        nodes = await three(c)
        (ephesus,) = await c.add("ephesus")
        writers = Writers(c)
        await writers.more(300)
        c.add_replica(1, "ephesus")
        await c.tell_all(1)
        await until(lambda: "ephesus" in c.rows[1].isr and not c.rows[1].adding_replicas)
        await writers.more(50)
        c.remove_replica(1, "cyrene")
        await c.tell_all(1)
        assert (await nodes[2].tell(c.rows[1])).deleted_ids == [1]
        assert await nodes[2].count() == {}
        await writers.more(50)
        await writers.stop()
        assert not writers.unknown
        await same_everywhere(c)
        assert "cyrene/partitions/1" not in c.folders()
        await c.fail("athens")
        await c.fail("byzantium")
        assert c.rows[1].leader == "ephesus"
        await writers.check(ephesus)


async def test_a_broken_transfer_is_resumed(tmp_path: Path) -> None:
    """After a broken transfer, the leader doesn't send files again that have arrived completely."""
    storage = StorageSettings(flush=100_000)
    async with cluster(tmp_path, ReplicationSettings(chunk_bytes=10_000), storage) as c:
        athens, ephesus = await c.add("athens", "ephesus")
        await c.create("athens", 1)
        rng = random.Random(1)
        rows: dict[bytes, bytes | None] = {}
        for i in range(3):  # three files: RocksDB would merge four
            rows.update({b"%d/%d" % (i, j): rng.randbytes(1000) for j in range(800)})
            await athens.put(1, {key: rows[key] for key in list(rows)[-800:]})
            await until(lambda: athens.replica().state.flushed == athens.replica().state.applied)
        sizes: list[int] = []
        ship = athens.links.ship

        async def broken(node_id: str, messages: AsyncIterator[bytes]) -> bytes:
            sizes.append(0)

            async def counted() -> AsyncIterator[bytes]:
                async for message in messages:
                    if len(sizes) == 1 and sizes[0] > 1_900_000:
                        await until(lambda: len(list((ephesus.path / "incoming" / "1").glob("*"))) > 1)
                        raise MinkaError(Code.UNREACHABLE, "the connection broke")
                    yield message
                    sizes[-1] += len(message)

            return await ship(node_id, counted())

        athens.links.ship = broken  # type: ignore[method-assign]
        c.add_replica(1, "ephesus")
        await c.tell_all(1)
        await same_everywhere(c)
        assert sizes[0] > 1_900_000
        assert sum(sizes[1:]) < 1_700_000
        assert c.folders() == {"athens/partitions/1", "ephesus/partitions/1"}
        await c.fail("athens")
        assert await ephesus.get(1, *rows) == list(rows.values())


async def test_a_node_that_stops_first_puts_a_checkpoint_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a thread would change the node's files after the stop."""
    begun, goes_on, move = threading.Event(), threading.Event(), checkpoint._move

    def slow_move(source: Path, target: Path) -> None:
        begun.set()
        assert goes_on.wait(30)
        move(source, target)

    async with cluster(tmp_path) as c:
        _, ephesus = await two(c, ROWS)
        monkeypatch.setattr(checkpoint, "_move", slow_move)
        await c.move("ephesus", 1)
        await until(begun.is_set)
        asyncio.get_running_loop().call_later(0.3, goes_on.set)
        await ephesus.stop()
        assert (ephesus.path / "partitions" / "1").exists()


class ChangedLinks:
    """Records what a node appends at followers, and lets a test change the messages of its checkpoints."""

    def __init__(self, node: TestNode) -> None:
        self._append, self._ship = node.links.append, node.links.ship
        self.ships = 0
        self.appends: list[Append] = []
        self.on_ship: Callable[[int, int, bytes], bytes] = lambda _ship, _message, data: data
        node.links.append = self.append  # type: ignore[method-assign]
        node.links.ship = self.ship  # type: ignore[method-assign]

    def append(self, node_id: str, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Send frames, and record the appends in them."""

        async def watched() -> AsyncIterator[bytes]:
            async for frame in frames:
                self.appends += decode_frame(frame).appends
                yield frame

        return self._append(node_id, watched())

    async def ship(self, node_id: str, messages: AsyncIterator[bytes]) -> bytes:
        """Send a checkpoint, with each message changed by `on_ship`."""
        self.ships += 1
        ship = self.ships

        async def changed() -> AsyncIterator[bytes]:
            number = 0
            async for data in messages:
                yield self.on_ship(ship, number, data)
                number += 1

        return await self._ship(node_id, changed())


async def test_a_checkpoint_that_was_damaged_on_the_way_is_sent_again(tmp_path: Path) -> None:
    """The target uses no part of a checkpoint that was damaged on the way; the leader sends a second one."""
    async with cluster(tmp_path, ReplicationSettings(chunk_bytes=1000)) as c:
        athens, ephesus = await two(c, ROWS)
        links = ChangedLinks(athens)
        links.on_ship = lambda ship, number, data: (
            bytes([data[0] ^ 1]) + data[1:] if ship == 1 and number == 5 else data
        )
        await c.move("ephesus", 1)
        await until(lambda: links.ships == 1 and any("CRC" in m.blocked_by for m in athens.manager.migrations()))
        await arrived(c)
        assert links.ships == 2
        await check(ephesus, ROWS)


async def test_a_transfer_that_breaks_begins_again(tmp_path: Path) -> None:
    """A transfer that breaks at a message begins again, even if it breaks several times."""
    async with cluster(tmp_path, ReplicationSettings(chunk_bytes=10_000, longest_backoff=0.05)) as c:
        athens, ephesus = await two(c, ROWS)
        links = ChangedLinks(athens)

        def broken(ship: int, number: int, data: bytes) -> bytes:
            if ship < 5 and number == 2 * ship - 2:
                raise MinkaError(Code.UNREACHABLE, "the connection broke")
            return data

        links.on_ship = broken
        await c.move("ephesus", 1)
        await arrived(c)
        assert links.ships >= 5
        await check(ephesus, ROWS)
        assert c.folders() == {"ephesus/partitions/1"}


async def test_a_restarted_target_keeps_its_entries(tmp_path: Path) -> None:
    """After the target's restart, the leader sends no second checkpoint, and only the rest of the log."""
    async with cluster(tmp_path, SOON) as c:
        athens, ephesus = await two(c, ROWS)
        links = ChangedLinks(athens)
        c.before_hand_over = [MinkaError(Code.STALE_GENERATION, "the test refuses hand-overs")] * 10_000
        await c.move("ephesus", 1)
        await until(lambda: len(c.hand_overs) >= 1)
        await athens.put(1, {b"c": b"3"})
        await until(lambda: athens.manager.migrations()[0].lag == 0)
        await ephesus.stop()
        await athens.put(1, {b"d": b"4"})
        await ephesus.start()
        links.appends.clear()
        await ephesus.tell(c.rows[1])
        c.before_hand_over.clear()
        await arrived(c)
        assert links.ships == 1
        assert sum(len(append.entries) for append in links.appends) <= 1
        await check(ephesus, {**ROWS, b"c": b"3", b"d": b"4"})


async def test_a_restarted_source_continues_the_transfer(tmp_path: Path) -> None:
    """After its restart, the source leads at a new leader_epoch. It sends only entries that the target lacks, and no
    checkpoint.
    """
    async with cluster(tmp_path) as c:
        athens, ephesus = await two(c, ROWS)
        c.hold_hand_over()
        await c.move("ephesus", 1)
        await until(lambda: len(c.hand_overs) >= 1)
        await athens.stop()
        await athens.start()
        links = ChangedLinks(athens)
        c.before_hand_over.clear()
        c.elect(1, "athens")
        c.succeed(1, "ephesus")
        await c.tell_all(1)
        await arrived(c)
        assert links.ships == 0
        await check(ephesus, ROWS)


async def test_a_probe_arrives_before_the_row(tmp_path: Path) -> None:
    """The leader's probe arrives before the row. The target answers when it has the row; until then, the leader sends
    no checkpoint.
    """
    async with cluster(tmp_path) as c:
        athens, ephesus = await two(c, ROWS)
        row = c.add_target(1, "ephesus")
        await athens.tell(row)
        links = ChangedLinks(athens)
        await until(lambda: len(ephesus.manager.receiver.early_probes) == 1)
        assert links.ships == 0
        await ephesus.tell(row)
        await arrived(c)


async def test_a_transfer_waits_for_a_target_that_is_down(tmp_path: Path) -> None:
    """While the target is down, the source serves and reports the reason. It begins the transfer when the target is
    back.
    """
    async with cluster(tmp_path) as c:
        athens, ephesus = await two(c, ROWS)
        await ephesus.stop()
        row = c.add_target(1, "ephesus")
        await athens.tell(row)
        await until(lambda: athens.manager.migrations()[0].blocked_by != "")
        await athens.put(1, {b"c": b"3"})
        await ephesus.start()
        await ephesus.tell(row)
        await arrived(c)
        await check(ephesus, {**ROWS, b"c": b"3"})


@pytest.mark.parametrize(("writes", "ships"), [(4, 1), (50, 2)])
async def test_the_log_is_kept_for_a_target_that_is_away_briefly(tmp_path: Path, writes: int, ships: int) -> None:
    """The source keeps the log for a few flushes. A node that is away for longer gets a checkpoint."""
    async with cluster(tmp_path, SOON, storage=StorageSettings(flush=1000)) as c:
        athens, ephesus = await two(c, ROWS)
        links = ChangedLinks(athens)
        c.before_hand_over = [MinkaError(Code.STALE_GENERATION, "the test refuses hand-overs")] * 10_000
        await c.move("ephesus", 1)
        await until(lambda: len(c.hand_overs) >= 1)
        await ephesus.stop()
        more: dict[bytes, bytes | None] = {b"more %d" % i: b"x" * 500 for i in range(writes)}
        for key, value in more.items():
            await athens.put(1, {key: value})
        await ephesus.start()
        await ephesus.tell(c.rows[1])
        c.before_hand_over.clear()
        await arrived(c)
        assert links.ships == ships
        await check(ephesus, {**ROWS, **more})


async def test_a_checkpoint_counts_only_when_its_log_is_durable(tmp_path: Path) -> None:
    """While the disk of its log hangs, the replica doesn't count a received checkpoint: a power cut could lose it."""
    async with cluster(tmp_path, ReplicationSettings(log_only_bytes=1000), StorageSettings(flush=10_000)) as c:
        athens, byzantium = await c.add("athens", "byzantium")
        await c.create("athens", 1)
        await athens.put(1, ROWS)
        await until(lambda: athens.replica().log.base > 0)
        with held_syncs(byzantium, lambda: begins_later(byzantium, 1)) as syncs:
            c.add_replica(1, "byzantium")
            await c.tell_all(1)
            await until(lambda: bool(syncs.held))
            is_usable = byzantium.replica().state.is_usable
            await syncs.release()
        assert not is_usable
        await until(lambda: "byzantium" in c.rows[1].isr)


async def test_unreadable_frames_and_unrequested_checkpoints_are_refused(tmp_path: Path) -> None:
    """A node refuses frames that it can't decode, and checkpoints that it hasn't requested."""
    async with cluster(tmp_path) as c:
        athens, _ = await c.add("athens", "ephesus")

        async def frames(*data: bytes) -> AsyncIterator[bytes]:
            for frame in data:
                yield frame

        with pytest.raises(MinkaError, match="INVALID_ARGUMENT"):
            async for _ in athens.links.append("ephesus", frames(b"\xc1")):
                pass
        for messages in ((), (b"\xc1",), (kv_frames.encode([1, 1, []]),)):
            with pytest.raises(MinkaError, match=r"INVALID_ARGUMENT|NOT_LEADER"):
                await athens.links.ship("ephesus", frames(*messages))


async def test_a_flush_that_ends_after_a_checkpoint_has_emptied_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint empties the log during a flush. The flush doesn't change the log when it ends."""
    async with cluster(tmp_path) as c:
        athens, byzantium = await c.add("athens", "byzantium")
        await c.create("athens", 1, followers=["byzantium"])
        replica, manager = byzantium.replica(), byzantium.manager
        for number in (1, 2):  # a flush trims the log up to the former flush
            await athens.put(1, {b"%d" % number: b"v"})
            await applied(byzantium, number)
            if number == 1:
                await manager.flusher.flush(replica)
        flush, is_flushed, may_end = DataDatabase.flush, asyncio.Event(), asyncio.Event()

        async def slow_flush(data: DataDatabase) -> Applied:
            position = await flush(data)
            is_flushed.set()
            await may_end.wait()
            return position

        monkeypatch.setattr(DataDatabase, "flush", slow_flush)
        flushing = asyncio.create_task(manager.flusher.flush(replica))
        await is_flushed.wait()
        try:
            manager.node.receiving_begun(replica, 0.0)
            await manager.checkpoint_receiver.clear(replica)
        finally:
            may_end.set()
        await flushing
        assert replica.log.end == 0
        await byzantium.kill()  # before the checkpoint has replaced the data
        await byzantium.start()
        await byzantium.tell(c.rows[1])
        await same_everywhere(c)
