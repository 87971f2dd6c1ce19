"""The data of one partition: a RocksDB database without a WAL, since the partition's log says what a crash took."""

import asyncio
from bisect import bisect_left
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from rocksdict import Cache, DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from minka.errors import Code, MinkaError
from minka.ranges import ALL_KEYS, KeyRange
from minka.wire import WriteBody
from minkad.storage.rocks import KIB, MIB, base_options, is_stalled, page, pairs, storage_error, table_options
from minkad.storage.threads import on_thread

# Users' keys are not empty, so nothing else collides with it; it is written in the same batch as the data.
_APPLIED: Final = b""
_FIRST_KEY: Final = b"\x00"
_SLICE_KEYS: Final = 1000  # read before the loop gets its turn
_SLICE_BYTES: Final = 1 * MIB

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
        return cls() if data is None else cls(int.from_bytes(data[:8], "big"), int.from_bytes(data[8:], "big"))


@dataclass(slots=True)
class Size:
    """Bytes of keys and values, and keys; older versions of a key count until they are compacted away."""

    bytes: int = 0
    keys: int = 0


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
        self._flushed = size or Size()
        self._since_flush = Size()
        self._readers = 0
        self._no_readers = asyncio.Event()
        self._no_readers.set()
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
            self.applied = Applied.decode(self._db.get(_APPLIED))
        except Exception as error:
            raise self._failure("opening", error) from error
        self._measure()

    def is_stalled(self) -> bool:
        """Whether `write` would have to wait, and the GIL with it, for the disk to keep up."""
        return self._db is not None and is_stalled(self._db)

    def write(self, writes: Sequence[WriteBody], applied: Applied) -> None:
        """Apply in order, at once with `applied`. In memory: durable with the next flush."""
        self.open()
        batch = WriteBatch(raw_mode=True)
        size = self._since_flush
        for write in writes:
            for key, value in zip(write.keys, write.values, strict=True):
                if value is None:
                    batch.delete(key)
                    size.keys -= 2  # as RocksDB counts: the tombstone and what it hides
                else:
                    batch[key] = value
            size.keys += len(write.keys)
        batch[_APPLIED] = applied.encode()
        size.bytes += batch.size_in_bytes()
        try:
            self._opened().write(batch, self._options)
        except Exception as error:
            raise self._failure("writing", error) from error
        self.applied = applied

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
        self, start: bytes, end: bytes, reverse: bool, max_rows: int, max_bytes: int
    ) -> tuple[list[bytes], list[bytes], bool]:
        """See `rocks.page`. For few rows: about a microsecond each."""
        if not self.exists():
            return [], [], True
        self.open()
        try:
            return page(self._opened(), max(start, _FIRST_KEY), end, reverse, max_rows, max_bytes)
        except Exception as error:
            raise self._failure("reading", error) from error

    async def count(self, wanted: KeyRange = ALL_KEYS, slice_keys: int = _SLICE_KEYS) -> Size:
        """Exactly the keys and bytes there are now, by reading all; lets the loop run after every `slice_keys`."""
        size = Size()
        if not self.exists():
            return size
        self.open()
        with _Reading(self):
            iterator = self._pairs(wanted)
            try:
                for key, value in iterator:
                    size.keys += 1
                    size.bytes += len(key) + len(value)
                    if size.keys % slice_keys == 0:
                        await asyncio.sleep(0)
            finally:
                iterator.close()  # a database with an open iterator can't be opened again
        return size

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
        batch[_APPLIED] = applied.encode()
        try:
            self._opened().write(batch, self._options)
        except Exception as error:
            raise self._failure("writing", error) from error
        self.applied = applied
        return bool(below or above)

    async def compact_outside(self, kept: KeyRange) -> None:
        """Free the room of what was removed outside of the range. Reads and writes go on meanwhile."""
        db = self._opened()
        outside: list[tuple[bytes, bytes | None]] = [(_FIRST_KEY, kept.start)] if kept.start else []
        if kept.end:
            outside.append((kept.end, None))
        try:
            with _Reading(self):
                for start, end in outside:
                    await on_thread(db.compact_range, start, end)
        except Exception as error:
            raise self._failure("compacting", error) from error
        if outside and self._db is not None:
            self._since_flush = Size()  # nearly: a compaction flushes what it needs
            self._measure()

    async def split_keys(self, parts: int) -> list[bytes]:
        """Keys that divide the data into so many parts of about the same bytes; fewer where there are too few keys.

        RocksDB knows of each table its first key and its size, and the tables of the deepest level, which have nearly
        all data, don't overlap: so it is known in which table a part ends. That table alone is read. Where there are
        only tables that overlap (the last few flushes), they are compacted first. So it costs no more for more data.
        """
        await self.flush()
        if not self.exists():
            return []
        if max((table.level for table in self._tables()), default=0) == 0:
            await self.compact()
        tables = self._tables()
        deepest = sorted((t for t in tables if t.level == max(t.level for t in tables)), key=lambda table: table.first)
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
        first, _, _ = self.page(_FIRST_KEY, b"", False, 1, 1)
        return [key for key in dict.fromkeys(found) if key > first[0]]

    async def _keys_within(self, table: "_Table", shares: Sequence[float]) -> list[bytes]:
        """The keys at these shares of a table's bytes."""
        if not shares:
            return []
        begins: list[tuple[int, bytes]] = []  # where each key begins, in bytes
        size, start, is_all = 0, table.first, False
        while not is_all:
            keys, values, is_all = self.page(start, table.last + b"\x00", False, _SLICE_KEYS, _SLICE_BYTES)
            for key, value in zip(keys, values, strict=True):
                begins.append((size, key))
                size += len(key) + len(value)
            start = keys[-1] + b"\x00" if keys else start
            await asyncio.sleep(0)
        places = (bisect_left(begins, (int(size * share), b"")) for share in shares if begins)
        return [_shortest(begins, min(place, len(begins) - 1)) for place in places]

    def _tables(self) -> list["_Table"]:
        """Of the database; that with the applied offset alone has no key."""
        files = self._opened().live_files()
        tables = [_Table(file["level"], file["size"], file["start_key"], file["end_key"]) for file in files]
        return [table._replace(first=max(table.first, _FIRST_KEY)) for table in tables if table.last]

    async def compact(self) -> Size:
        """Leave one version of each key that was there at the beginning; what there is then, measured."""
        db, since = self.raw(), self._since_flush
        self._since_flush = Size()
        self._flushed = Size(self._flushed.bytes + since.bytes, self._flushed.keys + since.keys)
        try:
            with _Reading(self):
                await on_thread(db.compact_range, None, None)
        except Exception as error:
            raise self._failure("compacting", error) from error
        if self._db is not None:
            self._measure()
        return self._flushed

    def size(self) -> Size:
        """An estimate at no cost."""
        flushed, since = self._flushed, self._since_flush
        return Size(max(0, flushed.bytes + since.bytes), max(0, flushed.keys + since.keys))

    async def flush(self) -> Applied:
        """Make what is applied durable; how far that is, at least. Writes go on meanwhile."""
        if self._db is None:
            return self.applied
        db, before = self._db, self.applied
        since, self._since_flush = self._since_flush, Size()
        # So that the sum stays right until the new tables are measured.
        self._flushed = Size(self._flushed.bytes + since.bytes, self._flushed.keys + since.keys)
        try:
            with _Reading(self):
                await on_thread(db.flush)
        except Exception as error:
            raise self._failure("flushing", error) from error
        if self._db is not None:
            self._measure()
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

    def _pairs(self, wanted: KeyRange) -> Generator[tuple[bytes, bytes], None, None]:
        try:
            yield from pairs(self._opened(), max(wanted.start, _FIRST_KEY), wanted.end or None)
        except Exception as error:
            raise self._failure("reading", error) from error

    def _measure(self) -> None:
        """Take over what the tables on disk say of themselves; costs tens of microseconds."""
        db = self._opened()
        text = db.property_value("rocksdb.aggregated-table-properties") or ""
        table = dict(part.strip().rsplit("=", 1) for part in text.split(";") if "=" in part)
        entries, deletions = int(table.get("# entries", 0)), int(table.get("# deletions", 0))
        raw = int(table.get("raw key size", 0)) + int(table.get("raw value size", 0))
        if entries:  # one at least is the applied offset
            entries, raw = entries - 1, raw - len(self.applied.encode()) - 8
        # Each key in a table has 8 bytes of RocksDB's behind it.
        self._flushed = Size(raw - 8 * entries, entries - 2 * deletions)

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
