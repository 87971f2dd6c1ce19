"""The data of a split's child that has no database of its own yet: its first rows are in the parent's database, where
they no longer change; its later writes are in memory.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.wire.kv_frames import WriteBody
from minka.wire.stored_values import MAX_HEAD_BYTES
from minkad.storage.applied import Applied
from minkad.storage.size_estimate import Size
from minkad.storage.versions import Versions

if TYPE_CHECKING:
    from minkad.storage.data_database import DataDatabase

_FIRST: Final = b"\x00"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A child's first rows are a part of the data of `parent`, as of the parent's entry `applied`."""

    parent: "DataDatabase"
    parent_id: int
    applied: Applied  # the child's log begins after this entry
    versions: Versions  # of the parent's data, as of `applied`
    # Puts a copy of the parent's data, as of `applied` or later, into the child's folder.
    copy: Callable[[], Awaitable[None]]
    # Awaited once the child's own database is durable; the parent keeps the rows until this returns.
    detached: Callable[[], Awaitable[None]]
    lost: Callable[[], None]  # called when the child is condemned; the parent keeps the rows until `let_go`


class AttachedData:
    """The parent's rows, and the later writes to the child, which hide them. For the loop's thread."""

    __slots__ = ("_at_first", "_parent", "applied", "loads", "memory_bytes", "newer", "versions")

    def __init__(self, attachment: Attachment) -> None:
        self._parent = attachment.parent
        self.applied = attachment.applied
        self.versions = attachment.versions
        self.loads = attachment.parent.loads
        self._at_first = attachment.parent.size()  # an estimate that is too high: it includes the parent's own half
        self.newer: dict[bytes, bytes | None] = {}  # later writes; None: deleted
        self.memory_bytes = 0  # of all writes to `newer`, overwritten ones included

    def write(self, writes: Sequence[WriteBody], applied: Applied, last_offset: int | None = None) -> None:
        """Apply the writes in order. `last_offset`: the offset of the last write, if `applied` does not have it."""
        rows, self.versions = self.versions.rows_of(writes, last_offset or applied.offset)
        self.newer.update(rows)
        self.memory_bytes += sum([len(key) + len(row or b"") for key, row in rows.items()])
        self.applied = applied

    def stored(self, keys: list[bytes]) -> list[bytes | None]:
        """The values in the order of the keys; None for a missing key."""
        older = [key for key in keys if key not in self.newer]
        return self._over(keys, dict(zip(older, self._parent.stored(older), strict=True)) if older else {})

    async def stored_many(self, keys: list[bytes], max_bytes: int) -> list[bytes | None]:
        """Like `stored`, on another thread. Raises TOO_LARGE if all values together exceed `max_bytes`."""
        older = [key for key in keys if key not in self.newer]
        rows = self._over(keys, dict(zip(older, await self._parent.stored_many(older, max_bytes), strict=True)))
        if sum([len(row) for row in rows if row]) > max_bytes:
            raise MinkaError(Code.TOO_LARGE, f"values of more than {max_bytes} bytes are asked for at once")
        return rows

    def _over(self, keys: list[bytes], older: Mapping[bytes, bytes | None]) -> list[bytes | None]:
        newer = self.newer
        return [newer[key] if key in newer else older[key] for key in keys]

    def page(
        self,
        start: bytes,
        end: bytes,
        reverse: bool,
        max_rows: int,
        max_bytes: int,
        max_passed: int,
        max_seconds: float = inf,
        only_heads: bool = False,
    ) -> tuple[list[bytes], list[bytes], bool]:
        """See `rocks.page`. Raises DeletedAheadError."""
        while True:
            keys, rows, is_all = self._parent.stored_page(
                start, end, reverse, max_rows, max_bytes, max_passed, max_seconds, only_heads=only_heads
            )
            part = KeyRange(start, end)
            if not is_all:
                part = KeyRange(keys[-1], end) if reverse else KeyRange(start, keys[-1] + _FIRST)
            merged = dict[bytes, bytes | None](zip(keys, rows, strict=True))
            end_of_row = MAX_HEAD_BYTES if only_heads else None
            merged.update({key: row and row[:end_of_row] for key, row in self.newer.items() if part.contains(key)})
            found = [(key, row) for key, row in sorted(merged.items(), reverse=reverse) if row is not None]
            if found or is_all:
                return _fitting(found, max_rows, max_bytes, is_all=is_all)
            start, end = (start, keys[-1]) if reverse else (keys[-1] + _FIRST, end)

    def size(self) -> Size:
        """An estimate: the parent's size when the child was attached, plus all writes to the child."""
        return Size(self._at_first.bytes + self.memory_bytes, self._at_first.keys + len(self.newer))

    def share(self, part: KeyRange) -> float:
        """About the share of the data that is in the range."""
        return self._parent.share(part)


def _fitting(
    found: list[tuple[bytes, bytes]], max_rows: int, max_bytes: int, *, is_all: bool
) -> tuple[list[bytes], list[bytes], bool]:
    """A page of the first rows within the limits, but at least one row if there is any."""
    keys: list[bytes] = []
    rows: list[bytes] = []
    size = 0
    for key, row in found:
        size += len(key) + len(row)
        if len(keys) == max_rows or (keys and size > max_bytes):
            return keys, rows, False
        keys.append(key)
        rows.append(row)
    return keys, rows, is_all
