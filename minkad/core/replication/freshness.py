"""How old a follower's data may be, for stale reads."""

from typing import Final

NEVER: Final = float("-inf")
UNKNOWN: Final = 2**63  # greater than any offset


class Freshness:
    """The leader sends its high watermark, and now and then the moment, by the follower's clock, as of which it has
    sent all of its high watermarks. A follower that has applied as much as was committed at a moment was up to date
    then.
    """

    __slots__ = ("_mark", "_mark_at", "at")

    def __init__(self) -> None:
        self.at = NEVER  # the last moment, by this node's clock, at which the data was certainly up to date
        self._mark = UNKNOWN  # once this offset is applied, `at` is at least `_mark_at`
        self._mark_at = NEVER

    def begin_again(self) -> None:
        """How old the data is is no longer known."""
        self.at, self._mark, self._mark_at = NEVER, UNKNOWN, NEVER

    def unmark(self) -> None:
        """The leader has yet to say where its epoch starts; what it said before doesn't count."""
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
