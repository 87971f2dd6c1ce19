"""The priority of work that gives way to what answers clients."""

import os
from contextlib import suppress
from typing import Final

# About a tenth of a processor for which others compete. With SCHED_IDLE it would be next to nothing, and a thread that
# holds a lock of a database could be kept from letting it go.
NICENESS: Final = 10


def lower_priority(thread_id: int = 0) -> None:
    """Lower the priority of one of this process's threads (0: the calling one). It stays as it is where that is not
    allowed, as in a sandbox.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread_id, NICENESS)
