"""Commands about keys: their existence and their expiry."""

import time
from collections.abc import Callable
from typing import Final

from minka.wire.key_operations import Expire, If, OnlyIf, Outcome, Set, Versioned
from minka.wire.kv_frames import Op
from minkad.data_port.resp.command import MANY, Command, Kind, Words, integer_of, upper
from minkad.data_port.resp.connection import RespConnection
from minkad.data_port.resp.lifetimes import UNLIMITED, until
from minkad.data_port.resp.many import added, by_pieces
from minkad.data_port.resp.refusals import check_keys
from minkad.data_port.resp.replies import RespError, integer
from minkad.data_port.resp.slots import Owner, Slot

_CONDITIONS: Final = {b"NX": OnlyIf.UNLIMITED, b"XX": OnlyIf.LIMITED, b"GT": OnlyIf.LATER, b"LT": OnlyIf.EARLIER}


def _delete(connection: RespConnection, words: Words, owner: Owner | None) -> Slot:
    operations = [(key, Set(key, None, If.PRESENT), 0) for key in words[1:]]
    return connection.operate(operations, _count_done, owner)


def _count_done(outcomes: list[Outcome]) -> bytes:
    return integer(sum(outcome.done for outcome in outcomes))


def _exists(connection: RespConnection, words: Words, owner: Owner | None) -> bytes | Slot:
    return connection.read(words[1:], _count_present, only_presence=True, owner=owner)


def _count_present(found: list[bytes | None]) -> bytes:
    return integer(sum(value is not None for value in found))


def _type(connection: RespConnection, words: Words) -> bytes | Slot:
    return connection.read(words[1:], _type_of, only_presence=True)


def _type_of(found: list[bytes | None]) -> bytes:
    return b"+none\r\n" if found[0] is None else b"+string\r\n"


def _expire(option: bytes, name: str) -> Callable[[RespConnection, Words], Slot]:
    def run(connection: RespConnection, words: Words) -> Slot:
        condition = _condition(words[3:])
        when = until(option, integer_of(words[2]), name)
        operation = Expire(words[1], when.lifetime, when.ms, condition)
        return connection.operate([(words[1], operation, 0)], _count_done)

    return run


def _condition(words: Words) -> OnlyIf:
    options = [upper(word) for word in words]
    for option, word in zip(options, words, strict=True):
        if option not in _CONDITIONS:
            raise RespError(f"ERR Unsupported option {word[:64].decode('utf-8', 'replace')}")
    names = set(options)
    if b"NX" in names and len(names) > 1:
        raise RespError("ERR NX and XX, GT or LT options at the same time are not compatible")
    if {b"GT", b"LT"} <= names:
        raise RespError("ERR GT and LT options at the same time are not compatible")
    if len(names) > 1:
        # XX with GT is GT: by GT, a key without an expiry is the last to expire, so no new expiry is later.
        return OnlyIf.LIMITED_EARLIER if b"LT" in names else OnlyIf.LATER
    return _CONDITIONS[names.pop()] if names else OnlyIf.ALWAYS


def _persist(connection: RespConnection, words: Words) -> bytes | Slot:
    operation = Expire(words[1], UNLIMITED.lifetime, 0, OnlyIf.LIMITED)
    return connection.operate([(words[1], operation, 0)], _count_done)


def _expiry(convert: Callable[[int], int]) -> Callable[[RespConnection, Words], Slot]:
    """`convert` makes the answer from a key's expiry, in Unix milliseconds."""

    def finish(found: list[object]) -> bytes:
        versioned = found[0]
        if not isinstance(versioned, Versioned):
            return integer(-2)
        return integer(convert(versioned.expires_ms) if versioned.expires_ms else -1)

    def run(connection: RespConnection, words: Words) -> Slot:
        check_keys(words[1:], connection.view)
        return connection.read_later(words[1:], Op.READ_VERSIONED, finish)

    return run


def _left_ms(expires_ms: int) -> int:
    return max(0, expires_ms - time.time_ns() // 1_000_000)


_delete_all: Final = by_pieces(_delete, added, is_write=True)
_count_all: Final = by_pieces(_exists, added, is_write=False)

_R, _W = Kind.READ, Kind.WRITE
_READ: Final = ("readonly", "fast")
_WRITE: Final = ("write", "fast")
_SUM: Final = ("request_policy:multi_shard", "response_policy:agg_sum")

COMMANDS: Final = (
    Command("DEL", -2, _delete_all, _W, ("write",), "Deletes keys.", 1, -1, 1, "1.0.0", "generic", _SUM,
            MANY),
    Command("UNLINK", -2, _delete_all, _W, _WRITE, "Deletes keys.", 1, -1, 1, "4.0.0", "generic", _SUM,
            MANY),
    Command("EXISTS", -2, _count_all, _R, _READ, "Counts the keys that are there.", 1, -1, 1, "1.0.0", "generic", _SUM,
            MANY),
    Command("TOUCH", -2, _count_all, _R, _READ, "Counts the keys that are there.", 1, -1, 1, "3.2.1", "generic", _SUM,
            MANY),
    Command("TYPE", 2, _type, _R, _READ, "Returns what kind of value a key has.", 1, 1, 1, group="generic"),
    Command("EXPIRE", -3, _expire(b"EX", "expire"), _W, _WRITE, "Sets when a key expires, in seconds from now.",
            1, 1, 1, group="generic"),
    Command("PEXPIRE", -3, _expire(b"PX", "pexpire"), _W, _WRITE,
            "Sets when a key expires, in milliseconds from now.", 1, 1, 1, "2.6.0", "generic"),
    Command("EXPIREAT", -3, _expire(b"EXAT", "expireat"), _W, _WRITE,
            "Sets when a key expires, in seconds of Unix time.", 1, 1, 1, "1.2.0", "generic"),
    Command("PEXPIREAT", -3, _expire(b"PXAT", "pexpireat"), _W, _WRITE,
            "Sets when a key expires, in milliseconds of Unix time.", 1, 1, 1, "2.6.0", "generic"),
    Command("TTL", 2, _expiry(lambda at: (_left_ms(at) + 500) // 1000), _R, _READ,
            "Returns in how many seconds a key expires.", 1, 1, 1, group="generic"),
    Command("PTTL", 2, _expiry(_left_ms), _R, _READ, "Returns in how many milliseconds a key expires.", 1, 1, 1,
            "2.6.0", "generic"),
    Command("EXPIRETIME", 2, _expiry(lambda at: at // 1000), _R, _READ,
            "Returns when a key expires, in seconds of Unix time.", 1, 1, 1, "7.0.0", "generic"),
    Command("PEXPIRETIME", 2, _expiry(lambda at: at), _R, _READ,
            "Returns when a key expires, in milliseconds of Unix time.", 1, 1, 1, "7.0.0", "generic"),
    Command("PERSIST", 2, _persist, _W, _WRITE, "Lets a key no longer expire.", 1, 1, 1, "2.2.0", "generic"),
)  # fmt: skip
