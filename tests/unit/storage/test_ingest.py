"""A partition's data takes in each file of a load once, even if the node crashes at any moment."""

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from rocksdict import Cache

from minka.bulk.row_digest import Digest
from minka.bulk.sst_files import Written, checksum_of, write_sst
from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.wire.kv_frames import WriteBody
from minkad.storage import checkpoint
from minkad.storage.applied import Applied
from minkad.storage.data_database import DataDatabase
from minkad.storage.rocks_data import RocksData
from minkad.storage.size_estimate import Size
from minkad.storage.taken_loads import TakenLoads
from tests.unit.storage.crash import crashed_copy

MIB = 1024 * 1024
Rows = dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Load:
    """A mark in the log. A replica that applies it takes in the file of this load."""

    number: int
    floor: int
    file: Written


Entry = WriteBody | Load


async def opened(path: Path) -> DataDatabase:
    data = DataDatabase(path, Cache(MIB))
    await data.open()
    return data


def file_of(path: Path, rows: Rows) -> Written:
    written = write_sst(path, sorted(rows.items()))
    assert written is not None
    return written


async def apply(data: DataDatabase, offset: int, entry: Entry, links: Path) -> None:
    """Apply an entry to the data, as a replica does."""
    if isinstance(entry, WriteBody):
        data.write([entry], Applied(offset, 1))
        return
    if data.loads.has(entry.number):
        data.write([], Applied(offset, 1))
        return
    link = links / f"link-{random.getrandbits(64):x}.sst"
    os.link(entry.file.path, link)
    size = Size(entry.file.digest.bytes, entry.file.digest.rows)
    taken = data.loads.with_load(entry.number, offset, entry.floor, 0)
    await data.ingest(link, size, taken, Applied(offset, 1))
    assert not link.exists()


def content(data: DataDatabase) -> Rows:
    keys, values, is_all = data.page(b"", b"", False, 1_000_000, 1 << 30)
    assert is_all
    return dict(zip(keys, values, strict=True))


def expected(log: Sequence[Entry], rows_of: dict[int, Rows]) -> Rows:
    rows: Rows = {}
    taken: set[int] = set()
    for entry in log:
        if isinstance(entry, Load):
            if entry.number not in taken:
                rows |= rows_of[entry.number]
                taken.add(entry.number)
            continue
        for key, value in zip(entry.keys, entry.values, strict=True):
            rows.pop(key, None)
            if value is not None:
                rows[key] = value
    return rows


async def recovered(copy: Path, log: Sequence[Entry], links: Path) -> Rows:
    """Open the data that a crash has left, and apply the rest of the log; returns the rows."""
    data = await opened(copy)
    for offset in range(data.applied.offset + 1, len(log) + 1):
        await apply(data, offset, log[offset - 1], links)
    found = content(data)
    await data.close()
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_rows_are_right_after_a_crash_at_any_moment(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash may come when the database has taken in a file, but hasn't yet recorded the load. Then the replica
    applies the mark again. The second ingest must not undo later writes.
    """
    rng = random.Random(seed)
    rows_of: dict[int, Rows] = {}
    files: dict[int, Written] = {}
    for number in (1, 2, 3):
        rows = {b"%03d" % i: b"load %d" % number for i in rng.sample(range(300), 200)}
        rows_of[number], files[number] = rows, file_of(tmp_path / f"{number}.sst", rows)
    log: list[Entry] = []
    copies: list[tuple[Path, int]] = []

    def copy_now(entries: int) -> None:
        copies.append((crashed_copy(tmp_path / "data", tmp_path / f"copy-{len(copies)}"), entries))

    data = await opened(tmp_path / "data")
    write = RocksData._write

    def between(self: RocksData, *arguments: object) -> None:
        if log and isinstance(log[-1], Load):
            copy_now(len(log))
        write(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(RocksData, "_write", between)
    for offset in range(1, 40):
        if rng.random() < 0.25:
            number = rng.choice((1, 2, 3))
            log.append(Load(number, 1, files[number]))
        else:
            keys = [b"%03d" % rng.randrange(300) for _ in range(5)]
            values = [rng.choice((None, b"write %d" % offset)) for _ in keys]
            log.append(WriteBody(keys, values))
        await apply(data, offset, log[-1], tmp_path)
        if rng.random() < 0.2:
            await data.flush()
        if rng.random() < 0.2:
            copy_now(len(log))
        assert content(data) == expected(log, rows_of)
    monkeypatch.undo()
    await data.close()
    for path, entries in copies:
        assert await recovered(path, log[:entries], tmp_path) == expected(log[:entries], rows_of)
    assert any(isinstance(entry, Load) for entry in log)
    for file in files.values():
        assert checksum_of(file.path) == file.checksum, "ingesting leaves the file as it was"


async def test_the_size_of_data_with_a_file_is_known(tmp_path: Path) -> None:
    rows = {b"%06d" % i: b"v" * 100 for i in range(5000)}
    file = file_of(tmp_path / "file.sst", rows)
    data = await opened(tmp_path / "data")
    await apply(data, 1, Load(1, 1, file), tmp_path)
    assert data.size() == Size(5000 * 106, 5000)
    assert data.size_error() == 0.0
    await data.flush()
    assert data.size() == Size(5000 * 106, 5000)
    await apply(data, 2, Load(2, 1, file), tmp_path)
    assert data.size_error() == float("inf"), "nobody knows how many of these keys were there before"
    await data.compact()
    assert data.size().keys == 5000
    assert abs(data.size().bytes - 5000 * 106) < 100, "the size includes the record of the loads"
    await data.close()


async def test_a_checkpoint_and_trimmed_data_have_the_loads(tmp_path: Path) -> None:
    file = file_of(tmp_path / "file.sst", {b"a": b"1", b"z": b"2"})
    data = await opened(tmp_path / "data")
    await apply(data, 1, Load(7, 3, file), tmp_path)
    data.trim_to_range(KeyRange(b"b", b""), Applied(2, 1))
    data.write([WriteBody([b"c"], [b"3"])], Applied(3, 1))
    taken = await checkpoint.take(data, tmp_path / "taken")
    copy = await opened(taken.path)
    assert copy.loads == data.loads == TakenLoads({7: 1}, 3)
    assert content(copy) == {b"c": b"3", b"z": b"2"}
    await copy.close()
    await data.close()


async def test_a_malformed_file_is_refused_without_condemning_the_data(tmp_path: Path) -> None:
    data = await opened(tmp_path / "data")
    data.write([WriteBody([b"a"], [b"1"])], Applied(1, 1))
    (tmp_path / "bad.sst").write_bytes(b"x" * 1000)
    with pytest.raises(MinkaError) as caught:
        await data.ingest(tmp_path / "bad.sst", Size(1, 1), TakenLoads({1: 2}, 0), Applied(2, 1))
    assert caught.value.code is Code.CORRUPT_DATA
    assert data.damage is None
    assert data.applied == Applied(1, 1)
    assert data.loads == TakenLoads()
    assert content(data) == {b"a": b"1"}
    await data.close()


def test_loads_are_remembered_while_their_marks_are_in_the_log() -> None:
    taken = TakenLoads().with_load(5, 10, 3, 0)
    assert [taken.has(number) for number in (2, 3, 4, 5, 6)] == [True, False, False, True, False]
    taken = taken.with_load(8, 20, 7, 9)
    assert taken.offsets == {5: 10, 8: 20}, "a load is kept while its mark is in the log"
    assert taken.has(6)
    assert not taken.has(7)
    assert taken.is_in_log(5, 9)
    assert not taken.is_in_log(5, 10)
    taken = taken.with_load(9, 30, 7, 15)
    assert taken.offsets == {8: 20, 9: 30}
    assert TakenLoads.decode(taken.encode()) == taken
    assert TakenLoads().encode() == b""


def test_a_file_with_unsorted_repeated_or_invalid_keys_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.sst"
    for pairs in ([(b"b", b""), (b"a", b"")], [(b"a", b""), (b"a", b"")], [(b"", b"")], [(b"a" * 65_537, b"")]):
        with pytest.raises(MinkaError):
            write_sst(path, pairs)
        assert not path.exists()
    assert write_sst(path, []) is None
    assert not path.exists()


def test_the_digest_does_not_depend_on_the_order() -> None:
    rows = [(b"a", b"1"), (b"b", b""), (b"\x00" * 9, b"v" * 1000)]
    digests = []
    for order in (rows, rows[::-1]):
        digest = Digest()
        for row in order:
            digest.add(*row)
        digests.append(digest)
    parts = [Digest(), Digest()]
    parts[0].add(*rows[0])
    for row in rows[1:]:
        parts[1].add(*row)
    parts[0] += parts[1]
    assert digests[0] == digests[1] == parts[0]
    assert Digest.from_proto(3, parts[0].to_proto()) == digests[0]
    parts[0].add(*rows[0])
    parts[0].add(*rows[0])
    assert parts[0].xor == digests[0].xor
    assert parts[0] != digests[0], "a pair of the same row"


def test_the_digest_of_a_row() -> None:
    """The formula is xxh64(value, seed=xxh64(key, seed=42))."""
    digest = Digest()
    digest.add(b"a", b"1")
    assert (digest.rows, digest.bytes, digest.xor) == (1, 2, 6765171694274728347)
