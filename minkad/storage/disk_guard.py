"""Ends the process if its disk keeps it from ending gracefully: after a failure, or if the disk doesn't answer."""

import threading
from collections.abc import Callable
from typing import Final

from minka.errors import Code, MinkaError
from minkad.process.exits import end_at_once
from minkad.storage.log_database import LogDatabase

_POLL_SECONDS: Final = 0.1
_GRACE_SECONDS: Final = 1.0  # after a failure, the time for the node to end gracefully


class DiskGuard:
    """Watches on a thread of its own, since the loop itself may be waiting for the disk."""

    def __init__(
        self, log_db: LogDatabase, max_sync_seconds: float, end: Callable[[MinkaError], object] = end_at_once
    ) -> None:
        """`max_sync_seconds`: the disk counts as failed if a write or sync of the log takes longer."""
        self._log_db = log_db
        self._max_sync = max_sync_seconds
        self._end = end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="disk guard", daemon=True)

    def start(self) -> None:
        """Start the watching thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching: the log database is about to be closed."""
        self._stopped.set()

    def _watch(self) -> None:
        # This counts turns of this thread, not the clock's seconds: a process that was stopped (SIGSTOP) for a minute
        # hasn't waited for its disk.
        failed = busy = 0
        since: float | None = None
        while not self._stopped.wait(_POLL_SECONDS):
            error = self._log_db.error
            failed = failed + 1 if error is not None else 0
            before, since = since, self._log_db.busy_since
            busy = busy + 1 if since is not None and since == before else 0
            if error is not None and failed * _POLL_SECONDS > _GRACE_SECONDS:
                self._end(error)
                return
            if busy * _POLL_SECONDS > self._max_sync:
                text = f"{self._log_db.path}: the disk has not answered for {self._max_sync:g} s"
                self._end(MinkaError(Code.STORAGE_FAILED, text))
                return
