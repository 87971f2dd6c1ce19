"""The applied offset of a partition's data, with its leader_epoch."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Applied:
    """The last entry of the partition's log that is in the data: its offset and leader_epoch. (0, 0): none is."""

    BYTES: ClassVar[int] = 12

    offset: int = 0
    leader_epoch: int = 0

    def encode(self) -> bytes:
        """The stored bytes."""
        return self.offset.to_bytes(8, "big") + self.leader_epoch.to_bytes(4, "big")

    @classmethod
    def decode(cls, data: bytes | None) -> "Applied":
        """The content of the stored bytes; None: nothing is applied."""
        if data is None:
            return cls()
        return cls(int.from_bytes(data[:8], "big"), int.from_bytes(data[8 : cls.BYTES], "big"))
