"""The age of a replica's data, for stale reads."""

from typing import Final

NEVER: Final = float("-inf")
UNKNOWN: Final = 2**63  # greater than any offset


class Freshness:
    """The data of a leader that serves was up to date when its node last had clearance: see `ReplicaState.note_led`.

    A follower's leader sends high watermarks, and now and then a time by the follower's clock: nothing after the last
    high watermark was committed at this time. So once the follower has applied up to the high watermark, its data was
    up to date at this time.
    """

    __slots__ = ("_mark", "_mark_at", "at")

    def __init__(self) -> None:
        self.at = NEVER  # the last time, by this node's clock, at which the data was certainly up to date
        self._mark = UNKNOWN  # once this offset is applied, `at` becomes `_mark_at` or later
        self._mark_at = NEVER  # nothing after `_mark` was committed at this time

    def begin_again(self) -> None:
        """The age of the data is no longer known."""
        self.at, self._mark, self._mark_at = NEVER, UNKNOWN, NEVER

    def unmark(self) -> None:
        """Forget the mark: it may be of another leader or stream."""
        self._mark = UNKNOWN

    def mark(self, applied: int, offset: int, known_at: float) -> None:
        """At the time `known_at`, no entry after `offset` was committed."""
        if applied >= self._mark or self._mark == UNKNOWN:
            self._mark, self._mark_at = offset, known_at

    def reached(self, applied: int) -> None:
        """The data has everything up to the offset `applied`."""
        if applied >= self._mark:
            self.at = max(self.at, self._mark_at)

    def newest_at(self, known_at: float) -> None:
        """The data has all entries that were committed at this time."""
        self.at = max(self.at, known_at)
