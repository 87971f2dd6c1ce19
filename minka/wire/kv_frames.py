"""Frames with clients' reads and writes, and with the nodes' answers. They travel on the data port.

Frames are MessagePack arrays. Each message has a cost that doesn't depend on its size, so one frame carries operations
for many partitions of one node. The body of a plain write goes into the partition's log, and to the followers, as the
client sent it.
"""

from enum import IntEnum
from typing import Annotated, Final

import msgspec

MAX_VALUE_BYTES: Final = 16 * 1024 * 1024
MAX_BODY_BYTES: Final = 32 * 1024 * 1024
MAX_FRAME_BYTES: Final = 34 * 1024 * 1024  # a group of 32 MiB may follow groups that nearly fill a frame of 1 MiB
MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024  # for all results of a frame; a result beyond that is refused with TOO_LARGE
MAX_GROUPS: Final = 1024
MAX_KEYS: Final = 1_000_000  # the most keys in one group

_Unsigned = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Op(IntEnum):
    """The kind of a group's operations."""

    READ = 0
    WRITE = 1
    READ_STALE = 2  # any replica answers, and says how old its data may be
    SCAN = 3  # for keyspaces by ranges: a page of the pairs in a range, in order
    OPERATE = 4  # see minka.wire.key_operations
    READ_VERSIONED = 5


WRITING: Final = frozenset({Op.WRITE, Op.OPERATE})


class Group(msgspec.Struct, array_like=True, gc=False):
    """Operations for one partition. `body` is encoded: a `WriteBody`, a `ScanBody`, a `ReadBody` for all kinds of
    reads, and for OPERATE a list of `minka.wire.key_operations.Operation`.
    """

    op: int
    partition_id: _Unsigned
    generation: _Unsigned
    body: bytes


class Request(msgspec.Struct, array_like=True, gc=False):
    """One frame from the client. `timeout_ms` is the time that the callers have left when the frame is sent. All
    results together have at most `max_bytes`; a group whose result would exceed that is refused with TOO_LARGE, and
    nothing of it is done.
    """

    id: int
    timeout_ms: _Unsigned
    groups: Annotated[list[Group], msgspec.Meta(max_length=MAX_GROUPS)]
    max_bytes: _Unsigned = MAX_ANSWER_BYTES


class GroupResult(msgspec.Struct, array_like=True, gc=False):
    """The result of a group. `error` is a serialized `minka.v1.Error` or None. `body` is encoded. By the group's op, it
    is:

    - READ: a `ReadResult`; READ_STALE: a `StaleResult`; SCAN: a `ScanPage`
    - OPERATE: a list with an `Outcome` for each operation (`minka.wire.key_operations`)
    - READ_VERSIONED: a list that has, for each key, a `Versioned` (`minka.wire.key_operations`) or None
    - any other op: None
    """

    error: bytes | None
    body: bytes | None


class Response(msgspec.Struct, array_like=True, gc=False):
    """One frame to the client: a result for each group of the request with this id, in order."""

    id: int
    results: list[GroupResult]


class WriteBody(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """Pairs, applied in order: `values[i]` is for `keys[i]`, and None deletes the key."""

    keys: Annotated[list[bytes], msgspec.Meta(max_length=MAX_KEYS)]
    values: Annotated[list[bytes | None], msgspec.Meta(max_length=MAX_KEYS)]


class StoredWrite(WriteBody, array_like=True, gc=False):
    """A write that a leader made, from operations on keys or in a merge. It occurs only in logs. The values are in
    their stored form, see `stored_values`. Later writes of the partition get versions above `floor`.
    """

    floor: int = 0


ReadBody = Annotated[list[bytes], msgspec.Meta(max_length=MAX_KEYS)]
ReadResult = list[bytes | None]


class StaleResult(msgspec.Struct, array_like=True, gc=False):
    """The values. They may lack only writes that are younger than `age_ms` milliseconds at the time of the read."""

    age_ms: int
    values: list[bytes | None]


class ScanBody(msgspec.Struct, array_like=True, gc=False):
    """The request of a scan: the pairs with start <= key < end, where b"" means no bound. With `reverse` the pairs
    come in descending order. A page has at most `max_rows` rows and `max_bytes` bytes, but at least one row if the
    range has any.
    """

    start: bytes
    end: bytes
    reverse: bool
    max_rows: _Unsigned
    max_bytes: _Unsigned
    only_keys: bool = False  # True: the page has no values


class ScanPage(msgspec.Struct, array_like=True, gc=False):
    """All pairs with start <= key < end, in the order of the scan: `values[i]` is for `keys[i]`. This range is the
    first part, in the order of the scan, of the requested range; it ends at the partition's end, or earlier. There are
    no values if only the keys were requested.
    """

    keys: list[bytes]
    values: list[bytes]
    start: bytes
    end: bytes


UNDECODABLE: Final = (msgspec.MsgspecError, ValueError)  # errors of decoding; ValueError: a text isn't UTF-8

encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(Request).decode
decode_response: Final = msgspec.msgpack.Decoder(Response).decode
decode_write: Final = msgspec.msgpack.Decoder(WriteBody).decode
decode_stored_write: Final = msgspec.msgpack.Decoder(StoredWrite).decode
decode_read: Final = msgspec.msgpack.Decoder(ReadBody).decode
decode_values: Final = msgspec.msgpack.Decoder(ReadResult).decode
decode_scan: Final = msgspec.msgpack.Decoder(ScanBody).decode
decode_page: Final = msgspec.msgpack.Decoder(ScanPage).decode
decode_stale: Final = msgspec.msgpack.Decoder(StaleResult).decode
