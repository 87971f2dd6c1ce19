"""The data of one partition in memory, while it is small: the partition's log has all of it, durably."""

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.wire.kv_frames import WriteBody
from minka.wire.stored_values import HEAD_BYTES, MAX_HEAD_BYTES
from minkad.storage.applied import Applied
from minkad.storage.size_estimate import Size
from minkad.storage.taken_loads import TakenLoads
from minkad.storage.versions import Versions


class MemoryCopy(NamedTuple):
    """The data at one moment."""

    rows: Mapping[bytes, bytes]
    size: Size
    applied: Applied
    loads: TakenLoads
    versions: Versions


class MemoryData:
    """A dictionary of rows with values in their stored form. Its keys are sorted when somebody reads a page. For the
    loop's thread.
    """

    __slots__ = ("_bytes", "_newer", "_order", "_rows", "applied", "loads", "versions")

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._order: list[bytes] | None = None  # the keys in order; None: they changed after the last sort
        self._newer: dict[bytes, bytes | None] | None = None  # the writes since `copy`; None before `copy`
        self._bytes = 0  # of keys and values
        self.applied = Applied()
        self.loads = TakenLoads()
        self.versions = Versions()

    def write(self, writes: Sequence[WriteBody], applied: Applied, last_offset: int | None = None) -> None:
        """Apply the writes in order. `last_offset`: the offset of the last write, if `applied` does not have it."""
        newest, self.versions = self.versions.rows_of(writes, last_offset or applied.offset)
        rows = self._rows
        for key, stored in newest.items():
            old = rows.get(key)
            if old is not None:
                self._bytes -= _size(key, old)
            if stored is not None:
                rows[key] = stored
                self._bytes += _size(key, stored)
            elif old is not None:
                del rows[key]
            if (old is None) is not (stored is None):
                self._order = None
        if self._newer is not None:
            self._newer.update(newest)
        self.applied = applied

    def stored(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of the keys; None for a missing key."""
        return [self._rows.get(key) for key in keys]

    def stored_many(self, keys: Sequence[bytes], max_bytes: int) -> list[bytes | None]:
        """Like `stored`. Raises TOO_LARGE if all values together exceed `max_bytes`."""
        values = self.stored(keys)
        if sum([len(value) for value in values if value]) > max_bytes:
            raise MinkaError(Code.TOO_LARGE, f"values of more than {max_bytes} bytes are asked for at once")
        return values

    def page(
        self, start: bytes, end: bytes, reverse: bool, max_rows: int, max_bytes: int, *, only_heads: bool = False
    ) -> tuple[list[bytes], list[bytes], bool]:
        """See `rocks.page`."""
        found = self._keys_in(KeyRange(start, end))
        if reverse:
            found.reverse()
        keys, values, size = found[:max_rows], list[bytes](), 0
        for key in keys:
            value = self._rows[key][:MAX_HEAD_BYTES] if only_heads else self._rows[key]
            size += _size(key, value)
            if values and size > max_bytes:
                break
            values.append(value)
        return keys[: len(values)], values, len(values) == len(found)

    async def count(self, wanted: KeyRange, slice_keys: int) -> Size:
        """The exact number of keys and bytes in the range; the loop runs after every `slice_keys` keys."""
        sizes = [_size(key, self._rows[key]) for key in self._keys_in(wanted)]
        for _ in range(len(sizes) // slice_keys):
            await asyncio.sleep(0)
        return Size(sum(sizes), len(sizes))

    def trim_to_range(self, kept: KeyRange, applied: Applied) -> bool:
        """Remove all keys outside of `kept`. Returns True if there were any."""
        outside = [key for key in self._rows if not kept.contains(key)]
        self.write([WriteBody(outside, [None] * len(outside))], applied)
        return bool(outside)

    def size(self) -> Size:
        """The exact size."""
        return Size(self._bytes, len(self._rows))

    @property
    def memory_bytes(self) -> int:
        """The bytes of its keys and values."""
        return self._bytes

    def share(self, part: KeyRange) -> float:
        """The share of the bytes that is in the range; 0.5 if there is no data."""
        inside = sum(_size(key, self._rows[key]) for key in self._keys_in(part))
        return inside / self._bytes if self._bytes else 0.5

    # The move to RocksDB

    def copy(self) -> "MemoryCopy":
        """All present data. From now on `since_copied` collects the writes."""
        self._newer = {}
        return MemoryCopy(dict(self._rows), self.size(), self.applied, self.loads, self.versions)

    def since_copied(self) -> Iterable[tuple[bytes, bytes | None]]:
        """The writes since `copy`; None for a deleted key."""
        assert self._newer is not None, "nothing was copied"
        return self._newer.items()

    def _keys_in(self, wanted: KeyRange) -> list[bytes]:
        if self._order is None:
            self._order = sorted(self._rows)
        first = bisect_left(self._order, wanted.start)
        return self._order[first : bisect_left(self._order, wanted.end)] if wanted.end else self._order[first:]


def _size(key: bytes, stored: bytes) -> int:
    return len(key) + len(stored) - HEAD_BYTES
