"""The cache of rows that were read: its rows equal those of the database, and its size is limited."""

import random
from pathlib import Path

import pytest
from rocksdict import Cache

from minka.bulk.sst_files import write_sst
from minka.cluster.key_ranges import KeyRange
from minka.wire.kv_frames import WriteBody
from minka.wire.stored_values import values_of
from minkad.process.telemetry import RowCacheUse
from minkad.storage.applied import Applied
from minkad.storage.data_database import DataDatabase
from minkad.storage.row_cache import CachedRows, RowCache
from minkad.storage.size_estimate import Size

KIB = 1024
MIB = 1024 * KIB


class Row(bytes):
    """A row's value. The class counts the values that are still in memory."""

    alive = 0

    def __init__(self, _: bytes) -> None:
        type(self).alive += 1

    def __del__(self) -> None:
        type(self).alive -= 1


class Model:
    """A database, and a dict with the rows that it should have. `check` compares them."""

    def __init__(self, path: Path, cache: RowCache, rng: random.Random) -> None:
        self.path = path
        self.data = DataDatabase(path / "data", Cache(MIB), row_cache=cache)
        self.rows: dict[bytes, bytes] = {}
        self.rng = rng
        self.offset = 0
        self.keys = [b"%04d" % number for number in range(200)]

    async def step(self) -> None:
        """Do something at random, most often a write of some keys."""
        self.offset += 1
        kind = self.rng.random()
        if kind < 0.02:
            kept = KeyRange(*sorted(self.rng.sample([b"", *self.keys], 2)))
            self.data.trim_to_range(kept, Applied(self.offset, 1))
            self.rows = {key: value for key, value in self.rows.items() if kept.contains(key)}
        elif kind < 0.04:
            await self.load()
        elif kind < 0.1:
            await self.data.flush()
        else:
            keys = self.rng.sample(self.keys, self.rng.randrange(1, 20))
            values = [None if self.rng.random() < 0.3 else self.value() for _ in keys]
            self.data.write([WriteBody(keys, values)], Applied(self.offset, 1))
            for key, value in zip(keys, values, strict=True):
                self.rows.pop(key, None)
                if value is not None:
                    self.rows[key] = value

    def value(self) -> bytes:
        """A random value, mostly a short one."""
        return self.rng.randbytes(self.rng.choice((0, 10, 100, 20 * KIB)))

    async def load(self) -> None:
        """Take in a file of rows."""
        loaded = {key: self.value() for key in sorted(self.rng.sample(self.keys, 20))}
        file = write_sst(self.path / f"{self.offset}.sst", loaded.items())
        assert file is not None
        loads = self.data.loads.with_load(self.offset, self.offset, 0, 1)
        await self.data.ingest(file.path, Size(file.bytes, len(loaded)), loads, Applied(self.offset, 1))
        self.rows |= loaded

    async def check(self) -> None:
        """Check that reads return the expected rows."""
        keys = self.rng.choices(self.keys, k=self.rng.randrange(1, 30))
        expected = [self.rows.get(key) for key in keys]
        assert self.data.get(keys) == values_of(await self.data.stored_many(keys)) == expected


@pytest.mark.parametrize("seed", range(5))
async def test_cached_reads_equal_the_database(tmp_path: Path, seed: int) -> None:
    """Between the reads, rows are written, trimmed and ingested, and the databases are closed and opened."""
    rng, cache = random.Random(seed), RowCache(16 * KIB)
    models = [Model(tmp_path / name, cache, rng) for name in ("a", "b")]
    for model in models:
        model.path.mkdir()
        await model.data.open()
    for _ in range(400):
        model = rng.choice(models)
        await model.step()
        await model.check()
        if rng.random() < 0.02:
            await model.data.rest(lambda: True)
            await model.data.open()
    for model in models:
        await model.data.close()


def test_the_memory_of_all_cached_rows_is_limited() -> None:
    """The limit is for the rows of all databases together, including rows that are about to be dropped."""
    cache, value = RowCache(64 * KIB), bytes(100)
    databases = [CachedRows(cache) for _ in range(3)]
    most = 0
    for number in range(5000):
        databases[number % 3].keep(b"%06d" % number, Row(value))
        most = max(most, Row.alive)
        if number % 700 == 0:
            databases[number % 2].clear()
    row_bytes = 6 + len(value) + 160
    assert 0.9 * 64 * KIB < most * row_bytes <= 64 * KIB + 2 * row_bytes


def test_a_changed_row_counts_with_its_new_size() -> None:
    """If the old size counted, growing rows could take any amount of memory, and smaller rows would push out others."""
    cache = RowCache(64 * KIB)
    rows = CachedRows(cache)
    keys = [b"%03d" % number for number in range(50)]
    for key in keys:
        rows.keep(key, bytes(200))
    for round_ in range(100):
        rows.written(dict.fromkeys(keys, bytes(100 + round_ % 2 * 100)))
    assert all(rows.find(keys))
    rows.written(dict.fromkeys(keys, bytes(2000)))
    assert all(rows.find(keys[:10]))
    for number in range(300):
        rows.keep(b"other%d" % number, bytes(10))
    assert not any(rows.find(keys[10:]))


def test_rows_that_are_read_stay_in_the_cache() -> None:
    """When the cache is full, it drops rows that were not read again."""
    cache = RowCache(16 * KIB)
    rows = CachedRows(cache)
    rows.keep(b"often", b"1" * 10)
    rows.keep(b"once", b"2" * 10)
    for number in range(1000):
        assert rows.find([b"often"]) == [b"1" * 10]
        rows.keep(b"%d" % number, bytes(10))
    assert rows.find([b"once", b"0", b"999"]) == [None, None, bytes(10)]


def test_large_rows_are_not_cached() -> None:
    """A cached row that becomes too large is dropped. A cache of size 0 keeps no rows."""
    rows = CachedRows(RowCache(MIB))
    rows.keep(b"a", bytes(17 * KIB))
    rows.keep(b"b", bytes(8))
    rows.written({b"b": bytes(17 * KIB)})
    assert rows.find([b"a", b"b"]) == [None, None]
    nothing = CachedRows(RowCache(0))
    nothing.keep(b"a", bytes(8))
    assert nothing.find([b"a"]) == [None]


def test_a_row_counts_only_while_its_database_keeps_it() -> None:
    """If dropped rows of a database still counted, the cache would drop other rows too early."""
    cache = RowCache(64 * KIB)
    rows, other = CachedRows(cache), CachedRows(cache)
    rows.keep(b"here", b"1" * 10)
    for _ in range(1000):
        other.keep(b"same", bytes(10))
    for _ in range(1000):
        other.clear()
        other.keep(b"same", bytes(10))
    for number in range(300):
        rows.keep(b"%d" % number, bytes(10))
    assert rows.find([b"here"]) == [b"1" * 10]


async def test_reads_are_counted_by_whether_their_rows_were_in_memory(tmp_path: Path) -> None:
    use = RowCacheUse()
    data = DataDatabase(tmp_path / "data", Cache(MIB), row_cache=RowCache(64 * KIB, use))
    data.write([WriteBody([b"a", b"b"], [b"1", b"2"])], Applied(1, 1))
    await data.open()
    data.stored([b"a"])
    data.stored([b"a", b"b", b"nowhere"])
    data.stored([b"b"])
    assert (use.looked_up, use.missed) == (5, 3)
    await data.close()


def test_the_reported_bytes_are_those_of_both_generations() -> None:
    use = RowCacheUse()
    rows = CachedRows(RowCache(64 * KIB, use))
    row_bytes = 160 + 6 + 10
    for number in range(100):
        rows.keep(b"%06d" % number, bytes(10))
        assert use.bytes == (number + 1) * row_bytes
    most = 0
    for number in range(100, 5000):
        rows.keep(b"%06d" % number, bytes(10))
        most = max(most, use.bytes)
    assert 64 * KIB - 2 * row_bytes < most <= 64 * KIB + row_bytes
    rows.clear()
    assert use.bytes < 33 * KIB
