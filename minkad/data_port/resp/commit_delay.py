"""Decides if the next writes wait for the clients whose writes were just answered.

Without this wait, clients that write again at once would divide into two groups: while the batch of one group is under
way, the next batch gathers the other group. There would be two batches and two syncs where one suffices. PostgreSQL's
`commit_delay` waits for the same reason.
"""

from typing import Final

MOST: Final = 64  # clients; with more, the cost of a batch itself hardly counts
_MAY_BE_LATE: Final = 8  # of 8 clients, 7 are awaited
_MOST_MISSES: Final = 10  # after n misses in a row, 2**n batches begin without a wait


class CommitDelay:
    """Learns if clients come back at once. While they don't, fewer and fewer batches wait for them."""

    def __init__(self) -> None:
        self._misses = 0  # waits in vain, less the waits that were worth it
        self._passed_over = 0  # the number of next batches that begin without a wait

    def awaited(self, answered: int, gathered: int) -> int:
        """The number of clients that the next batch gathers before it begins; 0: it begins at once. `answered` clients
        were just answered, and `gathered` are in the batch already: with 16 and 3, the batch waits for 17 (3 + 14).
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
