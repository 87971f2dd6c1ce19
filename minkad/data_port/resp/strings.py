"""Commands that read and write values."""

from collections.abc import Callable
from typing import Final

from minka.wire.key_operations import (
    Add,
    AddFloat,
    Append,
    Expire,
    If,
    OnlyIf,
    Outcome,
    Refusal,
    Set,
    SetAllIfAbsent,
    SetRange,
)
from minka.wire.kv_frames import MAX_VALUE_BYTES
from minkad.core.operations.numbers import decimal
from minkad.data_port.resp.command import (
    MANY,
    Command,
    Kind,
    Words,
    float_of,
    integer_of,
    not_a_float,
    not_an_integer,
    syntax_error,
    upper,
    wrong_number,
)
from minkad.data_port.resp.connection import RespConnection
from minkad.data_port.resp.lifetimes import KEPT, UNLIMITED, lifetime_of
from minkad.data_port.resp.many import PIECE_WORDS, all_done, by_pieces, together
from minkad.data_port.resp.refusals import check_keys, too_large
from minkad.data_port.resp.replies import NULL, OK, RespError, bulk, integer, values
from minkad.data_port.resp.slots import Owner, Slot

_IF: Final = {b"NX": If.ABSENT, b"XX": If.PRESENT}
_TIMES: Final = (b"EX", b"PX", b"EXAT", b"PXAT")


def refused(outcome: Outcome) -> None:
    """Raises RespError if the operation was refused because of the present value."""
    if outcome.refusal is Refusal.NOT_AN_INTEGER:
        raise not_an_integer()
    if outcome.refusal is Refusal.OVERFLOW:
        raise RespError("ERR increment or decrement would overflow")
    if outcome.refusal is Refusal.NOT_A_FLOAT:
        raise not_a_float()
    if outcome.refusal is Refusal.TOO_LARGE:
        raise too_large()


def _number(outcomes: list[Outcome]) -> bytes:
    refused(outcomes[0])
    return integer(outcomes[0].number)


def _check_value(value: bytes) -> bytes:
    if len(value) > MAX_VALUE_BYTES:
        raise too_large()
    return value


def _get(connection: RespConnection, words: Words) -> bytes | Slot:
    return connection.get(words[1])


def _set(connection: RespConnection, words: Words) -> bytes | Slot:
    if len(words) == 3:
        return connection.set_all([(words[1], words[2])])
    condition, wants_value, timing, at = If.ALWAYS, False, list[bytes](), 3
    while at < len(words):
        option = upper(words[at])
        if option in _IF and condition in (If.ALWAYS, _IF[option]):
            condition = _IF[option]
        elif option == b"GET":
            wants_value = True
        else:
            timing = _timing(words, at, timing, b"KEEPTTL")
            at += len(timing) - 1
        at += 1
    lifetime = KEPT if timing else UNLIMITED
    if len(timing) == 2:
        lifetime = lifetime_of(timing[0], timing[1], "set")
    key, value = words[1], _check_value(words[2])
    operation = Set(key, value, condition, lifetime=lifetime.lifetime, ms=lifetime.ms, wants_value=wants_value)
    return connection.operate([(key, operation, len(value))], _set_answer(connection, wants_value))


def _timing(words: Words, at: int, before: Words, flag: bytes) -> Words:
    """The words of the expiry option at `at`: `flag`, or one of `_TIMES` with its number. `before` has the words of an
    earlier expiry option, which may only be repeated. Raises RespError.
    """
    option = upper(words[at])
    if before[:1] in ([], [option]):
        if option == flag:
            return [option]
        if option in _TIMES and at + 1 < len(words):
            return [option, words[at + 1]]
    raise syntax_error()


def _set_answer(connection: RespConnection, wants_value: bool) -> Callable[[list[Outcome]], bytes]:
    resp3 = connection.resp3

    def finish(outcomes: list[Outcome]) -> bytes:
        outcome = outcomes[0]
        refused(outcome)
        if wants_value:
            return bulk(outcome.value, resp3)
        return OK if outcome.done else NULL[resp3]

    return finish


def _setnx(connection: RespConnection, words: Words) -> bytes | Slot:
    operation = Set(words[1], _check_value(words[2]), If.ABSENT)
    return connection.operate([(words[1], operation, len(words[2]))], lambda outcomes: integer(outcomes[0].done))


def _setex(option: bytes, name: str) -> Callable[[RespConnection, Words], Slot]:
    def run(connection: RespConnection, words: Words) -> Slot:
        until = lifetime_of(option, words[2], name)
        operation = Set(words[1], _check_value(words[3]), lifetime=until.lifetime, ms=until.ms)
        return connection.operate([(words[1], operation, len(words[3]))], lambda _: OK)

    return run


def _getset(connection: RespConnection, words: Words) -> bytes | Slot:
    operation = Set(words[1], _check_value(words[2]), wants_value=True)
    return connection.operate([(words[1], operation, len(words[2]))], _set_answer(connection, True))


def _getdel(connection: RespConnection, words: Words) -> bytes | Slot:
    operation = Set(words[1], None, If.PRESENT, wants_value=True)
    return connection.operate([(words[1], operation, 0)], _set_answer(connection, True))


def _getex(connection: RespConnection, words: Words) -> bytes | Slot:
    key, timing, at = words[1], list[bytes](), 2
    while at < len(words):
        timing = _timing(words, at, timing, b"PERSIST")
        at += len(timing)
    operation, finish = _unchanged(key), _set_answer(connection, True)
    if len(timing) == 1:
        operation = Expire(key, UNLIMITED.lifetime, wants_value=True)
    elif timing:
        try:
            until = lifetime_of(timing[0], timing[1], "getex")
        except RespError as error:
            finish = _refused_if_present(connection.resp3, error)
        else:
            operation = Expire(key, until.lifetime, until.ms, wants_value=True)
    return connection.operate([(key, operation, 0)], finish)


def _unchanged(key: bytes) -> Expire:
    """Returns the value in the order of writes, and changes nothing: the kept expiry isn't later than the present."""
    return Expire(key, KEPT.lifetime, 0, OnlyIf.LATER, wants_value=True)


def _refused_if_present(resp3: bool, error: RespError) -> Callable[[list[Outcome]], bytes]:
    """Raise the error only if the key exists: Redis checks the time after it has found the key."""

    def finish(outcomes: list[Outcome]) -> bytes:
        if outcomes[0].value is not None:
            raise error
        return NULL[resp3]

    return finish


def _mget(connection: RespConnection, words: Words, owner: Owner | None) -> bytes | Slot:
    resp3 = connection.resp3
    return connection.read(words[1:], lambda found: values(found, resp3), owner=owner)


def _pairs(words: Words, name: str) -> list[tuple[bytes, bytes]]:
    if len(words) % 2 == 0:
        raise wrong_number(name)
    pairs = dict(zip(words[1::2], words[2::2], strict=True))  # the last value of a key counts
    return list(pairs.items())


def _mset(connection: RespConnection, words: Words, owner: Owner | None) -> Slot:
    return connection.set_all(_pairs(words, "mset"), owner)


def _mset_all(connection: RespConnection, words: Words) -> bytes | Slot:
    if len(words) % 2 == 0:
        raise wrong_number("mset")
    return _set_all(connection, words)


def _msetnx(connection: RespConnection, words: Words) -> bytes | Slot:
    pairs = _pairs(words, "msetnx")
    keys = [key for key, _ in pairs]
    check_keys(keys, connection.view)
    for _, value in pairs:
        _check_value(value)
    routes = [connection.view.route(key) for key in keys]
    if len({route.partition_id if route is not None else 0 for route in routes}) > 1:
        raise RespError(
            "ERR MSETNX: the keys are in several partitions of the keyspace, and are set all or none in one only"
        )
    operation = SetAllIfAbsent(keys, [value for _, value in pairs])
    size = sum(len(key) + len(value) for key, value in pairs)
    return connection.operate([(keys[0], operation, size)], lambda outcomes: integer(outcomes[0].done))


def _strlen(connection: RespConnection, words: Words) -> bytes | Slot:
    return connection.read(words[1:], lambda found: integer(len(found[0] or b"")))


def _append(connection: RespConnection, words: Words) -> bytes | Slot:
    operation = Append(words[1], _check_value(words[2]))
    return connection.operate([(words[1], operation, len(words[2]))], _number)


def _setrange(connection: RespConnection, words: Words) -> bytes | Slot:
    offset = integer_of(words[2])
    if offset < 0:
        raise RespError("ERR offset is out of range")
    if not words[3]:
        offset = 0  # nothing is written, so any offset is valid
    if offset + len(words[3]) > MAX_VALUE_BYTES:
        raise too_large()
    return connection.operate([(words[1], SetRange(words[1], offset, words[3]), len(words[3]))], _number)


def _getrange(connection: RespConnection, words: Words) -> bytes | Slot:
    start, end = integer_of(words[2]), integer_of(words[3])
    return connection.read([words[1]], lambda found: bulk(_range(found[0] or b"", start, end), connection.resp3))


def _range(value: bytes, start: int, end: int) -> bytes:
    """The part from `start` to `end`, both included; negative numbers count from the end."""
    size = len(value)
    if start < 0 and end < 0 and start > end:
        return b""
    first = max(0, start + size) if start < 0 else start
    last = max(0, end + size) if end < 0 else end
    return value[first : last + 1]


def _increment(sign: int, by: int | None) -> Callable[[RespConnection, Words], Slot]:
    def run(connection: RespConnection, words: Words) -> Slot:
        number = sign * (integer_of(words[2]) if by is None else by)
        if number >= 2**63:
            raise RespError("ERR decrement would overflow")
        return connection.operate([(words[1], Add(words[1], number), 20)], _number)

    return run


def _incrbyfloat(connection: RespConnection, words: Words) -> bytes | Slot:
    number = float_of(words[2])
    key, is_infinite = words[1], number in (float("inf"), float("-inf"))

    def finish(outcomes: list[Outcome]) -> bytes:
        outcome = outcomes[0]
        if is_infinite and outcome.value is not None and decimal(outcome.value) is None:
            raise not_a_float()
        if is_infinite or outcome.refusal is Refusal.OVERFLOW:
            raise RespError("ERR increment would produce NaN or Infinity")
        refused(outcome)
        return bulk(outcome.value or b"0", connection.resp3)

    return connection.operate([(key, _unchanged(key) if is_infinite else AddFloat(key, words[2]), 20)], finish)


_get_all: Final = by_pieces(_mget, together, is_write=False)
_set_all: Final = by_pieces(_mset, all_done, is_write=True)

_R, _W = Kind.READ, Kind.WRITE
_READ: Final = ("readonly", "fast")
_WRITE: Final = ("write", "denyoom", "fast")

COMMANDS: Final = (
    Command("GET", 2, _get, _R, _READ, "Returns the value of a key.", 1, 1, 1),
    Command("SET", -3, _set, _W, ("write", "denyoom"), "Sets the value of a key.", 1, 1, 1),
    Command("SETNX", 3, _setnx, _W, _WRITE, "Sets the value of a key that has none.", 1, 1, 1),
    Command("SETEX", 4, _setex(b"EX", "setex"), _W, ("write", "denyoom"), "Sets a value for some seconds.", 1, 1, 1,
            "2.0.0"),
    Command("PSETEX", 4, _setex(b"PX", "psetex"), _W, ("write", "denyoom"), "Sets a value for some milliseconds.",
            1, 1, 1, "2.6.0"),
    Command("GETSET", 3, _getset, _W, _WRITE, "Sets a value, and returns the former one.", 1, 1, 1),
    Command("GETDEL", 2, _getdel, _W, ("write", "fast"), "Returns a value, and deletes the key.", 1, 1, 1, "6.2.0"),
    Command("GETEX", -2, _getex, _W, ("write", "fast"), "Returns a value, and sets when it expires.", 1, 1, 1, "6.2.0"),
    Command("MGET", -2, _get_all, _R, _READ, "Returns the values of keys.", 1, -1, 1,
            tips=("request_policy:multi_shard",), most=MANY),
    Command("MSET", -3, _mset_all, _W, ("write", "denyoom"), "Sets the values of keys.", 1, -1, 2, "1.0.1",
            tips=("request_policy:multi_shard", "response_policy:all_succeeded"), most=MANY),
    Command("MSETNX", -3, _msetnx, _W, ("write", "denyoom"), "Sets the values of keys if none of them has one.",
            1, -1, 2, "1.0.1", most=2 * PIECE_WORDS + 1),
    Command("STRLEN", 2, _strlen, _R, _READ, "Returns the length of a value.", 1, 1, 1, "2.2.0"),
    Command("APPEND", 3, _append, _W, _WRITE, "Appends to a value.", 1, 1, 1, "2.0.0"),
    Command("SETRANGE", 4, _setrange, _W, ("write", "denyoom"), "Overwrites a part of a value.", 1, 1, 1, "2.2.0"),
    Command("GETRANGE", 4, _getrange, _R, ("readonly",), "Returns a part of a value.", 1, 1, 1, "2.4.0"),
    Command("SUBSTR", 4, _getrange, _R, ("readonly",), "Returns a part of a value.", 1, 1, 1),
    Command("INCR", 2, _increment(1, 1), _W, _WRITE, "Adds 1 to a number.", 1, 1, 1),
    Command("INCRBY", 3, _increment(1, None), _W, _WRITE, "Adds to a number.", 1, 1, 1),
    Command("DECR", 2, _increment(-1, 1), _W, _WRITE, "Subtracts 1 from a number.", 1, 1, 1),
    Command("DECRBY", 3, _increment(-1, None), _W, _WRITE, "Subtracts from a number.", 1, 1, 1),
    Command("INCRBYFLOAT", 3, _incrbyfloat, _W, _WRITE, "Adds to a number with a point.", 1, 1, 1, "2.6.0"),
)  # fmt: skip
