"""The simulated data database of a partition: a crash loses the rows that aren't flushed yet."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from minka.cluster.key_ranges import ALL_KEYS, KeyRange
from minka.errors import Code, MinkaError
from minka.wire.kv_frames import WriteBody
from minka.wire.stored_values import HEAD_BYTES, LOADED, MAX_HEAD_BYTES, value_of
from minkad.storage.applied import Applied
from minkad.storage.attached_data import AttachedData, Attachment
from minkad.storage.size_estimate import Size
from minkad.storage.sst_tables import Table
from minkad.storage.taken_loads import TakenLoads
from minkad.storage.versions import Versions, loaded_version
from tests.simulation.data_disk import DataDisk, Image

if TYPE_CHECKING:
    from tests.simulation.process import Process

_PARTITIONS: Final = Path("partitions")
_MAX_PASSED: Final = 0
_MEMORY_BYTES: Final = 600  # a partition with more bytes of rows than this gets a database


class SimDataDatabase:
    """The simulated `DataDatabase`: `open` creates the folder, and writes stay in memory until a flush."""

    def __init__(
        self,
        process: "Process",
        disk: DataDisk,
        partition_id: int,
        size: Size | None = None,
        on_damage: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = _PARTITIONS / str(partition_id)
        self.damage: MinkaError | None = None
        self.applied = Applied()
        self.loads = TakenLoads()
        self.versions = Versions()
        self.rows: dict[bytes, bytes] = {}
        self._size = size or Size()
        self._process = process
        self._disk = disk
        self._id = partition_id
        self._on_damage = on_damage
        self._closed = False
        self._disk_lock = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._rests = False
        self._was_used = False
        self._pins = 0
        self.is_database = False
        self.in_memory = False
        self.attachment: Attachment | None = None
        self._over_parent: AttachedData | None = None
        self._parent: SimDataDatabase | None = None
        self._children: dict[SimDataDatabase, int] = {}
        self._detaching: asyncio.Task[None] | None = None

    def attach(self, attachment: Attachment) -> None:
        """Attach this data to its parent's: until `open`, the rows are read from the parent's data."""
        parent = cast("SimDataDatabase", attachment.parent)
        self.attachment, self._parent = attachment, parent
        parent._children[self] = attachment.applied.offset
        if parent.is_open and parent.applied == attachment.applied:
            self._over_parent, self.in_memory = AttachedData(attachment), True
            self.applied, self.versions, self.loads = parent.applied, attachment.versions, parent.loads

    @property
    def is_attached(self) -> bool:
        """True if this data is attached to its parent's."""
        return self._parent is not None

    def is_shared(self, offset: int) -> bool:
        """True if, at the entry with this offset, this data is attached to its parent's, or a child's data is attached
        to this data.
        """
        return self.is_attached or any(since < offset for since in self._children.values())

    async def detach(self) -> None:
        """Wait until the data has a database of its own, durably."""
        await self.open()
        if self._detaching is not None:
            await self._end_of_detaching(self._detaching)

    async def detach_children(self) -> None:
        """Detach all children; returns when no child needs this data."""
        for child in list(self._children):
            with suppress(MinkaError):
                await child.detach()

    async def _end_of_detaching(self, task: "asyncio.Task[None]") -> None:
        await asyncio.wait([task])
        self._check()
        task.result()

    def _begin_detaching(self, attachment: Attachment) -> "asyncio.Task[None]":
        def ended(task: "asyncio.Task[None]") -> None:
            self._detaching = None
            if not task.cancelled():
                task.exception()

        self._detaching = self._process.loop.create_task(self._detach(attachment))
        self._detaching.add_done_callback(ended)
        return self._detaching

    async def _detach(self, attachment: Attachment) -> None:
        try:
            await attachment.copy()
        except MinkaError as error:
            if error.code is Code.CORRUPT_DATA:
                self.condemn(error)
            raise
        await self._process.disk_work()
        self._check()
        self._read(self._disk.folders[self._id])
        self.applied, self.versions = attachment.applied, attachment.versions
        if (attached := self._over_parent) is not None:
            for key, row in attached.newer.items():
                self._put(key, row)
            self.applied, self.versions = attached.applied, attached.versions
        self._over_parent = None
        self.is_database, self.in_memory, self._was_used = True, False, True
        await self._flush()
        self.attachment = None
        await attachment.detached()
        self.let_go()

    def _read(self, image: Image) -> None:
        self.rows, self.applied, self.loads = dict(image.rows), image.applied, image.loads
        self.versions = image.versions
        self._size = _size_of(self.rows)

    def let_go(self) -> None:
        """End the attachment to the parent's data."""
        if self._parent is not None:
            del self._parent._children[self]
        self.attachment = self._parent = None

    @property
    def is_open(self) -> bool:
        """True if the data is in memory, or the database is open."""
        return self.is_database or self.in_memory

    @property
    def is_known(self) -> bool:
        """True if `applied` is known: the database is open or at rest."""
        return self.is_open or self._rests

    @property
    def is_closed(self) -> bool:
        """True if reads and writes have to wait for `open`."""
        return not (self.is_open or self._closed or self.damage is not None) and self.exists()

    @property
    def is_large(self) -> bool:
        """True if the rows in memory are so large that they need a database."""
        attached = self._over_parent
        size = self._size.bytes if attached is None else attached.memory_bytes
        return self.in_memory and size > _MEMORY_BYTES

    def exists(self) -> bool:
        """True if the disk has data of this partition."""
        return self.is_database or self.attachment is not None or self._id in self._disk.folders

    def describe(self) -> str:
        """The data's path."""
        return str(self.path)

    def condemn(self, error: MinkaError) -> None:
        """Mark the data as damaged."""
        if self.damage is None:
            self.damage = error
            if self.attachment is not None:
                self.attachment.lost()
            self._on_damage()

    async def open(self) -> None:
        """Open the database; or create it from the rows in memory, or from those in the parent's database."""
        self._check()
        if self.attachment is not None and not self.is_database:
            await self._end_of_detaching(self._detaching or self._begin_detaching(self.attachment))
            return
        async with self._opening:
            if self.is_database:
                return
            self._check()
            # If an earlier `open` was cancelled, it may have left a folder. The rows in memory are newer than this
            # folder, so the folder isn't read.
            is_new = self.in_memory or self._id not in self._disk.folders
            if is_new and self._process.alive:
                self._disk.folders.setdefault(self._id, Image())
            if is_new and not self.in_memory:
                self._begin()
            await self._process.disk_work()
            self._check()
            if not is_new:
                self._read(self._disk.folders[self._id])
            self.is_database, self.in_memory, self._rests, self._was_used = True, False, False, True
            self._process.point()

    def take_used(self) -> bool:
        """True if the database was used since the last call, or can't be put to rest."""
        was_used, self._was_used = self._was_used, False
        return was_used or not self.is_database or self._pins > 0 or bool(self._children)

    async def rest(self, may_rest: Callable[[], bool]) -> None:
        """Flush the database; close it unless somebody uses it during the flush."""
        self._was_used = False
        if not self.is_database:
            return
        await self.flush()
        if self._is_used() or not may_rest():
            return
        async with self._opening:
            self.is_database, self._rests = False, True
            self.rows = {}  # the rows are on the disk
            await self._process.disk_work()

    def _is_used(self) -> bool:
        is_locked = self._opening.locked() or self._disk_lock.locked() or self._detaching is not None
        is_needed = self._pins > 0 or bool(self._children)
        return self._was_used or is_needed or is_locked or not self.is_database

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the database open within the block: it isn't put to rest."""
        self._pins += 1
        try:
            yield
        finally:
            self._pins -= 1

    def _begin(self) -> None:
        self.in_memory, self._size = True, Size()

    def is_stalled(self) -> bool:
        """Writes are never stalled here."""
        return False

    def write(self, writes: Sequence[WriteBody], applied: Applied, last_offset: int | None = None) -> None:
        """Write in memory: the next flush makes the rows durable."""
        self._check_writable()
        if (attached := self._over_parent) is not None:
            attached.write(writes, applied, last_offset)
            self.applied, self.versions = attached.applied, attached.versions
            return
        newest, self.versions = self.versions.rows_of(writes, last_offset or applied.offset)
        for key, row in newest.items():
            self._put(key, row)
        self.applied = applied

    @property
    def version_base(self) -> int:
        """The version of a row is the offset of its entry plus this number."""
        return self.versions.base

    @property
    def may_expire(self) -> bool:
        """True if there may be rows that expire."""
        return self.versions.may_expire

    @property
    def loaded_version(self) -> int:
        """The version of loaded rows."""
        return loaded_version(self.loads)

    def _put(self, key: bytes, row: bytes | None) -> None:
        old = self.rows.pop(key, None) if row is None else self.rows.get(key)
        size = self._size
        if old is not None:
            size.bytes, size.keys = size.bytes - len(key) - len(old) + HEAD_BYTES, size.keys - 1
        if row is not None:
            self.rows[key] = row
            size.bytes, size.keys = size.bytes + len(key) + len(row) - HEAD_BYTES, size.keys + 1

    def stored(self, keys: list[bytes]) -> list[bytes | None]:
        """The stored values, in the order of the keys."""
        self._check_readable()
        if self._over_parent is not None:
            return self._over_parent.stored(keys)
        return [self.rows.get(key) for key in keys]

    async def stored_many(self, keys: list[bytes], max_bytes: int = 0) -> list[bytes | None]:
        """Return the same as `stored`, read on another thread."""
        await self._open_if_closed()
        found = self.stored(keys)
        await self._process.disk_work()
        return found

    def page(
        self, start: bytes, end: bytes, reverse: bool, max_rows: int, max_bytes: int, max_passed: int = _MAX_PASSED
    ) -> tuple[list[bytes], list[bytes], bool]:
        """Return the same as `stored_page`, but with plain instead of stored values."""
        keys, rows, is_all = self.stored_page(start, end, reverse, max_rows, max_bytes)
        return keys, [value_of(row) for row in rows], is_all

    def stored_page(
        self,
        start: bytes,
        end: bytes,
        reverse: bool,
        max_rows: int,
        max_bytes: int,
        max_passed: int = _MAX_PASSED,
        max_seconds: float = inf,
        *,
        only_heads: bool = False,
    ) -> tuple[list[bytes], list[bytes], bool]:
        """Return a page with stored values, like `rocks.page`; in some worlds pages are shorter."""
        self._check_readable()
        max_rows = min(max_rows, self._process.world.page_rows)
        if self._over_parent is not None:
            return self._over_parent.page(start, end, reverse, max_rows, max_bytes, max_passed, only_heads=only_heads)
        keys: list[bytes] = []
        size = 0
        for key in sorted((key for key in self.rows if KeyRange(start, end).contains(key)), reverse=reverse):
            size += len(key) + len(self.rows[key])
            if len(keys) == max_rows or (keys and size > max_bytes):
                return keys, self._stored(keys, only_heads), False
            keys.append(key)
        return keys, self._stored(keys, only_heads), True

    def _stored(self, keys: list[bytes], only_heads: bool) -> list[bytes]:
        return [self.rows[key][:MAX_HEAD_BYTES] if only_heads else self.rows[key] for key in keys]

    async def clear(self, wanted: KeyRange, reverse: bool) -> KeyRange:
        """Return the part of the range in which deleted keys don't delay a scan: in the simulation, the whole range."""
        return wanted

    async def count(self, wanted: KeyRange = ALL_KEYS, slice_keys: int = 0) -> Size:
        """Count the keys and bytes."""
        await self._open_for_long()
        return _size_of({key: value for key, value in self.rows.items() if wanted.contains(key)})

    def trim_to_range(self, kept: KeyRange, applied: Applied) -> bool:
        """Remove all keys outside of the range; returns True if there were any."""
        self._check_writable()
        assert self._over_parent is None, f"{self.path} is attached"
        outside = [key for key in self.rows if not kept.contains(key)]
        for key in outside:
            self._put(key, None)
        self.applied = applied
        return bool(outside)

    async def ingest(self, file: Path, size: Size, loads: TakenLoads, applied: Applied) -> None:
        """Take in the file of a load. Its rows are durable at once; only the next flush makes `loads` and `applied`
        durable.
        """
        await self.open()
        await self.flush()
        rows = {key: LOADED + value for key, value in self._process.spooled(file).items()}
        async with self._disk_lock:
            await self._process.disk_work()
            if self._process.alive:
                self._disk.folders[self._id].rows.update(rows)
            self._process.point()
            for key, value in rows.items():
                self._put(key, value)
        self.loads = loads
        self.applied = applied

    async def compact_outside(self, kept: KeyRange) -> None:
        """Flush the database: in the simulation, compaction frees no space."""
        await self.compact()

    async def compact(self) -> Size:
        """Flush the database; returns its size."""
        await self._open_for_long()
        if self.is_database:
            await self.flush()
        return self.size()

    def tables(self) -> list[Table]:
        """The rows on disk as one table."""
        self._check()
        rows = self._disk.folders[self._id].rows
        return [Table(1, max(1, _size_of(rows).bytes), min(rows), max(rows))] if rows else []

    def size(self) -> Size:
        """The exact size."""
        if self._over_parent is not None:
            return self._over_parent.size()
        return Size(self._size.bytes, self._size.keys)

    def size_error(self) -> float:
        """Return 0: the size is exact."""
        return 0.0

    def share(self, part: KeyRange) -> float:
        """The share of this data that lies in the range, from 0 to 1."""
        if self._over_parent is not None:
            return self._over_parent.share(part)
        total = self._size.bytes
        if not total or not self.is_open:
            return 0.5
        return _size_of({key: row for key, row in self.rows.items() if part.contains(key)}).bytes / total

    def size_at_most(self) -> Size:
        """The exact size."""
        return self.size()

    async def flush(self) -> Applied:
        """Make the applied entries durable; returns an offset up to which they are durable."""
        if not self.is_open:
            return self.applied
        await self.detach()
        with self.in_use():
            return await self._flush()

    async def _flush(self) -> Applied:
        async with self._disk_lock:
            before, image = self.applied, self._image()
            is_quick = self._process.rng.random() < 0.5  # the rows are durable already when the disk work begins
            if is_quick:
                self._store(image)
            await self._process.disk_work()
            if not is_quick:
                self._store(image)
            self._process.point()
        return before

    async def checkpointed(self) -> Image:
        """Flush, and return the data on the disk as the content of a checkpoint."""
        with self.in_use():
            return await self._checkpointed()

    async def _checkpointed(self) -> Image:
        async with self._disk_lock:
            self._check()
            image = self._image()
            self._store(image)
            await self._process.disk_work()
            return image.copy()

    def _image(self) -> Image:
        if self.damage is not None:
            raise self.damage
        return Image(dict(self.rows), self.applied, self.loads, self.versions)

    def _store(self, image: Image) -> None:
        if self._process.alive and self.is_database:
            self._disk.folders[self._id] = image.copy()

    async def close(self) -> None:
        """Flush and close."""
        self._closed = True
        if self._detaching is not None:
            self._detaching.cancel()
            await asyncio.wait([self._detaching])
        self._over_parent = None
        self.let_go()
        for child in list(self._children):
            child.condemn(MinkaError(Code.CORRUPT_DATA, f"{self.path}, to which {child.path} is attached, is gone"))
        async with self._opening, self._disk_lock:
            self.in_memory = False
            if not self.is_database:
                return
            if self.damage is None:
                self._store(self._image())
            self.is_database = False
            await self._process.disk_work()

    def _check(self) -> None:
        if self.damage is not None:
            raise self.damage
        if self._closed:
            raise MinkaError(Code.SHUTTING_DOWN, f"{self.path} is closed")

    def _check_readable(self) -> None:
        self._check()
        self._was_used = True
        assert not self.is_closed, f"{self.path} is not open"

    def _check_writable(self) -> None:
        self._check_readable()
        if not self.is_open:
            self._begin()

    async def _open_for_long(self) -> None:
        if self.is_attached:
            await self.open()
        await self._open_if_closed()

    async def _open_if_closed(self) -> None:
        if self.is_closed:
            await self.open()
        self._check()
        self._was_used = True


def _size_of(rows: Mapping[bytes, bytes]) -> Size:
    return Size(sum(len(key) + len(row) - HEAD_BYTES for key, row in rows.items()), len(rows))
