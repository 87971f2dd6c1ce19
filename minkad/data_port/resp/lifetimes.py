"""The expiry of keys, as commands give it."""

import time
from typing import Final, NamedTuple

from minka.wire.key_operations import MAX_EXPIRY_MS, Lifetime
from minkad.data_port.resp.command import integer_of
from minkad.data_port.resp.replies import RespError


class Until(NamedTuple):
    """The fields of an operation that give the expiry of its key."""

    lifetime: Lifetime
    ms: int = 0


UNLIMITED: Final = Until(Lifetime.UNLIMITED)
KEPT: Final = Until(Lifetime.KEPT)


def lifetime_of(option: bytes, word: bytes, command: str) -> Until:
    """EX, PX, EXAT or PXAT with a positive number. Raises RespError."""
    number = integer_of(word)
    if number <= 0:
        raise _invalid(command)
    return until(option, number, command)


def until(option: bytes, number: int, command: str) -> Until:
    """Like `lifetime_of`, for any number: if the time is past, the key expires at once. Raises RespError."""
    ms = number if option.startswith(b"P") else number * 1000
    is_absolute = option.endswith(b"AT")
    latest = MAX_EXPIRY_MS if is_absolute else MAX_EXPIRY_MS - time.time_ns() // 1_000_000
    if not -(2**63) <= ms <= latest:
        raise _invalid(command)
    if is_absolute:
        return Until(Lifetime.UNTIL, max(0, ms))
    return Until(Lifetime.FOR, ms) if ms >= 0 else Until(Lifetime.UNTIL, 0)


def _invalid(command: str) -> RespError:
    return RespError(f"ERR invalid expire time in '{command}' command")
