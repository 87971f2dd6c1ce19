"""The numbers of leaderships along a log: Raft's terms, a partition's leader epochs."""

from bisect import bisect_right
from collections.abc import Callable, Sequence


class Epochs:
    """For each position of a log, the number of the leadership that wrote it. Only positions where it changes are kept.

    The numbers never fall along the log, so few positions describe a long log (Kafka's leader epoch cache, KIP-101).
    """

    def __init__(self, base: int, epoch: int) -> None:
        """`base`: the position before the first entry; `epoch` wrote the entry there."""
        self._starts = [base]
        self._epochs = [epoch]

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
        """The position up to which this log, up to `end`, and another one are the same: the last one at which both have
        the same number. None if there is none in the part that both still know.

        A number belongs to one leader, which wrote each position once. So all entries before an equal number are equal
        (KIP-101; KIP-279, where the epoch asked for is missing on one side).
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
            # The other log lacks the greater number from here down to where this number begins.
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
        """Learn the numbers of the entries first..last, which follow the base, by reading few of them.

        Bisection: a stretch whose two ends have the same number has it throughout.
        """
        stretches = [(first, last)] if first <= last else []
        while stretches:
            low, high = stretches.pop()
            self.append(low, read(low))
            if low < high and read(high) > self.last:
                middle = (low + high) // 2
                stretches += [(middle + 1, high), (low + 1, middle)] if low < middle else [(high, high)]
