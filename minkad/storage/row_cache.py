"""The rows that were read lately, in dictionaries: one is found there in a fifth of the time that RocksDB takes.

The rows of all of a node's databases age together, by generations: a row that is read belongs to the young one. Once
that has half of the memory it becomes the old one, and the old one is forgotten. So what was not read for a generation
goes, and what is read often costs no more than a look into a dictionary.
"""

from collections.abc import Mapping
from typing import Final

from minkad.process.telemetry import RowCacheUse

_LARGEST_ROW_BYTES: Final = 16 * 1024  # a larger one would take the room of many
_OVERHEAD_BYTES: Final = 160  # of a row: two objects and their place in a dictionary
_FORGOTTEN_AT_ONCE: Final = 4  # for each row that comes, so nothing is left of a generation when the next one goes


class RowCache:
    """How much the databases of a node keep together. For the loop's thread."""

    def __init__(self, limit: int, use: RowCacheUse | None = None) -> None:
        """`limit`: bytes of rows, with what Python takes for them; with 0 nothing is kept."""
        self.limit: Final = limit
        self.use: Final = use or RowCacheUse()
        self._young = 0  # bytes
        self._with_rows: set[CachedRows] = set()
        self._forgotten: list[dict[bytes, bytes]] = []

    def grew(self, rows: "CachedRows", size: int) -> None:
        """A database has so many bytes of young rows more, or fewer."""
        self._young += size
        self.use.bytes += size
        self._with_rows.add(rows)
        if self._forgotten:
            self._forget_some()
        if 2 * self._young > self.limit:
            self._age()

    def forget(self, rows: dict[bytes, bytes]) -> None:
        """Free these little by little: a hundred thousand at once would hold the loop for 5 ms."""
        if rows:
            self._forgotten.append(rows)

    def _age(self) -> None:
        self.use.bytes, self._young = self._young, 0
        for rows in list(self._with_rows):
            rows.age()
            if not len(rows):
                self._with_rows.discard(rows)

    def _forget_some(self) -> None:
        rows = self._forgotten[-1]
        for _ in range(min(_FORGOTTEN_AT_ONCE, len(rows))):
            rows.popitem()
        if not rows:
            self._forgotten.pop()


class CachedRows:
    """Rows of one database in their stored form, as they are there now."""

    __slots__ = ("_bytes", "_cache", "_old", "_young")

    def __init__(self, cache: RowCache) -> None:
        self._cache = cache
        self._young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}
        self._bytes = 0  # of young ones

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def find(self, keys: list[bytes]) -> list[bytes | None]:
        """The rows of these keys that are here, in their order; None for a key whose row is not here."""
        self._cache.use.looked_up += len(keys)
        found: list[bytes | None] = list(map(self._young.get, keys))
        if self._old and not all(found):
            for place, row in enumerate(found):
                if row is None and (row := self._old.pop(keys[place], None)) is not None:
                    found[place] = row
                    self.keep(keys[place], row)
        return found

    def missed(self, count: int) -> None:
        """So many of the rows that were to be found are not here."""
        self._cache.use.missed += count

    def keep(self, key: bytes, row: bytes) -> None:
        """Keep a row that was read."""
        if len(row) <= _LARGEST_ROW_BYTES and key not in self._young and self._cache.limit:
            self._young[key] = row
            self._grow(len(key) + len(row) + _OVERHEAD_BYTES)

    def written(self, newest: Mapping[bytes, bytes | None]) -> None:
        """Rows were written; None: the key was deleted."""
        for key in newest.keys() & self._old.keys():
            del self._old[key]
        young, growth = self._young, 0
        for key in newest.keys() & young.keys():
            row = newest[key]
            growth -= len(young[key])
            if row is None or len(row) > _LARGEST_ROW_BYTES:
                del young[key]
                growth -= len(key) + _OVERHEAD_BYTES
            else:
                young[key] = row
                growth += len(row)
        if growth:
            self._grow(growth)

    def clear(self) -> None:
        """Any row may have changed."""
        self._cache.forget(self._young)
        self._cache.forget(self._old)
        self._young, self._old = {}, {}
        self._grow(-self._bytes)

    def age(self) -> None:
        """A new generation begins."""
        self._cache.forget(self._old)
        self._old, self._young, self._bytes = self._young, {}, 0

    def _grow(self, size: int) -> None:
        self._bytes += size
        self._cache.grew(self, size)
