"""A process that works for a node: it reads requests from standard input, and answers on standard output. The node
starts it in a session of its own, since Ctrl-C on a terminal is meant for the node alone.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress

from minkad.process.priority import lower_priority


def run(serve: Callable[[], None]) -> None:
    """Run `serve`, which returns at the end of standard input. If the node is gone when `serve` answers, this process
    ends without a word. Call this in the process.
    """
    lower_priority()
    with suppress(BrokenPipeError):
        serve()
        sys.stdout.flush()
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest of the buffer at its end
