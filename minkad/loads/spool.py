"""The files of loads on this node: `data_dir/spool/NUMBER/NAME.sst`, each with its description (a serialized
`LoadFile`) in `NAME.sst.about`.

A file is first written under another name, so under this name it is whole and synced.
"""

import asyncio
import os
import shutil
import uuid
import zlib
from collections.abc import AsyncIterator, Callable, Container, Iterable
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from minka.bulk.sst_files import checksum_of
from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.v1.loads_pb2 import LoadFile
from minkad.loads.inspect import Content, Inspect
from minkad.loads.worker import Worker
from minkad.process.failpoints import failpoint
from minkad.process.shared_work import SharedWork
from minkad.storage.checkpoint import sync_folder, sync_path
from minkad.storage.rocks import storage_error
from minkad.storage.threads import on_thread

_WRITE_BYTES: Final = 1024 * 1024
_VERIFIED_SECONDS: Final = 300.0
_VERIFIED_AT_ONCE: Final = 2  # other work needs the threads, too
_ENDING: Final = ".sst"
_ABOUT: Final = ".about"
_PARTS: Final = "parts"  # the folder for files that are being written or made


class Spool:
    """The files of loads on this node. For the loop's thread; other threads access the disk."""

    def __init__(self, folder: Path, check_room: Callable[[int], None]) -> None:
        """`check_room` raises DISK_LOW unless there is room for a number of further bytes."""
        self.folder = folder
        self._check_room = check_room
        self._files: dict[int, dict[str, LoadFile]] = {}  # by load and name: the files that are here whole
        self._by_partition: dict[int, dict[tuple[int, str], LoadFile]] = {}  # the same files, by load and name in each
        self._expected = 0  # bytes on their way here
        self._verified: dict[tuple[int, str, int], float] = {}  # by load, name and checksum: when it was verified
        self._verifying = SharedWork()  # by the same key
        self._slots = asyncio.Semaphore(_VERIFIED_AT_ONCE)
        self._inspector = Worker("minkad.loads.inspect")

    async def start(self) -> None:
        """Find the existing files. Raises STORAGE_FAILED."""
        try:
            found = await on_thread(_found, self.folder)
        except OSError as error:
            raise storage_error(error, f"reading {self.folder}") from error
        for number, files in found.items():
            for file in files.values():
                self._add(number, file)

    async def close(self) -> None:
        """Give up the checks under way, and end the process that inspects files."""
        await self._verifying.close()
        await self._inspector.close()

    # Existing files

    def numbers(self) -> list[int]:
        """The numbers of the loads that have files here."""
        return list(self._files)

    def files(self, number: int) -> list[LoadFile]:
        """The files of a load."""
        return list(self._files.get(number, {}).values())

    @property
    def partitions(self) -> Container[int]:
        """The partitions with files here; changes later."""
        return self._by_partition.keys()

    def files_for(self, partition_id: int) -> list[tuple[int, LoadFile]]:
        """The files for a partition, each with the number of its load."""
        return [(number, file) for (number, _), file in self._by_partition.get(partition_id, {}).items()]

    def find(self, number: int, name: str) -> LoadFile:
        """Raises UNKNOWN_FILE."""
        file = self._files.get(number, {}).get(name)
        if file is None:
            raise MinkaError(Code.UNKNOWN_FILE, f"load {number} has no file {name} here")
        return file

    def has(self, number: int, name: str, checksum: int) -> bool:
        """True if exactly this file is here."""
        file = self._files.get(number, {}).get(name)
        return file is not None and file.checksum == checksum

    def path(self, number: int, name: str) -> Path:
        """The path at which the file is, or would be."""
        return self.folder / str(number) / f"{name}{_ENDING}"

    # Incoming files

    def check_room(self, size: int) -> None:
        """Raises DISK_FULL unless there is room for `size` bytes, besides the bytes on their way."""
        try:
            self._check_room(size + self._expected)
        except MinkaError as error:
            raise MinkaError(Code.DISK_FULL, error.message) from error

    async def receive(
        self, number: int, file: LoadFile, chunks: AsyncIterator[bytes], *, is_checked: bool = False
    ) -> None:
        """Take a file in, durably. `is_checked`: another node has inspected the file, so its checksum is enough.

        Raises DISK_FULL before anything is written or as soon as the disk is full, INVALID_ARGUMENT for another size or
        for rows that can't be the partition's, CORRUPT_DATA for another checksum, STORAGE_FAILED, and the errors of
        `chunks`.
        """
        self.check_room(file.bytes)
        self._expected += file.bytes
        part = self.new_part()
        try:
            checksum = await self._write(part, file, chunks)
            if checksum != file.checksum:
                text = f"{file.name} has CRC-32 {checksum:08x}, announced was {file.checksum:08x}"
                raise MinkaError(Code.CORRUPT_DATA, text)
            if not is_checked:
                await self._check(part, file)
            await self.keep(number, file, part)
        finally:
            self._expected -= file.bytes
            await on_thread(_remove, part)

    async def _check(self, part: Path, file: LoadFile) -> None:
        """Raises INVALID_ARGUMENT if the file's rows differ from its description, or a key is outside of its range. An
        empty key isn't allowed either: a data database keeps its own record there.
        """
        found = await self._inspector.ask(Inspect(str(part)), Content)
        if found.rows != file.rows or found.deletions:
            text = f"{file.name} has {found.rows} entries, announced were {file.rows} rows"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
        wanted = KeyRange(file.start_key, file.end_key)
        if not found.first or not wanted.contains(found.first) or not wanted.contains(found.last):
            raise MinkaError(Code.INVALID_ARGUMENT, f"{file.name} has keys that are not in {wanted}")

    async def _write(self, part: Path, file: LoadFile, chunks: AsyncIterator[bytes]) -> int:
        sink, received = await self._on_disk(_Sink, part), 0
        buffer: list[bytes] = []
        buffered = 0
        try:
            async for chunk in chunks:
                received += len(chunk)
                buffered += len(chunk)
                buffer.append(chunk)
                if received > file.bytes:
                    raise MinkaError(Code.INVALID_ARGUMENT, f"{file.name}: more than the announced {file.bytes} bytes")
                if buffered >= _WRITE_BYTES:
                    await self._on_disk(sink.write, buffer)
                    buffer, buffered = [], 0
            if received < file.bytes:
                raise MinkaError(Code.INVALID_ARGUMENT, f"{file.name}: {received} of {file.bytes} bytes came")
            await self._on_disk(sink.write, buffer)
            await self._on_disk(sink.sync)
        finally:
            await on_thread(sink.close)
        return sink.checksum

    @staticmethod
    async def _on_disk(work: Callable[..., "_Sink"], *arguments: object) -> "_Sink":
        try:
            return await on_thread(work, *arguments)
        except OSError as error:
            raise _disk_error(error) from error

    def new_part(self) -> Path:
        """A new path for a file to write. Never the same path again, since a process that is left over from the node's
        last run may still write.
        """
        return self.folder / _PARTS / uuid.uuid4().hex

    @failpoint("spool.keep")
    async def keep(self, number: int, file: LoadFile, part: Path) -> None:
        """Make the file written at `part` a file of the load, durably. Raises DISK_FULL, STORAGE_FAILED."""
        kept = LoadFile()
        kept.CopyFrom(file)
        try:
            await on_thread(_put_in_place, part, self.path(number, file.name), kept.SerializeToString())
        except OSError as error:
            raise _disk_error(error) from error
        self._add(number, kept)

    async def read(self, number: int, name: str) -> AsyncIterator[bytes]:
        """The file's content, in chunks. Raises UNKNOWN_FILE, STORAGE_FAILED."""
        size, path = self.find(number, name).bytes, self.path(number, name)
        for start in range(0, size, _WRITE_BYTES):
            try:
                yield await on_thread(_read, path, start)
            except FileNotFoundError:
                self._forget(number, name)
                raise MinkaError(Code.UNKNOWN_FILE, f"{path} is gone") from None
            except OSError as error:
                raise storage_error(error, f"reading {path}") from error

    async def verify(self, number: int, name: str, checksum: int) -> None:
        """Check that the file's content on the disk has this CRC-32. Calls in the next 5 minutes don't read the file
        again. The check goes on if the caller is cancelled, since it may take longer than a caller waits. Raises
        UNKNOWN_FILE, STORAGE_FAILED, and CORRUPT_DATA if the file is damaged: then it has been removed.
        """
        key, now = (number, name, checksum), asyncio.get_running_loop().time()
        self._verified = {one: at for one, at in self._verified.items() if now - at < _VERIFIED_SECONDS}
        self.find(number, name)
        if key not in self._verified:
            await self._verifying.wait_for(key, partial(self._verify, *key), f"checking {name}")

    async def _verify(self, number: int, name: str, checksum: int) -> None:
        path = self.path(number, name)
        try:
            async with self._slots:
                found = await on_thread(checksum_of, path)
        except FileNotFoundError:
            self._forget(number, name)
            raise MinkaError(Code.UNKNOWN_FILE, f"{path} is gone") from None
        except OSError as error:
            raise storage_error(error, f"reading {path}") from error
        if found != checksum:
            await self.remove(number, [name])
            text = f"{path} has CRC-32 {found:08x}, and was committed with {checksum:08x}"
            raise MinkaError(Code.CORRUPT_DATA, text)
        self._verified[number, name, checksum] = asyncio.get_running_loop().time()

    # Outgoing files

    async def link(self, number: int, name: str, checksum: int) -> Path:
        """A hard link of the file, for the caller to take over. Raises DISK_FULL, and the errors of `verify`."""
        await self.verify(number, name, checksum)
        part = self.new_part().with_suffix(_ENDING)
        try:
            await on_thread(_link, self.path(number, name), part)
        except OSError as error:
            raise _disk_error(error) from error
        return part

    async def discard(self, link: Path) -> None:
        """Remove a link that was not taken over."""
        await on_thread(_remove, link)

    async def remove(self, number: int, names: Iterable[str]) -> None:
        """Remove files. Raises STORAGE_FAILED."""
        names = list(names)
        for name in names:
            self._forget(number, name)
        folder = self.folder / str(number)
        try:
            await on_thread(_remove_files, folder, names, not self._files.get(number))
        except OSError as error:
            raise storage_error(error, f"removing files of {folder}") from error

    def _add(self, number: int, file: LoadFile) -> None:
        self._forget(number, file.name)
        self._files.setdefault(number, {})[file.name] = file
        self._by_partition.setdefault(file.partition_id, {})[number, file.name] = file

    def _forget(self, number: int, name: str) -> None:
        if (file := self._files.get(number, {}).pop(name, None)) is None:
            return
        if not self._files[number]:
            del self._files[number]
        own = self._by_partition[file.partition_id]
        del own[number, name]
        if not own:
            del self._by_partition[file.partition_id]


class _Sink:
    """A file that is written, on a thread, one call at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("wb", buffering=0)
        self.checksum = 0

    def write(self, chunks: list[bytes]) -> "_Sink":
        for chunk in chunks:
            self._file.write(chunk)
            self.checksum = zlib.crc32(chunk, self.checksum)
        # Sync piece by piece: a client's write that is synced at the same time would wait for a sync of the whole file.
        os.fdatasync(self._file.fileno())
        return self

    def sync(self) -> "_Sink":
        os.fsync(self._file.fileno())
        return self

    def close(self) -> None:
        self._file.close()


def _disk_error(error: OSError) -> MinkaError:
    full = storage_error(error, "the spool")
    return MinkaError(Code.DISK_FULL, full.message) if error.errno == 28 else full


def _put_in_place(part: Path, path: Path, about: bytes) -> None:
    """Write the description first, since a file with a description counts as whole."""
    is_new = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + _ABOUT)
    beside.write_bytes(about)
    sync_path(beside)
    part.rename(path)
    sync_folder(path.parent)
    if is_new:
        sync_folder(path.parent.parent)


def _read(path: Path, start: int) -> bytes:
    with path.open("rb", buffering=0) as source:
        source.seek(start)
        return source.read(_WRITE_BYTES)


def _link(path: Path, part: Path) -> None:
    part.parent.mkdir(parents=True, exist_ok=True)
    os.link(path, part)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _remove_files(folder: Path, names: Iterable[str], is_all: bool) -> None:
    for name in names:
        (folder / f"{name}{_ENDING}").unlink(missing_ok=True)
        (folder / f"{name}{_ENDING}{_ABOUT}").unlink(missing_ok=True)
    if is_all:
        shutil.rmtree(folder, ignore_errors=True)


def _found(folder: Path) -> dict[int, dict[str, LoadFile]]:
    """The existing files. Removes the files that the last process was still writing when it ended."""
    shutil.rmtree(folder / _PARTS, ignore_errors=True)
    files: dict[int, dict[str, LoadFile]] = {}
    for load in folder.iterdir() if folder.exists() else ():
        if not load.name.isdigit():
            continue
        for beside in load.glob(f"*{_ENDING}{_ABOUT}"):
            path = beside.with_name(beside.name.removesuffix(_ABOUT))
            if path.exists():
                file = LoadFile.FromString(beside.read_bytes())
                files.setdefault(int(load.name), {})[file.name] = file
            else:
                beside.unlink()
    return files
