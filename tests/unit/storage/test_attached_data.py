"""The data of a split's child while it is attached: its rows are still in the parent's data."""

import asyncio
import random
from pathlib import Path

import pytest
from rocksdict import Cache

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.wire.kv_frames import WriteBody
from minkad.storage import checkpoint
from minkad.storage.applied import Applied
from minkad.storage.attached_data import Attachment
from minkad.storage.data_database import DataDatabase
from minkad.storage.versions import Versions

CACHE = Cache(1 << 20)
AT = Applied(7, 2)
HALF = b"050"


class Halves:
    """A parent's data, and the data of a child that is attached to it."""

    def __init__(self, path: Path, rows: dict[bytes, bytes | None]) -> None:
        self.parent = DataDatabase(path / "1", CACHE)
        self.child = DataDatabase(path / "2", CACHE)
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.may_record = asyncio.Event()
        self.may_record.set()
        self.is_recording = asyncio.Event()
        self.recorded: list[bool] = []  # for each call of `_record`: True if the child was still attached
        self.lost: list[bool] = []  # for each call of `lost`: True if the child was still attached
        self.parent.write([WriteBody(list(rows), list(rows.values()))], AT)

    def attach(self, at: Applied = AT) -> None:
        lost = lambda: self.lost.append(self.child.is_attached)  # noqa: E731
        self.child.attach(Attachment(self.parent, 1, at, Versions(3), self._copy, self._record, lost))

    async def _copy(self) -> None:
        await self.go_on.wait()
        taken = await checkpoint.take(self.parent, self.child.path.with_name("taken"))
        await taken.move(self.child.path)

    async def _record(self) -> None:
        self.is_recording.set()
        await self.may_record.wait()
        self.recorded.append(self.child.is_attached)

    async def close(self) -> None:
        await self.child.close()
        await self.parent.close()


def write(data: DataDatabase, rows: dict[bytes, bytes | None]) -> None:
    data.write([WriteBody(list(rows), list(rows.values()))], Applied(data.applied.offset + 1, 2))


ROWS: dict[bytes, bytes | None] = {b"%03d" % i: b"%d" % i for i in range(100)}


def pages(data: DataDatabase, range_: KeyRange, reverse: bool, rows: int, size: int) -> list[tuple[bytes, bytes]]:
    """All rows of the range, page by page."""
    found: list[tuple[bytes, bytes]] = []
    start, end = range_
    while True:
        keys, values, is_all = data.page(start, end, reverse, rows, size)
        assert len(keys) <= rows
        found += zip(keys, values, strict=True)
        if is_all:
            return found
        assert keys, "every page but the last has a row"
        start, end = (start, keys[-1]) if reverse else (keys[-1] + b"\x00", end)


@pytest.mark.parametrize("in_memory", [True, False])
async def test_writes_to_the_child_lie_over_the_parents_rows(tmp_path: Path, in_memory: bool) -> None:
    """The child returns the same rows as a dict with the expected rows, before and after the child has a database."""
    halves = Halves(tmp_path, ROWS)
    if not in_memory:
        await halves.parent.flush()
    halves.attach()
    rng, child = random.Random(1), halves.child
    model: dict[bytes, bytes] = {key: value for key, value in ROWS.items() if key >= HALF and value is not None}

    async def compare() -> None:
        keys = [b"%03d" % i for i in range(50, 120)]
        assert child.get(keys) == [model.get(key) for key in keys]
        assert await child.stored_many(keys) == child.stored(keys)
        for reverse in (False, True):
            for bounds in (KeyRange(HALF, b""), KeyRange(b"061", b"0845"), KeyRange(b"1", b"")):
                rows = [item for item in sorted(model.items(), reverse=reverse) if bounds.contains(item[0])]
                for limit, size in ((1, 100), (7, 1000), (1000, 40), (1000, 1 << 20)):
                    assert pages(child, bounds, reverse, limit, size) == rows

    await compare()
    for _ in range(20):
        rows = {
            b"%03d" % rng.randrange(50, 120): rng.choice((None, None, b"v%d" % rng.randrange(99))) for _ in range(8)
        }
        write(child, rows)
        model.update({key: value for key, value in rows.items() if value is not None})
        for key in [key for key, value in rows.items() if value is None]:
            model.pop(key, None)
        write(halves.parent, {b"010": b"lower", b"020": None})
        await compare()
    versions = child.stored(sorted(model))
    await child.detach()
    assert not child.in_memory
    await compare()
    assert (child.stored(sorted(model)), child.applied) == (versions, Applied(27, 2))
    assert child.version_base == 3
    assert (await child.count(KeyRange(HALF, b""))).keys == len(model)
    await halves.close()


async def test_writes_go_on_while_the_childs_database_is_made(tmp_path: Path) -> None:
    halves = Halves(tmp_path, ROWS)
    halves.attach()
    child = halves.child
    halves.go_on.clear()
    detaching = asyncio.create_task(child.detach())
    for number in range(50):
        write(child, {b"090": b"%d" % number, b"2%02d" % number: b"new", b"080": None})
        await asyncio.sleep(0)
        if number == 25:
            halves.go_on.set()
    await detaching
    assert halves.recorded == [True]
    assert not child.is_attached
    assert child.get([b"090", b"200", b"249", b"080", b"070"]) == [b"49", b"new", b"new", None, b"70"]
    await halves.close()
    again = DataDatabase(child.path, CACHE)
    await again.open()
    assert again.get([b"090", b"249", b"080", b"070"]) == [b"49", b"new", None, b"70"]
    assert again.applied == Applied(57, 2)
    await again.close()


async def test_after_a_restart_an_attached_child_is_closed(tmp_path: Path) -> None:
    halves = Halves(tmp_path, ROWS)
    write(halves.parent, {b"000": b"later"})
    await halves.parent.flush()
    await halves.parent.close()
    parent = halves.parent = DataDatabase(halves.parent.path, CACHE)
    halves.attach()
    child = halves.child
    assert (child.is_closed, child.is_open, child.exists(), child.is_known) == (True, False, True, False)
    assert await child.stored_many([b"070"]) == child.stored([b"070"])
    assert child.get([b"070", b"099"]) == [b"70", b"99"]
    assert (child.applied, child.version_base, parent.applied) == (AT, 3, Applied(8, 2))
    await halves.close()


async def test_the_parents_data_is_shared_from_the_marker_on(tmp_path: Path) -> None:
    halves = Halves(tmp_path, ROWS)
    halves.attach()
    parent, child = halves.parent, halves.child
    assert [parent.is_shared(offset) for offset in (6, 7, 8)] == [False, False, True]
    assert child.is_shared(8)
    await parent.open()
    assert parent.take_used()
    assert parent.take_used(), "shared data counts as used, so it isn't put to rest"
    await parent.rest(lambda: True)
    assert parent.is_open
    await parent.detach_children()
    assert [data.is_shared(8) for data in (parent, child)] == [False, False]
    parent.take_used()
    await parent.rest(lambda: True)
    assert parent.is_closed
    await halves.close()


async def test_a_flush_of_the_child_ends_when_its_database_is_recorded(tmp_path: Path) -> None:
    """After a flush, the replica trims its log. So the flush must not end before the child's database is recorded."""
    halves = Halves(tmp_path, ROWS)
    halves.attach()
    child = halves.child
    write(child, {b"090": b"new"})
    halves.may_record.clear()
    detaching = asyncio.create_task(child.detach())
    await halves.is_recording.wait()
    flushing = asyncio.create_task(child.flush())
    await asyncio.wait([flushing], timeout=0.1)
    assert not flushing.done()
    halves.may_record.set()
    assert await flushing == Applied(8, 2)
    assert halves.recorded == [True]
    assert not child.is_attached
    await detaching
    await halves.close()


async def test_a_closed_child_no_longer_holds_its_parent(tmp_path: Path) -> None:
    halves = Halves(tmp_path, ROWS)
    halves.attach()
    halves.go_on.clear()
    detaching = asyncio.create_task(halves.child.detach())
    await asyncio.sleep(0)
    await halves.child.close()
    with pytest.raises(MinkaError) as error:
        await detaching
    assert error.value.code is Code.SHUTTING_DOWN
    assert not halves.parent.is_shared(8)
    assert not halves.recorded
    await halves.close()


@pytest.mark.parametrize("is_closed", [True, False])
async def test_a_child_is_damaged_with_its_parent(tmp_path: Path, is_closed: bool) -> None:
    """If the parent's data is damaged or closed for good, the rows of the child are lost, too."""
    halves = Halves(tmp_path, ROWS)
    halves.attach()
    if is_closed:
        await halves.parent.close()
    else:
        halves.parent.condemn(MinkaError(Code.CORRUPT_DATA, "a block is damaged"))
    with pytest.raises(MinkaError) as error:
        await halves.child.detach()
    assert error.value.code is Code.CORRUPT_DATA
    assert halves.child.damage is not None
    assert halves.lost == [True]
    assert halves.parent.is_shared(8), "a crash would attach it again"
    halves.child.let_go()
    assert not halves.parent.is_shared(8), "its log can go on"
    await halves.child.close()
