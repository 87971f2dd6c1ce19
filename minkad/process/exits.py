"""The end of a process that can't go on: its message and its exit status."""

import logging
import os
import sys
import threading
from typing import Final, NoReturn

from minka.errors import Code, MinkaError

FAILED: Final = 1
MISTAKE: Final = 2  # in the command line or the configuration
REFUSED: Final = 3  # for good: a new start is useless until somebody changes something
# These errors stay until somebody changes something. After MISTAKE and REFUSED, configs/minkad.service doesn't start
# the process again.
_FOR_GOOD: Final = frozenset(
    {
        Code.NODE_REMOVED,
        Code.WRONG_DATA_DIRECTORY,
        Code.CLUSTER_MISMATCH,
        Code.DATA_DIRECTORY_ROLLED_BACK,
        Code.QUORUM_ROLLED_BACK,
        Code.UNKNOWN_FORMAT,
    }
)
_SAYING_SECONDS: Final = 0.5


def status_of(error: MinkaError) -> int:
    """The exit status of a process that ends with this error."""
    if error.code is Code.INVALID_CONFIG:  # such as the data directory of another node
        return MISTAKE
    return REFUSED if error.code in _FOR_GOOD else FAILED


def complain(error: MinkaError, status: int) -> int:
    """Write the fault and its remedy to stderr. Returns the exit status."""
    info = error.code.info
    text = f"minkad: {error.code.name}: {error.message}\n  remedy: {info.node_remedy or info.remedy}\n"
    sys.stderr.write(text)
    return status


def end_at_once(error: MinkaError) -> NoReturn:
    """End with the error's status, and wait for nothing: a thread that waits in the kernel for a dead disk would delay
    a graceful end for ever. A log on this disk would, too, so the last lines get half a second. For any thread.
    """

    def say() -> None:
        complain(error, status_of(error))
        logging.shutdown()
        sys.stderr.flush()

    saying = threading.Thread(target=say, daemon=True)
    saying.start()
    saying.join(_SAYING_SECONDS)
    os._exit(status_of(error))
