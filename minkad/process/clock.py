"""The clocks of a daemon."""

import time
from collections.abc import Callable
from typing import Final


class SteadyClock:
    """Unix time that never goes back. After the machine's clock was set back it goes at half its speed until that one
    has caught up, so what is timed by it takes twice as long at most, instead of waiting for what was set back.
    """

    def __init__(self, wall_ns: Callable[[], int], boot_ns: Callable[[], int]) -> None:
        """`wall_ns` is the machine's Unix time, `boot_ns` a clock that nobody sets; both in nanoseconds."""
        self._wall_ns: Final = wall_ns
        self._boot_ns: Final = boot_ns
        self._last_ns = wall_ns()
        self._last_boot_ns = boot_ns()

    def ms(self) -> int:
        """Milliseconds since 1970."""
        boot_ns = self._boot_ns()
        self._last_ns = max(self._wall_ns(), self._last_ns + (boot_ns - self._last_boot_ns) // 2)
        self._last_boot_ns = boot_ns
        return self._last_ns // 1_000_000


def boottime() -> float:
    """Seconds of a clock that never goes back and, unlike CLOCK_MONOTONIC, goes on while the machine sleeps:
    a lease must not outlive a suspended virtual machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_STEADY: Final = SteadyClock(time.time_ns, lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME))


def unix_ms() -> int:
    """Wall-clock time in milliseconds, by a `SteadyClock`: for people, for lifetimes of keys, and for waits that
    outlive a controller. No lease goes by it, as different machines' clocks differ.
    """
    return _STEADY.ms()
