"""Turns the writes of a log into rows with versions: see `minka.wire.stored_values`."""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from minka.wire.kv_frames import StoredWrite, WriteBody
from minka.wire.stored_values import LOAD_VERSIONS, head, version_at
from minkad.storage.taken_loads import TakenLoads

_STORED: Final = struct.Struct(">q?")
_EXPIRES: Final = 1  # in the last byte of a head


class Versions(NamedTuple):
    """Both fields follow from the log alone. They are kept with the data, so each checkpoint has them, too."""

    # The version of an entry's rows comes from offset + base: see `version_at`. In a merge, the other partition's rows
    # keep their versions, and the base is raised above these. So two values of a key never have equal versions.
    base: int = 0
    may_expire: bool = False  # a row with an expiry was written at some time, though perhaps none is left

    def rows_of(self, writes: Sequence[WriteBody], last_offset: int) -> "tuple[dict[bytes, bytes | None], Versions]":
        """The newest rows of the writes, in their stored form (None: deleted), and the `Versions` for later ones.
        `last_offset` is the offset of the last write; the others have the offsets before it.
        """
        base, may_expire = self
        newest: dict[bytes, bytes | None] = {}
        for offset, write in enumerate(writes, last_offset - len(writes) + 1):
            if isinstance(write, StoredWrite):
                base = max(base, write.floor - offset)
                newest.update(zip(write.keys, write.values, strict=True))
                may_expire = may_expire or any(row and row[7] & _EXPIRES for row in write.values)
            else:
                first = head(version_at(offset + base))
                rows = [None if value is None else first + value for value in write.values]
                newest.update(zip(write.keys, rows, strict=True))
        return newest, Versions(base, may_expire)

    def encode(self) -> bytes:
        """The stored bytes."""
        return _STORED.pack(self.base, self.may_expire)

    @classmethod
    def decode(cls, data: bytes) -> "Versions":
        """The content of the stored bytes."""
        return cls(*_STORED.unpack(data))


def loaded_version(loads: TakenLoads) -> int:
    """The version of all loaded rows in a partition that has taken in these loads. The version changes with each load,
    so rows of two loads never have equal versions.
    """
    return LOAD_VERSIONS + max(loads.floor, max(loads.offsets, default=0))
