"""Values of columns: one JSON object (RFC 8259) in UTF-8, the same bytes as Spark's `to_json` writes.

There is no whitespace. The columns are in the order given, and null columns are included. Values for which JSON has no
type are written as:

- bytes: base64 (RFC 4648, with padding);
- date: "2013-01-31"; timestamp: "2013-01-31T05:17:00.000000Z", in UTC; timestamp_ntz, a datetime without a time zone:
  "2013-01-31T05:17:00.000000";
- NaN and the infinities: "NaN", "Infinity", "-Infinity";
- Decimal: a number with all of its digits; UUID: text.
"""

import math
import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from minka.errors import Code, MinkaError

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(dict[str, Any])
_EXACT_DECODER: Final = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_ESCAPE: Final = re.compile(rb"\\(?:u00[0-9a-f]{2}|.)")
_PLAIN_POWERS: Final = range(-3, 7)  # Java writes other powers of ten with an exponent


def encode_value(row: Mapping[str, Any]) -> bytes:
    """The value of a row. The row maps columns' names to bool, int, float, Decimal, str, bytes, date, datetime, UUID,
    None, and lists, tuples and mappings (with keys of text) of these types.

    Raises MinkaError(INVALID_ARGUMENT), which names the column, if a column's value has another type.
    """
    plain = {name: _plain(value, name) for name, value in _named(row, "the row")}
    try:
        text = _ENCODER.encode(plain)
    except UnicodeEncodeError as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"the row has text that isn't UTF-8: {error.reason}") from None
    # Spark writes the hex digits of an escaped character in capitals: \u001F.
    return _ESCAPE.sub(_in_capitals, text) if b"\\u00" in text else text


def decode_value(value: bytes, *, exact: bool = False) -> dict[str, Any]:
    """The columns of a value, as JSON has them: dates, timestamps, bytes and NaN come back as text. Numbers with a
    point or an exponent are floats, which can't hold decimals of more than 15 digits; with `exact` they are Decimals
    instead. Raises INVALID_ARGUMENT if the value isn't a JSON object in UTF-8.
    """
    try:
        return (_EXACT_DECODER if exact else _DECODER).decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"the value isn't a JSON object: {error}") from None


def _named(mapping: Mapping[Any, Any], name: str) -> list[tuple[str, Any]]:
    for key in mapping:
        if type(key) is not str:
            text = f"{name} has the key {key!r}, which is {type(key).__name__}, not str"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
    return list(mapping.items())


def _plain(value: Any, name: str) -> Any:
    """The value as an object that msgspec writes in this format."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return msgspec.Raw(b"%d" % value)  # an int may have any size
        case float():
            return _floating(value)
        case Decimal() if value.is_finite():
            return msgspec.Raw(str(value).encode())
        case bytes():
            return b64encode(value).decode()
        case Mapping():
            return {key: _plain(inner, f"{name}.{key}") for key, inner in _named(value, f"column {name}")}
        case list() | tuple():
            return [_plain(inner, f"{name}[{index}]") for index, inner in enumerate(value)]
        case _:
            return _as_text(value, name)


def _as_text(value: Any, name: str) -> str:
    match value:
        case datetime() if value.tzinfo:
            return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        case datetime():
            return value.isoformat(timespec="microseconds")
        case date():
            return value.isoformat()
        case UUID():
            return str(value)
        case _:
            what = f"{value!r}" if isinstance(value, Decimal) else type(value).__name__
            raise MinkaError(Code.INVALID_ARGUMENT, f"column {name} is {what}, which no value can have")


def _floating(value: float) -> str | msgspec.Raw:
    """A float in the form of Java's Double.toString, with the fewest digits that read as the same number."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    two_digits = f"{value:.1e}"  # Java writes the nearest number of at least two digits: 4.9E-324, not 5.0E-324
    number = Decimal(two_digits if float(two_digits) == value else float.__repr__(value))
    sign, digits, _ = number.as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    power = number.adjusted() if value else 0  # the first digit's power of ten
    if power not in _PLAIN_POWERS:
        text = f"{text[0]}.{text[1:] or '0'}E{power}"
    elif power < 0:
        text = f"0.{'0' * (-power - 1)}{text}"
    else:
        whole = text.ljust(power + 1, "0")
        text = f"{whole[: power + 1]}.{whole[power + 1 :] or '0'}"
    return msgspec.Raw(f"{'-' if sign else ''}{text}".encode())


def _in_capitals(escape: re.Match[bytes]) -> bytes:
    text = escape[0]
    return text[:4] + text[4:].upper() if text[1:2] == b"u" else text
