"""Turns callers' arguments (conditions, counters, lifetimes) into operations, and nodes' answers into the results that
callers get. Pure.
"""

import math
import time
from dataclasses import dataclass
from datetime import timedelta
from types import EllipsisType
from typing import Final, NamedTuple

from minka.engine.arguments import MAX_SECONDS, invalid, is_number
from minka.errors import Code, MinkaError
from minka.wire.key_operations import MAX_VERSION, Add, Expire, If, Lifetime, OnlyIf, Outcome, Refusal, Set, Versioned

# An operation counts as this many bytes besides its key and values, so that even a group that fills two frames has
# fewer than MAX_OPERATIONS operations.
OPERATION_BYTES: Final = 256

_INT64: Final = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of a write with a condition or a lifetime. It is true if the write was done.

    A version changes with every write of the key; compare versions only for equality.
    """

    done: bool
    version: int  # the key's version after the call, also if the write was not done; 0: no value

    def __bool__(self) -> bool:
        return self.done


class VersionedValue(NamedTuple):
    """A value with its version and expiry time."""

    value: bytes
    version: int  # for `put(…, if_version=…)`
    expires_at: float | None  # Unix time in seconds; None: never

    def seconds_left(self) -> float:
        """The seconds until the value expires, by this machine's clock; infinite if it never expires."""
        return math.inf if self.expires_at is None else max(0.0, self.expires_at - time.time())


def versioned_value(found: Versioned) -> VersionedValue:
    """The value of a node's answer, as callers get it."""
    return VersionedValue(found.value, found.version, found.expires_ms / 1000 if found.expires_ms else None)


def conditional_set(
    key: bytes,
    value: bytes | None,
    if_absent: bool,
    if_value: bytes | EllipsisType,
    if_version: int | None,
    ttl: float | timedelta | None,
) -> Set:
    """A put, or a delete if `value` is None. `if_value=...`: no condition on the value. Raises INVALID_ARGUMENT."""
    if if_value is None:  # perhaps `get` returned None; taken as no condition, it would overwrite any value
        raise invalid("if_value is None; the condition for a key without a value is if_version=0")
    if bool(if_absent) + (if_value is not ...) + (if_version is not None) > 1:
        raise invalid("give only one condition: if_absent, if_value or if_version")
    condition, expected, version = If.ALWAYS, b"", 0
    if if_absent:
        condition = If.ABSENT
    elif if_value is not ...:
        if type(if_value) is not bytes:
            raise invalid(f"if_value is {type(if_value).__name__}, not bytes")
        condition, expected = If.VALUE, if_value
    elif if_version is not None:
        if type(if_version) is not int or not 0 <= if_version <= MAX_VERSION:
            raise invalid(f"if_version={if_version!r} isn't a version")
        condition, version = If.VERSION, if_version
    if ttl is None:
        return Set(key, value, condition, expected, version)
    return Set(key, value, condition, expected, version, Lifetime.FOR, milliseconds(ttl))


def add(key: bytes, by: int) -> Add:
    """An increment. Raises INVALID_ARGUMENT."""
    if type(by) is not int or by not in _INT64:
        raise invalid(f"by={by!r} isn't an integer of 64 bits")
    return Add(key, by)


def expire(key: bytes, ttl: float | timedelta) -> Expire:
    """Let a key expire. Raises INVALID_ARGUMENT."""
    return Expire(key, Lifetime.FOR, milliseconds(ttl))


def persist(key: bytes) -> Expire:
    """Take a key's expiry away."""
    return Expire(key, Lifetime.UNLIMITED, condition=OnlyIf.LIMITED)


def milliseconds(ttl: float | timedelta) -> int:
    """The time to live in milliseconds, at least 1. Raises INVALID_ARGUMENT if it isn't positive, or is over
    MAX_SECONDS.
    """
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if not is_number(seconds) or not 0 < seconds <= MAX_SECONDS:
        raise invalid(f"ttl={ttl!r} isn't a positive time in seconds, up to {MAX_SECONDS:,}")
    return max(1, round(seconds * 1000))


def refusal(outcome: Outcome) -> MinkaError | None:
    """The error with which a node refused the operation because of the key's present value; None if it did not."""
    if outcome.refusal is Refusal.NONE:
        return None
    if outcome.refusal is Refusal.TOO_LARGE:
        return MinkaError(Code.TOO_LARGE, "the value would be too large")
    if outcome.refusal is Refusal.OVERFLOW:
        return MinkaError(Code.NOT_A_NUMBER, "the sum would have more than 64 bits")
    return MinkaError(Code.NOT_A_NUMBER, "its value isn't a decimal number of 64 bits")
