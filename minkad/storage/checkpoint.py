"""Checkpoints: copies of a data database, made of hard links, sent file by file, and put in place as a whole."""

import asyncio
import os
import shutil
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final

from rocksdict import AccessType, Cache, Rdict, RdictIter
from rocksdict import Checkpoint as RocksCheckpoint

from minka.errors import Code, MinkaError
from minkad.storage.data_database import DataDatabase
from minkad.storage.rocks import MIB, data_error, storage_error
from minkad.storage.rocks_data import data_options
from minkad.storage.threads import end_of, on_thread
from minkad.storage.writeback import Writeback

_READ_BYTES: Final = MIB
_WRITE_BYTES: Final = MIB
_MAX_FILES: Final = 100_000
_CACHE_BYTES: Final = MIB
_NONE: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A file of a checkpoint: its name, and its size in bytes."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder of hard links. Call `remove` when nobody needs it: its links keep files that compaction would free."""

    path: Path
    files: tuple[CheckpointFile, ...]

    @property
    def size(self) -> int:
        """All files together, in bytes."""
        return sum(file.size for file in self.files)

    async def read(self, chunk_bytes: int, skip: Collection[str] = ()) -> AsyncIterator[tuple[bytes, int | None]]:
        """The content of the files, in order and in chunks, without the files to `skip`. The last chunk of each file
        comes with the file's CRC-32, the other chunks with None. While the caller works on one chunk, a thread reads
        the next. Raises CORRUPT_DATA, STORAGE_FAILED.
        """
        loop = asyncio.get_running_loop()
        parts = self._parts(chunk_bytes, skip)
        part, checksum = next(parts, None), 0
        ahead = loop.run_in_executor(None, _read, part, checksum) if part else None
        try:
            while part is not None and ahead is not None:
                data, checksum = await ahead
                done, part = part, next(parts, None)
                ahead = loop.run_in_executor(None, _read, part, 0 if done.is_last else checksum) if part else None
                yield data, checksum if done.is_last else None
        except OSError as error:
            raise _unreadable(error, f"reading the checkpoint {self.path}", self.path) from error
        finally:
            if ahead is not None:
                ahead.cancel()  # so asyncio doesn't report a failure of this read

    def _parts(self, chunk_bytes: int, skip: Collection[str]) -> Iterator["_Part"]:
        for file in self.files:
            if file.name not in skip:
                for start in range(0, max(file.size, 1), chunk_bytes):
                    end = min(start + chunk_bytes, file.size)
                    yield _Part(self.path / file.name, start, end - start, end == file.size)

    async def checksum(self, file: CheckpointFile) -> int:
        """The CRC-32 of a file. Raises CORRUPT_DATA, STORAGE_FAILED."""
        try:
            return await on_thread(_checksum, self.path / file.name)
        except OSError as error:
            raise _unreadable(error, f"reading {self.path / file.name}", self.path) from error

    async def verify(self) -> None:
        """Read the whole checkpoint. Raises CORRUPT_DATA if anything in it is damaged."""
        await on_thread(verify, self.path)

    async def move(self, path: Path) -> None:
        """Move the checkpoint to where the database is opened, durably, replacing what was there. Raises
        STORAGE_FAILED.
        """
        await remove_folder(path)
        try:
            await on_thread(self._move, path)
        except OSError as error:
            raise storage_error(error, f"putting a checkpoint in place at {path}") from error

    def _move(self, path: Path) -> None:
        for file in self.files:
            if not file.name.endswith(".sst"):  # RocksDB has synced its own files
                sync_path(self.path / file.name)
        sync_folder(self.path)
        _move(self.path, path)

    async def remove(self) -> None:
        """Remove the folder."""
        await remove_folder(self.path, durably=False)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a file: its first byte and its length."""

    path: Path
    start: int
    count: int
    is_last: bool


def _unreadable(error: OSError, what: str, path: Path) -> MinkaError:
    """A missing file isn't damage: somebody may have removed the checkpoint meanwhile. Any other file that can't be
    read may be damage of the database: see `data_error`.
    """
    return storage_error(error, what) if isinstance(error, FileNotFoundError) else data_error(error, what, path)


def _read(part: _Part, checksum: int) -> tuple[bytes, int]:
    # The file is opened for each chunk, so no file stays open if the reader stops between two chunks.
    with part.path.open("rb", buffering=0) as source:
        source.seek(part.start)
        data = source.read(part.count)
    if len(data) < part.count:
        raise MinkaError(Code.CORRUPT_DATA, f"{part.path} is shorter than it was")
    return data, zlib.crc32(data, checksum)


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb", buffering=0) as source:
        while data := source.read(_READ_BYTES):
            checksum = zlib.crc32(data, checksum)
    return checksum


async def take(database: DataDatabase, path: Path) -> Checkpoint:
    """A checkpoint at `path`, with at least all entries applied so far. Raises CORRUPT_DATA, STORAGE_FAILED."""
    await remove_folder(path)
    await database.open()
    await database.flush()
    opened = database.opened()
    with opened.reading():
        try:
            files = await on_thread(_take, opened.raw(), database.path, path)
        except MinkaError as error:
            if error.code is Code.CORRUPT_DATA:  # a file is gone
                database.condemn(error)
            raise
    return Checkpoint(path, files)


def _take(db: Rdict, database: Path, path: Path) -> tuple[CheckpointFile, ...]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, f"making {path.parent}") from error
    try:
        RocksCheckpoint(db).create_checkpoint(str(path))  # bound to no name: while the object exists, `db` stays locked
        # RocksDB can open the checkpoint without these. With them, it would write and sync them again under the GIL.
        for left_out in (*path.glob("OPTIONS-*"), *path.glob("*.log")):
            left_out.unlink()
        shutil.copy(database / "IDENTITY", path)
        return tuple(CheckpointFile(entry.name, entry.stat().st_size) for entry in sorted(path.iterdir()))
    except Exception as error:
        raise data_error(error, f"taking the checkpoint {path}", path) from error


def verify(path: Path) -> None:
    """Read a whole checkpoint, to which nobody writes, and compare the checksums of its blocks. This blocks: call it on
    a thread. Raises CORRUPT_DATA, STORAGE_FAILED.
    """
    try:
        db = Rdict(str(path), data_options(Cache(_CACHE_BYTES)), access_type=AccessType.read_only())
        try:
            _read_all(db.iter())
        finally:
            db.close()
    except Exception as error:
        raise data_error(error, f"verifying {path}", path) from error


def _read_all(iterator: RdictIter) -> None:
    iterator.seek_to_first()
    while iterator.valid():
        iterator.next()
    iterator.status()


class Incoming:
    """A checkpoint while it is received, in a folder of its own."""

    def __init__(self, path: Path, files: Sequence[CheckpointFile], kept: Mapping[str, int] = _NONE) -> None:
        """`kept`: by name, the CRC-32 of each file from an earlier try. The sender leaves these files out.

        Raises INVALID_ARGUMENT for files that can't be in a checkpoint.
        """
        if len(files) > _MAX_FILES:
            raise MinkaError(Code.INVALID_ARGUMENT, f"a checkpoint of {len(files)} files")
        for file in files:
            if file.name in ("", ".", "..") or "/" in file.name or "\0" in file.name or file.size < 0:
                raise MinkaError(Code.INVALID_ARGUMENT, f"a checkpoint with a file {file.name!r}")
        self._path = path
        self._files = files
        self._kept = kept
        self._new = [file for file in files if file.name not in kept]  # the files that are sent now
        self._bytes = sum(file.size for file in self._new)
        self._sink = _Sink(path, self._new)
        self.received = 0  # bytes; at most `_bytes`

    @property
    def complete(self) -> bool:
        """True if all bytes have come."""
        return self.received == self._bytes

    async def write(self, chunks: AsyncIterator[bytes]) -> list[int]:
        """Write the content of the new files, in order, durably. Returns the CRC-32 of all files, kept files included.
        Raises STORAGE_FAILED; INVALID_ARGUMENT if more or fewer bytes come than announced.
        """
        background = _Background()
        try:
            try:
                await background.start(_remove_others, self._path, self._kept)
                await self._write(chunks, background)
                await background.start(self._sink.finish)
                await background.end()
            finally:
                try:
                    await background.end()
                finally:
                    await background.start(self._sink.close)
                    await background.end()
        except OSError as error:
            raise storage_error(error, f"receiving a checkpoint in {self._path}") from error
        checksums = self.finished()
        return [checksums[file.name] for file in self._files]

    async def _write(self, chunks: AsyncIterator[bytes], background: "_Background") -> None:
        """While a thread writes one part, the loop receives the next."""
        buffer: list[bytes] = []
        buffered = 0
        async for chunk in chunks:
            buffer.append(chunk)
            buffered += len(chunk)
            self.received += len(chunk)
            if self.received > self._bytes:
                raise MinkaError(Code.INVALID_ARGUMENT, f"{self._path.name}: more content than announced")
            if buffered >= _WRITE_BYTES:
                await background.start(self._sink.write, buffer)
                buffer, buffered = [], 0
        await background.start(self._sink.write, buffer)
        if not self.complete:
            text = f"{self._path.name}: {self.received} of {self._bytes} bytes came"
            raise MinkaError(Code.INVALID_ARGUMENT, text)

    def finished(self) -> dict[str, int]:
        """The CRC-32 of the files that are whole and durable."""
        return {**self._kept, **dict(zip((file.name for file in self._new), self._sink.checksums, strict=False))}

    def check(self, expected: Sequence[int], found: Sequence[int]) -> None:
        """Raises CORRUPT_DATA if the checksums differ."""
        for file, theirs, ours in zip(self._files, expected, found, strict=True):
            if theirs != ours:
                text = f"{self._path.name}: {file.name} has CRC-32 {ours:08x}, sent was {theirs:08x}"
                raise MinkaError(Code.CORRUPT_DATA, text)

    async def verify(self) -> None:
        """Read the whole checkpoint. Raises CORRUPT_DATA if it is damaged. After `check`, the sender's is, too."""
        await on_thread(verify, self._path)

    async def install(self, path: Path) -> None:
        """Move the checkpoint to where the database is opened, durably, replacing what was there. Raises
        STORAGE_FAILED.
        """
        await remove_folder(path)
        try:
            await on_thread(_move, self._path, path)
        except OSError as error:
            raise storage_error(error, f"putting a checkpoint in place at {path}") from error

    async def discard(self) -> None:
        """Remove the received files, kept files included."""
        await remove_folder(self._path, durably=False)


class _Background:
    """Work on a thread while the loop goes on, one piece at a time. A cancelled caller still waits for its piece."""

    def __init__(self) -> None:
        self._running: asyncio.Future[None] | None = None

    async def start(self, work: Callable[..., None], *args: object) -> None:
        """Wait for the piece before, and start this one. Raises the error of the piece before."""
        await self.end()
        self._running = asyncio.get_running_loop().run_in_executor(None, work, *args)

    async def end(self) -> None:
        """Wait for the last piece. Raises its error."""
        running, self._running = self._running, None
        if running is not None:
            await end_of(running)


class _Sink:
    """Writes content to the files; on a thread, one call at a time. While one file is synced, the next is written."""

    def __init__(self, path: Path, files: Sequence[CheckpointFile]) -> None:
        self._path = path
        self._left = list(reversed(files))  # the files that aren't begun; the next is at the end
        self._file: BinaryIO | None = None  # the present file
        self._writeback: Writeback | None = None  # of the present file
        self._missing = 0  # bytes that the present file still lacks
        self._checksum = 0  # CRC-32 of the bytes in the present file
        self._syncer = ThreadPoolExecutor(1, "checkpoint-sync")
        self._syncing: Future[int] | None = None  # the sync of the file before the present one
        self.checksums: list[int] = []  # of the durable files, in order

    def write(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                while not self._missing:
                    self._next_file()
                assert self._file is not None
                assert self._writeback is not None
                part = rest[: self._missing]
                self._file.write(part)
                self._checksum = zlib.crc32(part, self._checksum)
                self._missing -= len(part)
                self._writeback.written()
                rest = rest[len(part) :]

    def finish(self) -> None:
        while self._left:  # empty files at the end
            self._next_file()
        self._end_file()
        self._wait_synced()
        sync_folder(self._path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        with suppress(OSError):  # a file whose sync fails has no place in `checksums`
            self._wait_synced()
        self._syncer.shutdown()

    def _next_file(self) -> None:
        self._end_file()
        file = self._left.pop()
        self._path.mkdir(parents=True, exist_ok=True)
        self._file = (self._path / file.name).open("wb")
        self._writeback = Writeback(self._file)
        self._missing, self._checksum = file.size, 0

    def _end_file(self) -> None:
        if self._file is not None:
            self._wait_synced()  # so at most one finished file isn't on the disk yet
            self._syncing = self._syncer.submit(_sync_file, self._file, self._checksum)
            self._file = None

    def _wait_synced(self) -> None:
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            self.checksums.append(syncing.result())


def _sync_file(file: BinaryIO, checksum: int) -> int:
    with file:
        file.flush()
        os.fsync(file.fileno())
    return checksum


def _remove_others(path: Path, kept: Collection[str]) -> None:
    if path.exists():
        for entry in path.iterdir():
            if entry.name not in kept:
                entry.unlink()


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)
    sync_folder(target.parent)


def sync_folder(path: Path) -> None:
    """Make the list of files in a folder durable."""
    sync_path(path, os.O_DIRECTORY)


def sync_path(path: Path, flags: int = 0) -> None:
    """Make a file's content durable."""
    handle = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


async def remove_folder(path: Path, *, durably: bool = True) -> None:
    """Remove a folder with its content, if it exists. Raises STORAGE_FAILED."""
    try:
        await on_thread(_remove, path, durably)
    except OSError as error:
        raise storage_error(error, f"removing {path}") from error


def _remove(path: Path, durably: bool) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()  # damage has turned the folder into a file or a link
    except FileNotFoundError:
        return
    if durably:
        sync_folder(path.parent)
