"""The clocks of a daemon."""

import time


def boottime() -> float:
    """Seconds of a clock that never goes back and, unlike CLOCK_MONOTONIC, goes on while the machine sleeps:
    a lease must not outlive a suspended virtual machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def unix_ms() -> int:
    """Wall-clock time in milliseconds: for people, for lifetimes of keys, and for waits that outlive a controller. No
    lease goes by it.
    """
    return time.time_ns() // 1_000_000
