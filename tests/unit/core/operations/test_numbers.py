"""Values that are read and written as numbers: integers and decimals in the form of text."""

from decimal import Decimal

import pytest

from minkad.core.operations.numbers import decimal, integer, total


@pytest.mark.parametrize("text", [b"0", b"7", b"-7", b"9223372036854775807", b"-9223372036854775808"])
def test_integers(text: bytes) -> None:
    assert b"%d" % (integer(text) or 0) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "-0",
        "+1",
        "01",
        " 1",
        "1 ",
        "1\n",
        "1.0",
        "1e3",
        "0x1",
        "1_0",
        "9223372036854775808",
        "-9223372036854775809",
        "١",
    ],
)
def test_texts_that_are_not_integers(text: str) -> None:
    assert integer(text.encode()) is None


@pytest.mark.parametrize(
    ("one", "other", "sum_"),
    [
        (b"3.0", b"1.1", b"4.1"),
        (b"10.50", b"0.1", b"10.6"),
        (b"5.0e3", b"2.0e2", b"5200"),
        (b"1", b"-1", b"0"),
        (b"-1e-18", b"0", b"0"),
        (b"-.5", b"+.25", b"-0.25"),
        (b"1.", b"1e-17", b"1.00000000000000001"),
        (b"100", b"0", b"100"),
    ],
)
def test_sums_of_decimals(one: bytes, other: bytes, sum_: bytes) -> None:
    first, second = decimal(one), decimal(other)
    assert first is not None
    assert second is not None
    assert total(first, second) == sum_


@pytest.mark.parametrize(
    "text", [b"", b".", b"nan", b"inf", b"-Infinity", b"1e", b"1e99999", b" 1", b"1 ", b"1_0", b"1,5", b"1" * 513]
)
def test_texts_that_are_not_decimals(text: bytes) -> None:
    assert decimal(text) is None


def test_a_sum_that_exceeds_the_largest_decimal() -> None:
    assert total(Decimal("9e307"), Decimal("9e307")) is None
    assert decimal(b"1e308") is None
