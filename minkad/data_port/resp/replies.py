"""Answers as RESP 2 and 3 encode them, and the errors of a connection."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Union

log: Final = logging.getLogger(__name__)

Reply = Union[None, bool, int, float, bytes, str, "Simple", "RespError", Sequence["Reply"], Mapping[str, "Reply"]]
"""In RESP 2, a mapping is an array of keys and values."""

OK: Final = b"+OK\r\n"
PONG: Final = b"+PONG\r\n"
NULL: Final = (b"$-1\r\n", b"_\r\n")  # in RESP 2 and RESP 3
ZERO: Final = b":0\r\n"


class RespError(Exception):
    """A refusal of a command; its text begins with a code of Redis (`ERR`, `MOVED`, …)."""

    @property
    def encoded(self) -> bytes:
        """The error as an answer."""
        text = " ".join(str(self.args[0]).split())
        return b"-%b\r\n" % text.encode("utf-8", "replace")


def internal(error: Exception) -> RespError:
    """The error that a client gets after a bug, which is logged."""
    log.error("a command of a Redis client failed", exc_info=error)
    return RespError(f"ERR INTERNAL: {error!r}")


class Simple(str):
    """A text that is sent as a simple string."""

    __slots__ = ()


def integer(number: int) -> bytes:
    """An answer that is a number."""
    return b":%d\r\n" % number


def bulk(value: bytes | None, resp3: bool) -> bytes:
    """An answer that is a value."""
    return b"$%d\r\n%b\r\n" % (len(value), value) if value is not None else NULL[resp3]


def answer_too_large() -> RespError:
    """The error for an answer over the limit of an answer."""
    return RespError("ERR TOO_LARGE: the answer would have more than 32 MiB")


def values(found: Iterable[bytes | None], resp3: bool) -> bytes:
    """An answer with several values."""
    encoded = [bulk(value, resp3) for value in found]
    return b"*%d\r\n%b" % (len(encoded), b"".join(encoded))


def reply(value: Reply, resp3: bool) -> bytes:
    """Any answer."""
    parts: list[bytes] = []
    _add(parts, value, resp3)
    return b"".join(parts)


def _add(parts: list[bytes], value: Reply, resp3: bool) -> None:
    if isinstance(value, Mapping):
        parts.append(b"%%%d\r\n" % len(value) if resp3 else b"*%d\r\n" % (2 * len(value)))
        for name, item in value.items():
            _add(parts, name, resp3)
            _add(parts, item, resp3)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | str):
        parts.append(b"*%d\r\n" % len(value))
        for item in value:
            _add(parts, item, resp3)
    else:
        parts.append(_scalar(value, resp3))


def _scalar(value: bool | float | bytes | str | RespError | None, resp3: bool) -> bytes:
    if isinstance(value, Simple):
        return b"+%b\r\n" % value.encode()
    if isinstance(value, str):
        return bulk(value.encode(), resp3)
    if isinstance(value, RespError):
        return value.encoded
    if isinstance(value, bool) and resp3:
        return b"#t\r\n" if value else b"#f\r\n"
    if isinstance(value, float):
        return b",%b\r\n" % repr(value).encode() if resp3 else bulk(repr(value).encode(), resp3)
    if isinstance(value, int):
        return integer(value)
    return bulk(value, resp3)
