"""Numbers as texts, as Redis reads and writes them."""

import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from typing import Final

_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_FLOAT: Final = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")
_MOST: Final = Decimal("1e308")  # about the maximum of a double; a smaller sum has at most 308 digits before its point
_MAX_FLOAT_BYTES: Final = 512
_DECIMALS: Final = Decimal("1e-17")
_EXACT: Final = Context(prec=2048, Emax=MAX_EMAX, Emin=MIN_EMIN)


def integer(text: bytes) -> int | None:
    """The text as a signed number of 64 bits; None if it isn't one. Each number has exactly one text."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if fits(number) else None


def fits(number: int) -> bool:
    """True if the number fits into 64 bits with its sign."""
    return -(2**63) <= number < 2**63


def decimal(text: bytes) -> Decimal | None:
    """The text as a decimal number; None if it isn't one, or is too large."""
    if len(text) > _MAX_FLOAT_BYTES or not _FLOAT.fullmatch(text):
        return None
    try:
        number = _EXACT.create_decimal(text.decode())
    except InvalidOperation:
        return None
    return number if abs(number) < _MOST else None


def total(one: Decimal, other: Decimal) -> bytes | None:
    """The sum, rounded to 17 decimals and without zeros at its end; None if it is too large."""
    found = _EXACT.quantize(_EXACT.add(one, other), _DECIMALS)
    if abs(found) >= _MOST:
        return None
    text = f"{found:f}".rstrip("0").rstrip(".")
    return b"0" if text in ("-0", "") else text.encode()
