"""The data of one partition: in memory alone while it is small, then in a RocksDB database."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from rocksdict import Cache, Rdict

from minka.cluster.key_ranges import ALL_KEYS, KeyRange
from minka.errors import Code, MinkaError
from minka.wire.kv_frames import WriteBody
from minka.wire.stored_values import value_of, values_of
from minkad.process import tasks
from minkad.storage.applied import Applied
from minkad.storage.attached_data import AttachedData, Attachment
from minkad.storage.memory_data import MemoryData
from minkad.storage.openings import Openings
from minkad.storage.rocks import KIB, MIB, data_error, is_made_first
from minkad.storage.rocks_data import RocksData, create_folder, open_folder, release
from minkad.storage.row_cache import CachedRows, RowCache
from minkad.storage.size_estimate import Size
from minkad.storage.sst_tables import Table
from minkad.storage.taken_loads import TakenLoads
from minkad.storage.threads import on_thread
from minkad.storage.versions import Versions, loaded_version

_SLICE_KEYS: Final = 1000  # read before the loop gets its turn
_NO_LIMIT: Final = 2**63
_MEMORY_BYTES: Final = 256 * KIB  # data up to this size stays in memory: an open, empty RocksDB takes about as much
_MOST_MEMORY_BYTES: Final = 2 * MIB  # while a database is being made of more data than this, no write is applied


class _Known(NamedTuple):
    """The known properties of a closed database that may be opened again."""

    applied: Applied = Applied()
    loads: TakenLoads = TakenLoads()
    versions: Versions = Versions()
    at_most: Size | None = None
    error: float = 0.0


_UNKNOWN: Final = _Known()


def _has_files(folder: str) -> bool:
    """True if the folder has any files, but not if a kill ended the making of its database."""
    try:
        with os.scandir(folder) as entries:
            return any(not is_made_first(entry) for entry in entries)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # a file, or something unreadable: the caller that opens it gets the error


@asynccontextmanager
async def _released_if_useless(db: Rdict, folder: str) -> AsyncIterator[None]:
    try:
        yield
    except Exception as error:
        await on_thread(release, db)
        raise data_error(error, f"opening {folder}", Path(folder)) from error


class DataDatabase:
    """Where the rows are:

        nothing --write--> in memory --open--+
                                             +--> in an open database <--open, rest--> at rest (closed)
        attach --> attached to the parent's --+

    Rows stay in memory until there are many, or something needs a database. They are safe there: the partition's log
    has them durably, and isn't trimmed before the data is flushed. Only `open` opens or makes a database. Methods that
    read or write at once need data that is open, or not on disk. For the loop's thread.

    Methods raise CORRUPT_DATA or STORAGE_FAILED when the disk fails, and SHUTTING_DOWN after `close`. Once damage was
    found, they all raise CORRUPT_DATA: a missing row can't be told from a row that never existed.
    """

    __slots__ = (
        "_cache", "_children", "_damage", "_folder", "_has_folder", "_is_shut", "_known", "_memory", "_on_damage",
        "_opening", "_openings", "_parent", "_pins", "_rocks", "_row_cache", "_size", "_was_used", "attachment",
    )  # fmt: skip

    def __init__(
        self,
        folder: str | Path,
        cache: Cache,
        size: Size | None = None,
        on_damage: Callable[[], None] = lambda: None,
        openings: Openings | None = None,
        row_cache: RowCache | None = None,
    ) -> None:
        """`size`: the size when the database was closed, so nobody opens it only to learn this. `on_damage` is called
        once, when damage is found. `openings`, `row_cache`: those that all databases of the node share.
        """
        self._folder = os.fspath(folder)
        self._damage: str | None = None  # the reason; once set, it stays, and nothing of the data is used
        self._cache = cache
        self._size = size  # when it was last closed; None: not known
        self._on_damage = on_damage
        self._openings = openings or Openings()
        self._row_cache = row_cache or RowCache(MIB)
        # At most one of these two is set; neither is set if there is no data, or the database is at rest.
        self._memory: MemoryData | AttachedData | None = None
        self._rocks: RocksData | None = None
        self._has_folder: bool | None = None  # None: nobody has looked
        self._opening: asyncio.Task[None] | None = None  # the task that opens the database, or puts it to rest
        self._known = _UNKNOWN  # what is known of a database at rest
        self._was_used = False  # since the last `take_used` or `rest`
        self._pins = 0  # the contexts of `in_use` that are entered now; with any, the database isn't put to rest
        self._is_shut = False  # `close` has begun
        self.attachment: Attachment | None = None  # until the data is durable in a database of its own
        self._parent: DataDatabase | None = None  # until the parent's side is durable, too
        self._children: dict[DataDatabase, int] = {}  # attached to this data, and the offset as of which each is

    # Its form

    @property
    def is_open(self) -> bool:
        """True if data is in memory, or the database is open: then `applied` is known."""
        return self._rocks is not None or self._memory is not None

    @property
    def is_known(self) -> bool:
        """True if `applied`, `loads` and `versions` are known: the data is open, or at rest."""
        return self.is_open or self._known is not _UNKNOWN

    @property
    def in_memory(self) -> bool:
        """True if data is in memory, and none of it in a database."""
        return self._memory is not None

    @property
    def is_closed(self) -> bool:
        """True if the data is on disk and not open: somebody has to call `open` before a read or write at once."""
        if self.is_open or self._damage is not None or self._is_shut:
            return False
        if self._has_folder is None:
            self._has_folder = self.exists()
        return self._has_folder

    @property
    def is_large(self) -> bool:
        """True if so much is in memory that a database should be made."""
        return self._memory is not None and self._memory.memory_bytes > _MEMORY_BYTES

    @property
    def applied(self) -> Applied:
        """The place up to which the log is in the data, if `is_known`."""
        return self._known.applied if (store := self._store) is None else store.applied

    @property
    def loads(self) -> TakenLoads:
        """The loads that the data has taken in, if `is_known`."""
        return self._known.loads if (store := self._store) is None else store.loads

    @property
    def version_base(self) -> int:
        """The number that is added to an entry's offset for the version of its rows, if `is_known`."""
        return self.versions.base

    @property
    def may_expire(self) -> bool:
        """True if there may be rows that expire, if `is_known`."""
        return self.versions.may_expire

    @property
    def loaded_version(self) -> int:
        """The version of loaded rows, if `is_known`."""
        return loaded_version(self.loads)

    @property
    def versions(self) -> Versions:
        """The source of the versions of rows, if `is_known`."""
        return self._known.versions if (store := self._store) is None else store.versions

    def exists(self) -> bool:
        """True if there is anything on disk. Files of a database that was never completely made don't count."""
        return self._rocks is not None or self.attachment is not None or _has_files(self._folder)

    @property
    def path(self) -> Path:
        """The folder, kept as a string, which is smaller: a node has tens of thousands of databases without data."""
        return Path(self._folder)

    def describe(self) -> str:
        """Its path."""
        return self._folder

    @property
    def damage(self) -> MinkaError | None:
        """The reason why nothing of the data is used; None if it isn't damaged. Each call makes a new error: an error
        that is kept and raised again keeps the frames of all its callers alive, with their iterators.
        """
        return None if self._damage is None else MinkaError(Code.CORRUPT_DATA, self._damage)

    def condemn(self, error: MinkaError) -> None:
        """Note that the data is damaged, by this CORRUPT_DATA: nobody can use the data from now on."""
        if self._damage is None:
            self._damage = error.message
            if self.attachment is not None:
                self.attachment.lost()
            self._on_damage()

    async def open(self) -> None:
        """Open the database, or make one from the data in memory, which can be read and written meanwhile."""
        self._check()
        while self._rocks is None:
            opening = self._opening or self._begin(self._open())
            await asyncio.wait([opening])
            self._check()
            opening.result()

    # Children of a split

    def attach(self, attachment: Attachment) -> None:
        """From now on the data is a part of its parent's, until `open`. It can be read and written at once if the
        parent's data is open and has applied nothing after the split.
        """
        assert not self.is_open, f"{self.path} has data of its own"
        self.attachment, self._parent = attachment, attachment.parent
        self._parent._children[self] = attachment.applied.offset
        if self._parent.is_open and self._parent.applied == attachment.applied:
            self._memory = AttachedData(attachment)

    @property
    def is_attached(self) -> bool:
        """True while a restart may need the parent's data to make this data again."""
        return self._parent is not None

    def is_shared(self, offset: int) -> bool:
        """True if, at the entry with this offset, the data is attached to its parent's, or a child is attached
        to it.
        """
        return self.is_attached or any(since < offset for since in self._children.values())

    async def detach(self) -> None:
        """Wait until the data is durable in a database of its own. Also raises the errors of the parent's data."""
        await self.open()
        if self.is_attached and (opening := self._opening) is not None:
            await asyncio.wait([opening])
            self._check()
            opening.result()

    async def detach_children(self) -> None:
        """Detach all children from this data, except those for which this fails."""
        for child in list(self._children):
            with suppress(MinkaError):
                await child.detach()

    async def _detach(self, attachment: Attachment) -> None:
        await attachment.copy()
        async with self._openings.slot(lambda: inf):
            self._check()
            rocks = await self._open_folder()
            memory = self._memory
            if isinstance(memory, AttachedData):
                rocks.take_over(memory.newer, memory.versions, memory.applied)
            else:
                rocks.take_over({}, attachment.versions, attachment.applied)
            self._opened_as(rocks)
        await rocks.flush()
        self.attachment = None
        await attachment.detached()
        self.let_go()

    def let_go(self) -> None:
        """The data is no longer a part of its parent's: the parent may change its rows from now on."""
        if self._parent is not None:
            del self._parent._children[self]
        self.attachment = self._parent = None

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._opening = tasks.awaited(work, f"opening or closing {self.path}")
        task.add_done_callback(self._has_ended)
        return task

    async def _open(self) -> None:
        try:
            if self.attachment is not None:
                await self._detach(self.attachment)
            else:
                await self._open_own()
        except MinkaError as error:
            if error.code is Code.CORRUPT_DATA:
                self.condemn(error)
            raise

    async def _open_own(self) -> None:
        is_wanted_now = self.is_closed  # else nobody waits: reads and writes go on in memory
        async with self._openings.slot(lambda: inf if is_wanted_now else self.size().bytes):
            self._check()
            if self.is_closed:
                self._opened_as(await self._open_folder())
                return
            memory = self._memory = self._memory or MemoryData()
            assert isinstance(memory, MemoryData), f"{self.path} is attached"
            db: Rdict = await on_thread(create_folder, self.path, self._cache, memory.copy())
            rows = CachedRows(self._row_cache)
            async with _released_if_useless(db, self._folder):
                self._opened_as(RocksData.created(self.path, db, memory, rows, self.condemn))

    async def _open_folder(self) -> RocksData:
        db, stored = await on_thread(open_folder, self.path, self._cache)
        async with _released_if_useless(db, self._folder):
            return RocksData(self.path, db, stored, CachedRows(self._row_cache), self.condemn)

    def _opened_as(self, rocks: RocksData) -> None:
        self._rocks, self._memory, self._known = rocks, None, _UNKNOWN
        self._was_used = True
        self._openings.open += 1

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # so asyncio doesn't warn: the callers that wait get it

    def take_used(self) -> bool:
        """True if the data was read or written since the last call, or can't be put to rest."""
        was_used, self._was_used = self._was_used, False
        return was_used or self._rocks is None or self._pins > 0 or bool(self._children)

    async def rest(self, may_rest: Callable[[], bool]) -> None:
        """Flush and close the database, unless somebody uses it meanwhile or `may_rest` returns False. `is_known` stays
        True, and `open` opens the database again.
        """
        self._was_used = False
        if (rocks := self._rocks) is None:
            return
        await rocks.flush()
        if not self._is_used(rocks) and may_rest():
            self._known = _Known(rocks.applied, rocks.loads, rocks.versions, rocks.size_at_most(), rocks.size_error())
            self._size, self._rocks, self._has_folder = rocks.size(), None, True
            self._openings.open -= 1
            await asyncio.shield(self._begin(rocks.close()))

    def _is_used(self, rocks: RocksData) -> bool:
        is_other = self._rocks is not rocks or self._opening is not None
        return is_other or rocks.is_read or self._was_used or self._pins > 0 or bool(self._children)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While this context is entered, the database isn't put to rest."""
        self._pins += 1
        try:
            yield
        finally:
            self._pins -= 1

    async def close(self) -> None:
        """Flush and close the database for good, once nobody reads. Data in memory is dropped: the log has it."""
        self._is_shut = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        self._size, self._memory = self.size(), None
        self.let_go()
        for child in list(self._children):
            child.condemn(MinkaError(Code.CORRUPT_DATA, f"{self.path}, to which {child.path} is attached, is gone"))
        if (rocks := self._rocks) is not None:
            was_damaged = self._damage is not None
            try:
                await rocks.close()
            except MinkaError:
                if not was_damaged:
                    raise
            finally:
                self._rocks = None
                self._openings.open -= 1

    # Reading and writing at once

    def is_stalled(self) -> bool:
        """True if `write` would have to wait for the disk, or for the new database."""
        if self._rocks is not None:
            return self._rocks.is_stalled()
        memory = self._memory
        return self._opening is not None and memory is not None and memory.memory_bytes > _MOST_MEMORY_BYTES

    def write(self, writes: Sequence[WriteBody], applied: Applied, last_offset: int | None = None) -> None:
        """Apply the writes in order, with `applied`. The next flush makes them durable. `last_offset`: the offset of
        the last write, if `applied` does not have it.
        """
        self._writable().write(writes, applied, last_offset)

    def stored(self, keys: list[bytes]) -> list[bytes | None]:
        """The values, in their stored form, in the order of the keys; None for a missing key. For few keys."""
        return [None] * len(keys) if (store := self._readable()) is None else store.stored(keys)

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """The values alone, including expired ones."""
        return values_of(self.stored(keys))

    def page(
        self, start: bytes, end: bytes, reverse: bool, max_rows: int, max_bytes: int, max_passed: int = 0
    ) -> tuple[list[bytes], list[bytes], bool]:
        """The result of `stored_page`, with the values alone."""
        keys, stored, is_all = self.stored_page(start, end, reverse, max_rows, max_bytes, max_passed)
        return keys, [value_of(one) for one in stored], is_all

    def stored_page(
        self,
        start: bytes,
        end: bytes,
        reverse: bool,
        max_rows: int,
        max_bytes: int,
        max_passed: int = 0,
        max_seconds: float = inf,
        *,
        only_heads: bool = False,
    ) -> tuple[list[bytes], list[bytes], bool]:
        """See `rocks.page`; the values are in their stored form. For few rows: about a microsecond each. Raises
        DeletedAheadError: see `clear`.
        """
        store = self._readable()
        if store is None:
            return [], [], True
        if isinstance(store, MemoryData):
            return store.page(start, end, reverse, max_rows, max_bytes, only_heads=only_heads)
        return store.page(start, end, reverse, max_rows, max_bytes, max_passed, max_seconds, only_heads)

    def trim_to_range(self, kept: KeyRange, applied: Applied) -> bool:
        """Remove all keys outside of `kept`, in one write with `applied`. Returns True if there were any.
        `compact_outside` frees their disk space.
        """
        store = self._writable()
        assert not isinstance(store, AttachedData), f"{self.path} is attached"
        return store.trim_to_range(kept, applied)

    # Slow reads and writes: a database on disk is opened for them

    async def stored_many(self, keys: list[bytes], max_bytes: int = _NO_LIMIT) -> list[bytes | None]:
        """The result of `stored`, read on another thread. Raises TOO_LARGE soon after all values together exceed
        `max_bytes`.
        """
        store = await self._opened_if_closed()
        if store is None:
            return [None] * len(keys)
        if isinstance(store, MemoryData):
            return store.stored_many(keys, max_bytes)
        return await store.stored_many(keys, max_bytes)

    async def count(self, wanted: KeyRange = ALL_KEYS, slice_keys: int = _SLICE_KEYS) -> Size:
        """The exact number of keys and bytes in the range, found by reading all; the loop runs after every `slice_keys`
        keys. Writes during the count don't change the result, except in keys that are read after a `clear`.
        """
        store = await self._opened_for_long()
        return Size() if store is None else await store.count(wanted, slice_keys)

    async def clear(self, wanted: KeyRange, reverse: bool) -> KeyRange:
        """See `RocksData.clear`. In memory there are no remains of deleted keys."""
        store = await self._opened_for_long()
        return await store.clear(wanted, reverse) if isinstance(store, RocksData) else wanted

    async def ingest(self, file: Path, size: Size, loads: TakenLoads, applied: Applied) -> None:
        """See `RocksData.ingest`."""
        await self.open()
        await self.opened().ingest(file, size, loads, applied)

    async def compact_outside(self, kept: KeyRange) -> None:
        """Free the disk space of the keys that were removed outside of the range. Reads and writes go on meanwhile."""
        if isinstance(store := await self._opened_for_long(), RocksData):
            await store.compact_outside(kept)

    async def compact(self) -> Size:
        """Leave one version of each key that exists at the call. Returns the measured size afterwards."""
        store = await self._opened_for_long()
        return await store.compact() if isinstance(store, RocksData) else self.size()

    async def flush(self) -> Applied:
        """Make all applied rows durable. Returns a place up to which they are durable. Writes go on meanwhile."""
        if not self.is_open:
            return self.applied
        await self.detach()
        return await self.opened().flush()

    # Its size, at no cost

    def size(self) -> Size:
        """The size: an estimate, but exact for data in memory."""
        return (self._size or Size()) if (store := self._store) is None else store.size()

    def size_error(self) -> float:
        """The standard error of `size`, as a share of it."""
        if self._rocks is not None:
            return self._rocks.size_error()
        return 0.0 if self.in_memory else self._known.error

    def size_at_most(self) -> Size:
        """An upper bound of the size if known, else the estimate."""
        if self._rocks is not None:
            return self._rocks.size_at_most()
        return self.size() if self.in_memory else self._known.at_most or self.size()

    def share(self, part: KeyRange) -> float:
        """About the share of the data that is in the range; 0.5 if the data isn't open."""
        return 0.5 if (store := self._store) is None or self._damage is not None else store.share(part)

    # For an open database alone

    def tables(self) -> list[Table]:
        """The files of the database."""
        return self.opened().tables()

    @property
    def _store(self) -> MemoryData | AttachedData | RocksData | None:
        return self._memory if self._rocks is None else self._rocks

    def _check(self) -> None:
        if (damage := self.damage) is not None:
            raise damage
        if self._is_shut:
            raise MinkaError(Code.SHUTTING_DOWN, f"{self.path} is closed")

    def _readable(self) -> MemoryData | AttachedData | RocksData | None:
        self._check()
        assert not self.is_closed, f"{self.path} is not open"
        self._was_used = True
        return self._store

    def _writable(self) -> MemoryData | AttachedData | RocksData:
        store = self._readable()
        if store is None:
            store = self._memory = MemoryData()
        return store

    async def _opened_if_closed(self) -> MemoryData | AttachedData | RocksData | None:
        self._check()
        if self.is_closed:
            await self.open()
        self._was_used = True
        return self._store

    async def _opened_for_long(self) -> MemoryData | RocksData | None:
        """The data, for a long read or a rewrite. An attached child gets a database of its own first: outside of the
        child's range, the parent's data changes.
        """
        if self.is_attached:
            await self.open()
        store = await self._opened_if_closed()
        assert not isinstance(store, AttachedData), f"{self.path} is attached"
        return store

    def opened(self) -> RocksData:
        """The database, which must be open."""
        self._check()
        assert self._rocks is not None, f"{self.path} is not open"
        self._was_used = True
        return self._rocks
