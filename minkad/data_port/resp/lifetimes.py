"""When keys expire, as commands say it."""

from typing import Final, NamedTuple

from minka.operations import Lifetime
from minkad.data_port.resp.command import integer_of
from minkad.data_port.resp.replies import RespError

_MAX_MS: Final = 2**62


class Until(NamedTuple):
    """The fields of an operation that say when its key expires."""

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
    """The same with any number; a time in the past is the epoch. Raises RespError."""
    ms = number if option.startswith(b"P") else number * 1000
    if abs(ms) > _MAX_MS:
        raise _invalid(command)
    if option.endswith(b"AT"):
        return Until(Lifetime.UNTIL, max(0, ms))
    return Until(Lifetime.FOR, ms) if ms >= 0 else Until(Lifetime.UNTIL, 0)


def _invalid(command: str) -> RespError:
    return RespError(f"ERR invalid expire time in '{command}' command")
