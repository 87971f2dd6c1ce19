"""Moves of partitions between nodes while clients write and read. In the end, only the target has the partition, with
all its rows.
"""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError, newer_rows
from minka.v1.coordinator_pb2 import MigrationPhase
from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.replication.manager import StorageSettings
from tests.integration.replication.harness import Cluster, cluster
from tests.integration.replication.moves import ROWS, SMALL, arrived, check, two
from tests.integration.replication.node import Refused, TestNode, until

_PHASE = MigrationPhase
PATIENT = ReplicationSettings(lag_timeout=60.0, write_pause_timeout=30.0)  # so that no hand-over begins again


@pytest.mark.parametrize("rows", [SMALL, ROWS], ids=["by its log", "by a checkpoint"])
async def test_a_partition_moves(tmp_path: Path, rows: dict[bytes, bytes | None]) -> None:
    """After the move, only the target has the partition; the source's refusals contain the new row."""
    async with cluster(tmp_path, PATIENT) as c:
        athens, ephesus = await two(c, rows)
        await c.move("ephesus", 1)
        await arrived(c)
        await check(ephesus, rows)
        assert await athens.count() == {}
        with pytest.raises(Refused) as caught:
            await athens.get(1, b"a")
        assert caught.value.error.code is Code.STALE_GENERATION
        assert newer_rows(caught.value.error) == (c.rows[1],)
        await ephesus.put(1, {b"new": b"x"}, generation=2)
        assert len(athens.write_pauses) == 1


async def test_an_empty_partition_moves(tmp_path: Path) -> None:
    """A move of an empty partition creates no folder on any node."""
    async with cluster(tmp_path) as c:
        _, ephesus = await c.add("athens", "ephesus")
        await c.create("athens", 1)
        await c.move("ephesus", 1)
        await arrived(c)
        assert await ephesus.get(1, b"a", generation=2) == [None]
        assert not c.folders()


async def test_a_partition_moves_there_and_back(tmp_path: Path) -> None:
    """A partition can move back to a node that had it before."""
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


class MovingWriters:
    """Clients that write while partitions move. They write each key once, so the number of keys shows any loss."""

    def __init__(self, c: Cluster, partition_ids: list[int]) -> None:
        self.c = c
        self.partition_ids = partition_ids
        self.written: dict[int, dict[bytes, bytes | None]] = {id_: {} for id_ in partition_ids}
        self._stop = False
        self._tasks = [asyncio.create_task(self._write(random.Random(number), number)) for number in range(8)]

    async def stop(self) -> None:
        """Stop the writers, and wait for the last writes."""
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
                (row,) = newer_rows(refused.error)


async def test_nothing_is_lost_under_load(tmp_path: Path) -> None:
    """Sixteen partitions move at once, while clients write to them."""
    ids = list(range(1, 17))
    async with cluster(tmp_path, PATIENT) as c:
        athens, ephesus = await two(c, {b"old %d" % i: b"x" * 1000 for i in range(300)}, *ids)
        writers = MovingWriters(c, ids)
        await c.move("ephesus", *ids)
        for id_ in ids:
            await arrived(c, id_)
        await writers.stop()
        for id_ in ids:
            written = writers.written[id_]
            assert await ephesus.get(id_, *written, b"old 7", generation=2) == [*written.values(), b"x" * 1000]
            assert (await ephesus.count())[id_] == len(written) + 300
        assert await athens.count() == {}
        assert len(athens.write_pauses) == len(ids)


async def test_a_move_during_deletions_and_flushes(tmp_path: Path) -> None:
    """Keys are deleted during the move, and frequent flushes trim the log; the target gets all deletes."""
    async with cluster(tmp_path, storage=StorageSettings(flush=20_000)) as c:
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


async def test_reads_during_a_move_see_every_acknowledged_write(tmp_path: Path) -> None:
    """Clients increment and read a counter during the move. No read returns less than the acknowledged number."""
    async with cluster(tmp_path) as c:
        await two(c, {**ROWS, b"counter": b"0"})
        acknowledged, done = 0, False

        async def route(op: Callable[[TestNode, int], object]) -> object:
            while True:
                row = c.rows[1]
                await asyncio.sleep(0.0005)  # requests may not let other tasks run, and the log's thread needs the GIL
                try:
                    return await op(c.nodes[row.leader], row.generation)  # type: ignore[misc]
                except Refused as refused:
                    if not newer_rows(refused.error):
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


async def test_the_progress_of_a_migration(tmp_path: Path) -> None:
    """The source reports the phase, the copied bytes and the lag of a migration."""
    async with cluster(tmp_path) as c:
        athens, _ = await two(c, ROWS)
        c.before_hand_over = [MinkaError(Code.NO_CONTROLLER, "no active controller yet")] * 1000
        assert athens.manager.migrations() == []
        await c.move("ephesus", 1)
        await until(lambda: len(c.hand_overs) >= 1)
        (progress,) = athens.manager.migrations()
        assert (progress.partition_id, progress.target, progress.phase) == (
            1,
            "ephesus",
            _PHASE.MIGRATION_PHASE_HAND_OVER,
        )
        assert progress.bytes_done == progress.bytes_total > 0
        assert progress.lag == 0
        await athens.tell(c.cancel(1, "ephesus"))
