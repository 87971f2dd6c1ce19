"""Decides if the next writes wait for the clients whose writes were just answered.

Otherwise, clients that ask again at once divide into two groups: one is gathered while the writes of the other are
under way, and each pays for its own batch and its own sync. PostgreSQL's `commit_delay` waits for the same reason.
"""

from typing import Final

MOST: Final = 64  # clients; with more, the cost of a batch itself hardly counts
_MAY_BE_LATE: Final = 8  # one client in this many isn't waited for
_MOST_MISSES: Final = 10


class CommitDelay:
    """Learns if clients come back at once. While they don't, fewer and fewer batches wait for them."""

    def __init__(self) -> None:
        self._misses = 0
        self._passed_over = 0  # batches yet to begin without a wait

    def awaited(self, answered: int, gathered: int) -> int:
        """The number of clients to be in the next batch before it begins, when `answered` were just answered, and
        `gathered` are in it already; 0: it doesn't wait.
        """
        if answered < 2 or answered + gathered > MOST:
            return 0
        if self._passed_over:
            self._passed_over -= 1
            return 0
        return gathered + answered - answered // _MAY_BE_LATE

    def came(self) -> None:
        """The clients came in time."""
        self._misses = max(0, self._misses - 1)

    def missed(self) -> None:
        """The clients didn't come in time."""
        self._misses = min(self._misses + 1, _MOST_MISSES)
        self._passed_over = 1 << self._misses
