"""The age of a replica's data, for stale reads."""

from typing import Final

NEVER: Final = float("-inf")
UNKNOWN: Final = 2**63  # greater than any offset


class Freshness:
    """A leader that serves was up to date when its node last had clearance: see `ReplicaState.note_led`.

    A follower gets the leader's high watermarks, and now and then a moment, by the follower's clock: all high
    watermarks up to it were sent. A follower that has applied all that was committed at a moment was up to date then.
    """

    __slots__ = ("_mark", "_mark_at", "at")

    def __init__(self) -> None:
        self.at = NEVER  # the last moment, by this node's clock, at which the data was certainly up to date
        self._mark = UNKNOWN  # once this offset is applied, `at` is at least `_mark_at`
        self._mark_at = NEVER

    def begin_again(self) -> None:
        """The age of the data is no longer known."""
        self.at, self._mark, self._mark_at = NEVER, UNKNOWN, NEVER

    def unmark(self) -> None:
        """The leader has yet to say where its epoch starts; earlier marks don't count."""
        self._mark = UNKNOWN

    def mark(self, applied: int, offset: int, known_at: float) -> None:
        """At the time `known_at` no entry after `offset` was committed."""
        if applied >= self._mark or self._mark == UNKNOWN:
            self._mark, self._mark_at = offset, known_at

    def reached(self, applied: int) -> None:
        """The data has everything up to the offset `applied`."""
        if applied >= self._mark:
            self.at = max(self.at, self._mark_at)

    def newest_at(self, known_at: float) -> None:
        """All that was committed at this moment is applied."""
        self.at = max(self.at, known_at)
