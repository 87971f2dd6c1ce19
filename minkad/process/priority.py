"""The priority of work that gives way to answering clients."""

import os
from contextlib import suppress
from typing import Final

# About a tenth of a processor for which others compete. With SCHED_IDLE it would be almost nothing, and a thread that
# holds a database's lock might be unable to release it.
NICENESS: Final = 10


def lower_priority(thread_id: int = 0) -> None:
    """Lower the priority of one of this process's threads (0: the calling one). It stays unchanged where lowering is
    not allowed, as in a sandbox.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread_id, NICENESS)
