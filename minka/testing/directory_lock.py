"""The lock of a local cluster's directory: only one cluster at a time uses the directory."""

import fcntl
import os
from pathlib import Path
from typing import Final

from minka.errors import Code, MinkaError

LOCK_FILE: Final = "cluster.lock"


class DirectoryLock:
    """The lock of a directory, until `release` or the end of this process. A fork doesn't keep it."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
        _locks.add(self)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.forget()
            text = f"another local cluster uses {directory}: stop it first, or give each cluster its own directory"
            raise MinkaError(Code.PLAYGROUND_FAILED, text) from error

    def release(self) -> None:
        """Unlock the directory. In a fork this does nothing."""
        if self._descriptor >= 0:
            # Closing may not unlock: a process that another thread is just beginning may have the descriptor, too.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """Close this process's copy of the descriptor."""
        os.close(self._descriptor)
        self._descriptor = -1
        _locks.discard(self)


_locks: Final[set[DirectoryLock]] = set()


def _forget() -> None:
    """A fork doesn't keep the locks of the process that it comes from."""
    for lock in list(_locks):
        lock.forget()


os.register_at_fork(after_in_child=_forget)
