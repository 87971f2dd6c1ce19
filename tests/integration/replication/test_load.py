"""Leaders report and split partitions that are too busy."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from minka.errors import Code
from minka.wire import kv_frames
from minkad.replication.changing import load_check
from minkad.replication.reading import replica_load
from tests.integration.replication.harness import Cluster, cluster
from tests.integration.replication.node import Refused, TestNode, until

KEYS = [b"%04d" % i for i in range(1000)]
ROUNDS, KEYS_PER_ROUND = 200, 10  # at most 200 rounds in a second
MOST_OPS = ROUNDS * KEYS_PER_ROUND


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all times to a twentieth."""
    monkeypatch.setattr(load_check, "_INTERVAL_S", 0.05)
    monkeypatch.setattr(load_check, "SUSTAINED_S", 0.25)
    monkeypatch.setattr(load_check, "_HALF_LIFE_S", 0.05)
    monkeypatch.setattr(replica_load, "_SAMPLED_SECONDS", 1)


class Users:
    """Users who read random keys of `pick`, some in each round. The only refusal that they accept is STALE_GENERATION:
    their row is older than the node's.
    """

    def __init__(self, c: Cluster, node: TestNode, pick: list[bytes]) -> None:
        self.c, self.node, self.pick = c, node, pick
        self.reads = 0

    async def run(self) -> None:
        rng = random.Random(1)
        while True:
            keys = rng.choices(self.pick, k=KEYS_PER_ROUND)
            for row in list(self.c.rows.values()):
                mine = [key for key in keys if row.start_key <= key and (not row.end_key or key < row.end_key)]
                if mine:
                    try:
                        await self.node.get(row.id, *mine, generation=row.generation)
                    except Refused as refused:
                        if refused.error.code is not Code.STALE_GENERATION:
                            raise
                    self.reads += 1
            await asyncio.sleep(1 / ROUNDS)


@asynccontextmanager
async def users(c: Cluster, node: TestNode, pick: list[bytes]) -> AsyncIterator[Users]:
    them = Users(c, node, pick)
    task = asyncio.create_task(them.run())
    try:
        yield them
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_busy_partition_is_split_until_no_part_is_too_busy(tmp_path: Path) -> None:
    """The leader splits the partition at its hot keys until no part is too busy. Then it stops splitting, although the
    load continues.
    """
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, dict.fromkeys(KEYS, b"value"))
        hot = KEYS[900:]
        async with users(c, athens, hot):
            c.keyspace.max_ops = 100
            await until(lambda: len(c.rows) >= 2)
            assert b"0930" <= c.proposed[0].key <= b"0970", c.proposed[0].key
            rates, replicas = athens.manager.load_check.meter, athens.manager.replicas
            c.keyspace.max_ops = MOST_OPS * 3 // 4  # less than the whole partition's load, more than a half's load
            await until(lambda: not any(replica.load.sample for replica in replicas.values()))
            settled, proposed = rates.at, len(c.proposed)
            await until(lambda: rates.at > settled + 3 * load_check.SUSTAINED_S)
            assert len(c.proposed) == proposed


async def test_a_single_hot_key_is_reported(tmp_path: Path) -> None:
    """While one hot key keeps a partition busy, the leader reports this key. The report ends with the load."""
    async with cluster(tmp_path) as c:
        c.keyspace.max_ops = 100
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, {b"hot": b"value"})
        async with users(c, athens, [b"hot"]):
            await until(lambda: bool(athens.replica().load.not_split))
            (stats,) = athens.manager.stats(changed_only=False)
            assert stats.not_split == "too busy, and one key, hot, has 100% of its load"
            assert stats.ops > 100
            assert stats.cpu_percent > 0
            athens.replica().not_split = "too large, and no key divides it"
            (stats,) = athens.manager.stats(changed_only=False)
            assert stats.not_split.startswith("too large, and no key divides it; too busy, and one key")
        await until(lambda: athens.replica().load.reported() == (0, 0, ""))
        assert not c.proposed


async def test_scans_of_all_keys_are_reported(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        c.keyspace.max_ops = 100
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, dict.fromkeys(KEYS, b"value"))
        body = kv_frames.encode(kv_frames.ScanBody(b"", b"", False, 2000, 1 << 20))
        while not athens.replica().load.not_split:
            await athens.ask(kv_frames.Op.SCAN, 1, 1, body)
            await asyncio.sleep(0)
        assert athens.replica().load.not_split == 'too busy, and no key divides its load: all of it begins at ""'


async def test_a_busy_node_splits_the_partition_that_keeps_it_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy node splits a partition even if its load is far below `max_ops`; but not in a keyspace without
    `max_ops`.
    """
    monkeypatch.setattr(load_check, "_BUSY_PROCESSORS", 0.005)  # low: these users need little of a fast processor
    monkeypatch.setattr(load_check, "_LEAST_OPS", 10)
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, dict.fromkeys(KEYS, b"value"))
        async with users(c, athens, KEYS) as them:
            reads = them.reads
            await until(lambda: them.reads > reads + 500 and athens.replica().load.ops > 10)
            assert athens.replica().load.sample is None
            monkeypatch.setattr(load_check, "SUSTAINED_S", 1.0)  # time for enough samples to know the keys' middle
            c.keyspace.max_ops = 10**9
            await until(lambda: bool(c.proposed))
            assert b"0400" <= c.proposed[0].key <= b"0600"


async def test_busy_partitions_are_reported_and_idle_ones_are_not(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1, 2)
        del c.rows[2]  # so the users don't read partition 2
        await athens.put(1, {b"key": b"value"})
        told: list[tuple[int, int]] = []

        def heartbeat() -> bool:
            told.extend((stats.partition_id, stats.ops) for stats in athens.manager.stats(changed_only=True))
            return False

        async with users(c, athens, [b"key"]):
            await until(lambda: heartbeat() or sum(id_ == 1 and ops > 0 for id_, ops in told) >= 5)
        told.clear()
        await until(lambda: heartbeat() or told[-1:] == [(1, 0)])
        assert all(id_ == 1 for id_, _ in told)
        told.clear()
        ticks = athens.manager.load_check.meter.at
        await until(lambda: heartbeat() or athens.manager.load_check.meter.at > ticks + 0.3)
        assert told == []
