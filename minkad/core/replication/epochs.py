"""The numbers of leaderships along a log: Raft's terms, a partition's leader epochs."""

from bisect import bisect_right
from collections.abc import Callable, Sequence


class Epochs:
    """For each position of a log, the number of the leadership that wrote the entry (Kafka's leader epoch cache,
    KIP-101). The numbers never fall along the log, so it is enough to keep the positions at which the number changes.
    """

    def __init__(self, base: int, epoch: int) -> None:
        """`base`: the position before the first entry. `epoch`: the leadership that wrote the entry at `base`."""
        self._starts = [base]  # growing: the base, then the position at which each later leadership begins
        self._epochs = [epoch]  # growing: the number of the leadership that begins at each of `_starts`

    @property
    def last(self) -> int:
        """The number at the end of the log."""
        return self._epochs[-1]

    def at(self, position: int) -> int:
        """The number at a position, from the base on."""
        found = bisect_right(self._starts, position) - 1
        assert found >= 0, f"position {position} is before the base {self._starts[0]}"
        return self._epochs[found]

    def lineage(self) -> list[tuple[int, int]]:
        """(first position, number) of each leadership, the first from the base on."""
        return list(zip(self._starts, self._epochs, strict=True))

    def common(self, end: int, theirs: Sequence[tuple[int, int]], their_end: int) -> int | None:
        """Return the position up to which this log, which ends at `end`, equals another log: the last position at which
        both have the same number. None if there is none in the part that both still have.

            this log   |1 1 1 1 1 1 1 1 1 1 1 1|3 3 3 3 3 3 3|   3 begins at 50, the end is 80
            the other  |1 1 1 1 1 1 1 1|2 2 2 2 2 2 2|           2 begins at 40, the end is 60
            the result                ^ 39

        One leader alone writes entries with a number, each position once, after the log of the leader before. So if the
        numbers at a position are equal, all entries up to there are equal (KIP-101; KIP-279).
        """
        mine = self.lineage()
        lowest = max(mine[0][0], theirs[0][0])
        position = min(end, their_end)
        i, j = len(mine) - 1, len(theirs) - 1
        while position >= lowest:
            while mine[i][0] > position:
                i -= 1
            while theirs[j][0] > position:
                j -= 1
            if mine[i][1] == theirs[j][1]:
                return position
            # One of the logs lacks the greater number, so the logs differ back to where this number begins.
            position = (mine[i][0] if mine[i][1] > theirs[j][1] else theirs[j][0]) - 1
        return None

    def append(self, position: int, epoch: int) -> None:
        """The entry at `position`, the new end, is of `epoch`."""
        assert epoch >= self.last, f"entry {position} is of epoch {epoch}, after {self.last}"
        if epoch > self.last:
            self._starts.append(position)
            self._epochs.append(epoch)

    def truncate(self, first: int) -> None:
        """The entries from `first` on are gone."""
        assert first > self._starts[0], f"{first} is not after the base {self._starts[0]}"
        while self._starts[-1] >= first:
            self._starts.pop()
            self._epochs.pop()

    def compact(self, base: int) -> None:
        """The entries up to `base` are gone."""
        found = bisect_right(self._starts, base) - 1
        self._starts = [base, *self._starts[found + 1 :]]
        self._epochs = self._epochs[found:]

    def find(self, first: int, last: int, read: Callable[[int], int]) -> None:
        """Learn the numbers of the entries first..last, which follow the base, with few calls of `read`.

        Bisection: if both ends of a stretch have the same number, so do all entries between them.
        """
        stretches = [(first, last)] if first <= last else []
        while stretches:
            low, high = stretches.pop()
            self.append(low, read(low))
            if low < high and read(high) > self.last:
                middle = (low + high) // 2
                stretches += [(middle + 1, high), (low + 1, middle)] if low < middle else [(high, high)]
