"""Free space on the data directory's file system: tells if it is low, and keeps a reserve for a start on a full one."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import DiskSpace
from minkad.storage.threads import on_thread

log: Final = logging.getLogger(__name__)

_MIB: Final = 1024 * 1024
_POLL_SECONDS: Final = 0.5
_LARGEST_MARK_SHARE: Final = 10  # the mark is at most a tenth of the disk; else a small empty disk would be low
_RESERVE_BYTES: Final = 64 * _MIB  # a start may write this: the log's memtable, and the databases' own files


class DiskWatch:
    """The disk becomes low when less than the mark is free, and stays low until 1.5 times the mark is free. So the
    state doesn't change with every file. With a mark of 10 GiB: low below 10 GiB, and then until 15 GiB are free.

    The reserve is a file that takes space while there is enough. A start on a full disk removes the reserve; otherwise
    the node couldn't start, and nobody could move or delete the data that fills the disk.
    """

    def __init__(self, data_dir: Path, low_bytes: int) -> None:
        """`low_bytes`: the low mark, unless a tenth of the file system is less. Raises STORAGE_FAILED."""
        self._data_dir = data_dir
        self._low_bytes = low_bytes
        self.space = DiskSpace()
        self._reserve = data_dir / "reserve"
        self.measure()

    @property
    def is_low(self) -> bool:
        """True if the node refuses everything that takes more space."""
        return self.space.is_low

    def check_room(self, size: int) -> None:
        """Raises DISK_LOW unless the disk stays above the mark with `size` more bytes."""
        space = self.space
        if space.is_low or space.free_bytes - size < space.low_mark_bytes:
            text = f"{size / _MIB:,.1f} MiB more are too much: {free_space(space)}"
            raise MinkaError(Code.DISK_LOW, text)

    def room(self) -> int:
        """The bytes that can still be written before the disk falls below the mark."""
        space = self.space
        return 0 if space.is_low else max(0, space.free_bytes - space.low_mark_bytes)

    def give_up_reserve(self) -> None:
        """Free the reserve on a full disk, so that there is room to open the databases."""
        if self.space.free_bytes >= self._reserve_bytes() or not self._reserve.exists():
            return
        self._reserve.unlink()
        self.measure()
        log.warning(
            "the disk is full, and the reserve is given up for the start", extra={"now": free_space(self.space)}
        )

    async def watch(self) -> None:
        """Measure repeatedly, until cancelled."""
        while True:
            before = self.space
            await on_thread(self.check)
            if self.space.is_low and not before.is_low:
                log.warning(
                    "the disk is low: writes are refused, but for deletes", extra={"now": free_space(self.space)}
                )
            elif before.is_low and not self.space.is_low:
                log.info("the disk has room again", extra={"now": free_space(self.space)})
            await asyncio.sleep(_POLL_SECONDS)

    def check(self) -> None:
        """Measure, and make the reserve again when there is room for it. Raises STORAGE_FAILED."""
        self.measure()
        if not self.space.is_low and not self._reserve.exists():
            self._make_reserve()

    def measure(self) -> None:
        """Bring `space` up to date. Raises STORAGE_FAILED."""
        try:
            found = os.statvfs(self._data_dir)
        except OSError as error:
            raise MinkaError(Code.STORAGE_FAILED, f"looking for free space: {error}") from error
        total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
        mark = min(self._low_bytes, total // _LARGEST_MARK_SHARE)
        is_low = free < (mark * 3 // 2 if self.space.is_low else mark)
        self.space = DiskSpace(total_bytes=total, free_bytes=free, low_mark_bytes=mark, is_low=is_low)

    def _reserve_bytes(self) -> int:
        return min(_RESERVE_BYTES, self.space.low_mark_bytes // 2)

    def _make_reserve(self) -> None:
        """Make the reserve, if at least twice the mark stays free."""
        size = self._reserve_bytes()
        if self.space.free_bytes < self.space.low_mark_bytes * 2 + size:
            return
        try:
            with self._reserve.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            self._reserve.unlink(missing_ok=True)
            log.info("there is no reserve of disk space", extra={"reason": str(error)})


def free_space(space: DiskSpace) -> str:
    """The free space, in words for people."""
    free, total, mark = (size / _MIB for size in (space.free_bytes, space.total_bytes, space.low_mark_bytes))
    return f"{free:,.0f} of {total:,.0f} MiB are free, and below {mark:,.0f} it is low"
