"""The form in which a value is stored: a head with the version and the expiry, then the value. The head has 8 bytes,
big-endian: the version, shifted left by one bit. If the head's lowest bit is 1, 8 more bytes follow: the expiry in Unix
milliseconds. Example: version 5 without an expiry is 00 00 00 00 00 00 00 0a. In files of loads the version is 0, since
a file may be written long before a partition takes it in: see `LOADED`.
"""

from collections.abc import Sequence
from typing import Final

from minka.wire.key_operations import Versioned

HEAD_BYTES: Final = 8
MAX_HEAD_BYTES: Final = HEAD_BYTES + 8  # the size of a head with an expiry
LOADED: Final = bytes(HEAD_BYTES)  # the head of a row in a load's file
# Loaded rows have versions above this. All loaded rows of a partition have the same version, which changes with each
# load that the partition takes in.
LOAD_VERSIONS: Final = 2**62

_INDEX_BITS: Final = 14  # a version's lowest bits: the number of the operation in its log entry

_FLAG_AT: Final = HEAD_BYTES - 1


def version_at(place: int, number: int = 0) -> int:
    """The version of a value that an operation writes. `place` is the offset of the operation's log entry plus
    the replica's version base. `number` is the operation's number in the entry, below MAX_OPERATIONS.
    """
    return place << _INDEX_BITS | number


def head(version: int, expires_ms: int = 0) -> bytes:
    """The bytes before the value. If `expires_ms` is 0, the value never expires."""
    if not expires_ms:
        return (version << 1).to_bytes(HEAD_BYTES, "big")
    return (version << 1 | 1).to_bytes(HEAD_BYTES, "big") + expires_ms.to_bytes(8, "big")


def value_of(stored: bytes) -> bytes:
    """The value without its head."""
    return stored[HEAD_BYTES:] if not stored[_FLAG_AT] & 1 else stored[HEAD_BYTES + 8 :]


def has_value(stored: bytes, value: bytes) -> bool:
    """True if the value is `value`; this copies nothing."""
    head_bytes = MAX_HEAD_BYTES if stored[_FLAG_AT] & 1 else HEAD_BYTES
    return len(stored) - len(value) == head_bytes and stored.endswith(value)


def values_of(stored: Sequence[bytes | None]) -> list[bytes | None]:
    """The values without their heads; None where there is no value."""
    return [None if one is None else one[HEAD_BYTES:] if not one[_FLAG_AT] & 1 else value_of(one) for one in stored]


def expiry_of(stored: bytes) -> int:
    """The time of expiry, in Unix milliseconds; 0: never."""
    return int.from_bytes(stored[HEAD_BYTES : HEAD_BYTES + 8], "big") if stored[_FLAG_AT] & 1 else 0


def has_expired(stored: bytes, now_ms: int) -> bool:
    """True if the value has expired at this time, in Unix milliseconds."""
    return bool(stored[_FLAG_AT] & 1) and expiry_of(stored) <= now_ms


def version_of(stored: bytes) -> int:
    """The version; 0 for a row of a load's file."""
    return int.from_bytes(stored[:HEAD_BYTES], "big") >> 1


def with_version(stored: bytes, loaded_version: int) -> bytes:
    """The value, with `loaded_version` in its head if it is a row of a load's file. So the row keeps its version when a
    merge copies it into a partition that has taken in other loads.
    """
    return head(loaded_version) + stored[HEAD_BYTES:] if stored.startswith(LOADED) else stored


def versioned(stored: bytes, loaded_version: int) -> Versioned:
    """The value with its version and expiry. `loaded_version` is the version of loaded rows in this partition."""
    return Versioned(value_of(stored), version_of(stored) or loaded_version, expiry_of(stored))
