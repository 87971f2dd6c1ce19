"""What the entries of a partition's log say: a write, or that the partition was split here."""

from typing import Final

import msgspec

from minka.wire import WriteBody, decode_write

_MARK: Final = b"\xc1"  # begins no MessagePack, hence no write of a client
_encode: Final = msgspec.msgpack.Encoder().encode


class SplitMarker(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """What comes behind it has no key of the upper half, which is another partition's; what came before is all it has.

    `partition_epoch` is that of the row that says so.
    """

    child_id: int
    partition_epoch: int

    def encode(self) -> bytes:
        """As the body of an entry."""
        return _MARK + _encode(self)


_decode_marker: Final = msgspec.msgpack.Decoder(SplitMarker).decode


def is_marker(body: bytes) -> bool:
    """Whether the entry says that the partition was split."""
    return body.startswith(_MARK)


def decode_entry(body: bytes) -> WriteBody | SplitMarker:
    """The content of an entry."""
    return _decode_marker(body[1:]) if is_marker(body) else decode_write(body)
