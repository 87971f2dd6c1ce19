"""The exit statuses of minkactl, and which error leads to which. Documented in docs/cli.md."""

from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from minka.errors import Code


class Exit(IntEnum):
    """The exit statuses, by which a script can tell outcomes apart."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3  # no node answered, or the cluster has no active controller
    DENIED = 4
    UNHEALTHY = 5  # or not known to be healthy: `status`, `nodes`, `raft status`
    STALE_PLAN = 6
    TIMEOUT = 124  # as timeout(1)
    INTERRUPTED = 130  # what a shell reports for SIGINT


# The codes are given by name, since importing the registry imports protobuf, which takes 50 ms.
EXIT_OF_CODE: Final[dict[str, Exit]] = {
    "UNREACHABLE": Exit.UNREACHABLE,
    "NO_CONTROLLER": Exit.UNREACHABLE,
    "NOT_CONTROLLER": Exit.UNREACHABLE,
    "NO_CLEARANCE": Exit.UNREACHABLE,
    "SHUTTING_DOWN": Exit.UNREACHABLE,
    "DEADLINE_EXCEEDED": Exit.TIMEOUT,
    "STALE_PLAN": Exit.STALE_PLAN,
    "INVALID_ARGUMENT": Exit.USAGE,
    "INVALID_CONFIG": Exit.USAGE,
    "CERTIFICATE_EXPIRED": Exit.USAGE,
}


def exit_of(code: "Code") -> Exit:
    """The exit status for an error of this code."""
    if code.info.grpc_status in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return Exit.DENIED
    return EXIT_OF_CODE.get(code.name, Exit.FAILED)
