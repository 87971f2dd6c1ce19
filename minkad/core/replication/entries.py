"""The content of a log entry: a write, or a mark. A mark says that the partition was split here, which keys it keeps,
that a snapshot is taken here, or that the file of a load is taken in.

Marks are barriers: a replica that acknowledges a mark has it on its disk, even in an `async` keyspace, whose writes
reach the disk a little later.
"""

from typing import Final

import msgspec

from minka.cluster.key_ranges import KeyRange
from minka.wire.kv_frames import WriteBody, decode_stored_write, decode_write

_MARK: Final = b"\xc1"  # no MessagePack begins with it, so no write of a client does
_STORED: Final = b"\x93"  # an array of three; a client's write never is
_encode: Final = msgspec.msgpack.Encoder().encode


class SplitMarker(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=1):
    """The entries after it have no key of the upper half, which belongs to another partition, the child. The child
    begins with the data from before the marker.

    `partition_epoch`: of the row that asks for the split.
    """

    child_id: int
    partition_epoch: int


class TrimToRange(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=2):
    """Keys outside of the range are removed, by each replica at the same place of the log. Later entries may have keys
    outside of it again. With `copies_follow` they do: a merge copies the keys of another partition.
    """

    start: bytes
    end: bytes
    partition_epoch: int = 0  # of the leader's row when it appended the mark
    copies_follow: bool = False

    @property
    def range(self) -> KeyRange:
        """The keys that stay."""
        return KeyRange(self.start, self.end)


class SnapshotMark(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=3):
    """Each replica keeps its data as of here under this id, for readers; its version is the mark's offset.

    `taken_ms` is the leader's wall clock: a replica that comes here much later keeps nothing.
    """

    id: str
    taken_ms: int
    start: bytes
    end: bytes


class IngestMark(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=4):
    """Each replica takes in the file of this name from the load's spool, unless it has taken in the load before. The
    file has `bytes` bytes with this CRC-32, and `rows` rows with `data_bytes` bytes of keys and values.

    `floor`: the leader knows that loads with smaller numbers are over.
    """

    load_number: int
    floor: int
    name: str
    bytes: int
    checksum: int
    rows: int
    data_bytes: int


Mark = SplitMarker | TrimToRange | SnapshotMark | IngestMark
SlowMark = SplitMarker | SnapshotMark | IngestMark
"""Marks that a replica carries out in a separate task; it applies nothing meanwhile."""

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
