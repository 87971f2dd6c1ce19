"""The content of a log entry: a write, or a mark. The kinds of marks are the classes below.

A mark is a barrier: a replica acknowledges a mark only when its disk has the mark, even in an `async` keyspace (where
the operating system is enough for writes).
"""

from typing import Final

import msgspec

from minka.cluster.key_ranges import KeyRange
from minka.wire.kv_frames import WriteBody, decode_stored_write, decode_write

_MARK: Final = b"\xc1"  # MessagePack never uses this byte, so a write can't begin with it
_STORED: Final = b"\x93"  # MessagePack's array of three: a stored write; a client's write has another length
_encode: Final = msgspec.msgpack.Encoder().encode


class SplitMarker(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=1):
    """The upper half of the keys belongs to another partition from here on, the child: entries after the marker have no
    key of the upper half. The child begins with the parent's data from before the marker.
    """

    child_id: int
    partition_epoch: int  # of the row that asks for the split


class TrimToRange(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=2):
    """Each replica removes the keys outside of the range, all at the same place of the log. Entries after the mark may
    have keys outside of the range again.
    """

    start: bytes
    end: bytes
    partition_epoch: int = 0  # of the leader's row when it appended the mark
    copies_follow: bool = False  # a merge begins: later entries have another partition's keys, outside of the range

    @property
    def range(self) -> KeyRange:
        """The keys that stay."""
        return KeyRange(self.start, self.end)


class SnapshotMark(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=3):
    """Each replica keeps its data as of this mark, under this id, for readers. The snapshot's version is the mark's
    offset.
    """

    id: str
    taken_ms: int  # by the leader's wall clock; a replica that applies the mark much later keeps nothing
    start: bytes
    end: bytes


class IngestMark(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=4):
    """Each replica takes in the file of this name from the load's spool, unless it has taken in the load before."""

    load_number: int
    floor: int  # the leader knows that loads with smaller numbers are over
    name: str
    bytes: int  # of the file
    checksum: int  # of the file: CRC-32
    rows: int
    data_bytes: int  # of keys and values


Mark = SplitMarker | TrimToRange | SnapshotMark | IngestMark

_decode_mark: Final = msgspec.msgpack.Decoder(Mark).decode


def is_mark(body: bytes) -> bool:
    """True if the entry isn't a write."""
    return body.startswith(_MARK)


def encode_mark(mark: Mark) -> bytes:
    """The mark as the body of an entry."""
    return _MARK + _encode(mark)


def decode_entry(body: bytes) -> WriteBody | Mark:
    """The content of an entry."""
    if not is_mark(body):
        return decode_stored_write(body) if body.startswith(_STORED) else decode_write(body)
    mark: Mark = _decode_mark(body[1:])
    return mark
