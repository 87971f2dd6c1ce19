"""RocksDB's background threads, which flush and compact."""

from contextlib import suppress
from pathlib import Path
from typing import Final

from minkad.process.priority import lower_priority

_NAMES: Final = "rocksdb:"
_THREADS: Final = Path("/proc/self/task")


def lower_background_priority() -> None:
    """Let requests of clients run before flushes and compactions. All databases of a process share the threads of
    flushes and compactions; RocksDB starts these threads when it opens the first database.
    """
    for thread in _THREADS.iterdir():
        with suppress(OSError):  # it may have ended
            if (thread / "comm").read_text("utf-8").startswith(_NAMES):
                lower_priority(int(thread.name))
