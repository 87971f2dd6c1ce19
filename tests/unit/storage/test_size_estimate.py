"""The estimated size of a database, for which the database looks up only a sample of the written keys.

The tolerances follow from the number of samples: if 1 of s keys is looked up, and a share q of n keys existed before,
the standard error is at most sqrt(n q (1 - q) s) keys. The tests allow four standard errors: 1 of 16,000 seeds would
fail.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from rocksdict import Cache, Rdict

from minka.wire.kv_frames import WriteBody
from minkad.storage.applied import Applied
from minkad.storage.data_database import DataDatabase
from minkad.storage.rocks_data import data_options
from minkad.storage.size_estimate import Size, SizeEstimate
from tests.unit.storage.crash import crashed_copy

MIB = 1024 * 1024
SURE = 4.0

Values = dict[bytes, bytes | None]


class Model:
    """A database, and the rows that it should have."""

    def __init__(self, path: Path) -> None:
        self.data = DataDatabase(path, Cache(MIB))
        self.content: dict[bytes, bytes] = {}
        self._offset = 0

    def write(self, keys: list[bytes], values: list[bytes | None], batch: int = 500) -> None:
        for start in range(0, len(keys), batch):
            part = slice(start, start + batch)
            self._offset += 1
            self.data.write([WriteBody(keys[part], values[part])], Applied(self._offset, 1))
        for key, value in zip(keys, values, strict=True):
            if value is None:
                self.content.pop(key, None)
            else:
                self.content[key] = value

    def size(self) -> Size:
        return Size(sum(len(key) + len(value) for key, value in self.content.items()), len(self.content))

    def check(self, keys: float, bytes_: float) -> None:
        """Check that the size is off by at most `keys` and `bytes_`, and at most about SURE times the stated error."""
        found, size, error = self.data.size(), self.size(), self.data.size_error()
        assert abs(found.keys - size.keys) <= keys
        assert abs(found.bytes - size.bytes) <= bytes_
        assert abs(found.bytes - size.bytes) <= SURE * error * size.bytes + 100 * _step(size.keys)


def _step(keys: int) -> int:
    return max(1, min(keys // 512, 16))


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Model]:
    model = Model(path)
    await model.data.open()
    try:
        yield model
    finally:
        await model.data.close()


def names(count: int, seed: int = 1) -> list[bytes]:
    rng = Random(seed)
    return [rng.randbytes(16) for _ in range(count)]


def same(value: bytes | None, count: int) -> list[bytes | None]:
    return [value] * count


@pytest.mark.parametrize("count", [1, 10, 1000, 50_000])
async def test_the_size_of_new_keys_is_exact(tmp_path: Path, count: int) -> None:
    async with opened(tmp_path) as model:
        model.write(names(count), same(b"v" * 100, count))
        model.check(0, 0)
        await model.data.flush()
        model.check(0, 0)
        assert model.data.size() == model.data.size_at_most()


@pytest.mark.parametrize("count", [100, 20_000])
async def test_the_size_if_each_key_is_written_three_times(tmp_path: Path, count: int) -> None:
    """In the first round, none of the keys that the database looks up exists yet. In later rounds, each of them exists.
    So only the last block of writes, which is incomplete, is uncertain.
    """
    async with opened(tmp_path) as model:
        keys = names(count)
        for seed in range(3):
            model.write(Random(seed).sample(keys, count), same(b"v" * 100, count))
            await model.data.flush()
        model.check(2 * _step(count), 2 * _step(count) * 116)
        # Each of the three tables has a key for the applied offset. `size_at_most` leaves out only one of these keys.
        assert 3 * count <= model.data.size_at_most().keys <= 3 * count + 2


async def test_the_size_if_some_keys_are_written_much_more_often(tmp_path: Path) -> None:
    async with opened(tmp_path) as model:
        rng, count = Random(5), 20_000
        keys = names(count)
        weights = [1 / (rank + 1) for rank in range(count)]
        for _ in range(3):
            model.write(rng.choices(keys, weights, k=count), same(b"v" * 100, count))
        most = SURE * math.sqrt(3 * count * 0.25 * 16)
        model.check(most, most * 116)


async def test_the_size_if_a_batch_has_the_same_key_repeatedly(tmp_path: Path) -> None:
    """Only the last value of each key is written, and only this value counts."""
    async with opened(tmp_path) as model:
        model.write([b"a", b"b", b"a", b"b"] * 100, [b"1", b"2", b"333", None] * 100)
        model.check(0, 0)
        assert model.data.size() == Size(4, 1)


async def test_the_size_after_half_of_the_keys_are_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path) as model:
        keys = names(20_000)
        model.write(keys, same(b"v" * 100, 20_000))
        model.write(keys[::2], same(None, 10_000))
        model.check(2 * 16, 2 * 16 * 116)
        model.write(keys[::2], same(b"w" * 100, 10_000))
        model.check(3 * 16, 3 * 16 * 116)


async def test_the_size_after_deletions_of_keys_that_do_not_exist(tmp_path: Path) -> None:
    async with opened(tmp_path) as model:
        keys, others = names(20_000), names(20_000, seed=2)
        model.write(keys, same(b"v" * 100, 20_000))
        model.write(others, same(None, 20_000))
        model.check(0, 0)
        mixed = [keys[i] if i % 2 else others[i] for i in range(20_000)]
        model.write(mixed, same(None, 20_000))
        most = SURE * math.sqrt(20_000 * 0.25 * 16)
        model.check(most, most * 116)


async def test_the_size_with_values_of_very_different_sizes(tmp_path: Path) -> None:
    """The database computes the error that it states from the present sizes of the rows."""
    async with opened(tmp_path) as model:
        rng, count = Random(3), 20_000
        keys = names(count)
        values: list[bytes | None] = [bytes(int(rng.expovariate(1 / 300))) for _ in range(count)]
        model.write(keys, values)
        for _ in range(2):
            rng.shuffle(values)
            model.write(keys, values)
        # The sizes are distributed exponentially, so their standard deviation equals their mean, 300.
        most = SURE * math.sqrt(2 * count * 16) * 300
        model.check(2 * 16, most)
        assert 0.5 * most < SURE * model.data.size_error() * model.size().bytes < 2 * most


async def test_the_estimate_survives_a_crash_and_a_close(tmp_path: Path) -> None:
    """The database stores its estimate together with the data."""
    async with opened(tmp_path / "1") as model:
        keys = names(10_000)
        for _ in range(3):
            model.write(keys, same(b"v" * 100, 10_000))
        await model.data.flush()
        size, error = model.data.size(), model.data.size_error()
        model.write(names(10_000, seed=2), same(b"v" * 100, 10_000))
        after = DataDatabase(crashed_copy(model.data.path, tmp_path / "crashed"), Cache(MIB))
        await after.open()
        assert after.size() == size
        assert 0.5 * error < after.size_error() <= error  # the error of the incomplete block of writes isn't stored
        await after.close()
        await model.data.close()
        again = DataDatabase(model.data.path, Cache(MIB))
        await again.open()
        assert again.size() == model.data.size()
        await again.close()


async def test_a_compaction_makes_the_size_exact(tmp_path: Path) -> None:
    """Writes made during the compaction change the exact size by their estimated sizes."""
    async with opened(tmp_path) as model:
        keys = names(20_000)
        model.write(keys, [bytes(i % 1000) for i in range(20_000)])
        model.write(keys[:10_000], [bytes(i % 700) for i in range(10_000)])
        model.write(keys[5000:7000], same(None, 2000))
        assert model.data.size_error() > 0
        assert await model.data.compact() == model.size() == model.data.size_at_most()
        assert model.data.size_error() == 0
        compacting = asyncio.create_task(model.data.compact())
        while not compacting.done():
            model.write(names(100, seed=len(model.content)), same(b"v" * 10, 100))
            await asyncio.sleep(0)
        # Keys that were written before the compaction's flush count twice until the next compaction.
        assert await model.data.compact() == model.size()


async def test_a_table_with_only_deletions_is_compacted(tmp_path: Path) -> None:
    """No other table has keys in this table's range, so RocksDB alone would move the table down a level unchanged."""
    async with opened(tmp_path) as model:
        keys = names(1000)
        model.write(keys, same(None, 1000))
        model.write([b"a"], [b"1"])
        assert await model.data.compact() == Size(2, 1)
        assert sum(table["num_entries"] for table in model.data.opened().raw().live_files()) == 2


async def test_a_database_without_an_estimate_has_the_size_of_its_tables(tmp_path: Path) -> None:
    """Older versions of Minka stored no estimate. Until a compaction, nobody knows how many keys were overwritten."""
    options = data_options(Cache(MIB))
    options.create_if_missing(True)
    db = Rdict(str(tmp_path), options)
    db[b""] = Applied(7, 2).encode()
    for value in (b"1", b"2"):
        db[b"a"] = value
        db.flush()
    db.close()
    async with opened(tmp_path) as model:
        await model.data.open()
        assert model.data.applied == Applied(7, 2)
        assert model.data.size_error() == math.inf
        assert (await model.data.compact()).keys == 1
        assert model.data.size_error() == 0


async def test_rows_removed_without_the_estimates_knowledge_do_not_count_for_ever(tmp_path: Path) -> None:
    """The database lowers the estimate to the total of its tables, and states that the error is unknown."""
    async with opened(tmp_path) as model:
        model.write(names(5000), same(b"v" * 100, 5000))
        await model.data.flush()
        db = model.data.opened().raw()
        db.delete_range(b"\x00", b"\x80")
        db.compact_range(b"\x00", b"\x80")
        await model.data.flush()
        model.write([b"a"], [b"1"])
        await model.data.flush()
        size = await model.data.count()
        assert abs(model.data.size().keys - size.keys) <= 2
        assert model.data.size_error() == math.inf


def test_a_flush_during_a_measurement_does_not_change_the_measured_size() -> None:
    """The flush lowers the old estimate while the measurement runs. The measured size must not be lowered as well."""
    estimate = SizeEstimate(Size(120, 12))
    before = estimate.copy()
    estimate.bounded(Size(110, 11))
    estimate.written(7, 1, [])
    estimate.bounded(Size(107, 11))
    estimate.measured(Size(100, 10), before)
    assert estimate.size == Size(107, 11)


def test_one_key_of_each_block_is_looked_up() -> None:
    """The place of this key in the block is random, and doesn't depend on the sizes of the batches."""
    rng, estimate = Random(1), SizeEstimate(Size(100_000_000, 20_000))
    step, written, places = 16, 0, []
    while written < 160_000:
        count = rng.choice([1, 1, 16, 1000])
        places += [(written + place, weight) for place, weight in estimate.pick(count)]
        written += count
    assert {weight for _, weight in places} == {step}
    assert [place // step for place, _ in places] == list(range(len(places)))
    assert len(places) == pytest.approx(written / step, abs=1)
    assert {place % step for place, _ in places} == set(range(step))
