"""Converts dates, moments and decimals to the integers that stand for them in a key, and back."""

from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Final

from minka.errors import Code, MinkaError

_DAY_0: Final = date(1970, 1, 1)
_MOMENT_0: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_EXACT: Final = Context(prec=1_000, traps=[Inexact, InvalidOperation])  # more digits than any integer of a key has


def days_of(day: date) -> int:
    """Days from 1970-01-01 to the day."""
    return (day - _DAY_0).days


def date_of(days: int) -> date:
    """The date `days` days after 1970-01-01. Raises MinkaError(INVALID_ARGUMENT) outside of the years 1 to 9999."""
    try:
        return _DAY_0 + timedelta(days=days)
    except OverflowError:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{days} days from 1970-01-01 are not in the years 1 to 9999") from None


def microseconds_of(moment: datetime) -> int:
    """Microseconds from 1970-01-01T00:00:00 to the moment: in UTC if it has a time zone, else as if it were in UTC."""
    return (moment - (_MOMENT_0 if moment.tzinfo else _MOMENT_0.replace(tzinfo=None))) // _MICROSECOND


def timestamp_of(microseconds: int) -> datetime:
    """The moment `microseconds` after 1970-01-01T00:00:00Z, in UTC. For Spark's timestamp_ntz, drop the zone:
    `.replace(tzinfo=None)`.

    Raises MinkaError(INVALID_ARGUMENT) outside of the years 1 to 9999.
    """
    try:
        return _MOMENT_0 + timedelta(microseconds=microseconds)
    except OverflowError:
        text = f"{microseconds} microseconds from 1970-01-01 are not in the years 1 to 9999"
        raise MinkaError(Code.INVALID_ARGUMENT, text) from None


def scaled(value: Decimal | int, scale: int) -> int:
    """The integer that stands for a decimal with `scale` places: with 2 places, 150 for 1.5.

    Raises MinkaError(INVALID_ARGUMENT) if the value has more than `scale` places, or isn't a number.
    """
    try:
        number = _EXACT.scaleb(Decimal(value), scale)
        whole = int(number)
    except (DecimalException, ValueError, OverflowError):
        raise MinkaError(Code.INVALID_ARGUMENT, f"{value} can't be a decimal of {scale} places") from None
    if whole != number:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{value} has more than {scale} decimal places")
    return whole


def decimal_of(number: int, scale: int) -> Decimal:
    """The decimal with `scale` places for which the integer stands: with 2 places, 1.50 for 150."""
    return _EXACT.scaleb(Decimal(number), -scale)
