"""The duties that may move from one shard, found by their sizes."""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from typing import Final, NamedTuple

from minkad.core.duties.placement.snapshot import PlacedDuty


class Entry(NamedTuple):
    """Sorts by size, then by age. Of duties with equal sizes the newest is last, and leaves first."""

    size: int
    created_ms: int
    number: int
    duty: PlacedDuty


_FIRST: Final = (-1,)
_END: Final = (float("inf"),)


class Pool:
    """Groups duties by the set of shards on which they must not be; few different sets exist."""

    def __init__(self) -> None:
        self._groups: defaultdict[frozenset[str], list[Entry]] = defaultdict(list)
        self._unsorted: set[frozenset[str]] = set()  # groups that were only added to so far: sorted at the first search

    def add(self, duty: PlacedDuty, size: int) -> None:
        """Add a duty of this size."""
        entries, entry = self._groups[duty.not_on], Entry(size, duty.created_ms, duty.number, duty)
        if not entries:
            self._unsorted.add(duty.not_on)
        if duty.not_on in self._unsorted:
            entries.append(entry)
        else:
            insort(entries, entry)

    def remove(self, duty: PlacedDuty, size: int) -> None:
        """Remove a duty from the pool. `size`: the size with which it was added."""
        entries = self._sorted(duty.not_on)
        del entries[bisect_left(entries, (size, duty.created_ms, duty.number))]

    def heaviest(self, target: str, at_most: float, at_least: int = 0) -> PlacedDuty | None:
        """The heaviest duty, of equal ones the newest, that may be on the target and is within these sizes."""
        found: list[Entry] = []
        for group in self._groups:
            if target not in group:
                entries = self._sorted(group)
                i = bisect_right(entries, (at_most, *_END)) - 1
                if i >= 0 and entries[i].size >= at_least:
                    found.append(entries[i])
        return max(found).duty if found else None

    def lightest(self, target: str, at_least: float) -> PlacedDuty | None:
        """The lightest duty that may be on the target and has at least this size."""
        found: list[Entry] = []
        for group in self._groups:
            if target not in group:
                entries = self._sorted(group)
                i = bisect_left(entries, (at_least, *_FIRST))
                if i < len(entries):
                    found.append(entries[i])
        return min(found).duty if found else None

    def least_size(self) -> float:
        """The smallest size above 0; infinite without such a duty."""
        least = float("inf")
        for group in self._groups:
            entries = self._sorted(group)
            i = bisect_left(entries, (1, *_FIRST))
            if i < len(entries):
                least = min(least, entries[i].size)
        return least

    def _sorted(self, group: frozenset[str]) -> list[Entry]:
        if group in self._unsorted:
            self._groups[group].sort()
            self._unsorted.remove(group)
        return self._groups[group]
