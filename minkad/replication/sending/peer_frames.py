"""The messages of replication between nodes: MessagePack arrays.

There is one stream from each leaders' node to each followers' node, for all partitions of these two: `Frame`s one way,
`Answer`s the other. The leader probes where a follower stands, finds how far both logs agree, and sends the entries
that the follower lacks; the follower acknowledges them. Each checkpoint has its own stream: a `ShipHeader`, the content
of the files in order as raw chunks, a `ShipTrailer`. The answer is a `Shipped`.
"""

from typing import Final

import msgspec

from minkad.core.replication.peer_messages import Ack, Append


class Frame(msgspec.Struct, array_like=True, gc=False):
    """A message from a leaders' node."""

    appends: list[Append]
    dropped: list[int]  # partitions for which nothing more comes on this stream
    # The newest `stamp` that the leaders' node has received: by this time of the follower's clock, nothing was
    # committed after the high watermarks of this frame and earlier ones. 0: the leaders' node has no stamp, or no
    # clearance. None, in most frames: the frame lacks high watermarks.
    echo: float | None
    stream_number: int = 0  # grows with each stream of the leaders' process to this node


class Answer(msgspec.Struct, array_like=True, gc=False):
    """A message from a follower's node; `stamp` is its clock at the time of sending, in seconds."""

    acks: list[Ack]
    stamp: float


class ShipHeader(msgspec.Struct, array_like=True, gc=False):
    """The first message of a checkpoint."""

    partition_id: int
    leader_epoch: int
    files: list[tuple[str, int]]  # (name, size in bytes) of each
    kept: list[str] = []  # the names of files that the target has already, so they aren't sent


class ShipTrailer(msgspec.Struct, array_like=True, gc=False):
    """The last message of a checkpoint: the CRC-32 of each file, in order."""

    checksums: list[int]


class Shipped(msgspec.Struct, array_like=True, gc=False):
    """The checkpoint is in place, durably; it has the data up to `offset`."""

    offset: int


encode: Final = msgspec.msgpack.Encoder().encode
decode_frame: Final = msgspec.msgpack.Decoder(Frame).decode
decode_answer: Final = msgspec.msgpack.Decoder(Answer).decode
decode_header: Final = msgspec.msgpack.Decoder(ShipHeader).decode
decode_trailer: Final = msgspec.msgpack.Decoder(ShipTrailer).decode
decode_shipped: Final = msgspec.msgpack.Decoder(Shipped).decode
