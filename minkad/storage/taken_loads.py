"""Which loads a partition's data has taken in: kept with its applied offset, so in each checkpoint of it, too."""

from typing import Final

import msgspec


class TakenLoads(msgspec.Struct, array_like=True, gc=False):
    """By number: the offset of its mark in the partition's log. Those below `floor` are over everywhere: what is not
    among them is as good as taken in.

    A split's child has its parent's, whose marks came before its own log. A merge leaves them as they are: it is a
    partition's own leader alone that puts a load's mark into its log, and there is none for those of the other one.
    """

    offsets: dict[int, int] = {}
    floor: int = 0

    def has(self, number: int) -> bool:
        """Whether it is no longer to be taken in."""
        return number < self.floor or number in self.offsets

    def with_load(self, number: int, offset: int, floor: int, log_base: int) -> "TakenLoads":
        """The same with one more. Those below the floor are forgotten once the log, which begins after `log_base`, no
        longer has their marks.
        """
        floor = max(floor, self.floor)
        offsets = {**self.offsets, number: offset}
        kept = {one: at for one, at in offsets.items() if one >= floor or at > log_base}
        return TakenLoads(kept, floor)

    def is_in_log(self, number: int, log_base: int) -> bool:
        """Whether its mark is taken in, and still in the log that has everything after `log_base`."""
        return self.offsets.get(number, 0) > log_base

    def encode(self) -> bytes:
        """The bytes that are stored; b"" for none."""
        return _encode(self) if self.offsets or self.floor else b""

    @classmethod
    def decode(cls, data: bytes) -> "TakenLoads":
        """What the bytes that were stored say."""
        return _decode(data) if data else cls()


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(TakenLoads).decode
