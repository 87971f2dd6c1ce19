"""Whether the next writes wait for the clients whose writes were just answered.

Clients that ask again as soon as they are answered divide into two groups otherwise: one is gathered while the writes
of the other are under way, and each pays for a batch, and a sync, of its own. PostgreSQL's `commit_delay` waits for the
same reason.
"""

from typing import Final

MOST: Final = 64  # clients; with more, what a batch costs itself hardly counts
_MAY_BE_LATE: Final = 8  # one client in so many is not waited for
_MOST_MISSES: Final = 10


class CommitDelay:
    """Learns whether clients come back at once. While they don't, ever fewer batches wait for them."""

    def __init__(self) -> None:
        self._misses = 0
        self._passed_over = 0  # batches that are yet to begin without a wait

    def awaited(self, answered: int, gathered: int) -> int:
        """For how many clients the next batch waits, when so many were answered, and so many are in it already; 0: for
        none.
        """
        if answered < 2 or answered + gathered > MOST:
            return 0
        if self._passed_over:
            self._passed_over -= 1
            return 0
        return gathered + answered - answered // _MAY_BE_LATE

    def came(self) -> None:
        """They were there in time."""
        self._misses = max(0, self._misses - 1)

    def missed(self) -> None:
        """They were not."""
        self._misses = min(self._misses + 1, _MOST_MISSES)
        self._passed_over = 1 << self._misses
