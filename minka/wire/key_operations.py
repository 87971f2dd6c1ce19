"""Operations on single keys whose effect depends on the present value: conditional writes, counters, expiry.

The leader of a partition decides these operations one after the other, in the order of its log. It decides by the state
after all entries of the log, including those that aren't applied yet, and puts the resulting plain writes into the log.
So no client has to read a value and write it back, and two simultaneous increments count as two.
"""

from enum import IntEnum
from typing import Annotated, Final

import msgspec

MAX_OPERATIONS: Final = 10_000  # the most operations in one group

MAX_EXPIRY_MS: Final = 2**63 - 1
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=MAX_EXPIRY_MS)]
_Unsigned = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
MAX_VERSION: Final = 2**63 - 1  # the versions of loaded rows are above 2**62
_Version = Annotated[int, msgspec.Meta(ge=0, le=MAX_VERSION)]


class If(IntEnum):
    """The condition of a `Set`."""

    ALWAYS = 0
    ABSENT = 1
    PRESENT = 2
    VALUE = 3  # the value is `expected`
    VERSION = 4  # the version is `version`; 0: the key is absent


class Lifetime(IntEnum):
    """The meaning of `ms`, which gives a key's expiry in milliseconds."""

    UNLIMITED = 0
    KEPT = 1  # the expiry stays as it was
    FOR = 2  # `ms` after the leader's decision, by the leader's clock, and at most MAX_EXPIRY_MS
    UNTIL = 3  # `ms` after the epoch (Unix time)


class OnlyIf(IntEnum):
    """The condition of an `Expire`, in addition to the key's existence. A key without an expiry counts as
    if its expiry were later than any time.
    """

    ALWAYS = 0
    UNLIMITED = 1  # the key has no expiry
    LIMITED = 2
    LATER = 3  # the new expiry is later than the present expiry
    EARLIER = 4
    LIMITED_EARLIER = 5  # LIMITED and EARLIER


class Set(msgspec.Struct, array_like=True, gc=False, frozen=True, forbid_unknown_fields=True, tag=0):
    """Put a value, or delete the key (None). `Outcome.done` is true if the condition held. With `wants_value`,
    `Outcome.value` is the former value, also if the condition didn't hold.
    """

    key: bytes
    value: bytes | None
    condition: If = If.ALWAYS
    expected: bytes = b""
    version: _Version = 0
    lifetime: Lifetime = Lifetime.UNLIMITED
    ms: _Milliseconds = 0
    wants_value: bool = False


class Add(msgspec.Struct, array_like=True, gc=False, frozen=True, forbid_unknown_fields=True, tag=1):
    """Add to a signed decimal number of 64 bits; an absent value counts as 0. `Outcome.number` is the sum."""

    key: bytes
    by: int


class AddFloat(msgspec.Struct, array_like=True, gc=False, frozen=True, forbid_unknown_fields=True, tag=2):
    """Add to a decimal number with a point; an absent value counts as 0. `Outcome.value` is the sum, rounded to 17
    decimals.
    """

    key: bytes
    by: bytes


class Append(msgspec.Struct, array_like=True, gc=False, frozen=True, forbid_unknown_fields=True, tag=3):
    """Append to a value; an absent value counts as empty. `Outcome.number` is the length afterwards."""

    key: bytes
    value: bytes


class SetRange(msgspec.Struct, array_like=True, gc=False, frozen=True, forbid_unknown_fields=True, tag=4):
    """Overwrite a part of a value, from `offset` on. A shorter value is first filled up with zero bytes to `offset`.
    `Outcome.number` is the length afterwards. An empty part changes nothing.
    """

    key: bytes
    offset: _Unsigned
    value: bytes


class Expire(msgspec.Struct, array_like=True, gc=False, frozen=True, forbid_unknown_fields=True, tag=5):
    """Change a key's expiry; a time in the past deletes the key. `Outcome.done` is true if the expiry changed. With
    `wants_value`, `Outcome.value` is the key's former value, whether the expiry changed or not.
    """

    key: bytes
    lifetime: Lifetime
    ms: _Milliseconds = 0
    condition: OnlyIf = OnlyIf.ALWAYS
    wants_value: bool = False


class SetAllIfAbsent(msgspec.Struct, array_like=True, gc=False, frozen=True, forbid_unknown_fields=True, tag=6):
    """Put all pairs, or none if any of the keys has a value."""

    keys: list[bytes]
    values: list[bytes]


Operation = Set | Add | AddFloat | Append | SetRange | Expire | SetAllIfAbsent
Operations = Annotated[list[Operation], msgspec.Meta(min_length=1, max_length=MAX_OPERATIONS)]


class Refusal(IntEnum):
    """The reason why an operation can't be done with the present value; nothing was changed."""

    NONE = 0
    NOT_AN_INTEGER = 1
    OVERFLOW = 2
    NOT_A_FLOAT = 3
    TOO_LARGE = 4  # the value would be over the limit


class Outcome(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """The outcome of one operation. `version` is the key's version after the operation; 0: the key has no value."""

    done: bool
    version: int = 0
    number: int = 0
    value: bytes | None = None
    refusal: Refusal = Refusal.NONE


class Versioned(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A value, its version, and its expiry in Unix milliseconds (0: never). The version changes with every write of
    the key; compare versions only for equality.
    """

    value: bytes
    version: int
    expires_ms: int = 0


decode_operations: Final = msgspec.msgpack.Decoder(Operations).decode
decode_outcomes: Final = msgspec.msgpack.Decoder(list[Outcome]).decode
decode_versioned: Final = msgspec.msgpack.Decoder(list[Versioned | None]).decode
