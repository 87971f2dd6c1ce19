"""File descriptors: the limit of the process, and the share for clients."""

import logging
import resource
from typing import Final

log: Final = logging.getLogger(__name__)

OWN: Final = 512  # at least, for the node itself: databases, other nodes, HTTP, silent new connections
_LEAST: Final = 32


def raise_limit() -> int:
    """Raise the process's limit as far as the system permits (`ulimit -Hn`, LimitNOFILE). Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # not permitted, or no limit that the system knows
        return soft
    return hard


def for_clients(limit: int) -> int:
    """The number of clients that may be connected at once: half of the descriptors that the node doesn't need."""
    return max(_LEAST, (limit - OWN) // 2)
