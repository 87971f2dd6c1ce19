"""Leaders propose splits only of partitions that are too large."""

import random
from pathlib import Path

import pytest

from minkad.core.replication.replication_settings import ReplicationSettings
from minkad.replication.changing import sizing
from tests.integration.replication.halves import NODES, scanned
from tests.integration.replication.harness import cluster
from tests.integration.replication.node import until


async def test_a_large_partition_is_split_until_no_part_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader proposes to split a partition in the middle, until all parts are small enough."""
    limit = 64 * 1024
    keys = [b"%05d" % i for i in range(2000)]
    async with cluster(tmp_path, settings=ReplicationSettings(lag_timeout=10)) as c:
        monkeypatch.setattr(sizing, "_INTERVAL_S", 0.05)
        c.keyspace.max_bytes = limit
        athens, *_ = await c.add(*NODES)
        await c.create("athens", 1, followers=NODES[1:])
        await athens.put(1, dict.fromkeys(random.Random(1).sample(keys, 2000), b"v" * 100))

        def is_done() -> bool:
            replicas = list(athens.manager.replicas.values())
            return (
                len(replicas) == len(c.rows)
                and not any(replica.state.row.splitting or replica.state.trim.has_foreign for replica in replicas)
                and all(replica.data.size().bytes <= limit for replica in replicas)
            )

        await until(is_done, 30)
        rows = sorted(c.rows.values(), key=lambda row: row.start_key)
        assert len(rows) == 4
        sizes = [athens.replica(row.id).data.size().bytes for row in rows]
        assert max(sizes) <= 1.1 * min(sizes), sizes
        assert [key for row in rows for key in await scanned(athens, row.id, row.generation)] == keys


async def test_a_partition_with_one_huge_key_is_reported_and_not_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path) as c:
        monkeypatch.setattr(sizing, "_INTERVAL_S", 0.05)
        c.keyspace.max_bytes = 64 * 1024
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        await athens.put(1, {b"key": b"v" * 100_000})
        told: list[str] = []

        def is_told() -> bool:
            told.extend(one.not_split for one in athens.manager.stats(changed_only=True))
            return bool(told) and bool(told[-1])

        await until(is_told)  # without another write
        assert told[-1] == "too large, and no key divides it"
        assert not c.proposed
        await athens.put(1, {b"other": b"v" * 30_000})
        await until(lambda: len(c.proposed) == 1)
        assert c.proposed[0].key == b"o"


async def test_overwritten_values_do_not_make_a_partition_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overwritten values don't count, so clients can overwrite keys again and again without a split."""
    async with cluster(tmp_path) as c:
        monkeypatch.setattr(sizing, "_INTERVAL_S", 0.05)
        c.keyspace.max_bytes = 64 * 1024
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        for i in range(30):
            await athens.put(1, {b"%03d" % n: b"%d" % i * 100 for n in range(100)})
            await athens.replica().data.open()
        data = athens.replica().data
        assert data.size_at_most().bytes > 64 * 1024
        assert data.size().bytes <= 64 * 1024
        assert data.size() == await data.count() == await data.compact()
        assert not c.proposed


async def test_an_uncertain_size_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node measures a size that has become uncertain, even if the keyspace has no maximum."""
    async with cluster(tmp_path) as c:
        monkeypatch.setattr(sizing, "_INTERVAL_S", 0.05)
        monkeypatch.setattr(sizing, "_RECHECK_S", 0.05)
        (athens,) = await c.add("athens")
        await c.create("athens", 1)
        with monkeypatch.context() as held:
            held.setattr(sizing.SizeCheck, "_is_to_be_checked", lambda *_: False)
            await athens.put(1, {b"%05d" % n: b"v" * 10 for n in range(5000)})
            # Half of the values have another size, so a few samples don't show how many bytes are replaced.
            await athens.put(1, {b"%05d" % n: b"v" * (n % 2 * 1000) for n in range(5000)})
            await athens.put(1, {b"%05d" % n: b"v" * 500 for n in range(5000)})
            data = athens.replica().data
            assert data.size_error() > sizing.MAX_ERROR
        await until(lambda: data.size_error() == 0)
        assert data.size() == await data.count()
