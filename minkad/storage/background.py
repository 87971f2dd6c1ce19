"""The priority of RocksDB's background threads: what flushes and compacts gives way to what answers clients."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

# About a tenth of a processor for which others compete. With SCHED_IDLE it would be next to nothing, and a thread that
# holds a lock of a database could be kept from letting it go.
NICENESS: Final = 10
THREADS: Final = "rocksdb:"
_TASKS: Final = Path("/proc/self/task")


def lower_priority() -> None:
    """Lower the priority of the threads that flush and compact. All databases of a process share them; the first one
    that is opened starts them.
    """
    for task in _TASKS.iterdir():
        with suppress(OSError):  # a thread may end meanwhile
            if (task / "comm").read_text("utf-8").startswith(THREADS):
                os.setpriority(os.PRIO_PROCESS, int(task.name), NICENESS)
