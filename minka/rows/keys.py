"""Keys that are made of several columns. The bytes of such keys sort as the values of the columns do.

The encoding is that of FoundationDB's tuples (design/tuple.md in apple/foundationdb): each column becomes a type code
and the bytes of its value, and no column's bytes are the beginning of another column's bytes. Example: ("EWR", 5)
becomes 02 45 57 52 00 15 05. These types of Spark, which FoundationDB lacks, become integers:

- date: days from 1970-01-01;
- timestamp: microseconds from 1970-01-01T00:00:00Z; timestamp_ntz: the same, as if it were in UTC;
- decimal(p, s): its unscaled value, `scaled(value, s)`.

Columns of one type are in the order of their values; None comes before all values. The types come in this order: None,
bytes, str, tuple, int, Single, float, bool, UUID.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Final, NoReturn, Self, Union
from uuid import UUID

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.rows.integers import days_of, microseconds_of

NULL: Final = 0x00
BYTES: Final = 0x01
TEXT: Final = 0x02
NESTED: Final = 0x05
LONG_NEGATIVE: Final = 0x0B
ZERO: Final = 0x14  # an integer's type code is this ± the number of its bytes: 0x15 for 5, 0x13 for -5
LONG_POSITIVE: Final = 0x1D
SINGLE: Final = 0x20
DOUBLE: Final = 0x21
FALSE: Final = 0x26
TRUE: Final = 0x27
IDENTIFIER: Final = 0x30  # a UUID

MAX_INTEGER_BYTES: Final = 255
MAX_DEPTH: Final = 64  # the most levels of tuples in tuples
_SHORT: Final = 8  # bytes: the code of an integer of at most this length contains the length
_SIZES: Final = {SINGLE: 4, DOUBLE: 8, IDENTIFIER: 16}
NAN: Final = {SINGLE: bytes.fromhex("ffc00000"), DOUBLE: bytes.fromhex("fff8000000000000")}


class Single(float):
    """`Single(0.1)`: a number of single precision (32 bits), like Spark's float. A plain float has double precision."""

    __slots__ = ()

    def __new__(cls, value: float) -> Self:
        """The nearest number of single precision. Raises INVALID_ARGUMENT if the value is finite and too large, or
        isn't a number.
        """
        try:
            return super().__new__(cls, struct.unpack(">f", struct.pack(">f", value))[0])
        except (OverflowError, struct.error):
            raise MinkaError(Code.INVALID_ARGUMENT, f"{value!r} isn't a number of single precision") from None


KeyPart = Union[None, bytes, str, int, float, UUID, date, datetime, tuple["KeyPart", ...]]  # noqa: UP007 refers to itself
"""A part of a key: a column's value, or a tuple of such values for a struct."""


def encode_key(columns: Sequence[KeyPart]) -> bytes:
    """The key of these columns. Its length isn't checked here; clients refuse a key of more than 64 KiB.

    An int has at most 255 bytes. All NaNs are equal, and come after all numbers; -0.0 is before 0.0. A date or datetime
    becomes an int; a datetime without a time zone counts as if it were in UTC. Raises INVALID_ARGUMENT if there are no
    columns, or if a value has another type or is out of range. An error about a value has the column's number (from 1).
    """
    key = _joined(columns)
    if not key:
        raise MinkaError(Code.INVALID_ARGUMENT, "a key needs at least one column, since it must not be empty")
    return key


def prefix_range(columns: Sequence[KeyPart]) -> KeyRange:
    """The range of all keys that begin with these columns. The range also has the key of exactly these columns.
    If no columns are given, the range has all keys that `encode_key` makes.

    Raises the errors of `encode_key` for a column.
    """
    # In a key with more columns, a type code follows the prefix, and no type code is 0xff. If 0xff follows a prefix
    # that ends with a zero byte, this zero byte isn't the end of the text or tuple: such a key has other columns, and
    # isn't in the range.
    prefix = _joined(columns)
    return KeyRange(prefix, prefix + b"\xff")


def decode_key(key: bytes) -> tuple[KeyPart, ...]:
    """The columns of a key: None, bytes, str, int, Single, float, bool, UUID, tuple.

    Raises MinkaError(INVALID_ARGUMENT) with the position (from 0) of the first byte that `encode_key` can't have
    written there.
    """
    if not key:
        raise MinkaError(Code.INVALID_ARGUMENT, "the key is empty, so it has no columns")
    columns: list[KeyPart] = []
    at = 0
    while at < len(key):
        column, at = _column(key, at, 0)
        columns.append(column)
    return tuple(columns)


def _joined(columns: Sequence[KeyPart]) -> bytes:
    # Without this check, each character of a str (or byte of bytes) would count as a column.
    if isinstance(columns, str | bytes) or not isinstance(columns, Iterable):
        kind = type(columns).__name__
        raise MinkaError(Code.INVALID_ARGUMENT, f"the columns are {kind}, not a sequence; a single column is (column,)")
    return b"".join(_encoded(column, str(number), 0) for number, column in enumerate(columns, 1))


def _encoded(part: KeyPart, name: str, depth: int) -> bytes:
    match part:
        case None:
            return b"\x00"
        case str():
            return b"\x02" + _utf8(part, name).replace(b"\x00", b"\x00\xff") + b"\x00"
        case bytes():
            return b"\x01" + part.replace(b"\x00", b"\x00\xff") + b"\x00"
        case bool():
            return b"\x27" if part else b"\x26"
        case int():
            return _integer(part, name)
        case Single():
            return _floating(SINGLE, struct.pack(">f", part), math.isnan(part))
        case float():
            return _floating(DOUBLE, struct.pack(">d", part), math.isnan(part))
        case UUID():
            return b"\x30" + part.bytes
        case datetime():  # comes before date, of which it is a subclass
            return _integer(microseconds_of(part), name)
        case date():
            return _integer(days_of(part), name)
        case tuple():
            return _nested(part, name, depth + 1)
        case _:
            raise _wrong_type(part, name)


def _wrong_type(part: object, name: str) -> MinkaError:
    hint = ": give the integer that stands for it, scaled(value, places)" if isinstance(part, Decimal) else ""
    return MinkaError(Code.INVALID_ARGUMENT, f"column {name} is {type(part).__name__}, which no key can have{hint}")


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"column {name} isn't UTF-8 text: {error.reason}") from None


def _integer(value: int, name: str) -> bytes:
    size = (value.bit_length() + 7) // 8
    if size > MAX_INTEGER_BYTES:
        text = f"column {name} is an integer of {size} bytes; {MAX_INTEGER_BYTES} is the limit"
        raise MinkaError(Code.INVALID_ARGUMENT, text)
    if value >= 0:
        head = bytes([ZERO + size]) if size <= _SHORT else bytes([LONG_POSITIVE, size])
        return head + value.to_bytes(size, "big")
    head = bytes([ZERO - size]) if size <= _SHORT else bytes([LONG_NEGATIVE, size ^ 0xFF])
    return head + (value + (1 << 8 * size) - 1).to_bytes(size, "big")  # the ones' complement of the absolute value


def _floating(code: int, ieee: bytes, nan: bool) -> bytes:
    """A float's bytes, changed so that they sort as the floats do: in a positive float the sign bit is flipped, in a
    negative float all bits are flipped.
    """
    if nan:
        return bytes([code]) + NAN[code]
    first = bytes([ieee[0] ^ 0x80]) + ieee[1:] if ieee[0] < 0x80 else bytes(byte ^ 0xFF for byte in ieee)
    return bytes([code]) + first


def _nested(parts: tuple[KeyPart, ...], name: str, depth: int) -> bytes:
    if depth > MAX_DEPTH:
        raise MinkaError(Code.INVALID_ARGUMENT, f"column {name} has tuples deeper than {MAX_DEPTH}")
    inner = (
        b"\x00\xff" if part is None else _encoded(part, f"{name}.{number}", depth)
        for number, part in enumerate(parts, 1)
    )
    return b"\x05" + b"".join(inner) + b"\x00"


def _column(key: bytes, at: int, depth: int) -> tuple[KeyPart, int]:
    """The column that begins at a byte, and the byte at which the next one begins."""
    code = key[at]
    if code == NULL:
        return None, at + 1
    if code in {BYTES, TEXT}:
        return _string(key, at)
    if code == NESTED:
        return _tuple(key, at, depth + 1)
    if LONG_NEGATIVE <= code <= LONG_POSITIVE:
        return _whole_number(key, at)
    if code in {FALSE, TRUE}:
        return code == TRUE, at + 1
    if code not in _SIZES:
        _refuse(at, f"0x{code:02x} isn't a type of column")
    end = at + 1 + _SIZES[code]
    data = _slice(key, at, at + 1, end)
    return UUID(bytes=data) if code == IDENTIFIER else _number(code, data), end


def _refuse(at: int, why: str) -> NoReturn:
    raise MinkaError(Code.INVALID_ARGUMENT, f"not a key of columns: byte {at}: {why}")


def _slice(key: bytes, column: int, start: int, end: int) -> bytes:
    if end > len(key):
        _refuse(len(key), f"the key ends within the column that begins at byte {column}")
    return key[start:end]


def _string(key: bytes, at: int) -> tuple[KeyPart, int]:
    end = key.find(b"\x00", at + 1)
    while end >= 0 and key[end + 1 : end + 2] == b"\xff":
        end = key.find(b"\x00", end + 2)
    if end < 0:
        _refuse(len(key), f"the key ends within the column that begins at byte {at}")
    data = key[at + 1 : end].replace(b"\x00\xff", b"\x00")
    if key[at] == BYTES:
        return data, end + 1
    try:
        return data.decode(), end + 1
    except UnicodeDecodeError as error:
        _refuse(at, f"the text that begins here isn't UTF-8: {error.reason}")


def _tuple(key: bytes, at: int, depth: int) -> tuple[KeyPart, int]:
    if depth > MAX_DEPTH:
        _refuse(at, f"tuples are deeper than {MAX_DEPTH}")
    parts: list[KeyPart] = []
    here = at + 1
    while here < len(key):
        if key[here] != NULL:
            part, here = _column(key, here, depth)
            parts.append(part)
        elif key[here + 1 : here + 2] == b"\xff":
            parts.append(None)
            here += 2
        else:
            return tuple(parts), here + 1
    _refuse(len(key), f"the key ends within the column that begins at byte {at}")


def _whole_number(key: bytes, at: int) -> tuple[int, int]:
    code = key[at]
    start, size, positive = at + 1, abs(code - ZERO), code >= ZERO
    if size > _SHORT:
        start, size = at + 2, _slice(key, at, at + 1, at + 2)[0] ^ (0x00 if positive else 0xFF)
    data = _slice(key, at, start, start + size)
    value = int.from_bytes(data, "big") if positive else int.from_bytes(data, "big") - (1 << 8 * size) + 1
    # Each value has only one form in a key.
    if (value.bit_length() + 7) // 8 != size or (start == at + 2 and size <= _SHORT):
        _refuse(at, "the integer that begins here is longer than it needs to be")
    return value, start + size


def _number(code: int, data: bytes) -> float:
    ieee = bytes([data[0] ^ 0x80]) + data[1:] if data[0] >= 0x80 else bytes(byte ^ 0xFF for byte in data)
    if code == SINGLE:
        return Single(struct.unpack(">f", ieee)[0])
    number: float = struct.unpack(">d", ieee)[0]
    return number
