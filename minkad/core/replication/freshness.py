"""How old a follower's data may be, for stale reads."""

from typing import Final

NEVER: Final = float("-inf")
UNKNOWN: Final = 2**63  # greater than any offset


class Freshness:
    """The leader tells its high watermark, and once in a while as of which moment of the follower's clock all of its
    high watermarks are known. A follower that has applied as much as was committed at a moment was the newest then.
    """

    __slots__ = ("_mark", "_mark_at", "at")

    def __init__(self) -> None:
        self.at = NEVER  # when the data was certainly the newest, by this node's clock
        self._mark = UNKNOWN  # once this offset is applied, `at` is at least `_mark_at`
        self._mark_at = NEVER

    def begin_again(self) -> None:
        """Nothing is known of what the data is by now."""
        self.at, self._mark, self._mark_at = NEVER, UNKNOWN, NEVER

    def unmark(self) -> None:
        """The leader has yet to say where its epoch starts: what it said before says nothing."""
        self._mark = UNKNOWN

    def mark(self, applied: int, offset: int, known_at: float) -> None:
        """At `known_at` no more than `offset` was committed."""
        if applied >= self._mark or self._mark == UNKNOWN:
            self._mark, self._mark_at = offset, known_at

    def reached(self, applied: int) -> None:
        """So much is applied."""
        if applied >= self._mark:
            self.at = max(self.at, self._mark_at)

    def newest_at(self, known_at: float) -> None:
        """All that was committed at this moment is applied."""
        self.at = max(self.at, known_at)
