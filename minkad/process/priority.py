"""The priority of work that gives way to answering clients."""

import os
from contextlib import suppress
from typing import Final

# Gives about a tenth of a processor if others compete for it. SCHED_IDLE would give almost nothing: a thread that holds
# a database's lock might be unable to release it.
NICENESS: Final = 10


def lower_priority(thread_id: int = 0) -> None:
    """Lower the priority of a thread of this process (0: of the calling thread), unless it is as low already. Where
    this is forbidden, as in a sandbox, the priority stays unchanged.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread_id, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread_id)))
