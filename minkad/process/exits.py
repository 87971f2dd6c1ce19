"""How the process ends when it can't go on: its message and its exit status."""

import logging
import os
import sys
import threading
from typing import Final, NoReturn

from minka.errors import MinkaError

FAILED: Final = 1
_SAYING_SECONDS: Final = 0.5


def complain(error: MinkaError, status: int) -> int:
    """Say on stderr what is wrong and what helps. Returns the exit status."""
    info = error.code.info
    text = f"minkad: {error.code.name}: {error.message}\n  remedy: {info.node_remedy or info.remedy}\n"
    sys.stderr.write(text)
    return status


def end_at_once(error: MinkaError) -> NoReturn:
    """End with the status of a failure, and wait for nothing: a thread that waits in the kernel for a dead disk would
    keep an orderly end for ever. So would a log on the same disk, which is given half a second. On any thread.
    """

    def say() -> None:
        complain(error, FAILED)
        logging.shutdown()
        sys.stderr.flush()

    saying = threading.Thread(target=say, daemon=True)
    saying.start()
    saying.join(_SAYING_SECONDS)
    os._exit(FAILED)
