"""Ranges of a data database: pages of a scan, trimming to a range, and keys that divide a range evenly."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Cache

from minka.cluster.key_ranges import KeyRange
from minka.wire.kv_frames import WriteBody
from minkad.core.replication.replica_storage import DeletedAheadError
from minkad.storage import rocks_data
from minkad.storage import split_keys as dividing
from minkad.storage.applied import Applied
from minkad.storage.data_database import DataDatabase
from minkad.storage.rocks_data import MAX_PASSED
from minkad.storage.split_keys import split_keys


async def database(path: Path, keys: Sequence[bytes], value: bytes = b"v" * 20, flush: int = 0) -> DataDatabase:
    """A database with these keys, written in this order. It is flushed after each `flush` keys."""
    made = DataDatabase(path, Cache(1 << 20))
    await made.open()
    for offset, start in enumerate(range(0, len(keys), flush or len(keys) or 1), 1):
        part = list(keys[start : start + (flush or len(keys))])
        made.write([WriteBody(part, [value] * len(part))], Applied(offset, 1))
        if flush:
            await made.flush()
    return made


@pytest.fixture(scope="module", params=["in memory", "in a database"])
def numbers(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> DataDatabase:
    made = DataDatabase(tmp_path_factory.mktemp("numbers"), Cache(1 << 20))
    made.write([WriteBody([b"%02d" % n for n in range(100)], [b"v" * 20] * 100)], Applied(1, 1))
    if request.param == "in a database":
        asyncio.run(made.open())
    return made


@given(st.integers(0, 100), st.integers(0, 100), st.booleans(), st.integers(1, 30), st.integers(1, 500), st.booleans())
def test_successive_pages_have_all_rows(
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
async def test_a_database_is_trimmed_to_a_range(tmp_path: Path, keep: KeyRange) -> None:
    keys = [b"%03d" % n for n in range(100)]
    data = DataDatabase(tmp_path / "data", Cache(1 << 20))
    data.write([WriteBody(keys, [b"v"] * 100)], Applied(7, 2))
    await data.flush()
    data.write([WriteBody([b"099", b"030"], [b"w", b"w"])], Applied(8, 2))
    had_others = keep != KeyRange()
    assert data.trim_to_range(keep, Applied(9, 2)) == had_others
    await data.compact_outside(keep)
    inside = [key for key in keys if keep.contains(key)]
    assert data.page(b"", b"", False, 1000, 10**6)[0] == inside
    assert await data.count() == await data.count(keep)
    if keep != KeyRange():
        assert data.size().keys == len(inside)
    assert not data.trim_to_range(keep, Applied(10, 2))
    data.write([WriteBody([b"000"], [b"v"])], Applied(11, 2))
    assert data.get([b"000"]) == [b"v"]
    assert data.trim_to_range(keep, Applied(12, 2)) == (not keep.contains(b"000"))
    await data.compact_outside(keep)
    await data.close()
    again = DataDatabase(tmp_path / "data", Cache(1 << 20))
    await again.open()
    assert again.applied == Applied(12, 2)
    assert again.page(b"", b"", False, 1000, 10**6)[0] == inside
    await again.close()


@pytest.mark.parametrize("flush", [0, 3000])
async def test_keys_that_divide_a_range_evenly(tmp_path: Path, flush: int) -> None:
    """The keys were written in random order, and some may still be in memory."""
    rng = random.Random(3)
    keys = [b"%08x" % rng.getrandbits(32) for _ in range(10_000)]
    data = await database(tmp_path / "data", keys, flush=flush)
    keys.sort()
    for parts in (2, 3, 10):
        found = await split_keys(data, parts)
        ranks = [sum(key < split for key in keys) / len(keys) for split in found]
        assert ranks == pytest.approx([n / parts for n in range(1, parts)], abs=0.01)
    await data.close()


@pytest.mark.parametrize(
    ("keys", "expected"), [([], []), ([b"a"], []), ([b"a", b"b"], [b"b"]), ([b"alice", b"bob and others"], [b"b"])]
)
async def test_keys_that_divide_a_range_of_few_keys(tmp_path: Path, keys: list[bytes], expected: list[bytes]) -> None:
    data = DataDatabase(tmp_path / "data", Cache(1 << 20))
    if keys:
        data.write([WriteBody(list(keys), [b"v"] * len(keys))], Applied(1, 1))
    assert await split_keys(data, 2) == expected
    await data.close()


async def test_a_range_whose_keys_are_deleted_meanwhile_is_not_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [b"%04d" % n for n in range(1000)]
    data = await database(tmp_path / "data", keys, flush=1000)
    find = dividing._keys_within

    async def then_deleted(*table: Any) -> list[bytes]:
        found = await find(*table)
        assert found
        data.write([WriteBody(keys, [None] * len(keys))], Applied(2, 1))
        return found

    monkeypatch.setattr(dividing, "_keys_within", then_deleted)
    assert await split_keys(data, 2) == []


async def test_a_range_with_one_huge_value_is_divided_around_it(tmp_path: Path) -> None:
    """The range can be divided only before or after the value's key."""
    data = DataDatabase(tmp_path / "data", Cache(1 << 20))
    data.write([WriteBody([b"a", b"b", b"c"], [b"v", b"v" * 1_000_000, b"v"])], Applied(1, 1))
    assert await split_keys(data, 2) in ([b"b"], [b"c"])
    assert set(await split_keys(data, 10)) <= {b"b", b"c"}
    await data.close()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("flushed", [False, True])
async def test_a_scan_goes_on_once_deleted_keys_in_its_way_are_cleared(
    tmp_path: Path, reverse: bool, flushed: bool
) -> None:
    """A page passes over at most MAX_PASSED deleted keys. If there are more, the page ends before these keys. `clear`
    removes their remains, so that the next page can pass.
    """
    many = 3 * MAX_PASSED
    keys = [b"%06d" % n for n in range(many)]
    few = {0, 1, many - 2, many - 1}
    data = await database(tmp_path / "data", keys, flush=many // 4 if flushed else 0)
    gone = [key for n, key in enumerate(keys) if n not in few]
    data.write([WriteBody(gone, [None] * len(gone))], Applied(100, 1))
    left = [keys[n] for n in sorted(few, reverse=reverse)]
    found, _, is_all = data.page(b"", b"", reverse, 1000, 10**6, MAX_PASSED)
    assert (found, is_all) == (left[:2], False)
    start, end = (b"", found[-1]) if reverse else (found[-1] + b"\x00", b"")
    with pytest.raises(DeletedAheadError):
        data.page(start, end, reverse, 1000, 10**6, MAX_PASSED)
    both = await asyncio.gather(*(data.clear(KeyRange(start, end), reverse) for _ in range(2)))
    assert both == [KeyRange(start, end)] * 2
    found, _, is_all = data.page(start, end, reverse, 1000, 10**6, MAX_PASSED)
    assert (found, is_all) == (left[2:], True)
    assert await data.compact() == await data.count()
    await data.close()


@pytest.mark.parametrize("reverse", [False, True])
async def test_of_much_deleted_data_only_the_beginning_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    """Each call of `clear` clears only the range of the next few tables."""
    rng = random.Random(1)
    keys = [b"%06d" % n for n in range(40_000)]
    data = DataDatabase(tmp_path / "data", Cache(1 << 20))
    await data.open()
    data.write([WriteBody(keys, [rng.randbytes(1000) for _ in keys])], Applied(1, 1))
    await data.compact()
    data.write([WriteBody(keys[1:-1], [None] * (len(keys) - 2))], Applied(2, 1))
    monkeypatch.setattr(rocks_data, "_CLEARED_BYTES", 1)
    monkeypatch.setattr(rocks_data, "MAX_PASSED", 1000)
    left, parts = KeyRange(keys[0] + b"\x00", keys[-1]), []
    with pytest.raises(DeletedAheadError):
        data.page(left.start, left.end, reverse, 1000, 10**6, 1000)
    while left.start != left.end:
        part = await data.clear(left, reverse)
        assert data.page(part.start, part.end, reverse, 1000, 10**6, 1000) == ([], [], True)
        assert part.end == left.end if reverse else part.start == left.start
        left = KeyRange(left.start, part.start) if reverse else KeyRange(part.end, left.end)
        parts.append(part)
    assert len(parts) > 1
    await data.close()


async def test_a_database_with_many_deleted_keys_is_counted_and_divided(tmp_path: Path) -> None:
    keys = [b"%06d" % n for n in range(3 * MAX_PASSED)]
    data = await database(tmp_path / "data", keys, flush=MAX_PASSED)
    data.write([WriteBody(keys[10:-10], [None] * (len(keys) - 20))], Applied(100, 1))
    assert (await data.count()).keys == 20
    data.write([WriteBody(keys[10:-10], [b"v"] * (len(keys) - 20))], Applied(101, 1))
    data.write([WriteBody(keys[10:-10], [None] * (len(keys) - 20))], Applied(102, 1))
    (found,) = await split_keys(data, 2)
    assert sum(key < found for key in (*keys[:10], *keys[-10:])) in range(8, 13)
    await data.close()


async def test_the_share_of_a_range_in_a_database(tmp_path: Path) -> None:
    """The share is rough, since it is computed from whole tables. If there is at most one table, the share is 0.5."""
    rng = random.Random(1)
    keys = [b"%06d" % n for n in range(80_000)]
    data = DataDatabase(tmp_path / "data", Cache(1 << 20))
    assert data.share(KeyRange(b"", b"1")) == 0.5
    data.write([WriteBody(keys[:100], [b"v"] * 100)], Applied(1, 1))
    await data.flush()
    assert data.share(KeyRange(b"", keys[10])) == data.share(KeyRange(keys[10])) == 0.5
    for start in range(0, len(keys), 20_000):
        part = keys[start : start + 20_000]
        data.write([WriteBody(part, [rng.randbytes(1000) for _ in part])], Applied(2, 1))
    await data.compact()
    for place in (10_000, 40_000, 70_000):
        lower, upper = data.share(KeyRange(b"", keys[place])), data.share(KeyRange(keys[place]))
        assert lower + upper == pytest.approx(1)
        assert lower == pytest.approx(place / len(keys), abs=0.5 * 16 / 80 * 1.1)
    assert data.share(KeyRange()) == 1
    await data.close()
