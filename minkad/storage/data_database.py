"""The data of one partition: a RocksDB database without a WAL, since the partition's log says what a crash took."""

import asyncio
from bisect import bisect_left
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from rocksdict import (
    BottommostLevelCompaction,
    Cache,
    CompactOptions,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from minka.errors import Code, MinkaError
from minka.ranges import ALL_KEYS, KeyRange
from minka.wire import WriteBody
from minkad.storage.rocks import (
    KIB,
    MIB,
    DeletedAheadError,
    base_options,
    is_stalled,
    page,
    pairs,
    storage_error,
    table_options,
)
from minkad.storage.size_estimate import Size, SizeEstimate
from minkad.storage.threads import on_thread

# Users' keys are not empty, so nothing else collides with it; it is written in the same batch as the data. Behind the
# offset is the estimate of the size, which so is right for the data after a crash, and in every checkpoint of it.
_APPLIED: Final = b""
_APPLIED_BYTES: Final = 12
_RECORD_BYTES: Final = _APPLIED_BYTES + len(SizeEstimate().encode())
_FIRST_KEY: Final = b"\x00"
_SLICE_KEYS: Final = 1000  # read before the loop gets its turn
_SLICE_BYTES: Final = 1 * MIB
_DEEPEST_SHARE: Final = 0.75
_UNCLEAR_SHARE: Final = 0.05
_CLEARED_BYTES: Final = 32 * MIB  # of tables that don't overlap
# Of deleted keys and older versions, before a reader that holds the loop has them cleared away: about 5 ms.
MAX_PASSED: Final = 20_000

# Flushed by its owner long before it is full.
_WRITE_BUFFER_BYTES: Final = 64 * MIB
_WRITE_BUFFERS: Final = 4


@dataclass(frozen=True, slots=True)
class Applied:
    """How far the partition's log is in the data: offset and leader_epoch of the last entry."""

    offset: int = 0
    leader_epoch: int = 0

    def encode(self) -> bytes:
        """As it is stored."""
        return self.offset.to_bytes(8, "big") + self.leader_epoch.to_bytes(4, "big")

    @classmethod
    def decode(cls, data: bytes | None) -> "Applied":
        """As it was stored; None: nothing is applied."""
        if data is None:
            return cls()
        return cls(int.from_bytes(data[:8], "big"), int.from_bytes(data[8:_APPLIED_BYTES], "big"))


class DataDatabase:
    """Opened when it is first needed: a partition without data has no folder. For the loop's thread, save where stated.

    Everything raises CORRUPT_DATA or STORAGE_FAILED when the disk fails, and SHUTTING_DOWN once it is closed.
    """

    def __init__(self, path: Path, cache: Cache, size: Size | None = None) -> None:
        """`size`: what it was when it was closed, so that asking for it does not open it."""
        self.path = path
        self._cache = cache
        self._db: Rdict | None = None
        self._options = WriteOptions()
        # A property, whatever its stub says.
        self._options.disable_wal = True  # type: ignore[method-assign, assignment]
        self._estimate = SizeEstimate(size)
        # All that was put and is not compacted away: no less than there is.
        self._in_tables = Size()
        self._since_flush = Size()
        self._readers = 0
        self._no_readers = asyncio.Event()
        self._no_readers.set()
        self._clearing = asyncio.Lock()
        self._closed = False
        self.applied = Applied()  # of the open database

    @property
    def is_open(self) -> bool:
        """Whether it is open, so that `applied` is known."""
        return self._db is not None

    def exists(self) -> bool:
        """Whether there is anything on disk."""
        return self._db is not None or self.path.exists()

    def open(self) -> None:
        """Open or create; about 5 ms, with the GIL held."""
        if self._closed:
            raise MinkaError(Code.SHUTTING_DOWN, f"{self.path} is closed")
        if self._db is not None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._db = Rdict(str(self.path), _data_options(self._cache))
            stored: bytes | None = self._db.get(_APPLIED)
        except Exception as error:
            raise self._failure("opening", error) from error
        self.applied = Applied.decode(stored)
        if stored is not None and len(stored) > _APPLIED_BYTES:
            self._estimate = SizeEstimate.decode(stored[_APPLIED_BYTES:])
            self._read_tables()
        else:
            self._read_tables()
            self._estimate = SizeEstimate(self._in_tables)
            if self._in_tables.keys:
                self._estimate.doubt()

    def is_stalled(self) -> bool:
        """Whether `write` would have to wait, and the GIL with it, for the disk to keep up."""
        return self._db is not None and is_stalled(self._db)

    def write(self, writes: Sequence[WriteBody], applied: Applied) -> None:
        """Apply in order, at once with `applied`. In memory: durable with the next flush."""
        self.open()
        newest: dict[bytes, bytes | None] = {}
        for write in writes:
            newest.update(zip(write.keys, write.values, strict=True))
        replaced = self._look_up(newest)
        batch = WriteBatch(raw_mode=True)
        added_bytes = added_keys = 0
        for key, value in newest.items():
            if value is None:
                batch.delete(key)
            else:
                batch[key] = value
                added_bytes += len(key) + len(value)
                added_keys += 1
        self._estimate.written(added_bytes, added_keys, replaced)
        batch[_APPLIED] = applied.encode() + self._estimate.encode()
        try:
            self._opened().write(batch, self._options)
        except Exception as error:
            raise self._failure("writing", error) from error
        self._since_flush.bytes += added_bytes
        self._since_flush.keys += added_keys
        self.applied = applied

    def _look_up(self, newest: Mapping[bytes, bytes | None]) -> list[tuple[int, int]]:
        """What the sampled ones of these keys have now; see `SizeEstimate.written`."""
        picked = self._estimate.pick(len(newest))
        if not picked:
            return []
        keys, get = list(newest), self._opened().get
        try:
            found = [(keys[place], get(keys[place]), weight) for place, weight in picked]
        except Exception as error:
            raise self._failure("reading", error) from error
        return [(0 if value is None else len(key) + len(value), weight) for key, value, weight in found]

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """The values in the order of the keys; None where there is none. For few keys."""
        if not self.exists():
            return [None] * len(keys)
        self.open()
        get = self._opened().get
        try:
            return [get(key) for key in keys]
        except Exception as error:
            raise self._failure("reading", error) from error

    async def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The same on another thread, which reads without the GIL."""
        if not self.exists():
            return [None] * len(keys)
        self.open()
        try:
            with _Reading(self):
                return await asyncio.get_running_loop().run_in_executor(None, _multi_get, self._opened(), keys)
        except Exception as error:
            raise self._failure("reading", error) from error

    def page(
        self,
        start: bytes,
        end: bytes,
        reverse: bool,
        max_rows: int,
        max_bytes: int,
        max_passed: int = 0,
        max_seconds: float = inf,
    ) -> tuple[list[bytes], list[bytes], bool]:
        """See `rocks.page`. For few rows: about a microsecond each. Raises DeletedAheadError: see `clear`."""
        if not self.exists():
            return [], [], True
        self.open()
        try:
            return page(
                self._opened(), max(start, _FIRST_KEY), end, reverse, max_rows, max_bytes, max_passed, max_seconds
            )
        except DeletedAheadError:
            raise
        except Exception as error:
            raise self._failure("reading", error) from error

    async def clear(self, wanted: KeyRange, reverse: bool) -> KeyRange:
        """Remove what is left of deleted keys and older versions at the beginning of this range, or at its end: by a
        compaction, outside of the GIL, which is done once for all that wait for it. Which part of the range that was.

        An iterator does not say how far it has come when it gives up, so there is nothing to go on from.
        """
        self.open()
        part = self._begin_of(wanted, reverse)
        async with self._clearing:
            if self._is_passable(part, reverse):
                return part
            self._begin_flush()
            try:
                with _Reading(self):
                    await on_thread(self._opened().compact_range, part.start, part.end or None, _all_levels())
            except Exception as error:
                raise self._failure("compacting", error) from error
            if self._db is not None:
                self._read_tables()
        return part

    def _begin_of(self, wanted: KeyRange, reverse: bool) -> KeyRange:
        """A part of the range, at its begin in this direction, that has some of the tables that don't overlap."""
        tables = [t for t in self._deepest() if t.last >= wanted.start and (not wanted.end or t.first < wanted.end)]
        if reverse:
            tables.reverse()
        size = 0
        for table in tables:
            if size > _CLEARED_BYTES and reverse:
                return KeyRange(max(wanted.start, table.last + b"\x00"), wanted.end)
            if size > _CLEARED_BYTES:
                return KeyRange(wanted.start, table.first)
            size += table.size
        return wanted

    def _is_passable(self, part: KeyRange, reverse: bool) -> bool:
        try:
            self.page(part.start, part.end, reverse, 1, 1, MAX_PASSED)
        except DeletedAheadError:
            return False
        return True

    async def count(self, wanted: KeyRange = ALL_KEYS, slice_keys: int = _SLICE_KEYS) -> Size:
        """Exactly the keys and bytes there are, by reading all; lets the loop run after every `slice_keys`. As they are
        now, if nothing has to be cleared away meanwhile; see `clear`.
        """
        size = Size()
        if not self.exists():
            return size
        self.open()
        start, end = max(wanted.start, _FIRST_KEY), wanted.end
        with _Reading(self):
            while True:
                iterator = self._pairs(start, end)
                try:
                    for key, value in iterator:
                        start = key + b"\x00"
                        size.keys += 1
                        size.bytes += len(key) + len(value)
                        if size.keys % slice_keys == 0:
                            await asyncio.sleep(0)
                    return size
                except DeletedAheadError:
                    pass
                finally:
                    iterator.close()  # a database with an open iterator can't be opened again
                await self.clear(KeyRange(start, end), False)

    def keep(self, kept: KeyRange, applied: Applied) -> bool:
        """Remove all keys but these, at once with `applied`; whether there were any. It takes no time for many, and
        frees no room: `compact_outside` does.
        """
        self.open()
        below, _, _ = self.page(_FIRST_KEY, kept.start, False, 1, 1) if kept.start else ([], [], True)
        above, _, _ = self.page(kept.end, b"", True, 1, 1) if kept.end else ([], [], True)
        batch = WriteBatch(raw_mode=True)
        for key in below:
            batch.delete_range(key, kept.start)
        for key in above:
            batch.delete_range(kept.end, key + b"\x00")
        batch[_APPLIED] = applied.encode() + self._estimate.encode()
        try:
            self._opened().write(batch, self._options)
        except Exception as error:
            raise self._failure("writing", error) from error
        self.applied = applied
        return bool(below or above)

    async def compact_outside(self, kept: KeyRange) -> None:
        """Free the room of what was removed outside of the range. Reads and writes go on meanwhile."""
        outside: list[tuple[bytes, bytes | None]] = [(_FIRST_KEY, kept.start)] if kept.start else []
        if kept.end:
            outside.append((kept.end, None))
        if not outside:
            return
        db, before = self._opened(), self._most()
        self._begin_flush()  # a compaction flushes what it needs
        try:
            with _Reading(self):
                for start, end in outside:
                    await on_thread(db.compact_range, start, end)
        except Exception as error:
            raise self._failure("compacting", error) from error
        if self._db is not None:
            self._in_tables = _puts(db)
            self._estimate.reduced(before, self._most())
            if self._since_flush.bytes > _UNCLEAR_SHARE * before.bytes:
                self._estimate.doubt()  # what was written meanwhile hides how much was removed

    async def split_keys(self, parts: int) -> list[bytes]:
        """Keys that divide the data into so many parts of about the same bytes; fewer where there are too few keys.

        RocksDB knows of each table its first key and its size, and the tables of the deepest level, which have nearly
        all data, don't overlap: so it is known in which table a part ends. That table alone is read. Where much is in
        tables that overlap (the last few flushes), they are compacted first, which they are some 100 MiB at most. So it
        costs no more for more data.
        """
        await self.flush()
        if not self.exists():
            return []
        if sum(table.size for table in self._deepest()) < _DEEPEST_SHARE * sum(table.size for table in self._tables()):
            await self.compact()
        deepest = self._deepest()
        total = sum(table.size for table in deepest)
        found: list[bytes] = []
        passed, wanted = 0, 1
        for table in deepest:
            shares = []
            while wanted < parts and passed + table.size > total * wanted / parts:
                shares.append((total * wanted / parts - passed) / table.size)
                wanted += 1
            found += await self._keys_within(table, shares)
            passed += table.size
        first, _, _ = await self._page(_FIRST_KEY, b"", 1, 1)
        return [key for key in dict.fromkeys(found) if key > first[0]]

    async def _page(
        self, start: bytes, end: bytes, max_rows: int, max_bytes: int
    ) -> tuple[list[bytes], list[bytes], bool]:
        """`page` that clears away what is in its way."""
        while True:
            try:
                return self.page(start, end, False, max_rows, max_bytes, MAX_PASSED)
            except DeletedAheadError:
                await self.clear(KeyRange(start, end), False)

    async def _keys_within(self, table: "_Table", shares: Sequence[float]) -> list[bytes]:
        """The keys at these shares of a table's bytes."""
        if not shares:
            return []
        begins: list[tuple[int, bytes]] = []  # where each key begins, in bytes
        size, start, is_all = 0, table.first, False
        while not is_all:
            keys, values, is_all = await self._page(start, table.last + b"\x00", _SLICE_KEYS, _SLICE_BYTES)
            for key, value in zip(keys, values, strict=True):
                begins.append((size, key))
                size += len(key) + len(value)
            start = keys[-1] + b"\x00" if keys else start
            await asyncio.sleep(0)
        places = (bisect_left(begins, (int(size * share), b"")) for share in shares if begins)
        return [_shortest(begins, min(place, len(begins) - 1)) for place in places]

    def _deepest(self) -> list["_Table"]:
        """The tables that don't overlap, in order; none where all that there is was flushed just now."""
        tables = self._tables()
        level = max((table.level for table in tables), default=0)
        return sorted((table for table in tables if table.level == level > 0), key=lambda table: table.first)

    def _tables(self) -> list["_Table"]:
        """Of the database; that with the applied offset alone has no key."""
        files = self._opened().live_files()
        tables = [_Table(file["level"], file["size"], file["start_key"], file["end_key"]) for file in files]
        return [table._replace(first=max(table.first, _FIRST_KEY)) for table in tables if table.last]

    async def compact(self) -> Size:
        """Leave one version of each key that was there at the beginning; what there is then, measured."""
        db, before = self.raw(), self._estimate.copy()
        self._begin_flush()
        try:
            with _Reading(self):
                await on_thread(db.compact_range, None, None, _all_levels())
        except Exception as error:
            raise self._failure("compacting", error) from error
        if self._db is not None:
            deepest = max((table["level"] for table in db.live_files()), default=0)
            self._estimate.measured(_puts(db, f"-at-level{deepest}"), before)
            self._read_tables()
        return self.size()

    def size(self) -> Size:
        """An estimate at no cost."""
        return self._estimate.size

    def size_error(self) -> float:
        """The standard error of `size`, as a share of it."""
        return self._estimate.error

    def share(self, part: KeyRange) -> float:
        """About which share of the data is in the range, at no cost: of a table that is across a bound, the half. So it
        is right up to 16 MiB, or says a half of what is less.
        """
        if self._db is None:
            return 0.5
        total = inside = 0.0
        for table in self._tables():
            total += table.size
            if part.contains(table.first) and part.contains(table.last):
                inside += table.size
            elif part.overlaps(KeyRange(table.first, table.last + b"\x00")):
                inside += table.size / 2
        return inside / total if total else 0.5

    def size_at_most(self) -> Size:
        """There is certainly no more; at no cost."""
        return self._most() if self._db is not None else self.size()

    async def flush(self) -> Applied:
        """Make what is applied durable; how far that is, at least. Writes go on meanwhile."""
        if self._db is None:
            return self.applied
        db, before = self._db, self.applied
        self._begin_flush()
        try:
            with _Reading(self):
                await on_thread(db.flush)
        except Exception as error:
            raise self._failure("flushing", error) from error
        if self._db is not None:
            self._read_tables()
        return before

    async def close(self) -> None:
        """Flush and close, once nobody reads any more."""
        self._closed = True
        await self._no_readers.wait()
        db, self._db = self._db, None
        if db is None:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(None, db.close)
        except Exception as error:
            raise self._failure("closing", error) from error

    def raw(self) -> Rdict:
        """The open database, for a checkpoint."""
        self.open()
        return self._opened()

    def reading(self) -> "_Reading":
        """A context in which `close` waits."""
        return _Reading(self)

    def _opened(self) -> Rdict:
        assert self._db is not None, f"{self.path} is not open"
        return self._db

    def _pairs(self, start: bytes, end: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        try:
            yield from pairs(self._opened(), start, end or None, max_passed=MAX_PASSED)
        except DeletedAheadError:
            raise
        except Exception as error:
            raise self._failure("reading", error) from error

    def _most(self) -> Size:
        tables, since = self._in_tables, self._since_flush
        return Size(tables.bytes + since.bytes, tables.keys + since.keys)

    def _begin_flush(self) -> None:
        """So that the sum stays right until the new tables are read."""
        self._in_tables, self._since_flush = self._most(), Size()

    def _read_tables(self) -> None:
        """Take over what the tables on disk say of themselves; costs tens of microseconds."""
        self._in_tables = _puts(self._opened())
        self._estimate.bounded(self._most())

    def _failure(self, doing: str, error: Exception) -> MinkaError:
        return error if isinstance(error, MinkaError) else storage_error(error, f"{doing} {self.path}")


class _Table(NamedTuple):
    """A file: its level, its bytes, its first and last key."""

    level: int
    size: int
    first: bytes
    last: bytes


class _Reading:
    """While it is entered, the database is not closed."""

    def __init__(self, database: DataDatabase) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database._readers += 1
        self._database._no_readers.clear()

    def __exit__(self, *_: object) -> None:
        self._database._readers -= 1
        if not self._database._readers:
            self._database._no_readers.set()


def _shortest(begins: Sequence[tuple[int, bytes]], place: int) -> bytes:
    """What is between the key at this place and the one before, as short as can be: it will be a bound in the table."""
    key, before = begins[place][1], begins[place - 1][1] if place else b""
    differs = (index for index, (mine, other) in enumerate(zip(key, before, strict=False)) if mine != other)
    return key[: next(differs, len(before)) + 1] if place else key


def _all_levels() -> CompactOptions:
    """Also of a table that nothing overlaps, which would be moved down as it is, with its deletions."""
    options = CompactOptions()
    options.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
    return options


def _puts(db: Rdict, level: str = "") -> Size:
    """Keys and values in the tables, in those of a level if one is named: each key as often as there are versions."""
    text = db.property_value(f"rocksdb.aggregated-table-properties{level}") or ""
    table = dict(part.strip().rsplit("=", 1) for part in text.split(";") if "=" in part)
    entries, deletions = int(table.get("# entries", 0)), int(table.get("# deletions", 0))
    raw_keys, raw_values = int(table.get("raw key size", 0)), int(table.get("raw value size", 0))
    if not entries:
        return Size()
    # Each key has 8 bytes of RocksDB's behind it, a deletion is a key, and one entry at least is the applied offset.
    key_bytes = (raw_keys - 8 * entries) * (entries - deletions) // entries
    return Size(max(0, key_bytes + raw_values - _RECORD_BYTES), max(0, entries - deletions - 1))


def _multi_get(db: Rdict, keys: list[bytes]) -> list[bytes | None]:
    found: list[bytes | None] = db.get(keys)  # type: ignore[arg-type, assignment] # a list of str | bytes | ...
    return found


def _data_options(cache: Cache) -> Options:
    options = base_options(_WRITE_BUFFER_BYTES, _WRITE_BUFFERS)
    options.set_arena_block_size(128 * KIB)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_target_file_size_base(16 * MIB)
    options.set_max_bytes_for_level_base(64 * MIB)
    options.set_max_file_opening_threads(1)
    options.set_skip_stats_update_on_db_open(True)
    table = table_options()
    table.set_block_cache(cache)
    options.set_block_based_table_factory(table)
    return options
