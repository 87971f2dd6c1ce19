"""How long a follower has lacked something that its leader has."""

from dataclasses import dataclass

from minkad.core.replication.progress import Progress


@dataclass(slots=True)
class CaughtUp:
    """When a follower last had all that there was (Kafka's lastCaughtUpTime): at `at`, or later."""

    at: float
    mark: int  # the end of the log at `mark_at`
    mark_at: float

    def observe(self, progress: Progress, end: int, now: float) -> None:
        """Note how far the follower is at `now`, while the leader's log ends at `end`."""
        if not progress.is_replicating or progress.matched < self.mark:
            return
        self.at = now if progress.matched >= end else max(self.at, self.mark_at)
        self.mark, self.mark_at = end, now
