"""What nodes send each other about replicas: MessagePack arrays as raw gRPC messages.

`APPEND_METHOD` is one stream from each leader's node to each follower's, for all their partitions: `Frame`s one way,
`Answer`s the other. The leader probes where a follower stands, finds how far both logs are the same, and appends what
the follower lacks; the follower acknowledges what it has. `SHIP_METHOD` is one call a checkpoint: a `ShipHeader`, the
content of its files in their order as raw chunks, a `ShipTrailer`; the answer is a `Shipped`.
"""

from enum import IntEnum
from typing import Final

import msgspec

APPEND_METHOD: Final = "/minka.v1.Replication/Append"
SHIP_METHOD: Final = "/minka.v1.Replication/Ship"


class Entry(msgspec.Struct, array_like=True, gc=False):
    """An entry of a partition's log; its offset follows from its place."""

    leader_epoch: int
    body: bytes


class Append(msgspec.Struct, array_like=True, gc=False):
    """For one partition: the entries behind `prev_offset`, what is committed, and where the leader's epoch starts,
    before which more may have been.

    With `probe`, a question for where the follower stands. With `cut`, the follower's log is to end at `prev_offset`
    first: what it has behind that is not the leader's.
    """

    partition_id: int
    leader_epoch: int
    prev_offset: int
    high_watermark: int
    epoch_start: int
    entries: list[Entry]
    probe: bool = False
    cut: bool = False


class Frame(msgspec.Struct, array_like=True, gc=False):
    """From a leader's node. `dropped`: partitions of which nothing more comes on this stream.

    `echo` is None in most, else 0 or the newest `stamp` that the leader's node has received: all of its high watermarks
    as they were at some moment after that are in this frame and those before it.
    """

    appends: list[Append]
    dropped: list[int]
    echo: float | None


class Standing(IntEnum):
    """What an Ack says."""

    STORED = 0  # everything up to the offset is in the log here, as durably as the keyspace asks
    NEEDS_CHECKPOINT = 1  # what is here can't be continued


class KeptFile(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A file that is left of a checkpoint whose transfer broke: its size in bytes, its CRC-32."""

    name: str
    size: int
    checksum: int


class Ack(msgspec.Struct, array_like=True, gc=False):
    """A follower's answer for one partition. The answer to a probe also has the leaderships along the follower's log,
    as (first offset, leader_epoch), and what is left of a checkpoint that broke.
    """

    partition_id: int
    leader_epoch: int
    standing: int
    offset: int
    lineage: list[tuple[int, int]] | None = None
    kept: list[KeptFile] = []


class Answer(msgspec.Struct, array_like=True, gc=False):
    """From a follower's node; `stamp` is its clock as it was sent."""

    acks: list[Ack]
    stamp: float


class ShipHeader(msgspec.Struct, array_like=True, gc=False):
    """What comes: (name, size in bytes) of each file, and the names of those that the target has kept and that do not
    come again.
    """

    partition_id: int
    leader_epoch: int
    files: list[tuple[str, int]]
    kept: list[str] = []


class ShipTrailer(msgspec.Struct, array_like=True, gc=False):
    """The CRC-32 of each file."""

    checksums: list[int]


class Shipped(msgspec.Struct, array_like=True, gc=False):
    """The checkpoint is in place, durably; it holds everything up to `offset`."""

    offset: int


encode: Final = msgspec.msgpack.Encoder().encode
decode_frame: Final = msgspec.msgpack.Decoder(Frame).decode
decode_answer: Final = msgspec.msgpack.Decoder(Answer).decode
decode_header: Final = msgspec.msgpack.Decoder(ShipHeader).decode
decode_trailer: Final = msgspec.msgpack.Decoder(ShipTrailer).decode
decode_shipped: Final = msgspec.msgpack.Decoder(Shipped).decode
