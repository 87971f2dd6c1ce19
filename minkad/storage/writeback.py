"""Brings files to the disk in steps: one large sync at the end of a file would hold up the syncs of the log."""

import ctypes
import os
from typing import BinaryIO, Final

STEP_BYTES: Final = 1024 * 1024
_WAIT_BEFORE, _WRITE = 1, 2  # SYNC_FILE_RANGE_*
_WAIT_AFTER: Final = 4

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class Writeback:
    """Brings the written data of a file to the disk, one step after the writer. This makes nothing durable: the caller
    still has to sync the file, and this sync then has little left to do. For a thread that may block.

        to the disk, finished | to the disk, under way | written, less than a step
        ----------------------+------------------------+-------------------------->
                            _done                   _begun
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._begun = self._done = 0  # offsets in the file

    def written(self) -> None:
        """Call this after each write: asks the disk for each step, and waits for the step before. Raises OSError."""
        self._file.flush()
        end = self._file.tell()
        if end - self._begun < STEP_BYTES:
            return
        self._ask(self._begun, end, _WRITE)
        if self._begun > self._done:
            self._ask(self._done, self._begun, _WAIT_BEFORE | _WRITE | _WAIT_AFTER)
        self._done, self._begun = self._begun, end

    def _ask(self, start: int, end: int, flags: int) -> None:
        """This runs without the GIL, like all ctypes calls."""
        if _libc.sync_file_range(self._file.fileno(), start, end - start, flags) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
