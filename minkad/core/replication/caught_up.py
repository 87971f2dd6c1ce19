"""Notes how long a follower has lacked entries that its leader has."""

from dataclasses import dataclass

from minkad.core.replication.follower_progress import Progress


@dataclass(slots=True)
class CaughtUp:
    """The time when a follower last had the whole log (Kafka's lastCaughtUpTime). Example: at 5.0 the log ends at 100;
    at 6.0 it ends at 130, and the follower has 110. So the follower had the whole log of 5.0, and `at` becomes 5.0.
    """

    at: float  # the follower had the whole log at this time, or later
    mark: int  # the end of the log at `mark_at`
    mark_at: float  # the time of the last observation at which the follower had `mark`

    def observe(self, progress: Progress, end: int, now: float) -> None:
        """Note the follower's progress at `now`, with the leader's log end."""
        if not progress.is_replicating or progress.matched < self.mark:
            return
        self.at = now if progress.matched >= end else max(self.at, self.mark_at)
        self.mark, self.mark_at = end, now
