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
from minkad.storage.rocks import KIB, MIB, data_error
from minkad.storage.rocks_data import RocksData, create_folder, open_folder, release
from minkad.storage.row_cache import CachedRows, RowCache
from minkad.storage.size_estimate import Size
from minkad.storage.sst_tables import Table
from minkad.storage.taken_loads import TakenLoads
from minkad.storage.threads import on_thread
from minkad.storage.versions import Versions, loaded_version

_SLICE_KEYS: Final = 1000  # read before the loop gets its turn
_NO_LIMIT: Final = 2**63
_MEMORY_BYTES: Final = 256 * KIB  # about the memory of an open, empty RocksDB
_MOST_MEMORY_BYTES: Final = 2 * MIB  # with more, nothing is applied while a database is being made of it


class _Known(NamedTuple):
    """The known properties of a closed database that may be opened again."""

    applied: Applied = Applied()
    loads: TakenLoads = TakenLoads()
    versions: Versions = Versions()
    at_most: Size | None = None
    error: float = 0.0


_UNKNOWN: Final = _Known()


def _has_files(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False
    except OSError:
        return True  # a file, or something unreadable: whoever opens it gets the error


@asynccontextmanager
async def _released_if_useless(db: Rdict, folder: str) -> AsyncIterator[None]:
    try:
        yield
    except Exception as error:
        await on_thread(release, db)
        raise data_error(error, f"opening {folder}", Path(folder)) from error


class DataDatabase:
    """Applied rows live in memory until they are many, or something needs a folder: the partition's log has all of them
    durably, and begins with its first entry until the data is flushed. Only `open` opens or makes a database; to read
    or write at once, the database must be open, or not be on disk. For the loop's thread.

    Everything raises CORRUPT_DATA or STORAGE_FAILED when the disk fails, and SHUTTING_DOWN after `close`. After damage
    was found, everything raises that same CORRUPT_DATA: missing rows look the same as rows that never existed.
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
        """`size`: its size when it was closed, so that it isn't opened only to find that out. `on_damage` is called
        once, when damage is found. `openings`, `row_cache`: the node's.
        """
        self._folder = os.fspath(folder)
        self._damage: str | None = None
        self._cache = cache
        self._size = size
        self._on_damage = on_damage
        self._openings = openings or Openings()
        self._row_cache = row_cache or RowCache(MIB)
        self._memory: MemoryData | AttachedData | None = None
        self._rocks: RocksData | None = None
        self._has_folder: bool | None = None  # None: nobody has looked
        self._opening: asyncio.Task[None] | None = None  # it is being opened, or put to rest
        self._known = _UNKNOWN
        self._was_used = False
        self._pins = 0
        self._is_shut = False
        self.attachment: Attachment | None = None  # until it durably has a database of its own
        self._parent: DataDatabase | None = None  # until the parent's side is durable, too
        self._children: dict[DataDatabase, int] = {}  # attached to this one, and from which offset on

    # Its form

    @property
    def is_open(self) -> bool:
        """True if data is in memory, or the database is open: then `applied` is known."""
        return self._rocks is not None or self._memory is not None

    @property
    def is_known(self) -> bool:
        """True if `applied` and `loads` are known: the data is open, or was, and is at rest."""
        return self.is_open or self._known is not _UNKNOWN

    @property
    def in_memory(self) -> bool:
        """True if data is in memory, and none of it in a database."""
        return self._memory is not None

    @property
    def is_closed(self) -> bool:
        """True if the database has to be opened before it is read or written at once."""
        if self.is_open or self._damage is not None or self._is_shut:
            return False
        if self._has_folder is None:
            self._has_folder = self.exists()
        return self._has_folder

    @property
    def is_large(self) -> bool:
        """True if too much is in memory, so that a database should be made of it."""
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
        """Added to an entry's offset for the version of its rows, if `is_known`."""
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
        """True if there is anything on disk."""
        return self._rocks is not None or self.attachment is not None or _has_files(self._folder)

    @property
    def path(self) -> Path:
        """The folder. A node has tens of thousands without data, and a path costs more than a string."""
        return Path(self._folder)

    def describe(self) -> str:
        """Its path."""
        return self._folder

    @property
    def damage(self) -> MinkaError | None:
        """The reason why nothing of the data is used any longer. A new error each time: an error that is kept and
        raised repeatedly keeps the frames of all who got it, with the iterators in them.
        """
        return None if self._damage is None else MinkaError(Code.CORRUPT_DATA, self._damage)

    def condemn(self, error: MinkaError) -> None:
        """Note that the data is damaged, with this CORRUPT_DATA: nothing in it is used from now on."""
        if self._damage is None:
            self._damage = error.message
            if self.attachment is not None:
                self.attachment.lost()
            self._on_damage()

    async def open(self) -> None:
        """Open the database, or make one of the data in memory. Reads and writes in memory go on meanwhile."""
        self._check()
        while self._rocks is None:
            opening = self._opening or self._begin(self._open())
            await asyncio.wait([opening])
            self._check()
            opening.result()

    # Children of a split

    def attach(self, attachment: Attachment) -> None:
        """From now on the data is a part of its parent's, until it is opened. It can be read and written at once if the
        parent's data is open.
        """
        assert not self.is_open, f"{self.path} has data of its own"
        self.attachment, self._parent = attachment, attachment.parent
        self._parent._children[self] = attachment.applied.offset
        if self._parent.is_open and self._parent.applied == attachment.applied:
            self._memory = AttachedData(attachment)

    @property
    def is_attached(self) -> bool:
        """True if a crash would leave nothing of the data without its parent's."""
        return self._parent is not None

    def is_shared(self, offset: int) -> bool:
        """True if, at the entry with this offset, the data is attached to its parent's, or a child is attached
        to it.
        """
        return self.is_attached or any(since < offset for since in self._children.values())

    async def detach(self) -> None:
        """Return when the data durably has a database of its own. Also raises the errors of its parent's data."""
        await self.open()
        if self.is_attached and (opening := self._opening) is not None:
            await asyncio.wait([opening])
            self._check()
            opening.result()

    async def detach_children(self) -> None:
        """Return when no child needs this data, or the remaining children can't be detached from it."""
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
        """The data is no longer a part of its parent's, which may change from now on."""
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
        is_wanted_now = self.is_closed  # else reads and writes go on in memory
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
            task.exception()  # those that wait for it get the exception

    def take_used(self) -> bool:
        """True if the data was read or written since the last call, or can't be put to rest."""
        was_used, self._was_used = self._was_used, False
        return was_used or self._rocks is None or self._pins > 0 or bool(self._children)

    async def rest(self, may_rest: Callable[[], bool]) -> None:
        """Flush and close the database, unless it is used meanwhile or `may_rest` says no; `open` opens it again. Its
        known properties stay known.
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
        """Flush and close the database, when nobody reads. Data in memory alone is forgotten: the log has it."""
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
        `compact_outside` frees their room.
        """
        store = self._writable()
        assert not isinstance(store, AttachedData), f"{self.path} is attached"
        return store.trim_to_range(kept, applied)

    # Slow reads and writes: a database on disk is opened for them

    async def stored_many(self, keys: list[bytes], max_bytes: int = _NO_LIMIT) -> list[bytes | None]:
        """The result of `stored`, read on another thread. Raises TOO_LARGE soon after the values exceed `max_bytes`
        together.
        """
        store = await self._opened_if_closed()
        if store is None:
            return [None] * len(keys)
        if isinstance(store, MemoryData):
            return store.stored_many(keys, max_bytes)
        return await store.stored_many(keys, max_bytes)

    async def count(self, wanted: KeyRange = ALL_KEYS, slice_keys: int = _SLICE_KEYS) -> Size:
        """The exact number of keys and bytes in the range, found by reading all; the loop runs after every `slice_keys`
        keys. Counts the state at the call, unless something has to be cleared away meanwhile; see `clear`.
        """
        store = await self._opened_for_long()
        return Size() if store is None else await store.count(wanted, slice_keys)

    async def clear(self, wanted: KeyRange, reverse: bool) -> KeyRange:
        """See `RocksData.clear`. In memory, deleted keys are never in the way."""
        store = await self._opened_for_long()
        return await store.clear(wanted, reverse) if isinstance(store, RocksData) else wanted

    async def ingest(self, file: Path, size: Size, loads: TakenLoads, applied: Applied) -> None:
        """See `RocksData.ingest`."""
        await self.open()
        await self.opened().ingest(file, size, loads, applied)

    async def compact_outside(self, kept: KeyRange) -> None:
        """Free the room of the keys removed outside of the range. Reads and writes go on meanwhile."""
        if isinstance(store := await self._opened_for_long(), RocksData):
            await store.compact_outside(kept)

    async def compact(self) -> Size:
        """Leave one version of each key that was there at the beginning. Returns the measured size afterwards."""
        store = await self._opened_for_long()
        return await store.compact() if isinstance(store, RocksData) else self.size()

    async def flush(self) -> Applied:
        """Make the applied rows durable, and return the place up to which at least they are. Writes go on meanwhile."""
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

    # What only an open database has

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
        """The data for a read or rewrite of all of it. This can't be the parent's, which changes outside of the
        child.
        """
        if self.is_attached:
            await self.open()
        store = await self._opened_if_closed()
        assert not isinstance(store, AttachedData), f"{self.path} is attached"
        return store

    def opened(self) -> RocksData:
        """The database, which is open."""
        self._check()
        assert self._rocks is not None, f"{self.path} is not open"
        self._was_used = True
        return self._rocks
