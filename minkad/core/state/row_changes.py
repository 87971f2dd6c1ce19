"""Remembers which rows the last versions of the table have changed."""

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Final

KEPT_ROWS: Final = 10_000  # remembered at most; a reader with an older table than these gets the whole table


@dataclass(frozen=True, slots=True)
class Changed:
    """The ids of rows that are new, changed or gone."""

    nodes: frozenset[str] = frozenset()
    keyspaces: frozenset[int] = frozenset()
    partitions: frozenset[int] = frozenset()

    @property
    def rows(self) -> int:
        """The number of these rows."""
        return len(self.nodes) + len(self.keyspaces) + len(self.partitions)


class ChangeLog:
    """The changes of each of the last versions."""

    def __init__(self, version: int = 0) -> None:
        self._version = version  # the present version
        self._changes: deque[Changed] = deque()  # one for each of the last versions, the present version's last
        self._rows = 0  # of `_changes` together

    def note(self, changed: Changed) -> None:
        """Count a version, and remember the changes that have made it."""
        self._version += 1
        self._changes.append(changed)
        self._rows += changed.rows
        while self._rows > KEPT_ROWS:
            self._rows -= self._changes.popleft().rows

    def since(self, version: int) -> Changed | None:
        """The changes after this version, up to the present one; None if they aren't remembered."""
        count = self._version - version
        if not 0 <= count <= len(self._changes):
            return None
        recent = list(islice(reversed(self._changes), count))
        return Changed(
            frozenset().union(*(one.nodes for one in recent)),
            frozenset().union(*(one.keyspaces for one in recent)),
            frozenset().union(*(one.partitions for one in recent)),
        )
