"""The database with one partition's data."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Cache

from minka.cluster.key_ranges import ALL_KEYS
from minka.errors import Code, MinkaError
from minka.wire.kv_frames import WriteBody
from minka.wire.stored_values import values_of
from minkad.storage.applied import Applied
from minkad.storage.data_database import DataDatabase
from minkad.storage.rocks_data import RocksData, block_cache
from minkad.storage.size_estimate import Size
from tests.unit.storage.crash import crashed_copy

MIB = 1024 * 1024


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[DataDatabase]:
    """A database at this path, which is closed at the end."""
    data = DataDatabase(path, Cache(MIB))
    try:
        yield data
    finally:
        await data.close()


async def test_without_data_there_is_no_folder(tmp_path: Path) -> None:
    """Reads of data that doesn't exist find nothing, and make no folder."""
    async with opened(tmp_path / "1") as data:
        assert data.get([b"a"]) == values_of(await data.stored_many([b"a"])) == [None]
        assert await data.count() == data.size() == Size()
        assert not data.exists()
        assert not (tmp_path / "1").exists()


async def test_writes_are_applied_in_order(tmp_path: Path) -> None:
    """All writes are in one batch. They are applied in their order, and together with the batch's offset."""
    async with opened(tmp_path) as data:
        body = WriteBody([b"a", b"b", b"a", b"c", b"c"], [b"1", b"2", b"3", b"4", None])
        data.write([body, WriteBody([b"b"], [b""])], Applied(7, 3))
        assert (
            data.get([b"a", b"b", b"c"]) == values_of(await data.stored_many([b"a", b"b", b"c"])) == [b"3", b"", None]
        )
        assert data.applied == Applied(7, 3)


async def test_keys_may_be_any_bytes(tmp_path: Path) -> None:
    """The database stores records of its own. They don't appear among the keys, and no key collides with them."""
    keys = [bytes([first]) + rest for first in range(256) for rest in (b"", b"\x00", b"\xff" * 20)]
    async with opened(tmp_path) as data:
        data.write([WriteBody(keys, list(keys))], Applied(1, 1))
        await data.flush()
        assert data.get(keys) == keys
        assert (await data.count()).keys == len(keys)
        assert data.applied == Applied(1, 1)


async def test_after_a_crash_the_data_is_that_of_the_last_flush_with_its_offset(tmp_path: Path) -> None:
    """The database stores data and offset together, so neither is newer than the other after a crash."""
    async with opened(tmp_path / "1") as data:
        data.write([WriteBody([b"a"], [b"1"])], Applied(1, 1))
        assert await data.flush() == Applied(1, 1)
        data.write([WriteBody([b"a", b"b"], [b"2", b"2"])], Applied(2, 1))
        crashed_copy(tmp_path / "1", tmp_path / "crashed")
    async with opened(tmp_path / "crashed") as data:
        await data.open()
        assert data.applied == Applied(1, 1)
        assert data.get([b"a", b"b"]) == [b"1", None]
    async with opened(tmp_path / "1") as data:
        await data.open()
        assert data.applied == Applied(2, 1)


async def test_the_size_is_right_within_ten_percent(tmp_path: Path) -> None:
    """The size is right for rows in memory, after a flush, after deletions, and after the database was opened again."""
    rng = random.Random(1)
    keys = [rng.randbytes(16) for _ in range(20_000)]

    def check(estimate: Size, exact: Size) -> None:
        assert abs(estimate.keys - exact.keys) <= 0.1 * exact.keys
        assert abs(estimate.bytes - exact.bytes) <= 0.1 * exact.bytes

    async with opened(tmp_path) as data:
        for start in range(0, len(keys), 1000):
            values: list[bytes | None] = [rng.randbytes(100) for _ in range(1000)]
            data.write([WriteBody(keys[start : start + 1000], values)], Applied(start, 1))
        check(data.size(), await data.count())
        await data.flush()
        check(data.size(), await data.count())
        assert (await data.count()).keys == 20_000
        data.write([WriteBody(keys[:500], [None] * 500)], Applied(30_000, 1))
        check(data.size(), await data.count())
    async with opened(tmp_path) as data:
        await data.open()
        check(data.size(), await data.count())


def test_the_size_of_a_closed_database_is_the_given_one(tmp_path: Path) -> None:
    """The database returns the size that it was given, and isn't opened."""
    data = DataDatabase(tmp_path, Cache(MIB), Size(5, 6))
    assert data.size() == Size(5, 6)
    assert not data.is_open


async def test_counting_leaves_turns_to_other_tasks(tmp_path: Path) -> None:
    """Other tasks get a turn after every few thousand counted keys."""
    async with opened(tmp_path) as data:
        keys = [b"%06d" % i for i in range(10_000)]
        data.write([WriteBody(keys, list(keys))], Applied(1, 1))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        task = asyncio.create_task(other())
        assert await data.count() == Size(120_000, 10_000)
        task.cancel()
        assert turns >= 8


async def test_closing_waits_for_readers(tmp_path: Path) -> None:
    """`close` waits for the count that is under way. Later reads are refused, and don't open the database again."""
    async with opened(tmp_path) as data:
        await data.open()
        keys = [b"%06d" % i for i in range(10_000)]
        data.write([WriteBody(keys, list(keys))], Applied(1, 1))
        counting = asyncio.create_task(data.count())
        await asyncio.sleep(0)
        await data.close()
        assert counting.done()
        assert (await counting).keys == 10_000
        with pytest.raises(MinkaError, match="SHUTTING_DOWN"):
            data.get([b"000001"])


async def test_reads_of_a_damaged_block_are_refused(tmp_path: Path) -> None:
    """Counts are refused like other reads. Without a check, a count could end too early, at the damaged block."""
    keys = [b"%06d" % i for i in range(20_000)]
    async with opened(tmp_path) as data:
        data.write([WriteBody(keys, [random.Random(1).randbytes(50) for _ in keys])], Applied(1, 1))
        await data.flush()
    (table,) = tmp_path.glob("*.sst")
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    async with opened(tmp_path) as data:
        with pytest.raises(MinkaError) as counting:
            await data.count()
        with pytest.raises(MinkaError) as getting:
            data.get(keys)
        assert counting.value.code is getting.value.code is Code.CORRUPT_DATA
        assert str(tmp_path) in str(counting.value)
        assert data.share(ALL_KEYS) == 0.5, "estimates go on"
        with pytest.raises(MinkaError) as opening:
            await data.open()
        assert str(opening.value) == str(counting.value)
        for read in (lambda: data.get(keys[:1]), lambda: data.page(b"", b"", False, 1, 1), data.opened):
            with pytest.raises(MinkaError) as again:
                read()
            assert str(again.value) == str(counting.value), "whole blocks are refused, too"
        with pytest.raises(MinkaError):
            data.write([WriteBody([b"a"], [b"1"])], Applied(2, 1))


class Counting:
    """Counts the keys that RocksDB is asked for."""

    def __init__(self, rocks: RocksData, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._db = rocks.raw()
        monkeypatch.setattr(rocks, "_db", self)

    def get(self, keys: bytes | list[bytes]) -> Any:
        self.count += 1 if isinstance(keys, bytes) else len(keys)
        return self._db.get(keys)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


async def test_equal_keys_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the rows are kept in memory or not, whether the keys are there or not, and in any order."""
    small, large = b"s", bytes(20 * 1024)
    async with opened(tmp_path) as data:
        data.write([WriteBody([b"a", b"b"], [small, large])], Applied(1, 1))
        await data.flush()
        counting = Counting(data.opened(), monkeypatch)
        keys, values = [b"a", b"b", b"c"] * 300, [small, large, None] * 300
        assert values_of(await data.stored_many(keys)) == values
        assert counting.count == 3
        assert data.get(keys[:60]) == values[:60]
        assert counting.count == 6


async def test_equal_keys_count_with_all_their_values_for_the_limit(tmp_path: Path) -> None:
    async with opened(tmp_path) as data:
        data.write([WriteBody([b"a"], [bytes(992)])], Applied(1, 1))
        await data.flush()
        for count in (1, 700, 1000, 1700):
            assert values_of(await data.stored_many([b"a"] * count, count * 1000)) == [bytes(992)] * count
            with pytest.raises(MinkaError) as caught:
                await data.stored_many([b"a"] * count, count * 1000 - 1)
            assert caught.value.code is Code.TOO_LARGE


async def test_the_cache_keeps_a_block_with_the_largest_value(tmp_path: Path) -> None:
    """The small rows before a large value are in its block: otherwise each read of them would take milliseconds."""
    for _ in ("a new database", "the same database, opened again"):
        cache = block_cache(256 * MIB)
        data = DataDatabase(tmp_path, cache)
        await data.open()
        data.write([WriteBody([b"a", b"b"], [b"small", bytes(16 * MIB)])], Applied(1, 1))
        await data.flush()
        data.get([b"a"])
        assert cache.get_usage() > 16 * MIB
        await data.close()


async def test_a_database_that_is_opened_again_has_bloom_filters(tmp_path: Path) -> None:
    for offset in (1, 2):
        async with opened(tmp_path) as data:
            await data.open()
            data.write([WriteBody([b"%d" % offset], [b"v"])], Applied(offset, 1))
            await data.flush()
            properties = data.opened().raw().property_value("rocksdb.aggregated-table-properties-at-level0") or ""
            assert f"filter block size={69 * offset};" in properties, properties
