"""The format of a node's history, on disk and in messages: a row for each partition and interval, in columns. A block
has its rows as fixed-size structs, transposed and compressed (like Blosc's shuffle): first the first byte of each row,
then the second byte of each row, and so on. This compresses well, since most rows have the same byte at the same place
in the struct. A node passes blocks on as they are, and the reader unpacks them.
"""

import struct
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from minka.errors import Code, MinkaError

FORMAT: Final = 1  # the number of this layout of the rows in a block
MAX_ROWS: Final = 1000  # the most rows in a block

# Buckets of requests by the time that they took. Bucket 0 is below 16 µs. Above that, every two buckets double the
# time (bounds at 22.6, 32, 45, 64 µs …). The last bucket begins at 8.4 s.
BUCKETS: Final = 40
_FIRST_S: Final = 16e-6
_BOUNDS_S: Final = tuple(_FIRST_S * 2 ** (number / 2) for number in range(BUCKETS - 1))

_HEAD: Final = struct.Struct("<IIBIIQQQQ")
_HISTOGRAM: Final = struct.Struct(f"<{BUCKETS}I")
_ROW_BYTES: Final = _HEAD.size + 2 * _HISTOGRAM.size
_MAX_UNPACKED: Final = _ROW_BYTES * MAX_ROWS
_MAX_COUNT: Final = 2**32 - 1
NO_LATENCY: Final = (0,) * BUCKETS


@dataclass(frozen=True, slots=True)
class PartitionInterval:
    """The traffic of one replica of a partition in an interval, and the replica's size at the end. Only a replica that
    serves clients has operations: the leader, and others that answer stale reads.

    Each key that is read or written is an operation; a page of a scan counts as 1 plus a tenth of its rows.
    `bytes_read` counts the bodies of answers, and `bytes_written` the bodies of requests. `reads_took[i]` and
    `writes_took[i]` are the numbers of requests in bucket i, by the time from a request's arrival at the node to its
    answer (see `quantile_ms`). The keys of one request that are in one partition count as one request.
    """

    partition_id: int
    keyspace_id: int
    leads: bool
    reads: int = 0
    writes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes: int = 0
    keys: int = 0
    reads_took: Sequence[int] = NO_LATENCY
    writes_took: Sequence[int] = NO_LATENCY

    @property
    def ops(self) -> int:
        """The number of reads and writes."""
        return self.reads + self.writes


def bucket(seconds: float) -> int:
    """The bucket of a request that took `seconds`."""
    return bisect_right(_BOUNDS_S, seconds)


def upper_ms(number: int) -> float:
    """The upper end of a bucket, in milliseconds. The last bucket has no end: for it, this is 1.41 times its start."""
    return float(_FIRST_S * 2 ** (number / 2) * 1000)


def quantile_ms(took: Sequence[int], share: float) -> float | None:
    """The time, in milliseconds, within which a share of the requests were answered (`share` 0.99: 99 %); None without
    any request. The result is the upper end of a bucket, so it is at most 1.41 times too large. Only below 16 µs
    and above 8.4 s the error can be larger.
    """
    left = share * sum(took)
    if not left:
        return None
    for number, count in enumerate(took):
        left -= count
        if left <= 1e-9:
            return upper_ms(number)
    return upper_ms(BUCKETS - 1)


def pack(rows: Sequence[PartitionInterval]) -> bytes:
    """The block of these rows, at most MAX_ROWS."""
    assert len(rows) <= MAX_ROWS, len(rows)
    plain = b"".join([_packed(row) for row in rows])
    return zlib.compress(b"".join([plain[place::_ROW_BYTES] for place in range(_ROW_BYTES)]), 1) if rows else b""


def _packed(row: PartitionInterval) -> bytes:
    head = _HEAD.pack(
        row.partition_id,
        row.keyspace_id,
        row.leads,
        min(row.reads, _MAX_COUNT),
        min(row.writes, _MAX_COUNT),
        row.bytes_read,
        row.bytes_written,
        row.bytes,
        row.keys,
    )
    return head + _HISTOGRAM.pack(*row.reads_took) + _HISTOGRAM.pack(*row.writes_took)


def unpack(packed: bytes, count: int, layout: int = FORMAT) -> list[PartitionInterval]:
    """The rows of a block. Raises CORRUPT_DATA if the block hasn't `count` rows, INVALID_ARGUMENT for an unknown
    layout.
    """
    if layout != FORMAT:
        raise MinkaError(
            Code.INVALID_ARGUMENT, f"the history has rows of layout {layout}, but this version reads {FORMAT}"
        )
    try:
        unpacker = zlib.decompressobj()
        columns = unpacker.decompress(packed, _MAX_UNPACKED) if packed else b""
    except zlib.error as error:
        raise MinkaError(Code.CORRUPT_DATA, f"a block of the history can't be unpacked: {error}") from error
    if len(columns) != count * _ROW_BYTES:
        raise MinkaError(Code.CORRUPT_DATA, f"a block of the history has {len(columns)} bytes for {count} rows")
    plain = bytearray(len(columns))
    for place in range(_ROW_BYTES if count else 0):
        plain[place::_ROW_BYTES] = columns[place * count : (place + 1) * count]
    return [_unpacked(plain, offset) for offset in range(0, len(plain), _ROW_BYTES)]


def _unpacked(plain: bytearray, offset: int) -> PartitionInterval:
    id_, keyspace, leads, reads, writes, bytes_read, bytes_written, size, keys = _HEAD.unpack_from(plain, offset)
    reads_took = _HISTOGRAM.unpack_from(plain, offset + _HEAD.size)
    writes_took = _HISTOGRAM.unpack_from(plain, offset + _HEAD.size + _HISTOGRAM.size)
    return PartitionInterval(
        partition_id=id_,
        keyspace_id=keyspace,
        leads=bool(leads),
        reads=reads,
        writes=writes,
        bytes_read=bytes_read,
        bytes_written=bytes_written,
        bytes=size,
        keys=keys,
        reads_took=reads_took,
        writes_took=writes_took,
    )
