"""What nodes send each other about replicas: MessagePack arrays as raw gRPC messages.

`APPEND_METHOD` is one stream from each leader's node to each follower's, for all their partitions. The leader probes
where a follower stands, then appends what it lacks; the follower acknowledges what is durable. `SHIP_METHOD` is one
call a checkpoint: a `ShipHeader`, the content of its files in their order as raw chunks, a `ShipTrailer`; the answer is
a `Shipped`.
"""

from enum import IntEnum
from typing import Final

import msgspec

APPEND_METHOD: Final = "/minka.v1.Replication/Append"
SHIP_METHOD: Final = "/minka.v1.Replication/Ship"


class Entry(msgspec.Struct, array_like=True, gc=False):
    """An entry of a partition's log; its offset follows from its place in an Append."""

    leader_epoch: int
    body: bytes


class Append(msgspec.Struct, array_like=True, gc=False):
    """For one partition: the entries behind `prev_offset`. With `probe`, a question for where the follower stands."""

    partition_id: int
    leader_epoch: int
    prev_offset: int
    high_watermark: int
    entries: list[Entry]
    probe: bool = False


class Standing(IntEnum):
    """What an Ack says."""

    DURABLE = 0  # of this leader_epoch, everything up to the offset is durable here
    FRESH = 1  # there is nothing here yet, so entries from offset 1 on or a checkpoint
    NEEDS_CHECKPOINT = 2  # what is here is of another leadership or incomplete


class Ack(msgspec.Struct, array_like=True, gc=False):
    """A follower's answer for one partition; `answers_probe` tells an answer to a probe from the rest."""

    partition_id: int
    leader_epoch: int
    standing: int
    offset: int
    answers_probe: bool = False


class ShipHeader(msgspec.Struct, array_like=True, gc=False):
    """What comes: (name, size in bytes) of each file."""

    partition_id: int
    leader_epoch: int
    files: list[tuple[str, int]]


class ShipTrailer(msgspec.Struct, array_like=True, gc=False):
    """The CRC-32 of each file."""

    checksums: list[int]


class Shipped(msgspec.Struct, array_like=True, gc=False):
    """The checkpoint is in place, durably; it holds everything up to `offset`."""

    offset: int


encode: Final = msgspec.msgpack.Encoder().encode
decode_appends: Final = msgspec.msgpack.Decoder(list[Append]).decode
decode_acks: Final = msgspec.msgpack.Decoder(list[Ack]).decode
decode_header: Final = msgspec.msgpack.Decoder(ShipHeader).decode
decode_trailer: Final = msgspec.msgpack.Decoder(ShipTrailer).decode
decode_shipped: Final = msgspec.msgpack.Decoder(Shipped).decode
