"""Moving partitions between nodes, with everything that may go wrong on the way."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from minka import wire
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import ReplicaOutcome
from minkad.shard.context import ReplicationSettings
from minkad.shard.frames import Append, Entry, Frame, decode_answer, decode_frame, encode
from minkad.shard.manager import StorageSettings
from tests.integration.shard.harness import Cluster, Refused, TestNode, cluster, until

MIB = 1024 * 1024
ROWS: dict[bytes, bytes | None] = {b"key %05d" % i: b"value %d" % i * 10 for i in range(5000)}
SMALL: dict[bytes, bytes | None] = {b"a": b"1", b"b": b"2"}


async def two(c: Cluster, rows: dict[bytes, bytes | None], *partition_ids: int) -> tuple[TestNode, TestNode]:
    """Partitions with these rows at athens, nothing at ephesus."""
    athens, ephesus = await c.add("athens", "ephesus")
    await c.create("athens", *(partition_ids or (1,)))
    for id_ in partition_ids or (1,):
        await athens.put(id_, rows)
    return athens, ephesus


async def arrived(c: Cluster, partition_id: int = 1, target: str = "ephesus", source: str = "athens") -> None:
    """The target leads, and the source has deleted its copy."""
    await until(lambda: c.rows[partition_id].leader == target)
    generation = c.rows[partition_id].generation
    await c.nodes[target].get(partition_id, b"any", generation=generation)
    await until(lambda: not (c.path / source / "partitions" / str(partition_id)).exists())
    await until(lambda: not c.nodes[source].manager.migrations())


async def check(node: TestNode, rows: dict[bytes, bytes | None], generation: int = 2, partition_id: int = 1) -> None:
    """Exactly these rows."""
    assert await node.get(partition_id, *rows, generation=generation) == list(rows.values())
    assert (await node.count())[partition_id] == len([value for value in rows.values() if value is not None])


@pytest.mark.parametrize("rows", [SMALL, ROWS], ids=["by its log", "by a checkpoint"])
def test_a_partition_moves(tmp_path: Path, rows: dict[bytes, bytes | None]) -> None:
    """All of it, to the target alone; the source refuses with the new row."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, ephesus = await two(c, rows)
            await c.move("ephesus", 1)
            await arrived(c)
            await check(ephesus, rows)
            assert await athens.count() == {}
            with pytest.raises(Refused) as caught:
                await athens.get(1, b"a")
            assert caught.value.error.code is Code.STALE_GENERATION
            assert caught.value.error.partitions == (c.rows[1],)
            await ephesus.put(1, {b"new": b"x"}, generation=2)
            assert len(athens.fences) == 1

    asyncio.run(scenario())


def test_an_empty_partition_moves(tmp_path: Path) -> None:
    """Without a folder anywhere."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            _, ephesus = await c.add("athens", "ephesus")
            await c.create("athens", 1)
            await c.move("ephesus", 1)
            await arrived(c)
            assert await ephesus.get(1, b"a", generation=2) == [None]
            assert not c.folders()

    asyncio.run(scenario())


def test_there_and_back(tmp_path: Path) -> None:
    """A node can have it again."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, ephesus = await two(c, ROWS)
            rows = dict(ROWS)
            for generation, target, source in ((2, ephesus, athens), (3, athens, ephesus), (4, ephesus, athens)):
                await c.tell_all(1)
                c.change(1, lambda row: row.ClearField("removing_replicas"))
                await c.move(target.id, 1)
                await arrived(c, 1, target.id, source.id)
                rows[b"generation %d" % generation] = b"x"
                await target.put(1, {b"generation %d" % generation: b"x"}, generation=generation)
                await check(target, rows, generation)

    asyncio.run(scenario())


class Load:
    """Writers that go on while partitions move; each key is written once, so that the sum shows what was lost."""

    def __init__(self, c: Cluster, partition_ids: list[int]) -> None:
        self.c = c
        self.partition_ids = partition_ids
        self.written: dict[int, dict[bytes, bytes | None]] = {id_: {} for id_ in partition_ids}
        self._stop = False
        self._tasks = [asyncio.create_task(self._write(random.Random(number), number)) for number in range(8)]

    async def stop(self) -> None:
        """And wait for the last."""
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def _write(self, rng: random.Random, number: int) -> None:
        count = 0
        while not self._stop:
            count += 1
            id_ = rng.choice(self.partition_ids)
            pairs: dict[bytes, bytes | None] = {b"%d/%d/%d" % (number, count, i): rng.randbytes(20) for i in range(5)}
            await self._put(id_, pairs)
            self.written[id_].update(pairs)

    async def _put(self, id_: int, pairs: dict[bytes, bytes | None]) -> None:
        row = self.c.rows[id_]
        while True:
            await asyncio.sleep(0)
            try:
                await self.c.nodes[row.leader].put(id_, pairs, generation=row.generation)
                return
            except Refused as refused:
                if refused.error.code not in (Code.STALE_GENERATION, Code.NOT_LEADER):
                    raise
                (row,) = refused.error.partitions


def test_nothing_is_lost_under_load(tmp_path: Path) -> None:
    """Sixteen partitions at once, while they are written."""
    ids = list(range(1, 17))

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, ephesus = await two(c, {b"old %d" % i: b"x" * 1000 for i in range(300)}, *ids)
            load = Load(c, ids)
            await c.move("ephesus", *ids)
            for id_ in ids:
                await arrived(c, id_)
            await load.stop()
            for id_ in ids:
                written = load.written[id_]
                assert await ephesus.get(id_, *written, b"old 7", generation=2) == [*written.values(), b"x" * 1000]
                assert (await ephesus.count())[id_] == len(written) + 300
            assert await athens.count() == {}
            assert len(athens.fences) == len(ids)

    asyncio.run(scenario())


def test_deletions_and_flushes_move_too(tmp_path: Path) -> None:
    """With a log that is trimmed all the time."""

    async def scenario() -> None:
        async with cluster(tmp_path, storage=StorageSettings(block_cache=MIB, flush=20_000)) as c:
            athens, ephesus = await two(c, ROWS)
            rows = dict(ROWS)
            await c.move("ephesus", 1)
            node, generation = athens, 1
            for i in range(0, 5000, 50):
                gone: dict[bytes, bytes | None] = dict.fromkeys(list(ROWS)[i : i + 50 : 2])
                try:
                    await node.put(1, gone, generation=generation)
                except Refused:
                    node, generation = ephesus, 2
                    await node.put(1, gone, generation=generation)
                rows.update(gone)
            await arrived(c)
            await check(ephesus, rows)

    asyncio.run(scenario())


def test_reads_go_on_and_see_every_acknowledged_write(tmp_path: Path) -> None:
    """A counter that only grows, read all the time from whoever leads."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            await two(c, {**ROWS, b"counter": b"0"})
            acknowledged, done = 0, False

            async def route(op: Callable[[TestNode, int], object]) -> object:
                while True:
                    row = c.rows[1]
                    await asyncio.sleep(0)  # an answer may come without the loop having had its turn
                    try:
                        return await op(c.nodes[row.leader], row.generation)  # type: ignore[misc]
                    except Refused as refused:
                        if not refused.error.partitions:
                            raise

            async def put(pairs: dict[bytes, bytes | None], node: TestNode, generation: int) -> None:
                await node.put(1, pairs, generation=generation)

            async def count() -> None:
                nonlocal acknowledged
                while not done:
                    pairs: dict[bytes, bytes | None] = {b"counter": b"%d" % (acknowledged + 1)}
                    await route(partial(put, pairs))
                    acknowledged += 1

            async def read() -> None:
                while not done:
                    before = acknowledged
                    found = await route(lambda node, generation: node.get(1, b"counter", generation=generation))
                    assert isinstance(found, list)
                    assert int(found[0]) >= before

            tasks = [asyncio.create_task(count()), *(asyncio.create_task(read()) for _ in range(3))]
            await c.move("ephesus", 1)
            await arrived(c)
            done = True
            await asyncio.gather(*tasks)
            assert acknowledged > 0

    asyncio.run(scenario())


# The hand-over


def test_an_unknown_outcome_keeps_writes_and_reads_waiting(tmp_path: Path) -> None:
    """It was recorded, and the answer was lost: nothing may be served until that is known."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, ephesus = await two(c, SMALL)
            c.after_hand_over = [MinkaError(Code.OUTCOME_UNKNOWN, "lost")] * 100_000
            await c.move("ephesus", 1)
            await until(lambda: len(c.hand_overs) >= 1)
            with pytest.raises(Refused) as caught:
                await athens.get(1, b"a", timeout_ms=20)
            assert caught.value.error.code is Code.DEADLINE_EXCEEDED
            asked = len(c.hand_overs)
            c.after_hand_over = []
            await arrived(c)  # asked again, the controller says what it recorded
            assert len(c.hand_overs) > asked
            await check(ephesus, SMALL)

    asyncio.run(scenario())


def test_a_refusal_behind_an_unknown_outcome_decides_nothing(tmp_path: Path) -> None:
    """The first request may be the reason for it."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, _ = await two(c, SMALL)
            c.before_hand_over = [
                MinkaError(Code.OUTCOME_UNKNOWN, "lost"),
                *(MinkaError(Code.STALE_GENERATION, "no") for _ in range(100)),
            ]
            await c.move("ephesus", 1)
            await until(lambda: len(c.hand_overs) >= 3)
            with pytest.raises(Refused, match="handed over"):
                await athens.put(1, {b"a": b"2"}, timeout_ms=50)
            (progress,) = athens.manager.migrations()
            assert progress.phase == "hand over"
            assert "outcome" in progress.blocked_by
            await athens.tell(c.cancel(1, "ephesus"))
            await athens.put(1, {b"a": b"2"})

    asyncio.run(scenario())


def test_a_refusal_lets_writes_go_on(tmp_path: Path) -> None:
    """And the migration tries again."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, ephesus = await two(c, SMALL)
            c.before_hand_over = [MinkaError(Code.STALE_GENERATION, "not now")] * 3
            await c.move("ephesus", 1)
            await until(lambda: len(c.hand_overs) == 2)
            await athens.put(1, {b"c": b"3"})
            await arrived(c)
            await check(ephesus, {**SMALL, b"c": b"3"})

    asyncio.run(scenario())


def test_cancelled(tmp_path: Path) -> None:
    """The source serves on, the target has nothing left; also when it was waiting for the outcome."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, ephesus = await two(c, ROWS)
            c.before_hand_over = [MinkaError(Code.NO_CONTROLLER, "nobody")] * 1000
            await c.move("ephesus", 1)
            await until(lambda: len(c.hand_overs) >= 2)
            assert await ephesus.count() == {1: len(ROWS)}
            row = c.cancel(1, "ephesus")
            await athens.tell(row)
            (result,) = (await ephesus.tell(row)).results
            assert result.outcome == ReplicaOutcome.REPLICA_OUTCOME_DELETED
            assert await ephesus.count() == {}
            assert c.folders() == {"athens/partitions/1"}
            await athens.put(1, {b"c": b"3"})
            await check(athens, {**ROWS, b"c": b"3"}, generation=1)
            assert athens.manager.migrations() == []

    asyncio.run(scenario())


def test_the_source_deletes_only_when_told(tmp_path: Path) -> None:
    """By a row that has it in removing_replicas, or not at all."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, _ = await two(c, ROWS)
            c._tell_later = lambda *_: None  # type: ignore[method-assign] # nobody is told but by the answer
            await c.move("ephesus", 1)
            await until(lambda: c.rows[1].leader == "ephesus")
            await until(lambda: not athens.manager.migrations())
            assert await athens.count() == {1: len(ROWS)}
            with pytest.raises(Refused, match="STALE_GENERATION"):
                await athens.get(1, b"a")
            (result,) = (await athens.tell(c.rows[1])).results
            assert result.outcome == ReplicaOutcome.REPLICA_OUTCOME_DELETED
            assert await athens.count() == {}
            (result,) = (await athens.tell(c.rows[1])).results
            assert result.outcome == ReplicaOutcome.REPLICA_OUTCOME_DELETED

    asyncio.run(scenario())


# The way there


class Interfering:
    """The links of a node, with something done to what goes over them."""

    def __init__(self, node: TestNode) -> None:
        self.inner = node.links
        self.ships = 0
        self.appends: list[Append] = []
        self.on_ship: Callable[[int, int, bytes], bytes] = lambda _ship, _message, data: data
        node.manager._links = self
        node.manager._context.links = self
        for feed in node.manager._feeds.values():
            feed._links = self

    def append(self, node_id: str, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Watched."""

        async def watched() -> AsyncIterator[bytes]:
            async for frame in frames:
                self.appends += decode_frame(frame).appends
                yield frame

        return self.inner.append(node_id, watched())

    async def ship(self, node_id: str, messages: AsyncIterator[bytes]) -> bytes:
        """Changed."""
        self.ships += 1
        ship = self.ships

        async def changed() -> AsyncIterator[bytes]:
            number = 0
            async for data in messages:
                yield self.on_ship(ship, number, data)
                number += 1

        return await self.inner.ship(node_id, changed())


def test_damage_on_the_way_is_refused_and_sent_again(tmp_path: Path) -> None:
    """Nothing of it is used."""

    async def scenario() -> None:
        async with cluster(tmp_path, ReplicationSettings(chunk_bytes=1000)) as c:
            athens, ephesus = await two(c, ROWS)
            links = Interfering(athens)
            links.on_ship = lambda ship, number, data: (
                bytes([data[0] ^ 1]) + data[1:] if ship == 1 and number == 5 else data
            )
            await c.move("ephesus", 1)
            await until(lambda: links.ships == 1 and any("CRC" in m.blocked_by for m in athens.manager.migrations()))
            await arrived(c)
            assert links.ships == 2
            await check(ephesus, ROWS)

    asyncio.run(scenario())


def test_a_transfer_that_breaks_starts_again(tmp_path: Path) -> None:
    """At any message."""

    async def scenario() -> None:
        async with cluster(tmp_path, ReplicationSettings(chunk_bytes=10_000, longest_backoff=0.05)) as c:
            athens, ephesus = await two(c, ROWS)
            links = Interfering(athens)

            def broken(ship: int, number: int, data: bytes) -> bytes:
                if ship < 5 and number == 2 * ship - 2:
                    raise MinkaError(Code.UNREACHABLE, "broke")
                return data

            links.on_ship = broken
            await c.move("ephesus", 1)
            await arrived(c)
            assert links.ships >= 5
            await check(ephesus, ROWS)
            assert c.folders() == {"ephesus/partitions/1"}

    asyncio.run(scenario())


def test_a_target_that_restarts_goes_on_from_what_it_has(tmp_path: Path) -> None:
    """No second checkpoint, and only the rest of the log."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, ephesus = await two(c, ROWS)
            links = Interfering(athens)
            c.before_hand_over = [MinkaError(Code.STALE_GENERATION, "not yet")] * 10_000
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

    asyncio.run(scenario())


def test_a_source_that_restarts_goes_on(tmp_path: Path) -> None:
    """At a new leader_epoch, from where both logs part: what the target has need not come again."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, ephesus = await two(c, ROWS)
            c.hold_hand_over()
            await c.move("ephesus", 1)
            await until(lambda: len(c.hand_overs) >= 1)
            await athens.stop()
            await athens.start()
            links = Interfering(athens)
            c.before_hand_over.clear()
            c.elect(1, "athens")
            c.succeed(1, "ephesus")
            await c.tell_all(1)
            await arrived(c)
            assert links.ships == 0
            await check(ephesus, ROWS)

    asyncio.run(scenario())


def test_a_target_that_is_told_later_than_asked(tmp_path: Path) -> None:
    """It answers once it knows; the source says what it waits for."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, ephesus = await two(c, ROWS)
            row = c.add_target(1, "ephesus")
            await athens.tell(row)
            links = Interfering(athens)
            await until(lambda: len(ephesus.manager._following._asked) == 1)
            assert links.ships == 0
            await ephesus.tell(row)
            await arrived(c)

    asyncio.run(scenario())


def test_a_target_that_is_down(tmp_path: Path) -> None:
    """The source serves, says what is wrong, and goes on when it is back."""

    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_fence_is_lifted_when_the_target_does_not_catch_up(tmp_path: Path) -> None:
    """Writes wait no longer than the setting says."""

    async def scenario() -> None:
        async with cluster(tmp_path, ReplicationSettings(fence_timeout=0.05, lag_timeout=10.0)) as c:
            athens, ephesus = await two(c, SMALL)
            c.hold_hand_over()
            await c.move("ephesus", 1)
            await until(lambda: len(c.hand_overs) >= 1)
            following = ephesus.manager._following
            acknowledge = following.durable
            following.durable = lambda replica: None  # type: ignore[method-assign]
            writing = asyncio.create_task(athens.put(1, {b"c": b"3"}))
            await until(lambda: "catch up" in athens.manager.migrations()[0].blocked_by)
            c.before_hand_over.clear()
            tries, lifted = len(c.hand_overs), len(athens.fences)
            await until(lambda: len(athens.fences) >= lifted + 2)
            assert len(c.hand_overs) == tries
            assert not writing.done()
            following.durable = acknowledge  # type: ignore[method-assign]
            await until(lambda: not athens.manager._replicas[1].fenced)
            later = asyncio.create_task(athens.put(1, {b"d": b"4"}))
            await writing
            with contextlib.suppress(Refused):
                await later
            await arrived(c)
            if later.exception() is not None:
                await ephesus.put(1, {b"d": b"4"}, generation=2)
            await check(ephesus, {**SMALL, b"c": b"3", b"d": b"4"})

    asyncio.run(scenario())


def test_progress(tmp_path: Path) -> None:
    """Phases, bytes, lag."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, _ = await two(c, ROWS)
            c.before_hand_over = [MinkaError(Code.NO_CONTROLLER, "nobody")] * 1000
            assert athens.manager.migrations() == []
            await c.move("ephesus", 1)
            await until(lambda: len(c.hand_overs) >= 1)
            (progress,) = athens.manager.migrations()
            assert (progress.partition_id, progress.target, progress.phase) == (1, "ephesus", "hand over")
            assert progress.bytes_done == progress.bytes_total > 0
            assert progress.lag == 0
            await athens.tell(c.cancel(1, "ephesus"))

    asyncio.run(scenario())


@pytest.mark.parametrize(("writes", "ships"), [(4, 1), (50, 2)])
def test_the_log_is_kept_for_who_is_away_a_while(tmp_path: Path, writes: int, ships: int) -> None:
    """For a few flushes; who stays away longer gets a checkpoint."""

    async def scenario() -> None:
        async with cluster(tmp_path, storage=StorageSettings(block_cache=MIB, flush=1000)) as c:
            athens, ephesus = await two(c, ROWS)
            links = Interfering(athens)
            c.before_hand_over = [MinkaError(Code.STALE_GENERATION, "not yet")] * 10_000
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

    asyncio.run(scenario())


def test_streams_of_others_are_refused(tmp_path: Path) -> None:
    """A frame that is none, and a checkpoint that nobody asked for."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            athens, _ = await c.add("athens", "ephesus")

            async def frames(*data: bytes) -> AsyncIterator[bytes]:
                for frame in data:
                    yield frame

            with pytest.raises(MinkaError, match="INVALID_ARGUMENT"):
                async for _ in athens.links.append("ephesus", frames(b"\xc1")):
                    pass
            for messages in ((), (b"\xc1",), (wire.encode([1, 1, []]),)):
                with pytest.raises(MinkaError, match=r"INVALID_ARGUMENT|NOT_LEADER"):
                    await athens.links.ship("ephesus", frames(*messages))

    asyncio.run(scenario())


def test_a_log_is_cut_where_it_parts_from_the_leaders(tmp_path: Path) -> None:
    """A stream broke, and the leader begins again where both logs part; nobody appends behind what isn't there."""

    async def scenario() -> None:
        async with cluster(tmp_path) as c:
            (ephesus,) = await c.add("ephesus")
            c.rows[1] = Partition(id=1, replicas=["athens"], leader="athens", leader_epoch=1, partition_epoch=1)
            await ephesus.tell(c.add_target(1, "ephesus"))
            bodies = [wire.encode(wire.WriteBody([b"%d" % i], [b"x"])) for i in range(1, 7)]

            async def frames(prev: int, last: int) -> AsyncIterator[bytes]:
                entries = [Entry(1, body) for body in bodies[prev:last]]
                yield encode(Frame([Append(1, 1, 0, 0, 0, [], True)], [], None))
                yield encode(Frame([Append(1, 1, prev, 0, 0, entries, False, True)], [], None))
                await until(lambda: replica.durable >= last)

            replica = ephesus.manager._replicas[1]
            for prev, last in ((0, 3), (1, 3), (2, 5), (0, 6), (6, 6), (4, 4)):
                answers = [decode_answer(frame) async for frame in ephesus.manager.follow(frames(prev, last))]
                assert answers[-1].acks[-1].offset >= last
                assert replica.log.end == last
            assert [entry.body for entry in replica.log.read(1, 4, 10_000)] == bodies[:4]
            with pytest.raises(MinkaError, match="appends behind 5"):
                async for _ in ephesus.manager.follow(frames(5, 5)):
                    pass

    asyncio.run(scenario())
