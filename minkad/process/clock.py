"""The clocks of a daemon."""

import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from minka.cluster.clocks import OFF_MS

log: Final = logging.getLogger(__name__)


class SteadyClock:
    """Unix time that never goes back. If somebody sets the machine's clock back by an hour, this clock runs at half its
    speed for two hours, until the machine's clock has caught up. So a wait that this clock times takes at most twice as
    long: 20 s for 10 s, and not an hour and 10 s.
    """

    def __init__(self, wall_ns: Callable[[], int], boot_ns: Callable[[], int]) -> None:
        """`wall_ns` returns the machine's Unix time, `boot_ns` a clock that nobody sets; both in nanoseconds."""
        self._wall_ns: Final = wall_ns
        self._boot_ns: Final = boot_ns
        self._last_ns = wall_ns()  # this clock's time when it was read last
        self._last_boot_ns = boot_ns()  # the other clock's time then

    def ms(self) -> int:
        """Milliseconds since 1970."""
        boot_ns = self._boot_ns()
        self._last_ns = max(self._wall_ns(), self._last_ns + (boot_ns - self._last_boot_ns) // 2)
        self._last_boot_ns = boot_ns
        return self._last_ns // 1_000_000


def boottime() -> float:
    """Seconds of a clock that never goes back and, unlike CLOCK_MONOTONIC, goes on while the machine sleeps: a lease
    must not outlive a suspended virtual machine.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_OFF_NS: Final = OFF_MS * 1_000_000
_UNKNOWN_NS: Final = 5_000_000_000  # the last known value counts for this long
_AGREE_NS: Final = 1_000_000_000  # for this long, all answers must agree; the controller checks clocks more often
_UNCHECKED_NS: Final = 5_000_000_000  # from the first answer on, if nobody knows whose clock is right


class Reading(NamedTuple):
    """A machine's Unix time and, at the same moment, a clock that nobody sets; both in nanoseconds."""

    wall_ns: int
    boot_ns: int


class ClusterClock:
    """Unix time by the clocks of most nodes.

    While the machine's clock is at most a second off, this is the machine's clock, made steady by a `SteadyClock`. If
    the machine's clock is further off, this clock corrects the difference, and again when the correction is more than a
    second off. The answers to heartbeats tell the difference. So this clock follows a jump ahead of more than a second
    only after the answers confirm the jump: before, keys would expire too early.
    """

    def __init__(self, wall_ns: Callable[[], int], boot_ns: Callable[[], int]) -> None:
        """`wall_ns` returns the machine's Unix time, `boot_ns` a clock that nobody sets; both in nanoseconds."""
        self._wall_ns: Final = wall_ns
        self._boot_ns: Final = boot_ns
        self._correction_ns = 0  # how far the machine's clock is taken to be ahead
        self._confirmed: Reading | None = None  # the corrected time, when it was last known to be right
        self._first_told_ns: int | None = None  # when the first answer came, by the clock that nobody sets
        self._is_checked = False
        self._last: Reading | None = None  # at the last answer
        self._proposed: tuple[int, int] | None = None  # a jump ahead: the correction, and since when answers agree
        self._steady = SteadyClock(self._corrected_ns, boot_ns)
        self.ahead_ms: int | None = None  # how far this machine's clock is ahead of most nodes'; None: unknown

    def ms(self) -> int:
        """Milliseconds since 1970."""
        return self._steady.ms()

    def read(self) -> Reading:
        """The machine's own clocks."""
        return Reading(self._wall_ns(), self._boot_ns())

    def _corrected_ns(self) -> int:
        now = self._wall_ns() - self._correction_ns
        if self._confirmed is None:
            return now
        expected = self._confirmed.wall_ns + self._boot_ns() - self._confirmed.boot_ns
        return expected if now - expected > _OFF_NS else now

    def is_checked(self) -> bool:
        """True if the time was compared with other nodes' clocks, or nobody can tell whose clock is right."""
        if not self._is_checked and self._first_told_ns is not None:
            self._is_checked = self._boot_ns() - self._first_told_ns > _UNCHECKED_NS
        return self._is_checked

    def told(self, ahead_ms: int | None, at: Reading) -> None:
        """`ahead_ms`: how far the machine's clock was ahead of most nodes' clocks when it was read `at`; None: nobody
        knows. A new controller doesn't know for a moment, so the last confirmed time counts for 5 s more.
        """
        self.ahead_ms = ahead_ms
        if self._first_told_ns is None:
            self._first_told_ns = at.boot_ns
        last, self._last = self._last, at
        if ahead_ms is None:
            self._forget_confirmed(at)
            if last is not None:
                self._keep_time(at.wall_ns - last.wall_ns - (at.boot_ns - last.boot_ns))
            return
        wanted_ns = ahead_ms * 1_000_000 if abs(ahead_ms) > OFF_MS else 0
        if abs(ahead_ms * 1_000_000 - self._correction_ns) > _OFF_NS:
            if not self._is_believed(wanted_ns, at):
                self._forget_confirmed(at)
                return
            self._correct_by(wanted_ns)
            text = "this machine's clock is off by the clocks of most nodes, so its node goes by those"
            if not self._correction_ns:
                text = "this machine's clock agrees with those of most nodes again"
            log.warning(text, extra={"ahead_s": ahead_ms / 1000})
        self._proposed, self._is_checked = None, True
        self._confirmed = Reading(at.wall_ns - self._correction_ns, at.boot_ns)

    def _forget_confirmed(self, at: Reading) -> None:
        if self._confirmed is not None and at.boot_ns - self._confirmed.boot_ns > _UNKNOWN_NS:
            self._confirmed = None

    def _is_believed(self, correction_ns: int, at: Reading) -> bool:
        """True if the correction counts. If it sets this clock ahead, keys expire for good, so one answer isn't enough:
        a new controller may know the clocks of only a few nodes.
        """
        time_ns = at.wall_ns - self._correction_ns
        if self._confirmed is not None:
            time_ns = self._confirmed.wall_ns + at.boot_ns - self._confirmed.boot_ns
        if at.wall_ns - correction_ns - time_ns <= _OFF_NS:
            return True
        if self._proposed is None or abs(self._proposed[0] - correction_ns) > _OFF_NS:
            self._proposed = correction_ns, at.boot_ns
        return at.boot_ns - self._proposed[1] >= _AGREE_NS

    def _keep_time(self, step_ns: int) -> None:
        """Somebody has set the machine's clock, while no node can tell the difference: the corrected time goes on. If
        the correction is then small, the machine's clock is most likely right now.
        """
        if self._correction_ns and abs(step_ns) > _OFF_NS:
            correction_ns = self._correction_ns + step_ns
            self._correct_by(correction_ns if abs(correction_ns) > _OFF_NS else 0)

    def _correct_by(self, correction_ns: int) -> None:
        self._correction_ns = correction_ns
        self._confirmed = None
        self._steady = SteadyClock(self._corrected_ns, self._boot_ns)


cluster_clock: Final = ClusterClock(time.time_ns, lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME))


def unix_ms() -> int:
    """Wall-clock time in milliseconds, by the `ClusterClock`: for people, for lifetimes of keys, and for waits that
    outlive a controller. Leases don't use it, as the clocks of machines differ.
    """
    return cluster_clock.ms()
