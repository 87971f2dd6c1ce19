"""The JSON of columns as values equals the JSON that Spark's to_json makes. tests/pipeline compares it with Spark."""

import base64
import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.errors import Code, MinkaError
from minka.rows import decode_value, encode_value

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), _TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_TEXT, inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(_TEXT, _JSON))
def test_a_row_is_encoded_as_one_json_object_and_decoded_unchanged(row: dict[str, Any]) -> None:
    value = encode_value(row)
    assert json.loads(value) == row
    assert decode_value(value) == row
    assert list(decode_value(value)) == list(row)


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals_keep_all_digits(value: Decimal) -> None:
    back = decode_value(encode_value({"d": value, "n": [value]}), exact=True)
    assert back == {"d": value, "n": [value]}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_decoded_unchanged(value: float) -> None:
    assert repr(decode_value(encode_value({"x": value}))["x"]) == repr(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        (100.0, "100.0"),
        (-0.0, "-0.0"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (9999999.5, "9999999.5"),
        (1e7, "1.0E7"),
        (1.25e-7, "1.25E-7"),
        (1e23, "1.0E23"),
        (5e-324, "4.9E-324"),
        (math.nan, '"NaN"'),
        (math.inf, '"Infinity"'),
        (-math.inf, '"-Infinity"'),
        (Decimal("0E-10"), "0E-10"),
        (Decimal("1.0E-7"), "1.0E-7"),
        (Decimal("-1.50"), "-1.50"),
        (2**70, "1180591620717411303424"),
        (True, "true"),
        (None, "null"),
        (b"\x00\xff\x10", '"AP8Q"'),
        (date(1, 1, 1), '"0001-01-01"'),
        (datetime(2013, 1, 31, 5, 17, tzinfo=UTC).replace(tzinfo=None), '"2013-01-31T05:17:00.000000"'),
        (datetime(2013, 1, 31, 5, 17, 0, 1, UTC), '"2013-01-31T05:17:00.000001Z"'),
        (datetime(2013, 1, 31, 5, 17, tzinfo=timezone(timedelta(hours=-5))), '"2013-01-31T10:17:00.000000Z"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        ('\x00\x0b\x1f\x7f\n\t/"\\u001f', '"\\u0000\\u000B\\u001F\x7f\\n\\t/\\"\\\\u001f"'),
        ("é\u2028\U0001f4a9", '"é\u2028\U0001f4a9"'),
        ({"b": [1, (2.0, None)], "": {}}, '{"b":[1,[2.0,null]],"":{}}'),
    ],
)
def test_the_json_of_each_type(value: Any, text: str) -> None:
    assert encode_value({"c": value}) == b'{"c":' + text.encode() + b"}"


def test_columns_keep_their_order_and_there_is_no_whitespace() -> None:
    assert encode_value({"b": 1, "a": None}) == b'{"b":1,"a":null}'
    assert encode_value({}) == b"{}"


@given(st.binary())
def test_bytes_are_encoded_in_base64(data: bytes) -> None:
    assert base64.b64decode(decode_value(encode_value({"c": data}))["c"]) == data


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"c": object()}, "column c is object, which no value can have"),
        ({"c": [1, {"d": {1}}]}, r"column c\[1\]\.d is set"),
        ({"c": Decimal("NaN")}, r"column c is Decimal\('NaN'\)"),
        ({"c": {1: 2}}, "column c has the key 1, which is int, not str"),
        ({1: 2}, "the row has the key 1, which is int, not str"),
        ({"c": "\ud800"}, "isn't UTF-8"),
    ],
)
def test_columns_that_no_value_can_have_are_refused(row: Any, text: str) -> None:
    with pytest.raises(MinkaError, match=text) as refusal:
        encode_value(row)
    assert refusal.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "value", [b"", b"1", b"[]", b"null", b"{", b'{"a":1} x', b'{"a":"\xff"}', b"\xff", b'{"a":NaN}', b"[" * 99999]
)
def test_anything_but_a_json_object_is_refused(value: bytes) -> None:
    with pytest.raises(MinkaError, match="the value isn't a JSON object") as refusal:
        decode_value(value)
    assert refusal.value.code is Code.INVALID_ARGUMENT
