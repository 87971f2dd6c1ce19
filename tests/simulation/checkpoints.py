"""Simulated checkpoints that a node takes of its own data, or receives from another node."""

import zlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from minka.errors import Code, MinkaError
from minkad.storage.applied import Applied
from minkad.storage.checkpoint import CheckpointFile
from minkad.storage.taken_loads import TakenLoads
from minkad.storage.versions import Versions
from tests.simulation.data_disk import DataDisk, Image, remove_folder

if TYPE_CHECKING:
    from tests.simulation.process import Process

_ROWS_PER_FILE: Final = 16
_HEAD: Final = "CURRENT"  # the file with everything in a checkpoint except the rows

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_head: Final = msgspec.msgpack.Decoder(tuple[int, int, bytes, bytes]).decode
_decode_rows: Final = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


def files_of(image: Image) -> dict[str, bytes]:
    """Encode the image as the files of a checkpoint. Equal rows give equal files."""
    rows = sorted(image.rows.items())
    parts = [_encode(rows[start : start + _ROWS_PER_FILE]) for start in range(0, len(rows), _ROWS_PER_FILE)]
    applied = image.applied
    head = _encode((applied.offset, applied.leader_epoch, image.loads.encode(), image.versions.encode()))
    return {**{f"{zlib.crc32(part):08x}.sst": part for part in parts}, _HEAD: head}


def image_of(files: Mapping[str, bytes]) -> Image:
    """Decode the files of a checkpoint."""
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
        """Yield the content of all files, one file after the other. A file's last chunk comes with the file's
        CRC-32.
        """
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
        """Check nothing: simulated files are always whole."""
        await self._process.disk_work()

    async def move(self, path: Path) -> None:
        """Replace the database by the checkpoint, durably."""
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
        """`there` has the files that earlier transfers have brought. The files in `kept` aren't sent again."""
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
        """True if all content has been received."""
        return self.received == self._bytes

    async def write(self, chunks: AsyncIterator[bytes]) -> list[int]:
        """Store the content of the files as it arrives; returns the CRC-32 of each file."""
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
            raise MinkaError(Code.INVALID_ARGUMENT, f"only {self.received} of {self._bytes} bytes came")
        return [found[file.name] for file in self._files]

    def finished(self) -> dict[str, int]:
        """The CRC-32 of each file that is whole and durable."""
        return {name: zlib.crc32(content) for name, content in self._there.items()}

    def check(self, expected: Sequence[int], found: Sequence[int]) -> None:
        """Compare the checksums. Raises CORRUPT_DATA if they differ."""
        if list(expected) != list(found):
            raise MinkaError(Code.CORRUPT_DATA, "the checksums differ from the sender's")

    async def verify(self) -> None:
        """Check that all files are present. Raises CORRUPT_DATA if some were removed."""
        await self._process.disk_work()
        if not {file.name for file in self._files} <= self._there.keys():
            raise MinkaError(Code.CORRUPT_DATA, "files are missing")

    async def install(self, path: Path) -> None:
        """Replace the database by the checkpoint, durably."""
        image = image_of({file.name: self._there[file.name] for file in self._files})
        self._there.clear()
        await _put_in_place(self._process, self._disk, int(path.name), image)

    async def discard(self) -> None:
        """Remove the received files."""
        self._there.clear()
        await self._process.disk_work()
