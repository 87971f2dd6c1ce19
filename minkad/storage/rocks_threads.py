"""RocksDB's background threads, which flush and compact."""

from contextlib import suppress
from pathlib import Path
from typing import Final

from minkad.process.priority import lower_priority

_NAMES: Final = "rocksdb:"
_THREADS: Final = Path("/proc/self/task")


def lower_background_priority() -> None:
    """Make flushes and compactions give way to answering clients. All databases of a process share their threads; the
    first database that is opened starts them.
    """
    for thread in _THREADS.iterdir():
        with suppress(OSError):  # it may have ended
            if (thread / "comm").read_text("utf-8").startswith(_NAMES):
                lower_priority(int(thread.name))
