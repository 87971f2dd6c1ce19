"""Of a data database: pages of a scan, trimming to a range, and keys that divide it evenly."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Cache

from minka.ranges import KeyRange
from minka.wire import WriteBody
from minkad.storage.data_database import Applied, DataDatabase


def database(path: Path, keys: Sequence[bytes], value: bytes = b"v" * 20, flush: int = 0) -> DataDatabase:
    """With these keys, written in this order; flushed after each `flush` of them."""
    made = DataDatabase(path, Cache(1 << 20))
    for offset, start in enumerate(range(0, len(keys), flush or len(keys) or 1), 1):
        part = list(keys[start : start + (flush or len(keys))])
        made.write([WriteBody(part, [value] * len(part))], Applied(offset, 1))
        if flush:
            asyncio.run(made.flush())
    return made


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> DataDatabase:
    return database(tmp_path_factory.mktemp("numbers"), [b"%02d" % n for n in range(100)])


@given(st.integers(0, 100), st.integers(0, 100), st.booleans(), st.integers(1, 30), st.integers(1, 500), st.booleans())
def test_pages_one_after_the_other_are_all(
    numbers: DataDatabase, low: int, high: int, reverse: bool, rows: int, size: int, unbounded: bool
) -> None:
    start, end = b"%02d" % low, b"" if unbounded else b"%02d" % high
    wanted = [key for n in range(100) if KeyRange(start, end).contains(key := b"%02d" % n)]
    found: list[bytes] = []
    is_all = False
    while not is_all:
        keys, values, is_all = numbers.page(start, end, reverse, rows, size)
        assert keys or is_all
        assert len(keys) == len(values) <= rows
        assert len(keys) == 1 or sum(map(len, [*keys, *values])) <= size
        found += keys
        if keys:
            start, end = (start, keys[-1]) if reverse else (keys[-1] + b"\x00", end)
    assert found == (wanted[::-1] if reverse else wanted)


@pytest.mark.parametrize("keep", [KeyRange(b"030", b"060"), KeyRange(b"", b"040"), KeyRange(b"070", b""), KeyRange()])
def test_trimmed_to_a_range(tmp_path: Path, keep: KeyRange) -> None:
    async def scenario() -> None:
        keys = [b"%03d" % n for n in range(100)]
        data = DataDatabase(tmp_path / "data", Cache(1 << 20))
        data.write([WriteBody(keys, [b"v"] * 100)], Applied(7, 2))
        await data.flush()
        data.write([WriteBody([b"099", b"030"], [b"w", b"w"])], Applied(8, 2))
        had_others = keep != KeyRange()
        assert data.keep(keep, Applied(9, 2)) == had_others
        await data.compact_outside(keep)
        inside = [key for key in keys if keep.contains(key)]
        assert data.page(b"", b"", False, 1000, 10**6)[0] == inside
        assert await data.count() == await data.count(keep)
        if keep != KeyRange():
            assert data.size().keys == len(inside)
        assert not data.keep(keep, Applied(10, 2))
        data.write([WriteBody([b"000"], [b"v"])], Applied(11, 2))
        assert data.get([b"000"]) == [b"v"]
        assert data.keep(keep, Applied(12, 2)) == (not keep.contains(b"000"))
        await data.compact_outside(keep)
        await data.close()
        again = DataDatabase(tmp_path / "data", Cache(1 << 20))
        again.open()
        assert again.applied == Applied(12, 2)
        assert again.page(b"", b"", False, 1000, 10**6)[0] == inside
        await again.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("flush", [0, 3000])
def test_keys_that_divide_evenly(tmp_path: Path, flush: int) -> None:
    """Whatever order they came in, and whatever is in memory still."""
    rng = random.Random(3)
    keys = [b"%08x" % rng.getrandbits(32) for _ in range(10_000)]
    data = database(tmp_path / "data", keys, flush=flush)
    keys.sort()

    async def scenario() -> None:
        for parts in (2, 3, 10):
            found = await data.split_keys(parts)
            ranks = [sum(key < split for key in keys) / len(keys) for split in found]
            assert ranks == pytest.approx([n / parts for n in range(1, parts)], abs=0.01)
        await data.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("keys", "expected"), [([], []), ([b"a"], []), ([b"a", b"b"], [b"b"]), ([b"alice", b"bob and others"], [b"b"])]
)
def test_few_keys(tmp_path: Path, keys: list[bytes], expected: list[bytes]) -> None:
    async def scenario() -> None:
        data = DataDatabase(tmp_path / "data", Cache(1 << 20))
        if keys:
            data.write([WriteBody(list(keys), [b"v"] * len(keys))], Applied(1, 1))
        assert await data.split_keys(2) == expected
        await data.close()

    asyncio.run(scenario())


def test_one_huge_value(tmp_path: Path) -> None:
    """It can't be divided itself, but from what comes before or behind."""

    async def scenario() -> None:
        data = DataDatabase(tmp_path / "data", Cache(1 << 20))
        data.write([WriteBody([b"a", b"b", b"c"], [b"v", b"v" * 1_000_000, b"v"])], Applied(1, 1))
        assert await data.split_keys(2) in ([b"b"], [b"c"])
        assert set(await data.split_keys(10)) <= {b"b", b"c"}
        await data.close()

    asyncio.run(scenario())
