"""File descriptors: how many the process may have, and how many of them clients may take."""

import logging
import resource
from typing import Final

log: Final = logging.getLogger(__name__)

OWN: Final = 512  # for the node itself at least: databases, other nodes, HTTP, connections that have said nothing yet
_LEAST: Final = 32


def raise_limit() -> int:
    """Raise the process's limit as far as the system permits (`ulimit -Hn`, LimitNOFILE). Returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # not permitted, or no limit that the system knows
        return soft
    return hard


def for_clients(limit: int) -> int:
    """How many clients may be connected at once: they take half of what the node doesn't need for itself."""
    return max(_LEAST, (limit - OWN) // 2)
