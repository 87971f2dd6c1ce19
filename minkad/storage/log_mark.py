"""The durable end of the log database, in a file beside it, so that a start can tell whether synced writes are missing.

RocksDB can't tell this from its own files. If its newest log is too short, RocksDB assumes that a crash has torn the
last write. It takes a missing log for an empty log, and a shorter manifest for an older manifest. All writes that a
mark covers were synced before the mark, so they must be there at the next start. The node writes a mark once a second
while there are writes, at the start, and at the stop. So only the loss of writes from the last second before a crash
stays unnoticed.
"""

import os
import threading
import zlib
from pathlib import Path
from typing import Final

import msgspec

from minka.errors import Code, MinkaError

_SLOT_BYTES: Final = 512
_SLOTS: Final = 2
_CHUNK_BYTES: Final = 1024 * 1024


class _Slot(msgspec.Struct):
    number: int  # grows with each write of a mark
    start: int  # the number of starts so far, without those that the cluster has refused
    sequence: int  # RocksDB's number of the last write that was certainly durable
    manifest: str  # the name of RocksDB's manifest
    size: int  # of the manifest
    checksum: int  # of the manifest, CRC-32


class LogMark:
    """A file with two slots. Each write changes only one slot, so the other slot is always whole. For any thread."""

    def __init__(self, path: Path, slot: _Slot) -> None:
        self.path = path
        self._slot = slot
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: Path) -> "LogMark | None":
        """The mark in this file; None if the file doesn't exist. Raises CORRUPT_DATA, STORAGE_FAILED."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MinkaError(Code.STORAGE_FAILED, f"reading {path}: {error}") from error
        parts = (content[start : start + _SLOT_BYTES] for start in range(0, _SLOTS * _SLOT_BYTES, _SLOT_BYTES))
        slots = [slot for slot in map(_decoded, parts) if slot is not None]
        if not slots:
            raise MinkaError(Code.CORRUPT_DATA, f"{path} is damaged")
        return cls(path, max(slots, key=lambda slot: slot.number))

    @classmethod
    def create(cls, path: Path) -> "LogMark":
        """Write a mark durably, for a log database without any write yet. Raises OSError."""
        mark, part = cls(path, _Slot(0, 0, 0, "", 0, 0)), path.with_name(f"{path.name}.part")
        part.write_bytes(_encoded(mark._slot) * _SLOTS)
        _sync(part, os.O_RDONLY)
        part.rename(path)  # a kill leaves no mark, or a whole one
        _sync(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        return mark

    @property
    def start(self) -> int:
        """The number of starts so far, this one included, without those that the cluster has refused."""
        return self._slot.start

    @property
    def sequence(self) -> int:
        """RocksDB's number of the last write that was certainly durable."""
        return self._slot.sequence

    def check_manifest(self, folder: Path) -> None:
        """Check the manifest before RocksDB opens the database: RocksDB then removes all files that the manifest
        doesn't name. Raises CORRUPT_DATA.
        """
        slot, current = self._slot, _current(folder)
        if current is None or not slot.manifest:
            return  # RocksDB reports the fault
        manifest = folder / current
        if _number(current) < _number(slot.manifest):
            raise MinkaError(
                Code.CORRUPT_DATA, f"{folder / 'CURRENT'} names {current}, and {slot.manifest} was in use already"
            )
        if current != slot.manifest or not manifest.exists():
            return  # the node ended before it had marked a new manifest, or RocksDB reports the fault
        size = manifest.stat().st_size
        if size < slot.size:
            raise MinkaError(Code.CORRUPT_DATA, f"{manifest} has {size} bytes, {slot.size} were written")
        if _checksum(manifest, 0, slot.size, 0) != slot.checksum:
            raise MinkaError(Code.CORRUPT_DATA, f"{manifest} has other content than was written")

    def check_sequence(self, folder: Path, sequence: int, suspects: str) -> None:
        """Raises CORRUPT_DATA if the database, now open, ends before the last durable write. `sequence`: RocksDB's
        number of its last write. `suspects`: the log files that it had before it was opened.
        """
        if sequence < self._slot.sequence:
            raise MinkaError(
                Code.CORRUPT_DATA,
                f"{folder} ends at write {sequence}, and {self._slot.sequence} were durable: a file was cut, lost or "
                f"replaced by an older one ({suspects})",
            )

    def started(self, folder: Path, sequence: int) -> None:
        """Count one more start, durably and in both slots. Raises OSError."""
        self._slot.start += 1
        for _ in range(_SLOTS):
            self.write(folder, sequence)

    def forget_start(self) -> None:
        """Don't count this start, because the cluster has refused it. The next start gets the number of this start, so
        the cluster refuses the next start, too. Raises OSError.
        """
        with self._lock:
            self._slot.start -= 1
            for _ in range(_SLOTS):
                self._overwrite()

    def write(self, folder: Path, sequence: int) -> None:
        """Note that the writes up to RocksDB's number `sequence` are durable. Raises OSError."""
        with self._lock:
            self._slot.sequence = max(sequence, self._slot.sequence)
            self._look_at_manifest(folder)
            self._overwrite()

    def _overwrite(self) -> None:
        slot = self._slot
        slot.number += 1
        handle = os.open(self.path, os.O_WRONLY)
        try:
            os.pwrite(handle, _encoded(slot), slot.number % _SLOTS * _SLOT_BYTES)
            os.fdatasync(handle)
        finally:
            os.close(handle)

    def _look_at_manifest(self, folder: Path) -> None:
        """Sync the manifest, and note its size and CRC-32. While the database is open, RocksDB only appends to the
        manifest; the next start reports any other change.
        """
        slot, current = self._slot, _current(folder)
        if current is None or _number(current) < _number(slot.manifest) or not (folder / current).exists():
            return
        manifest = folder / current
        if current != slot.manifest:
            slot.manifest, slot.size, slot.checksum = current, 0, 0
        size = manifest.stat().st_size
        if size > slot.size:
            _sync(manifest, os.O_RDONLY)
            slot.checksum = _checksum(manifest, slot.size, size, slot.checksum)
            slot.size = size


def _current(folder: Path) -> str | None:
    try:
        name = (folder / "CURRENT").read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return name if name.startswith("MANIFEST-") and name[9:].isdigit() else None


def _number(manifest: str) -> int:
    return int(manifest[9:] or 0)


def _checksum(path: Path, start: int, end: int, checksum: int) -> int:
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while start < end and (data := file.read(min(_CHUNK_BYTES, end - start))):
            checksum = zlib.crc32(data, checksum)
            start += len(data)
    return checksum


def _encoded(slot: _Slot) -> bytes:
    text = msgspec.json.encode(slot)
    return (b"%08x %s" % (zlib.crc32(text), text)).ljust(_SLOT_BYTES - 1) + b"\n"


def _decoded(data: bytes) -> _Slot | None:
    text = data[9:].strip()
    try:
        return msgspec.json.decode(text, type=_Slot) if int(data[:8], 16) == zlib.crc32(text) else None
    except (ValueError, msgspec.MsgspecError):
        return None


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
