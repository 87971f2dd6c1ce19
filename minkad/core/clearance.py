"""The lease that lets a node serve (Lease, Patterns of Distributed Systems)."""

from dataclasses import dataclass
from typing import Final

CLOCK_RATIO: Final = 1.1  # a node's clock may run this many times as fast as another one's


@dataclass(slots=True)
class Clearance:
    """Times are seconds of this node's monotonic clock. Without a grant there is no clearance."""

    _until: float = float("-inf")

    def grant(self, sent_at: float, seconds: float) -> None:
        """Take the clearance that the active controller gave for this node's heartbeat of `sent_at`.

        The node counts from when it sent the heartbeat, the controller from when it received the heartbeat. So the
        node's clearance ends before the controller may act on its silence. 0 seconds grant nothing: an earlier
        clearance isn't over later because of them.
        """
        if seconds > 0:
            self._until = max(self._until, sent_at + seconds)

    def holds(self, now: float) -> bool:
        """True if the node may serve now."""
        return now < self._until

    def remaining(self, now: float) -> float:
        """Seconds left; 0 without clearance."""
        return max(0.0, self._until - now)

    def lapsed(self, now: float) -> float | None:
        """The seconds since the clearance ended; None while it holds, and if there never was any."""
        return now - self._until if float("-inf") < self._until <= now else None

    def last_held(self, now: float) -> float:
        """The last moment up to `now` at which there was clearance; -inf if it was given up, or never granted."""
        return min(now, self._until)

    def revoke(self) -> None:
        """Give the clearance up, so that the node stops serving."""
        self._until = float("-inf")
