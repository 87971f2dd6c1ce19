"""Ranges of keys (the pattern "Key-Range Partitions" of Patterns of Distributed Systems).

Keys are bytes in bytewise order. A range includes its start and excludes its end; b"" as either of them means no bound.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Keyspace, Partitioning

MAX_KEY_BYTES: Final = 64 * 1024


class KeyRange(NamedTuple):
    """The keys with start <= key < end; b"" as either means that there is no bound."""

    start: bytes = b""
    end: bytes = b""

    def contains(self, key: bytes) -> bool:
        """True if the key is in this range."""
        return self.start <= key and (not self.end or key < self.end)

    def overlaps(self, other: "KeyRange") -> bool:
        """True if some key may be in both ranges."""
        return (not self.end or other.start < self.end) and (not other.end or self.start < other.end)

    def covers(self, other: "KeyRange") -> bool:
        """True if every key of the other range is in this one."""
        return self.start <= other.start and (not self.end or b"" != other.end <= self.end)

    def clip(self, other: "KeyRange") -> "KeyRange":
        """The range of the keys that are in both ranges, which must overlap."""
        ends = [end for end in (self.end, other.end) if end]
        return KeyRange(max(self.start, other.start), min(ends, default=b""))

    def __str__(self) -> str:
        """The range in the form [b, d); ["", b) has no start."""
        return f"[{readable(self.start)}, {readable(self.end)})"


ALL_KEYS: Final = KeyRange()


def is_by_ranges(keyspace: Keyspace) -> bool:
    """True if the keyspace's partitions have ranges of keys, not slots of a hash."""
    return bool(keyspace.partitioning == Partitioning.PARTITIONING_RANGES)


def ranges_at(points: Sequence[bytes]) -> list[KeyRange]:
    """The ranges that ascending split points give; without points, one range over all keys.

    Raises EMPTY_SPLIT_POINT, DUPLICATE_SPLIT_POINT, UNSORTED_SPLIT_POINTS, TOO_LARGE.
    """
    check_split_points(points)
    for before, after in pairwise(points):
        if before > after:
            raise MinkaError(
                Code.UNSORTED_SPLIT_POINTS,
                f"the split point {readable(after)} comes after {readable(before)}: their ranges would overlap",
            )
    return [KeyRange(start, end) for start, end in zip((b"", *points), (*points, b""), strict=True)]


def check_split_points(points: Sequence[bytes]) -> None:
    """Check that these keys, in any order, can be split points together. Raises EMPTY_SPLIT_POINT,
    DUPLICATE_SPLIT_POINT, TOO_LARGE.
    """
    for point in points:
        check_split_point(point)
    check_different(points)


def check_different(points: Sequence[bytes]) -> None:
    """Check that no split point, or bound of a merge, is given twice. Raises DUPLICATE_SPLIT_POINT."""
    for before, after in pairwise(sorted(points)):
        if before == after:
            raise MinkaError(Code.DUPLICATE_SPLIT_POINT, f"the split point {readable(before)} comes twice")


def check_split_point(point: bytes) -> None:
    """Check that a key can be a split point. Raises EMPTY_SPLIT_POINT, TOO_LARGE."""
    if not point:
        raise MinkaError(Code.EMPTY_SPLIT_POINT, 'a split point is empty: the first range begins at "" anyway')
    if len(point) > MAX_KEY_BYTES:
        raise MinkaError(Code.TOO_LARGE, f"a split point has {len(point)} bytes; {MAX_KEY_BYTES} is the limit")


def key_text(key: bytes) -> str:
    """A bound's text in documents; "" if there is no bound. `key_of_text` is the inverse."""
    return readable(key) if key else ""


def key_of_text(text: str) -> bytes:
    """The key that a text stands for, such as bob or 0x626f62 (hex). Bytes of a command line that aren't UTF-8 are
    kept. Raises ValueError for bad hex.
    """
    return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode("utf-8", "surrogateescape")


def readable(key: bytes) -> str:
    """A key for people: its text, or 0x and hex if it isn't text. `key_of_text` reads both forms. For an empty key, the
    result is two quotation marks.
    """
    if not key:
        return '""'
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    plain = text.isprintable() and text == text.strip() and not text.startswith(("0x", "@", '"')) and "," not in text
    return text if plain else f"0x{key.hex()}"
