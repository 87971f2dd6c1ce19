"""The messages of replication between nodes: MessagePack arrays.

There is one stream from each leader's node to each follower's, for all their partitions: `Frame`s one way, `Answer`s
the other. The leader probes where a follower stands, finds how far both logs agree, and appends what the follower
lacks; the follower acknowledges what it has. Each checkpoint has its own stream: a `ShipHeader`, the content of its
files in order as raw chunks, a `ShipTrailer`; the answer is a `Shipped`.
"""

from typing import Final

import msgspec

from minkad.core.replication.peer_messages import Ack, Append


class Frame(msgspec.Struct, array_like=True, gc=False):
    """A message from a leader's node. `dropped`: partitions for which nothing more comes on this stream.

    `echo` is None in most frames, else 0 or the newest `stamp` that the leader's node has received: this frame and
    earlier ones have all of its high watermarks as of some moment after that. `stream_number` grows with each stream of
    the leader's process to this node.
    """

    appends: list[Append]
    dropped: list[int]
    echo: float | None
    stream_number: int = 0


class Answer(msgspec.Struct, array_like=True, gc=False):
    """A message from a follower's node; `stamp` is its clock at the time of sending, in seconds."""

    acks: list[Ack]
    stamp: float


class ShipHeader(msgspec.Struct, array_like=True, gc=False):
    """The first message of a checkpoint: (name, size in bytes) of each file, and the names of the files that the target
    has kept, which are not sent again.
    """

    partition_id: int
    leader_epoch: int
    files: list[tuple[str, int]]
    kept: list[str] = []


class ShipTrailer(msgspec.Struct, array_like=True, gc=False):
    """The last message of a checkpoint: the CRC-32 of each file, in order."""

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
