"""Data that is only in memory until a database is made of it."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rocksdict import Cache

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.wire.kv_frames import WriteBody
from minka.wire.stored_values import values_of
from minkad.storage import data_database
from minkad.storage.applied import Applied
from minkad.storage.data_database import DataDatabase
from minkad.storage.memory_data import MemoryData
from minkad.storage.openings import Openings
from minkad.storage.rocks_data import create_folder
from minkad.storage.size_estimate import Size
from tests.unit.storage.crash import crashed_copy

CACHE = Cache(1 << 20)


@asynccontextmanager
async def made(path: Path, openings: Openings | None = None) -> AsyncIterator[DataDatabase]:
    """Data at this path, which is closed at the end."""
    data = DataDatabase(path, CACHE, openings=openings)
    try:
        yield data
    finally:
        await data.close()


async def test_a_write_makes_no_folder(tmp_path: Path) -> None:
    """Written rows are only in memory at first. The first flush makes the folder."""
    async with made(tmp_path / "1") as data:
        data.write([WriteBody([b"b", b"a", b"c"], [b"2", b"1", None])], Applied(3, 2))
        assert (data.in_memory, data.is_closed, data.exists()) == (True, False, False)
        assert data.get([b"a", b"c"]) == values_of(await data.stored_many([b"a", b"c"])) == [b"1", None]
        assert data.page(b"", b"", False, 10, 100) == ([b"a", b"b"], [b"1", b"2"], True)
        assert (data.applied, data.size(), data.size_at_most(), data.size_error()) == (
            Applied(3, 2), Size(4, 2), Size(4, 2), 0.0,
        )  # fmt: skip
        assert data.share(KeyRange(b"b", b"")) == 0.5
        assert not (tmp_path / "1").exists()
        assert await data.flush() == Applied(3, 2)
        assert (data.in_memory, data.exists()) == (False, True)


async def test_the_database_has_the_rows_that_were_in_memory(tmp_path: Path) -> None:
    """Some rows are written or removed while the database is made. Closing and opening the database changes nothing."""
    rng, content = random.Random(5), dict[bytes, bytes]()
    async with made(tmp_path / "1") as data:

        def write(offset: int) -> None:
            keys = [b"%03d" % rng.randrange(400) for _ in range(40)]
            values = [rng.choice((None, b"v" * rng.randrange(30))) for _ in keys]
            data.write([WriteBody(keys, values)], Applied(offset, 1))
            for key, value in zip(keys, values, strict=True):
                content.pop(key, None)
                if value is not None:
                    content[key] = value

        for offset in range(1, 30):
            write(offset)
        opening = asyncio.create_task(data.open())
        while not opening.done():
            offset += 1
            write(offset)
            assert data.get(list(content)) == list(content.values())
            await asyncio.sleep(0)
        size = Size(sum(len(key) + len(value) for key, value in content.items()), len(content))
        assert offset > 30, "it was written to meanwhile"
        assert (data.in_memory, data.size(), data.size_error()) == (False, size, 0.0)
        assert data.page(b"", b"", False, 1000, 10**6)[0] == sorted(content)
    async with made(tmp_path / "1") as data:
        assert data.is_closed
        await data.open()
        assert data.get(list(content)) == list(content.values())
        assert (data.applied, await data.count()) == (Applied(offset, 1), size)


async def test_a_crash_before_the_flush_leaves_nothing(tmp_path: Path) -> None:
    """The folder that the crash leaves counts as empty, so the replica applies its log again from the beginning."""
    async with made(tmp_path / "1") as data:
        data.write([WriteBody([b"a"], [b"1"])], Applied(1, 1))
        await data.open()
        (tmp_path / "2").mkdir()
        for file in (tmp_path / "1").iterdir():
            if file.name != "LOCK":
                (tmp_path / "2" / file.name).write_bytes(file.read_bytes())
    async with made(tmp_path / "2") as crashed:
        await crashed.open()
        assert (crashed.applied, crashed.get([b"a"])) == (Applied(), [None])


async def test_a_request_that_can_not_wait_does_not_open_closed_data(tmp_path: Path) -> None:
    """Calls that can't wait (`get`, `write`) are refused while the data is closed. Calls that can wait open it."""
    async with made(tmp_path / "1") as data:
        data.write([WriteBody([b"a"], [b"1"])], Applied(1, 1))
        await data.flush()
    async with made(tmp_path / "1") as data:
        with pytest.raises(AssertionError, match="is not open"):
            data.get([b"a"])
        with pytest.raises(AssertionError, match="is not open"):
            data.write([], Applied(2, 1))
        assert values_of(await data.stored_many([b"a"])) == [b"1"]
        assert not data.is_closed


async def test_data_is_opened_once_for_all_who_wait(tmp_path: Path) -> None:
    async with made(tmp_path / "1") as data:
        data.write([WriteBody([b"a"], [b"1"])], Applied(1, 1))
        await asyncio.gather(*(data.open() for _ in range(5)), data.flush(), data.flush())
        assert data.get([b"a"]) == [b"1"]


async def test_data_may_be_closed_while_it_waits_to_be_opened(tmp_path: Path) -> None:
    """`close` returns without waiting for the opening, and tasks that wait for the opening get an error."""
    openings = Openings()
    async with made(tmp_path / "1", openings) as data, openings.slot(lambda: 0):
        data.write([WriteBody([b"a"], [b"1"])], Applied(1, 1))
        opening = asyncio.create_task(data.open())
        await asyncio.sleep(0)
        await data.close()
        with pytest.raises(MinkaError) as caught:
            await opening
        assert caught.value.code is Code.SHUTTING_DOWN
    assert not (tmp_path / "1").exists()


async def test_a_limited_number_of_bytes_waits_in_memory_for_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_database, "_MOST_MEMORY_BYTES", 1000)
    monkeypatch.setattr(data_database, "_MEMORY_BYTES", 100)
    openings, found = Openings(), list[tuple[bool, bool]]()
    async with made(tmp_path / "1", openings) as data:

        def note() -> None:
            found.append((data.is_large, data.is_stalled()))

        async with openings.slot(lambda: 0):
            data.write([WriteBody([b"a"], [b"1" * 99])], Applied(1, 1))
            note()
            data.write([WriteBody([b"b"], [b"1" * 999])], Applied(2, 1))
            note()
            opening = asyncio.create_task(data.open())
            await asyncio.sleep(0)
            note()
        await opening
        note()
        assert found == [(False, False), (True, False), (True, True), (False, False)]


async def test_data_is_opened_one_at_a_time_and_the_most_urgent_first() -> None:
    openings, order, at_once = Openings(), list[int](), 0

    async def work(urgency: int) -> None:
        nonlocal at_once
        async with openings.slot(lambda: urgency):
            at_once += 1
            assert at_once == 1
            await asyncio.sleep(0)
            order.append(urgency)
            at_once -= 1

    tasks = [asyncio.create_task(work(urgency)) for urgency in (1, 4, 2, 5, 3)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [1, 5, 4, 3]
    async with openings.slot(lambda: 0):
        pass


async def test_data_at_rest_is_still_known_and_is_opened_again(tmp_path: Path) -> None:
    """Data at rest loses nothing, and its size is known while it is closed."""
    openings = Openings()
    async with made(tmp_path / "1", openings) as data:
        keys = [b"%03d" % number for number in range(500)]
        for offset in (1, 2):
            data.write([WriteBody(keys, list(keys))], Applied(offset, 1))
            await data.flush()
        data.write([WriteBody([b"new"], [b"1"])], Applied(3, 1))
        before = (data.size(), data.size_error(), data.applied, data.loads)
        await data.rest(lambda: True)
        assert (data.is_open, data.is_closed, data.is_known, openings.open) == (False, True, True, 0)
        assert (data.size(), data.size_error(), data.applied, data.loads) == before
        assert data.size_at_most().keys > 1000, "the keys that a compaction would remove count, too"
        assert (await data.count()).keys == 501
        assert (data.is_open, openings.open) == (True, 1)
        assert data.applied == Applied(3, 1)
    assert openings.open == 0


async def test_data_in_use_is_not_put_to_rest(tmp_path: Path) -> None:
    async with made(tmp_path / "1") as data:
        data.write([WriteBody([b"a"], [b"1"])], Applied(1, 1))
        assert data.take_used(), "it has no database"
        await data.open()
        assert data.take_used()
        assert not data.take_used()
        with data.in_use():
            assert data.take_used()
            await data.rest(lambda: True)
        await data.rest(lambda: False)
        resting = asyncio.create_task(data.rest(lambda: True))
        await asyncio.sleep(0)
        data.write([WriteBody([b"b"], [b"2"])], Applied(2, 1))
        await resting
        assert data.is_open
        assert data.get([b"a", b"b"]) == [b"1", b"2"]


async def test_data_that_is_being_put_to_rest_is_opened_again_for_a_read(tmp_path: Path) -> None:
    async with made(tmp_path / "1") as data:
        data.write([WriteBody([b"a"], [b"1"])], Applied(1, 1))
        await data.open()
        resting = asyncio.create_task(data.rest(lambda: True))
        while data.is_open:  # noqa: ASYNC110 - the read has to come while the data is closed
            await asyncio.sleep(0)
        assert values_of(await data.stored_many([b"a"])) == [b"1"]
        await resting
        assert data.is_open


@pytest.mark.parametrize("stopped_at", ["LOCK", "000000.dbtmp", "MANIFEST-000001", "000001.dbtmp"])
async def test_a_database_that_was_never_completely_made_is_made_again(tmp_path: Path, stopped_at: str) -> None:
    """A kill ends RocksDB's work in a new folder, at any of its first files. The folder never had any data, so the
    next start goes on as without the folder.
    """
    folder = tmp_path / "1"
    (folder / stopped_at).mkdir(parents=True)  # where RocksDB needs a file, so it makes only the files before this one
    with pytest.raises(MinkaError):
        create_folder(folder, CACHE, MemoryData().copy())
    (folder / stopped_at).rmdir()
    assert any(folder.iterdir())
    for _ in range(2):  # the first start is killed like the one before
        async with made(folder) as data:
            assert (data.exists(), data.is_closed) == (False, False)
            assert data.get([b"a"]) == [None]
    async with made(folder) as data:
        data.write([WriteBody([b"a"], [b"1"])], Applied(1, 1))
        await data.flush()
    async with made(folder) as data:
        assert data.is_closed
        await data.open()
        assert (data.get([b"a"]), data.applied) == ([b"1"], Applied(1, 1))


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_made_database_that_has_lost_its_current_is_damaged(tmp_path: Path, flushed: bool) -> None:
    """Also if nothing was flushed yet: the files of a database that was completely made are others."""
    folder = tmp_path / "1"
    async with made(folder) as data:
        await data.open()
        if flushed:
            data.write([WriteBody([b"a"], [b"1"])], Applied(1, 1))
            await data.flush()
        crashed_copy(folder, tmp_path / "crashed")
    (tmp_path / "crashed" / "CURRENT").unlink()
    async with made(tmp_path / "crashed") as data:
        assert (data.exists(), data.is_closed) == (True, True)
        with pytest.raises(MinkaError, match="CORRUPT_DATA"):
            await data.open()
