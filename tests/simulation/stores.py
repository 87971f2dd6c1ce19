"""The simulated disk of replicas: data databases that keep what was flushed, and checkpoints of them."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from minka.errors import Code, MinkaError
from minka.ranges import ALL_KEYS, KeyRange
from minka.stored import HEAD_BYTES, LOADED, value_of
from minka.wire import WriteBody
from minkad.storage.applied import Applied
from minkad.storage.checkpoint import CheckpointFile
from minkad.storage.replica_store import Purpose
from minkad.storage.size_estimate import Size
from minkad.storage.tables import Table
from minkad.storage.taken_loads import TakenLoads
from minkad.storage.threads import end_of
from minkad.storage.versions import Versions, loaded_version

if TYPE_CHECKING:
    from tests.simulation.process import Process

_PARTITIONS: Final = Path("partitions")
_ROWS_A_FILE: Final = 16
_MAX_PASSED: Final = 0
_MEMORY_BYTES: Final = 600  # of rows in memory, of which a database is made
_AT_ONCE: Final = 0.5  # the share of the threads' work that takes next to no time
_MEAN_S: Final = 0.004  # the rest, on a fast disk
_HEAD: Final = "CURRENT"  # a checkpoint's file with everything but rows


@dataclass(slots=True)
class Image:
    """A data database as it is on the disk."""

    rows: dict[bytes, bytes] = field(default_factory=dict)
    applied: Applied = field(default_factory=Applied)
    loads: TakenLoads = field(default_factory=TakenLoads)
    versions: Versions = field(default_factory=Versions)

    def copy(self) -> "Image":
        """A copy of its present state."""
        return Image(dict(self.rows), self.applied, self.loads, self.versions)


@dataclass(slots=True)
class DataDisk:
    """The folders of partitions, which outlive a process: those that `SimReplicaStore.remove_leftovers` keeps."""

    folders: dict[int, Image] = field(default_factory=dict)


class SimReplicaStore:
    """The simulated `ReplicaStore`."""

    def __init__(self, process: "Process", disk: DataDisk) -> None:
        self._process = process
        self._disk = disk
        self._incoming: dict[int, dict[str, bytes]] = {}
        self.open: dict[int, SimDataDatabase] = {}  # by partition: the newest

    async def remove_leftovers(self) -> None:
        """Remove nothing: here a checkpoint that was received or taken is in the process's memory."""
        await self._process.disk_work()

    def data(
        self, partition_id: int, size: Size | None = None, on_damage: Callable[[], None] = lambda: None
    ) -> "SimDataDatabase":
        """The data database of a partition, which is not open yet."""
        made = self.open[partition_id] = SimDataDatabase(self._process, self._disk, partition_id, size, on_damage)
        return made

    @property
    def open_databases(self) -> int:
        """How many data databases are open."""
        return sum(data.is_database for data in self.open.values())

    def partition_ids(self) -> list[int]:
        """The partitions that have a folder."""
        return list(self._disk.folders)

    def exists(self, partition_id: int) -> bool:
        """Whether the partition has a folder."""
        return partition_id in self._disk.folders

    async def remove(self, partition_id: int) -> None:
        """Remove the folder of a partition, durably."""
        await remove_folder(self._process, self._disk, partition_id)

    async def take(self, data: "SimDataDatabase", purpose: Purpose, name: str) -> "SimCheckpoint":
        """A checkpoint with at least what is applied now."""
        await self._process.disk_work()  # a checkpoint that had this name before is removed
        await data.open()
        await data.flush()
        return SimCheckpoint(self._process, self._disk, Path(purpose.value) / name, await data.checkpointed())

    def incoming(self, partition_id: int, files: Sequence[CheckpointFile], kept: Mapping[str, int]) -> "SimIncoming":
        """A checkpoint that is about to be received."""
        there = self._incoming.setdefault(partition_id, {})
        return SimIncoming(self._process, self._disk, partition_id, files, kept, there)


async def remove_folder(process: "Process", disk: DataDisk, partition_id: int) -> None:
    """Remove the partition's folder, durably."""
    await process.disk_work()
    if process.alive:
        disk.folders.pop(partition_id, None)
    process.point()


class SimDataDatabase:
    """The simulated `DataDatabase`: there is no folder before `open`, and what is written stays in memory until it is
    flushed.
    """

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

    @property
    def is_open(self) -> bool:
        """Whether it is in memory, or open."""
        return self.is_database or self.in_memory

    @property
    def is_known(self) -> bool:
        """Whether `applied` is known: it is open, or at rest."""
        return self.is_open or self._rests

    @property
    def is_closed(self) -> bool:
        """Whether it has to be opened before it is read or written at once."""
        return not (self.is_open or self._closed or self.damage is not None) and self._id in self._disk.folders

    @property
    def is_large(self) -> bool:
        """Whether there is too much in memory."""
        return self.in_memory and self._size.bytes > _MEMORY_BYTES

    def exists(self) -> bool:
        """Whether there is anything on disk."""
        return self.is_database or self._id in self._disk.folders

    def describe(self) -> str:
        """Its path."""
        return str(self.path)

    def condemn(self, error: MinkaError) -> None:
        """Mark the data as damaged."""
        if self.damage is None:
            self.damage = error
            self._on_damage()

    async def open(self) -> None:
        """Open the database, or make one of what is in memory."""
        self._check()
        async with self._opening:
            if self.is_database:
                return
            self._check()
            # A caller that gave up may have left a folder, and what is in memory still counts.
            is_new = self.in_memory or self._id not in self._disk.folders
            if is_new and self._process.alive:
                self._disk.folders.setdefault(self._id, Image())
            if is_new and not self.in_memory:
                self._begin()
            await self._process.disk_work()
            self._check()
            if not is_new:
                image = self._disk.folders[self._id]
                self.rows, self.applied, self.loads = dict(image.rows), image.applied, image.loads
                self.versions = image.versions
                self._size = _size_of(self.rows)
            self.is_database, self.in_memory, self._rests, self._was_used = True, False, False, True
            self._process.point()

    def take_used(self) -> bool:
        """Whether it was used since the last call, or can't be put to rest."""
        was_used, self._was_used = self._was_used, False
        return was_used or not self.is_database or self._pins > 0

    async def rest(self, may_rest: Callable[[], bool]) -> None:
        """Flush and close the database, unless it is used meanwhile."""
        self._was_used = False
        if not self.is_database:
            return
        await self.flush()
        if self._is_used() or not may_rest():
            return
        async with self._opening:
            self.is_database, self._rests = False, True
            self.rows = {}  # they are on the disk
            await self._process.disk_work()

    def _is_used(self) -> bool:
        is_locked = self._opening.locked() or self._disk_lock.locked()
        return self._was_used or self._pins > 0 or is_locked or not self.is_database

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While it is entered, the database is not put to rest."""
        self._pins += 1
        try:
            yield
        finally:
            self._pins -= 1

    def _begin(self) -> None:
        self.in_memory, self._size = True, Size()

    def is_stalled(self) -> bool:
        """Whether writes are stalled, which they never are here."""
        return False

    def write(self, writes: Sequence[WriteBody], applied: Applied, last_offset: int | None = None) -> None:
        """Write in memory: it is durable with the next flush."""
        self._check_writable()
        newest, self.versions = self.versions.rows_of(writes, last_offset or applied.offset)
        for key, row in newest.items():
            self._put(key, row)
        self.applied = applied

    @property
    def version_base(self) -> int:
        """What is added to an entry's offset for the version of its rows."""
        return self.versions.base

    @property
    def may_expire(self) -> bool:
        """Whether there may be rows that expire."""
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
        """The values in the order of the keys, in their stored form."""
        self._check_readable()
        return [self.rows.get(key) for key in keys]

    async def stored_many(self, keys: list[bytes], max_bytes: int = 0) -> list[bytes | None]:
        """The same, read on another thread."""
        await self._open_if_closed()
        found = self.stored(keys)
        await self._process.disk_work()
        return found

    def page(
        self, start: bytes, end: bytes, reverse: bool, max_rows: int, max_bytes: int, max_passed: int = _MAX_PASSED
    ) -> tuple[list[bytes], list[bytes], bool]:
        """The same with the values alone."""
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
    ) -> tuple[list[bytes], list[bytes], bool]:
        """A page as `rocks.page` returns it, in some worlds a short one; the values are in their stored form."""
        self._check_readable()
        max_rows = min(max_rows, self._process.world.page_rows)
        keys: list[bytes] = []
        size = 0
        for key in sorted((key for key in self.rows if KeyRange(start, end).contains(key)), reverse=reverse):
            size += len(key) + len(self.rows[key])
            if len(keys) == max_rows or (keys and size > max_bytes):
                return keys, [self.rows[key] for key in keys], False
            keys.append(key)
        return keys, [self.rows[key] for key in keys], True

    async def clear(self, wanted: KeyRange, reverse: bool) -> KeyRange:
        """Return the whole range, since deleted keys are never in the way here."""
        return wanted

    async def count(self, wanted: KeyRange = ALL_KEYS, slice_keys: int = 0) -> Size:
        """The exact numbers of keys and bytes."""
        await self._open_if_closed()
        return _size_of({key: value for key, value in self.rows.items() if wanted.contains(key)})

    def trim_to_range(self, kept: KeyRange, applied: Applied) -> bool:
        """Remove all keys outside of the range; returns whether there were any."""
        self._check_writable()
        outside = [key for key in self.rows if not kept.contains(key)]
        for key in outside:
            self._put(key, None)
        self.applied = applied
        return bool(outside)

    async def ingest(self, file: Path, size: Size, loads: TakenLoads, applied: Applied) -> None:
        """Take in a file: the rows are durable at once, and that they are taken in is durable with the next flush."""
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
        """Flush a database; there is no room to free."""
        await self.compact()

    async def compact(self) -> Size:
        """Flush a database; returns the size."""
        await self._open_if_closed()
        if self.is_database:
            await self.flush()
        return self.size()

    def tables(self) -> list[Table]:
        """The rows on disk as one table."""
        self._check()
        rows = self._disk.folders[self._id].rows
        return [Table(1, max(1, _size_of(rows).bytes), min(rows), max(rows))] if rows else []

    def size(self) -> Size:
        """The size, which is exact."""
        return Size(self._size.bytes, self._size.keys)

    def size_error(self) -> float:
        """The error of the size: none."""
        return 0.0

    def share(self, part: KeyRange) -> float:
        """The share of the data that is in the range."""
        total = self._size.bytes
        if not total or not self.is_open:
            return 0.5
        return _size_of({key: row for key, row in self.rows.items() if part.contains(key)}).bytes / total

    def size_at_most(self) -> Size:
        """The size, which is exact."""
        return self.size()

    async def flush(self) -> Applied:
        """Make what is applied durable; returns how far that is, at least."""
        if not self.is_open:
            return self.applied
        await self.open()
        with self.in_use():
            return await self._flush()

    async def _flush(self) -> Applied:
        async with self._disk_lock:
            before, image = self.applied, self._image()
            is_quick = self._process.rng.random() < 0.5  # it is durable before the caller hears of it
            if is_quick:
                self._store(image)
            await self._process.disk_work()
            if not is_quick:
                self._store(image)
            self._process.point()
        return before

    async def checkpointed(self) -> Image:
        """The content of a checkpoint that is taken now, after a flush."""
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

    async def _open_if_closed(self) -> None:
        if self.is_closed:
            await self.open()
        self._check()
        self._was_used = True


def _size_of(rows: Mapping[bytes, bytes]) -> Size:
    return Size(sum(len(key) + len(row) - HEAD_BYTES for key, row in rows.items()), len(rows))


# Checkpoints

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_head: Final = msgspec.msgpack.Decoder(tuple[int, int, bytes, bytes]).decode
_decode_rows: Final = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


def files_of(image: Image) -> dict[str, bytes]:
    """The files of a checkpoint: the same rows make the same files."""
    rows = sorted(image.rows.items())
    parts = [_encode(rows[start : start + _ROWS_A_FILE]) for start in range(0, len(rows), _ROWS_A_FILE)]
    applied = image.applied
    head = _encode((applied.offset, applied.leader_epoch, image.loads.encode(), image.versions.encode()))
    return {**{f"{zlib.crc32(part):08x}.sst": part for part in parts}, _HEAD: head}


def image_of(files: Mapping[str, bytes]) -> Image:
    """The content of a checkpoint's files."""
    offset, epoch, loads, versions = _decode_head(files[_HEAD])
    rows = {key: value for name, part in files.items() if name != _HEAD for key, value in _decode_rows(part)}
    return Image(rows, Applied(offset, epoch), TakenLoads.decode(loads), Versions.decode(versions))


class SimCheckpoint:
    """The simulated `Checkpoint`."""

    def __init__(self, process: "Process", disk: DataDisk, path: Path, image: Image) -> None:
        self.path = path
        self._process = process
        self._disk = disk
        self._image = image
        self._content = files_of(image)
        self.files = tuple(CheckpointFile(name, len(content)) for name, content in self._content.items())

    @property
    def size(self) -> int:
        """The size of all files, in bytes."""
        return sum(file.size for file in self.files)

    async def read(self, chunk_bytes: int, skip: Collection[str] = ()) -> AsyncIterator[tuple[bytes, int | None]]:
        """The content of the files in their order, and with the last chunk of each its CRC-32."""
        for name, content in self._content.items():
            if name in skip:
                continue
            await self._process.disk_work()
            for start in range(0, len(content), chunk_bytes):
                is_last = start + chunk_bytes >= len(content)
                yield content[start : start + chunk_bytes], zlib.crc32(content) if is_last else None

    async def checksum(self, file: CheckpointFile) -> int:
        """The CRC-32 of a file."""
        return zlib.crc32(self._content[file.name])

    async def verify(self) -> None:
        """Check the files, which are always whole here."""
        await self._process.disk_work()

    async def move(self, path: Path) -> None:
        """Move the checkpoint to where the database is opened, durably; what was there before is removed."""
        await _put_in_place(self._process, self._disk, int(path.name), self._image)

    async def remove(self) -> None:
        """Remove the checkpoint."""
        await self._process.disk_work()


async def _put_in_place(process: "Process", disk: DataDisk, partition_id: int, image: Image) -> None:
    await remove_folder(process, disk, partition_id)
    await process.disk_work()
    if process.alive:
        disk.folders[partition_id] = image.copy()
    process.point()


class SimIncoming:
    """The simulated `Incoming`."""

    def __init__(
        self,
        process: "Process",
        disk: DataDisk,
        partition_id: int,
        files: Sequence[CheckpointFile],
        kept: Mapping[str, int],
        there: dict[str, bytes],
    ) -> None:
        """`there`: the files of an earlier try."""
        self._process = process
        self._disk = disk
        self._id = partition_id
        self._files = files
        self._kept = kept
        self._there = there
        self._bytes = sum(file.size for file in files if file.name not in kept)
        self.received = 0

    @property
    def complete(self) -> bool:
        """Whether all of the content is there."""
        return self.received == self._bytes

    async def write(self, chunks: AsyncIterator[bytes]) -> list[int]:
        """Store the content of the files that come; returns the CRC-32 of all."""
        for name in self._there.keys() - self._kept.keys():
            del self._there[name]
        buffer, found = b"", dict(self._kept)
        coming = [file for file in self._files if file.name not in self._kept]
        async for chunk in chunks:
            buffer += chunk
            self.received += len(chunk)
            if self.received > self._bytes:
                raise MinkaError(Code.INVALID_ARGUMENT, "more content than announced")
            while coming and len(buffer) >= coming[0].size:
                file = coming.pop(0)
                self._there[file.name], buffer = buffer[: file.size], buffer[file.size :]
                found[file.name] = zlib.crc32(self._there[file.name])
                await self._process.disk_work()
        if not self.complete:
            raise MinkaError(Code.INVALID_ARGUMENT, f"{self.received} of {self._bytes} bytes came")
        return [found[file.name] for file in self._files]

    def finished(self) -> dict[str, int]:
        """The CRC-32 of each file that is whole and durable."""
        return {name: zlib.crc32(content) for name, content in self._there.items()}

    def check(self, expected: Sequence[int], found: Sequence[int]) -> None:
        """Raises CORRUPT_DATA if the checksums differ."""
        if list(expected) != list(found):
            raise MinkaError(Code.CORRUPT_DATA, "other checksums than the sender's")

    async def verify(self) -> None:
        """Raises CORRUPT_DATA if files were removed meanwhile."""
        await self._process.disk_work()
        if not {file.name for file in self._files} <= self._there.keys():
            raise MinkaError(Code.CORRUPT_DATA, "files are missing")

    async def install(self, path: Path) -> None:
        """Move the checkpoint to where the database is opened, durably; what was there before is removed."""
        image = image_of({file.name: self._there[file.name] for file in self._files})
        self._there.clear()
        await _put_in_place(self._process, self._disk, int(path.name), image)

    async def discard(self) -> None:
        """Remove the files that came."""
        self._there.clear()
        await self._process.disk_work()


async def disk_work(process: "Process") -> None:
    """Wait for as long as a thread works with the disk: see `minkad.storage.threads.on_thread`."""
    if process.rng.random() < _AT_ONCE:
        await asyncio.sleep(0)
        return
    seconds = process.rng.expovariate(1 / _MEAN_S) + process.sync_time()
    future = process.loop.create_future()
    process.loop.call_later(seconds, lambda: None if future.done() else future.set_result(None))
    await end_of(future)
