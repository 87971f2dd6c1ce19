"""The data of one partition in RocksDB, without a WAL: the partition's log has all writes that a crash would lose."""

import asyncio
import struct
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from math import inf
from pathlib import Path
from typing import Final

from rocksdict import (
    BottommostLevelCompaction,
    Cache,
    CompactOptions,
    IngestExternalFileOptions,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from minka.bulk.sst_files import compression, table_options
from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.wire.kv_frames import UNDECODABLE, WriteBody
from minka.wire.stored_values import HEAD_BYTES
from minkad.core.replication.replica_storage import DeletedAheadError
from minkad.storage.applied import Applied
from minkad.storage.memory_data import MemoryCopy, MemoryData
from minkad.storage.rocks import (
    KIB,
    MIB,
    base_options,
    data_error,
    is_stalled,
    open_database,
    page,
    pairs,
    storage_error,
)
from minkad.storage.row_cache import CachedRows
from minkad.storage.size_estimate import Size, SizeEstimate
from minkad.storage.sst_tables import FIRST_KEY, Table, deepest_of, puts, share_in, tables_of
from minkad.storage.taken_loads import TakenLoads
from minkad.storage.threads import on_thread
from minkad.storage.versions import Versions

# The key of the database's own record; users' keys are never empty. Each batch of data also writes the record, so the
# record matches the data after a crash and in every checkpoint. The record has the applied offset and leader_epoch, the
# estimate of the size, the source of versions, and then the loads that were taken in, if any.
_APPLIED: Final = b""
_ESTIMATE_END: Final = Applied.BYTES + len(SizeEstimate().encode())
_RECORD_BYTES: Final = _ESTIMATE_END + len(Versions().encode())
_KEYS_AT_ONCE: Final = 8  # a large read checks its size after each 8 keys
_DISTINCT_KEYS: Final = 1000  # a large read reads equal keys once for each 1000 keys
_BATCH_KEYS: Final = 500  # in a batch of rows that were in memory before; RocksDB holds the GIL for each batch
_UNCLEAR_SHARE: Final = 0.05  # of the data; more writes during a compaction hide how much it has removed
_CLEARED_BYTES: Final = 32 * MIB  # of tables that don't overlap: about as much as one `clear` compacts
# A reader on the loop passes at most this many deleted keys and older versions (about 5 ms) before it calls `clear`.
MAX_PASSED: Final = 20_000

# The node flushes a database long before these buffers are full.
_WRITE_BUFFER_BYTES: Final = 64 * MIB
_WRITE_BUFFERS: Final = 4


class RocksData:
    """An open database. For the loop's thread; slow work runs on another thread.

    Every method raises CORRUPT_DATA or STORAGE_FAILED when the disk fails.
    """

    def __init__(
        self, path: Path, db: Rdict, stored: bytes | None, rows: CachedRows, condemn: Callable[[MinkaError], None]
    ) -> None:
        """`db`, `stored`: the result of `open_folder`. `rows`: an empty cache. `condemn`: called when damage is found.
        Raises CORRUPT_DATA, STORAGE_FAILED.
        """
        self.path = path
        self._db: Rdict | None = db  # None once `close` has begun
        self._rows = rows
        self._condemn = condemn
        # The puts that no compaction has removed. Both together are an upper bound of the size.
        self._in_tables = Size()  # those in tables, and those that a running flush brings there
        self._since_flush = Size()  # those in memory
        self._readers = 0  # contexts of `reading` that are entered now; `close` waits for them
        self._no_readers = asyncio.Event()  # set while `_readers` is 0
        self._no_readers.set()
        self._clearing = asyncio.Lock()  # held by the one `clear` that compacts
        self.applied = Applied.decode(stored)  # of the rows in memory and in tables; only a flush makes them durable
        self.loads = TakenLoads()
        self.versions = Versions()
        self._estimate = SizeEstimate()  # of the live rows; at most `_in_tables` and `_since_flush` together
        if stored is not None and len(stored) > Applied.BYTES:
            self._decode(stored)
            self._read_tables()
        else:
            self._read_tables()
            self._estimate = SizeEstimate(self._in_tables)
            if self._in_tables.keys:
                self._estimate.doubt()

    def _decode(self, record: bytes) -> None:
        try:
            self._estimate = SizeEstimate.decode(record[Applied.BYTES : _ESTIMATE_END])
            self.versions = Versions.decode(record[_ESTIMATE_END:_RECORD_BYTES])
            self.loads = TakenLoads.decode(record[_RECORD_BYTES:])
        except (struct.error, *UNDECODABLE) as error:
            raise MinkaError(Code.CORRUPT_DATA, f"{self.path} has a record that can't be read: {error}") from error

    @classmethod
    def created(
        cls, path: Path, db: Rdict, memory: MemoryData, rows: CachedRows, condemn: Callable[[MinkaError], None]
    ) -> "RocksData":
        """The database that `create_folder` made of a copy of `memory`, plus the writes to `memory` since the copy.
        Raises STORAGE_FAILED.
        """
        made = cls(path, db, None, rows, condemn)
        size, made.loads, made.versions = memory.size(), memory.loads, memory.versions
        made._estimate, made._since_flush = SizeEstimate(size), size
        batch = WriteBatch(raw_mode=True)
        _add(batch, memory.since_copied())
        made._write(batch, memory.applied)
        return made

    def is_stalled(self) -> bool:
        """True if `write` would wait for the disk, and hold the GIL meanwhile."""
        return is_stalled(self._opened())

    def write(self, writes: Sequence[WriteBody], applied: Applied, last_offset: int | None = None) -> None:
        """Apply the writes in order, in one batch with `applied`. The next flush makes them durable. `last_offset`: the
        offset of the last write, if `applied` does not have it.
        """
        newest, versions = self.versions.rows_of(writes, last_offset or applied.offset)
        self.take_over(newest, versions, applied)

    def take_over(self, newest: Mapping[bytes, bytes | None], versions: Versions, applied: Applied) -> None:
        """Write these rows in their stored form, in one batch with `applied` and `versions`."""
        self.versions = versions
        replaced = self._look_up(newest)
        batch = WriteBatch(raw_mode=True)
        added_bytes = added_keys = 0
        for key, stored in newest.items():
            if stored is None:
                batch.delete(key)
            else:
                batch[key] = stored
                added_bytes += len(key) + len(stored)
                added_keys += 1
        added_bytes -= HEAD_BYTES * added_keys
        self._estimate.written(added_bytes, added_keys, replaced)
        self._write(batch, applied)
        self._rows.written(newest)
        self._since_flush.bytes += added_bytes
        self._since_flush.keys += added_keys

    def _write(self, batch: WriteBatch, applied: Applied) -> None:
        """Write the batch with the record about the data. Raises STORAGE_FAILED."""
        batch[_APPLIED] = _record(applied, self._estimate, self.versions, self.loads)
        try:
            self._opened().write(batch, _NO_WAL)
        except Exception as error:
            raise self._failure("writing", error) from error
        self.applied = applied

    def _look_up(self, newest: Mapping[bytes, bytes | None]) -> list[tuple[int, int]]:
        """For each sampled key, the bytes of its present row, and the number of keys that it counts for; see
        `SizeEstimate.written`.
        """
        picked = self._estimate.pick(len(newest))
        if not picked:
            return []
        keys, get = list(newest), self._opened().get
        try:
            found = [(keys[place], get(keys[place]), weight) for place, weight in picked]
        except Exception as error:
            raise self._failure("reading", error) from error
        return [(0 if row is None else len(key) + len(row) - HEAD_BYTES, weight) for key, row, weight in found]

    def stored(self, keys: list[bytes]) -> list[bytes | None]:
        """The values, in their stored form, in the order of the keys; None for a missing key. For few keys."""
        found = self._rows.find(keys)
        return found if all(found) else self._with_missing(keys, found)

    def _with_missing(self, keys: list[bytes], found: list[bytes | None]) -> list[bytes | None]:
        get, keep = self._opened().get, self._rows.keep
        self._rows.missed(found.count(None))
        read: dict[bytes, bytes | None] = {}
        try:
            for place, key in enumerate(keys):
                if found[place] is None:
                    if key not in read:
                        row: bytes | None = get(key)
                        read[key] = row
                        if row is not None:
                            keep(key, row)
                    found[place] = read[key]
        except Exception as error:
            raise self._failure("reading", error) from error
        return found

    async def stored_many(self, keys: list[bytes], max_bytes: int) -> list[bytes | None]:
        """Like `stored`, on another thread, which reads without the GIL. Raises TOO_LARGE soon after all values
        together exceed `max_bytes`.
        """
        try:
            with _Reading(self):
                return await on_thread(_multi_get, self._opened(), keys, max_bytes)
        except MinkaError:
            raise
        except Exception as error:
            raise self._failure("reading", error) from error

    def page(
        self,
        start: bytes,
        end: bytes,
        reverse: bool,
        max_rows: int,
        max_bytes: int,
        max_passed: int,
        max_seconds: float,
        only_heads: bool = False,
    ) -> tuple[list[bytes], list[bytes], bool]:
        """See `rocks.page`; the values are in their stored form. For few rows: about a microsecond each. Raises
        DeletedAheadError: see `clear`.
        """
        try:
            first = max(start, FIRST_KEY)
            return page(self._opened(), first, end, reverse, max_rows, max_bytes, max_passed, max_seconds, only_heads)
        except DeletedAheadError:
            raise
        except Exception as error:
            raise self._failure("reading", error) from error

    async def clear(self, wanted: KeyRange, reverse: bool) -> KeyRange:
        """Remove the remains of deleted keys and older versions at the beginning of this range (at its end, if
        `reverse`). This is a compaction, which runs without the GIL; callers that wait for it share its result. Returns
        the cleared part of the range.

        The reader can't simply go on instead: an iterator that gives up doesn't say how far it has come.
        """
        part = self._begin_of(wanted, reverse)
        with _Reading(self):
            return await self._clear(part, reverse)

    async def _clear(self, part: KeyRange, reverse: bool) -> KeyRange:
        async with self._clearing:
            if self._is_passable(part, reverse):
                return part
            self._begin_flush()
            try:
                await on_thread(self._opened().compact_range, part.start, part.end or None, _all_levels())
            except Exception as error:
                raise self._failure("compacting", error) from error
            if self._db is not None:
                self._read_tables()
        return part

    def _begin_of(self, wanted: KeyRange, reverse: bool) -> KeyRange:
        """The first part of the range in this direction: as far as `_CLEARED_BYTES` of tables reach."""
        tables = [t for t in deepest_of(self.tables()) if wanted.overlaps(KeyRange(t.first, t.last + b"\x00"))]
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
            self.page(part.start, part.end, reverse, 1, 1, MAX_PASSED, inf)
        except DeletedAheadError:
            return False
        return True

    async def count(self, wanted: KeyRange, slice_keys: int) -> Size:
        """The exact number of keys and bytes in the range, found by reading all; the loop runs after every `slice_keys`
        keys. Writes during the count don't change the result, except in keys that are read after a `clear`.
        """
        size = Size()
        start, end = max(wanted.start, FIRST_KEY), wanted.end
        with _Reading(self):
            while True:
                iterator = self._pairs(start, end)
                try:
                    for key, stored in iterator:
                        start = key + b"\x00"
                        size.keys += 1
                        size.bytes += len(key) + len(stored) - HEAD_BYTES
                        if size.keys % slice_keys == 0:
                            await asyncio.sleep(0)
                    return size
                except DeletedAheadError:
                    pass
                finally:
                    iterator.close()  # a database with an open iterator can't be opened again
                await self.clear(KeyRange(start, end), False)

    def trim_to_range(self, kept: KeyRange, applied: Applied) -> bool:
        """Remove all keys outside of `kept`, in one write with `applied`. Returns True if there were any. The
        keys are deleted as ranges, so their number doesn't matter; `compact_outside` frees their space.
        """
        below, _, _ = self.page(FIRST_KEY, kept.start, False, 1, 1, 0, inf) if kept.start else ([], [], True)
        above, _, _ = self.page(kept.end, b"", True, 1, 1, 0, inf) if kept.end else ([], [], True)
        batch = WriteBatch(raw_mode=True)
        for key in below:
            batch.delete_range(key, kept.start)
        for key in above:
            batch.delete_range(kept.end, key + b"\x00")
        self._write(batch, applied)
        self._rows.clear()
        return bool(below or above)

    async def ingest(self, file: Path, size: Size, loads: TakenLoads, applied: Applied) -> None:
        """Move a file of sorted rows into the database, then write a note of this: `loads` and `applied`. Nobody may
        write anything else meanwhile.

        The rows are durable at once, the note with the next flush. A crash that loses the note also loses all later
        writes. The replica then applies its log again: first the mark of the load, which takes in the same file again,
        then the later writes.
        """
        was_empty = not self._most().keys
        await self.flush()  # RocksDB would refuse the file because of overlapping keys in memory
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        options.set_allow_blocking_flush(False)
        try:
            with _Reading(self):
                await on_thread(self._opened().ingest_external_file, [str(file)], options)
        except Exception as error:
            # `_failure` would condemn the database, but the file may be the damaged one.
            raise storage_error(error, f"taking in {file} at {self.path}") from error
        self._rows.clear()
        self._in_tables = Size(self._in_tables.bytes + size.bytes, self._in_tables.keys + size.keys)
        self._estimate.written(size.bytes, size.keys, [])
        if not was_empty:
            self._estimate.doubt()  # nobody knows how many of the file's keys existed before
        self.loads = loads
        self._write(WriteBatch(raw_mode=True), applied)

    async def compact_outside(self, kept: KeyRange) -> None:
        """Free the disk space of the keys that were removed outside of the range. Reads and writes go on meanwhile."""
        outside: list[tuple[bytes, bytes | None]] = [(FIRST_KEY, kept.start)] if kept.start else []
        if kept.end:
            outside.append((kept.end, None))
        if not outside:
            return
        db, before = self._opened(), self._most()
        self._begin_flush()  # the compaction begins with a flush
        try:
            with _Reading(self):
                for start, end in outside:
                    await on_thread(db.compact_range, start, end)
        except Exception as error:
            raise self._failure("compacting", error) from error
        if self._db is not None:
            self._in_tables = puts(db, _RECORD_BYTES)
            self._estimate.reduced(before, self._most())
            if self._since_flush.bytes > _UNCLEAR_SHARE * before.bytes:
                self._estimate.doubt()  # writes meanwhile hide how much was removed

    def tables(self) -> list[Table]:
        """The files of the database."""
        return tables_of(self._opened())

    async def compact(self) -> Size:
        """Leave one version of each key that exists at the call. Returns the measured size afterwards."""
        db, before = self._opened(), self._estimate.copy()
        self._begin_flush()
        try:
            with _Reading(self):
                await on_thread(db.compact_range, None, None, _all_levels())
        except Exception as error:
            raise self._failure("compacting", error) from error
        if self._db is not None:
            deepest = max((table["level"] for table in db.live_files()), default=0)
            self._estimate.measured(puts(db, _RECORD_BYTES, f"-at-level{deepest}"), before)
            self._read_tables()
        return self.size()

    def size(self) -> Size:
        """An estimate of the size, without any read."""
        return self._estimate.size

    def size_error(self) -> float:
        """The standard error of `size`, as a share of it."""
        return self._estimate.error

    def share(self, part: KeyRange) -> float:
        """About the share of the data that is in the range, without a read of rows; see `share_in`."""
        return share_in(self.tables(), part)

    def size_at_most(self) -> Size:
        """An upper bound of the size, without any read."""
        return self._most()

    async def flush(self) -> Applied:
        """Make all applied rows durable. Returns `applied` as of the call. Writes go on meanwhile."""
        db, before = self._opened(), self.applied
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
        """Flush and close, when nobody reads."""
        await self._no_readers.wait()
        db, self._db = self._db, None
        self._rows.clear()
        if db is None:
            return
        try:
            await on_thread(db.close)
        except Exception as error:
            raise self._failure("closing", error) from error

    @property
    def is_read(self) -> bool:
        """True if somebody reads the database."""
        return self._readers > 0

    def raw(self) -> Rdict:
        """The open database, for a checkpoint."""
        return self._opened()

    def reading(self) -> "_Reading":
        """A context manager: while the caller is in it, `close` waits."""
        return _Reading(self)

    def _opened(self) -> Rdict:
        if self._db is None:
            raise MinkaError(Code.SHUTTING_DOWN, f"{self.path} is closed")
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
        """Count the rows in memory as in tables, where a flush moves them: the sum stays right until `_read_tables`."""
        self._in_tables, self._since_flush = self._most(), Size()

    def _read_tables(self) -> None:
        """Read the sizes that the tables on disk report: tens of microseconds."""
        self._in_tables = puts(self._opened(), _RECORD_BYTES)
        self._estimate.bounded(self._most())

    def _failure(self, doing: str, error: Exception) -> MinkaError:
        failure = data_error(error, f"{doing} {self.path}", self.path)
        if failure.code is Code.CORRUPT_DATA:
            self._condemn(failure)
        return failure


class _Reading:
    """While this context is entered, the database isn't closed."""

    def __init__(self, database: RocksData) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database._readers += 1
        self._database._no_readers.clear()

    def __exit__(self, *_: object) -> None:
        self._database._readers -= 1
        if not self._database._readers:
            self._database._no_readers.set()


def _all_levels() -> CompactOptions:
    """Options with which a compaction also rewrites tables that no other table overlaps. By default, RocksDB would move
    such tables down unchanged, with their deletions.
    """
    options = CompactOptions()
    options.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
    return options


def _multi_get(db: Rdict, keys: list[bytes], max_bytes: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    left = max_bytes
    for start in range(0, len(keys), _DISTINCT_KEYS):
        part = keys[start : start + _DISTINCT_KEYS]
        distinct = list(dict.fromkeys(part))
        rows: list[bytes | None] = []
        size = 0
        for at in range(0, len(distinct), _KEYS_AT_ONCE):
            some: list[bytes | None] = db.get(distinct[at : at + _KEYS_AT_ONCE])  # type: ignore[arg-type, assignment]
            size += sum([len(row) for row in some if row])
            if size > left:
                raise _too_much(max_bytes)
            rows += some
        if len(distinct) < len(part):
            rows = list(map(dict(zip(distinct, rows, strict=True)).get, part))
            size = sum([len(row) for row in rows if row])
            if size > left:
                raise _too_much(max_bytes)
        left -= size
        found += rows
    return found


def _too_much(max_bytes: int) -> MinkaError:
    return MinkaError(Code.TOO_LARGE, f"values of more than {max_bytes} bytes are asked for at once")


def open_folder(path: Path, cache: Cache) -> tuple[Rdict, bytes | None]:
    """Open the database of a folder: about 4 ms with the GIL held. Returns the database and its record. Raises
    CORRUPT_DATA, STORAGE_FAILED.
    """
    options = data_options(cache)
    options.create_if_missing(False)
    db: Rdict | None = None
    try:
        db = open_database(path, options)
        return db, db.get(_APPLIED)
    except Exception as error:
        release(db)
        raise data_error(error, f"opening {path}", path) from error


def release(db: Rdict | None) -> None:
    """Close a database that can't be used: while it is open, RocksDB refuses to open its folder again."""
    if db is not None:
        with suppress(Exception):  # a damaged database closes, and still raises an error
            db.close()


def create_folder(path: Path, cache: Cache, memory: MemoryCopy) -> Rdict:
    """Create a database from the data in memory: about 4 ms with the GIL held, then the time to write the rows. The
    folder may be missing, empty, or left over from a kill: see `rocks.is_made_first`. Raises STORAGE_FAILED.
    """
    options = data_options(cache)
    options.create_if_missing(True)
    left = iter(memory.rows.items())
    # There is no WAL. Rows that fill a write buffer could be flushed without the rows of the next batch, and a crash
    # would lose the latter. So rows that may fill a buffer are written in one batch, which is flushed as a whole.
    at_once = _BATCH_KEYS if memory.size.bytes < _WRITE_BUFFER_BYTES // 4 else len(memory.rows)
    db: Rdict | None = None
    try:
        path.mkdir(parents=True, exist_ok=True)
        db = open_database(path, options)
        written, is_all = 0, False
        while not is_all:
            batch = WriteBatch(raw_mode=True)
            _add(batch, islice(left, at_once))
            written += at_once
            is_all = written >= len(memory.rows)
            if is_all:
                estimate = SizeEstimate(memory.size)
                batch[_APPLIED] = _record(memory.applied, estimate, memory.versions, memory.loads)
            db.write(batch, _NO_WAL)
    except Exception as error:
        release(db)
        raise data_error(error, f"creating {path}", path) from error
    return db


def _record(applied: Applied, estimate: SizeEstimate, versions: Versions, loads: TakenLoads) -> bytes:
    return applied.encode() + estimate.encode() + versions.encode() + loads.encode()


def _add(batch: WriteBatch, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
    for key, value in pairs:
        if value is None:
            batch.delete(key)
        else:
            batch[key] = value


def _no_wal() -> WriteOptions:
    options = WriteOptions()
    # The stub calls this a method; it is a property.
    options.disable_wal = True  # type: ignore[method-assign, assignment]
    return options


_NO_WAL: Final = _no_wal()


def block_cache(size: int) -> Cache:
    """A cache of `size` bytes for the blocks of data databases. It has parts of at least 32 MiB, and keeps blocks that
    fit into a part. A large value makes a large block, since a block ends only after the value that fills it. The small
    rows before the value are in the same block: without the block in the cache, each read of such a row would take as
    long as a read of the value. RocksDB's other cache has 64 parts, of 4 MiB each if the cache has 256 MiB.
    """
    return Cache.new_hyper_clock_cache(size, 0)


def data_options(cache: Cache) -> Options:
    """RocksDB's options for an open database."""
    options = base_options(_WRITE_BUFFER_BYTES, _WRITE_BUFFERS)
    options.set_arena_block_size(128 * KIB)
    options.set_compression_type(compression())
    options.set_target_file_size_base(16 * MIB)
    options.set_max_bytes_for_level_base(64 * MIB)
    options.set_max_file_opening_threads(1)
    options.set_skip_stats_update_on_db_open(True)
    table = table_options()
    table.set_block_cache(cache)
    options.set_block_based_table_factory(table)
    return options
