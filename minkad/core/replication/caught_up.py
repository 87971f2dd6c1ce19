"""Notes how long a follower has lacked entries that its leader has."""

from dataclasses import dataclass

from minkad.core.replication.follower_progress import Progress


@dataclass(slots=True)
class CaughtUp:
    """The time when a follower last had the whole log (Kafka's lastCaughtUpTime): at `at`, or later."""

    at: float
    mark: int  # the end of the log at `mark_at`
    mark_at: float

    def observe(self, progress: Progress, end: int, now: float) -> None:
        """Note the follower's progress at `now`, when the leader's log ends at `end`."""
        if not progress.is_replicating or progress.matched < self.mark:
            return
        self.at = now if progress.matched >= end else max(self.at, self.mark_at)
        self.mark, self.mark_at = end, now
