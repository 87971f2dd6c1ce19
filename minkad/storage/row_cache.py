"""Recently read rows, in dictionaries, where a look-up takes a fifth of RocksDB's time.

The rows of all databases of a node age together, in two generations. A row that somebody reads joins the young
generation. Once the young generation takes half of the memory, the old one is forgotten, and the young one becomes
old. So a row that nobody reads for a generation is forgotten, and a frequent read costs only a look into a dictionary.
"""

from collections.abc import Mapping
from typing import Final

from minkad.process.telemetry import RowCacheUse

_LARGEST_ROW_BYTES: Final = 16 * 1024  # a larger row would take the place of many small rows
_OVERHEAD_BYTES: Final = 160  # in Python, for each row: two objects and their place in a dictionary
_FORGOTTEN_AT_ONCE: Final = 4  # rows, for each new row: so a generation is freed before the next one is forgotten


class RowCache:
    """The memory of all row caches of a node. For the loop's thread."""

    def __init__(self, limit: int, use: RowCacheUse | None = None) -> None:
        """`limit`: bytes of rows, including Python's overhead; with 0 nothing is kept."""
        self.limit: Final = limit
        self.use: Final = use or RowCacheUse()
        self._young = 0  # bytes of the young generation, in all databases
        self._with_rows: set[CachedRows] = set()  # the databases that may have cached rows
        self._forgotten: list[dict[bytes, bytes]] = []  # rows that nobody uses; they are freed little by little

    def grew(self, rows: "CachedRows", size: int) -> None:
        """Note that a database has `size` more bytes of young rows; a negative `size` means fewer bytes."""
        self._young += size
        self.use.bytes += size
        self._with_rows.add(rows)
        if self._forgotten:
            self._forget_some()
        if 2 * self._young > self.limit:
            self._age()

    def forget(self, rows: dict[bytes, bytes]) -> None:
        """Free these rows little by little: a hundred thousand at once would hold the loop for 5 ms."""
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
    """The cached rows of one database, in their stored form."""

    __slots__ = ("_bytes", "_cache", "_old", "_young")

    def __init__(self, cache: RowCache) -> None:
        self._cache = cache
        self._young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}
        self._bytes = 0  # of the young rows

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def find(self, keys: list[bytes]) -> list[bytes | None]:
        """The cached rows of these keys, in order; None for a key whose row is not cached."""
        self._cache.use.looked_up += len(keys)
        found: list[bytes | None] = list(map(self._young.get, keys))
        if self._old and not all(found):
            for place, row in enumerate(found):
                if row is None and (row := self._old.pop(keys[place], None)) is not None:
                    found[place] = row
                    self.keep(keys[place], row)
        return found

    def missed(self, count: int) -> None:
        """Note that `count` of the wanted rows weren't cached."""
        self._cache.use.missed += count

    def keep(self, key: bytes, row: bytes) -> None:
        """Cache a row that was read, as a young row."""
        if len(row) <= _LARGEST_ROW_BYTES and key not in self._young and self._cache.limit:
            self._young[key] = row
            self._grow(len(key) + len(row) + _OVERHEAD_BYTES)

    def written(self, newest: Mapping[bytes, bytes | None]) -> None:
        """Bring cached rows up to date with the rows that were written; None: the key was deleted."""
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
        """Forget all rows: any of them may have changed."""
        self._cache.forget(self._young)
        self._cache.forget(self._old)
        self._young, self._old = {}, {}
        self._grow(-self._bytes)

    def age(self) -> None:
        """Begin a new generation: the old rows are forgotten, and the young rows become old."""
        self._cache.forget(self._old)
        self._old, self._young, self._bytes = self._young, {}, 0

    def _grow(self, size: int) -> None:
        self._bytes += size
        self._cache.grew(self, size)
