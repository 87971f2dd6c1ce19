"""Keys of whole Arrow arrays: the same bytes, and the same refusals, as for single rows."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.errors import Code, MinkaError
from minka.rows import KeyPart, Single, decimal_of, decode_key, encode_key, scaled
from minka.spark.key_arrays import decode_keys, key_array

_TEXT = st.text(st.one_of(st.sampled_from("\x00\x01a\xff"), st.characters(exclude_categories=["Cs"])), max_size=6)
_BYTES = st.lists(st.sampled_from([0, 0, 1, 0x61, 0xFE, 0xFF]), max_size=6).map(bytes)


def _whole(bits: int) -> st.SearchStrategy[int]:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1
    near = st.builds(
        lambda power, step, sign: max(least, min(most, sign * (1 << power) + step)),
        st.integers(0, bits - 1),
        st.integers(-2, 2),
        st.sampled_from([1, -1]),
    )
    return st.one_of(st.integers(least, most), near)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    near = st.builds(lambda power, step: (1 << power) + step, st.integers(0, most.bit_length() - 2), st.integers(-2, 2))
    numbers = st.one_of(st.integers(0, most), near)
    return st.builds(
        lambda number, negative: Decimal((int(negative), tuple(map(int, str(max(0, number)))), -scale)),
        numbers,
        st.booleans(),
    )


_MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001 without a zone
_TYPES: dict[Any, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.int8(): _whole(8),
    pa.int16(): _whole(16),
    pa.int32(): _whole(32),
    pa.int64(): _whole(64),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): _TEXT,
    pa.large_string(): _TEXT,
    pa.binary(): _BYTES,
    pa.large_binary(): _BYTES,
    pa.binary(16): st.uuids().map(lambda identifier: identifier.bytes),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): _MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
    pa.timestamp("us"): _MOMENTS,
    pa.decimal128(5, 2): _decimals(5, 2),
    pa.decimal128(18, 3): _decimals(18, 3),
    pa.decimal128(19, 0): _decimals(19, 0),
    pa.decimal128(38, 10): _decimals(38, 10),
}


@st.composite
def _tables(draw: st.DrawFn) -> list[pa.Array]:
    """Columns of some types, with nulls. The arrays are slices, so they begin in the middle of their buffers."""
    types = draw(st.lists(st.sampled_from(list(_TYPES)), min_size=1, max_size=4))
    rows = draw(st.integers(0, 8))
    skipped = draw(st.integers(0, 3))
    nulls = draw(st.booleans())
    columns = []
    for kind in types:
        values = st.one_of(st.none(), _TYPES[kind]) if nulls else _TYPES[kind]
        total = rows + skipped
        columns.append(pa.array(draw(st.lists(values, min_size=total, max_size=total)), kind).slice(skipped))
    return columns


def _part(value: Any, kind: pa.DataType) -> KeyPart:
    if value is None:
        return None
    if pa.types.is_decimal128(kind):
        return scaled(value, kind.scale)
    if kind == pa.float32():
        return Single(value)
    part: KeyPart = UUID(bytes=value) if kind == pa.binary(16) else value
    return part


def _one_by_one(columns: list[pa.Array]) -> list[bytes]:
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [encode_key([_part(value, column.type) for value, column in zip(row, columns, strict=True)]) for row in rows]


@given(_tables())
def test_arrays_give_the_same_keys_as_single_rows(columns: list[pa.Array]) -> None:
    assert key_array(columns).to_pylist() == _one_by_one(columns)


@given(_tables(), st.integers(0, 3))
def test_encoded_arrays_are_decoded_unchanged(columns: list[pa.Array], skipped: int) -> None:
    keys = key_array(columns)
    keys.validate(full=True)
    back = decode_keys(keys.slice(skipped), [column.type for column in columns])
    for column, read in zip(columns, back, strict=True):
        read.validate(full=True)
        assert read.type == column.type
        assert list(map(repr, read.to_pylist())) == list(map(repr, column.slice(skipped).to_pylist()))


def test_every_nan_has_the_same_key() -> None:
    for kind, part in ((pa.float32(), Single(math.nan)), (pa.float64(), math.nan)):
        negative = pa.array([-math.nan, math.nan], kind)
        assert key_array([negative]).to_pylist() == [encode_key((part,))] * 2


def test_long_columns_give_the_same_keys_as_single_rows() -> None:
    texts = pa.array([f"c{n % 97}" * (n % 5) for n in range(10_000)])
    numbers = pa.array([(n * 7919) ** 3 % 10**11 - 10**10 for n in range(10_000)], pa.int64())
    keys = key_array([texts, numbers])
    assert keys.to_pylist() == _one_by_one([texts, numbers])
    assert decode_keys(keys, [pa.string(), pa.int64()]) == [texts, numbers]


@pytest.mark.parametrize("scale", [0, 10])
def test_decimals_at_every_change_of_length(scale: int) -> None:
    numbers = [sign * (1 << bits) + step for bits in range(0, 127, 8) for sign in (1, -1) for step in (-1, 0, 1)]
    numbers += [10**38 - 1, 1 - 10**38, 3 << 64, -(3 << 64), (3 << 64) + 1]
    kept = [number for number in numbers if abs(number) < 10**38]
    column = pa.array([decimal_of(number, scale) for number in kept], pa.decimal128(38, scale))
    keys = key_array([column])
    assert keys.to_pylist() == [encode_key((number,)) for number in kept]
    assert decode_keys(keys, [column.type]) == [column]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ([], "at least one column"),
        ([pa.array([1]), pa.array([1, 2])], "column 2 has 2 rows, and column 1 1"),
        ([pa.array([[1]])], "column 1 is of type list"),
        ([pa.array([1], pa.uint64())], "column 1 is of type uint64"),
        ([pa.array([1], pa.timestamp("ns"))], "column 1: Casting from timestamp"),
        ([pa.array([b"a", b"\xff"]).view(pa.string())], "column 1: Invalid UTF8 sequence at string index 1"),
    ],
)
def test_columns_that_no_key_can_have_are_refused(columns: list[pa.Array], text: str) -> None:
    with pytest.raises(MinkaError, match=text) as refusal:
        key_array(columns)
    assert refusal.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("key", "kind", "text"),
    [
        (encode_key((1,)), pa.string(), "row 1: column 1 is int 1, not string"),
        (encode_key(("a",)), pa.binary(), "row 1: column 1 is str 'a', not binary"),
        (encode_key((2**31,)), pa.int32(), "row 1: column 1 is int 2147483648, not int32"),
        (encode_key((-(2**31) - 1,)), pa.int32(), "not int32"),
        (encode_key((2**63,)), pa.int64(), "not int64"),
        (encode_key((-(2**63) - 1,)), pa.int64(), "not int64"),
        (encode_key((2**64,)), pa.int64(), "not int64"),
        (encode_key((1000,)), pa.decimal128(3, 0), "not decimal"),
        (encode_key((10**38,)), pa.decimal128(38, 0), "not decimal"),
        (encode_key((2**200,)), pa.decimal128(38, 0), "not decimal"),
        (encode_key((1.0,)), pa.float32(), "column 1 is float 1.0, not float"),
        (encode_key((1,)), pa.bool_(), "not bool"),
        (encode_key((1,)), pa.binary(16), "not fixed_size_binary"),
        (encode_key(((),)), pa.int64(), r"column 1 is tuple \(\), not int64"),
        (encode_key((1, 2)), pa.int64(), "row 1: the key has 2 columns, not 1"),
        (b"\x16\x01", pa.int64(), "row 1: not a key of columns: byte 2: the key ends"),
        (b"\x16\x00\x01", pa.int64(), "row 1: not a key of columns: byte 0: the integer .* longer"),
        (b"\x16\x00\x01", pa.decimal128(38, 0), "row 1: not a key of columns: byte 0: the integer .* longer"),
        (b"\x1d\x08" + b"\xff" * 8, pa.decimal128(38, 0), "row 1: not a key of columns: byte 0: the integer .* longer"),
        (b"\x02\xff\x00", pa.string(), "row 1: not a key of columns: byte 0: .* isn't UTF-8"),
        (b"\x02a\x00\xff", pa.string(), "row 1: not a key of columns: byte 4: the key ends"),
        (b"", pa.string(), "row 1: the key is empty"),
        (b"\xff", pa.string(), "row 1: not a key of columns: byte 0: 0xff"),
        (b"\x77", pa.null(), "row 1: not a key of columns: byte 0: 0x77"),
        (None, pa.string(), "row 1: the key is null"),
    ],
)
def test_the_refusal_of_a_key_with_other_columns_names_the_row(key: bytes | None, kind: pa.DataType, text: str) -> None:
    with pytest.raises(MinkaError, match=text) as refusal:
        decode_keys(pa.array([encode_key((None,)), key, b"\x77"], pa.binary()), [kind])
    assert refusal.value.code is Code.INVALID_ARGUMENT


@given(
    st.lists(st.binary(max_size=24), min_size=1, max_size=4),
    st.lists(st.sampled_from(list(_TYPES)), min_size=1, max_size=2),
)
def test_any_bytes_are_decoded_like_single_keys_or_refused(keys: list[bytes], types: list[pa.DataType]) -> None:
    try:
        columns = decode_keys(pa.array(keys, pa.binary()), types)
    except MinkaError:
        return
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    for key, row in zip(keys, rows, strict=True):
        assert len(decode_key(key)) == len(row)


def test_dates_and_decimals_keep_their_types() -> None:
    columns = [pa.array([date(1969, 12, 31)]), pa.array([Decimal("-1.50")], pa.decimal128(30, 2))]
    assert key_array(columns).to_pylist() == [encode_key((-1, -150))]


def test_text_is_not_read_beyond_the_end_of_its_key() -> None:
    keys = pa.array([encode_key(("a",)), b"\xffb\x00"], pa.binary())
    with pytest.raises(MinkaError, match="row 1: not a key of columns: byte 0: 0xff isn't a type"):
        decode_keys(keys, [pa.string()])
    assert decode_keys(keys.slice(0, 1), [pa.string()])[0].to_pylist() == ["a"]
