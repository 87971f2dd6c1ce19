"""The loads that a partition's data has taken in. They are stored with the applied offset, so checkpoints have them."""

from typing import Final

import msgspec


class TakenLoads(msgspec.Struct, array_like=True, gc=False):
    """A split's child begins with its parent's loads: their marks are in the parent's log, before the split. A merge
    doesn't change the loads of the partition that stays: its log has no marks of the other partition's loads.
    """

    offsets: dict[int, int] = {}  # load number -> the offset of its mark in the partition's log
    floor: int = 0  # loads with smaller numbers have ended everywhere: they count as taken in, even without an offset

    def has(self, number: int) -> bool:
        """True if the load counts as taken in."""
        return number < self.floor or number in self.offsets

    def with_load(self, number: int, offset: int, floor: int, log_base: int) -> "TakenLoads":
        """These loads and load `number`. The log begins after `log_base`; loads below the floor are forgotten once the
        log no longer has their marks.
        """
        floor = max(floor, self.floor)
        offsets = {**self.offsets, number: offset}
        kept = {one: at for one, at in offsets.items() if one >= floor or at > log_base}
        return TakenLoads(kept, floor)

    def is_in_log(self, number: int, log_base: int) -> bool:
        """True if the load is taken in, and its mark is in the log, which begins after `log_base`."""
        return self.offsets.get(number, 0) > log_base

    def encode(self) -> bytes:
        """The stored bytes; b"" for none."""
        return _encode(self) if self.offsets or self.floor else b""

    @classmethod
    def decode(cls, data: bytes) -> "TakenLoads":
        """The content of the stored bytes."""
        return _decode(data) if data else cls()


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(TakenLoads).decode
