"""Keys of columns: FoundationDB's published vectors, the order of the bytes, decoding, and refusals."""

import math
import struct
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.errors import Code, MinkaError
from minka.rows import (
    KeyPart,
    Single,
    date_of,
    decimal_of,
    decode_key,
    encode_key,
    prefix_range,
    scaled,
    timestamp_of,
)

_UUID = UUID("1100aabb-ccdd-eeff-1100-aabbccddeeff")

# The source is apple/foundationdb: design/tuple.md, and TupleSerializationTest of the Java binding.
_VECTORS: list[tuple[tuple[KeyPart, ...], str]] = [
    ((None,), "00"),
    ((b"foo\x00bar",), "01 666f6f 00ff 626172 00"),
    ((b"",), "01 00"),
    ((b"\x00\x00\x00\x04",), "01 00ff00ff00ff04 00"),
    (("F\xd4O\x00bar",), "02 46c3944f 00ff 626172 00"),
    (("",), "02 00"),
    (("hello",), "02 68656c6c6f 00"),
    (((b"foo\x00bar", None, ()),), "05 01666f6f00ff62617200 00ff 0500 00"),
    (((),), "05 00"),
    (((None,),), "05 00ff 00"),
    ((0,), "14"),
    ((1,), "15 01"),
    ((-1,), "13 fe"),
    ((255,), "15 ff"),
    ((-255,), "13 00"),
    ((256,), "16 0100"),
    ((-256,), "12 feff"),
    ((65536,), "17 010000"),
    ((-65536,), "11 feffff"),
    ((-5551212,), "11 ab4b93"),
    ((2**63 - 1,), "1c 7fffffffffffffff"),
    ((2**63,), "1c 8000000000000000"),
    ((2**64 - 1,), "1c ffffffffffffffff"),
    ((2**64,), "1d 09 010000000000000000"),
    ((-(2**32) + 1,), "10 00000000"),
    ((-(2**63) + 2,), "0c 8000000000000001"),
    ((-(2**63) + 1,), "0c 8000000000000000"),
    ((-(2**63),), "0c 7fffffffffffffff"),
    ((-(2**63) - 1,), "0c 7ffffffffffffffe"),
    ((-(2**64) + 1,), "0c 0000000000000000"),
    ((-(2**64),), "0b f6 feffffffffffffffff"),
    ((Single(-42.0),), "20 3dd7ffff"),
    ((Single(3.14),), "20 c048f5c3"),
    ((Single(-3.14),), "20 3fb70a3c"),
    ((3.14,), "21 c0091eb851eb851f"),
    ((-3.14,), "21 3ff6e147ae147ae0"),
    ((Single(0.0),), "20 80000000"),
    ((Single(-0.0),), "20 7fffffff"),
    ((0.0,), "21 8000000000000000"),
    ((-0.0,), "21 7fffffffffffffff"),
    ((Single(math.inf),), "20 ff800000"),
    ((Single(-math.inf),), "20 007fffff"),
    ((math.inf,), "21 fff0000000000000"),
    ((-math.inf,), "21 000fffffffffffff"),
    ((False,), "26"),
    ((True,), "27"),
    ((_UUID,), "30 1100aabbccddeeff1100aabbccddeeff"),
    ((_UUID, "foobarbaz", 1234, None), "30 1100aabbccddeeff1100aabbccddeeff 02 666f6f62617262617a 00 16 04d2 00"),
]

_INTEGERS = st.one_of(
    st.integers(-(2**2040) + 1, 2**2040 - 1),
    st.builds(
        lambda bits, step, sign: sign * ((1 << bits) + step),
        st.integers(0, 130),
        st.integers(-2, 2),
        st.sampled_from([1, -1]),
    ),
)
_TEXT = st.text(st.one_of(st.sampled_from("\x00\x01\x7fa\xff"), st.characters(exclude_categories=["Cs"])))
_BYTES = st.lists(st.one_of(st.sampled_from([0, 1, 0xFE, 0xFF]), st.integers(0, 255))).map(bytes)
_FLOATS = st.floats(allow_nan=False)
_SINGLES = st.floats(width=32, allow_nan=False).map(Single)
_SIMPLE: list[st.SearchStrategy[Any]] = [
    _BYTES, _TEXT, _INTEGERS, _FLOATS, _SINGLES, st.booleans(), st.uuids()
]  # fmt: skip
_PARTS: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), *_SIMPLE), lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8
)


@pytest.mark.parametrize(("columns", "key"), _VECTORS, ids=[key for _, key in _VECTORS])
def test_vectors_of_foundationdb(columns: tuple[KeyPart, ...], key: str) -> None:
    assert encode_key(columns).hex() == key.replace(" ", "")
    assert _same(decode_key(bytes.fromhex(key)), columns)


def _same(one: Any, other: Any) -> bool:
    """True if both are equal and of the same types. Unlike in Python, -0.0 and 0.0 differ."""
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(struct.pack(">d", one) == struct.pack(">d", other) if isinstance(one, float) else one == other)


def test_the_example_in_the_documentation() -> None:
    key = encode_key(("EWR", date(2013, 1, 31), 1545))
    assert key == bytes.fromhex("02 45 57 52 00   16 3d 78   16 06 09")
    assert decode_key(key) == ("EWR", 15736, 1545)


@given(st.lists(_PARTS, min_size=1, max_size=5).map(tuple))
def test_encoded_columns_are_decoded_unchanged(columns: tuple[KeyPart, ...]) -> None:
    assert _same(decode_key(encode_key(columns)), columns)


def _rank(part: Any) -> Any:
    """A value by which Python sorts parts as their keys are sorted: None first, and -0.0 before 0.0."""
    if isinstance(part, tuple):
        return 1, tuple(map(_rank, part))
    if part is None:
        return (0,)
    return (1, part, math.copysign(1, part)) if isinstance(part, float) else (1, part)


@st.composite
def _pairs(draw: st.DrawFn) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Two rows with the same types of columns, and with nulls. They often begin with equal columns, and the first row
    may have more columns.
    """
    kinds = draw(st.lists(st.sampled_from(_SIMPLE), min_size=1, max_size=3))
    kinds = [
        st.lists(st.one_of(st.none(), kind), max_size=3).map(tuple) if draw(st.booleans()) else kind for kind in kinds
    ]
    one = [draw(st.one_of(st.none(), kind)) for kind in kinds]
    other = [
        value if draw(st.booleans()) else draw(st.one_of(st.none(), kind))
        for value, kind in zip(one, kinds, strict=True)
    ]
    return tuple(one), tuple(other[: draw(st.integers(1, len(other)))])


@given(_pairs())
def test_keys_are_sorted_by_their_columns(rows: tuple[tuple[Any, ...], tuple[Any, ...]]) -> None:
    one, other = rows
    left, right = encode_key(one), encode_key(other)
    assert (left < right) == (_rank(one) < _rank(other))
    assert (left == right) == (_rank(one) == _rank(other))


@given(_TEXT, _TEXT)
def test_text_is_sorted_by_its_utf8(one: str, other: str) -> None:
    assert (encode_key((one,)) < encode_key((other,))) == (one.encode() < other.encode())


@given(_pairs())
def test_the_range_of_a_prefix_has_exactly_the_keys_that_begin_with_its_columns(
    rows: tuple[tuple[Any, ...], tuple[Any, ...]],
) -> None:
    one, prefix = rows
    begins = _rank(one[: len(prefix)]) == _rank(prefix)
    assert prefix_range(prefix).contains(encode_key(one)) == begins


def test_longer_text_that_continues_with_a_zero_byte_is_outside_of_the_prefix() -> None:
    for prefix, longer in (("a", "a\x00"), (b"a", b"a\x00b"), (("a",), ("a", None))):
        assert not prefix_range((prefix,)).contains(encode_key((longer,)))
    assert prefix_range(("a",)).contains(encode_key(("a", None)))
    assert prefix_range(("a",)).contains(encode_key(("a",)))


@given(st.lists(_PARTS, min_size=1, max_size=3).map(tuple))
def test_the_empty_prefix_contains_every_key(columns: tuple[KeyPart, ...]) -> None:
    assert prefix_range(()).contains(encode_key(columns))


def test_all_nans_have_one_key_which_is_sorted_last() -> None:
    negative: float = struct.unpack(">d", b"\xff\xf8\x00\x00\x00\x00\x00\x01")[0]
    assert encode_key((negative,)) == encode_key((math.nan,)) > encode_key((math.inf,))
    assert encode_key((Single(negative),)) == encode_key((Single(math.nan),)) > encode_key((Single(math.inf),))
    assert math.isnan(decode_key(encode_key((math.nan,)))[0])  # type: ignore[arg-type]  # the part is a float


@given(st.dates())
def test_a_date_has_the_key_of_its_day(day: date) -> None:
    (days,) = decode_key(encode_key((day,)))
    assert isinstance(days, int)
    assert date_of(days) == day


@given(st.datetimes(timezones=st.just(UTC) | st.just(timezone(timedelta(hours=-7)))))
def test_a_timestamp_has_the_key_of_its_microseconds_in_utc(moment: datetime) -> None:
    (count,) = decode_key(encode_key((moment,)))
    assert isinstance(count, int)
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=count) == moment


def test_a_datetime_without_a_zone_counts_as_utc() -> None:
    moment = datetime(2024, 3, 10, 2, 30, 0, 1, UTC)
    assert encode_key((moment.replace(tzinfo=None),)) == encode_key((moment,))
    assert timestamp_of(1) == datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4))
def test_decimals_are_scaled_integers(value: Decimal) -> None:
    assert decimal_of(scaled(value, 4), 4) == value
    assert str(decimal_of(150, 2)) == "1.50"


@pytest.mark.parametrize(
    "value", [Decimal("1.005"), Decimal("NaN"), Decimal("Infinity"), Decimal("1E-999999"), Decimal("1" * 1001)]
)
def test_a_decimal_that_does_not_fit_its_places_is_refused(value: Decimal) -> None:
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT"):
        scaled(value, 2)


@pytest.mark.parametrize("convert", [date_of, timestamp_of])
def test_dates_beyond_pythons_years_are_refused(convert: Any) -> None:
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT"):
        convert(2**63)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ((), "at least one column"),
        (("a", Decimal("1.5")), r"column 2 is Decimal, which no key can have: .*scaled"),
        (("a", [1]), "column 2 is list"),
        ((("a", (None, {})),), r"column 1\.2\.2 is dict"),
        (("\ud800",), "column 1 isn't UTF-8 text"),
        ((1, 2**2040), "column 2 is an integer of 256 bytes; 255 is the limit"),
        ((-(2**2040),), "column 1 is an integer of 256 bytes"),
    ],
)
def test_the_refusal_of_a_value_that_no_key_can_have_names_its_column(columns: Any, text: str) -> None:
    with pytest.raises(MinkaError, match=text) as refusal:
        encode_key(columns)
    assert refusal.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("value", [1e39, -1e39, "1"])
def test_values_that_are_not_of_single_precision_are_refused(value: Any) -> None:
    with pytest.raises(MinkaError, match=r"INVALID_ARGUMENT: .* isn't a number of single precision"):
        Single(value)


def test_the_depth_of_tuples_is_limited() -> None:
    deep: KeyPart = ()
    for _ in range(63):
        deep = (deep,)
    assert decode_key(encode_key((deep,))) == (deep,)
    with pytest.raises(MinkaError, match="deeper than 64"):
        encode_key(((deep,),))
    with pytest.raises(MinkaError, match="byte 64: tuples are deeper than 64"):
        decode_key(b"\x05" * 60_000)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("", "the key is empty"),
        ("14 61", "byte 1: 0x61 isn't a type of column"),
        ("14 ff", "byte 1: 0xff isn't a type of column"),
        ("02 61", "byte 2: the key ends within the column that begins at byte 0"),
        ("02 61 00ff", "byte 4: the key ends within the column"),
        ("14 05 14", "byte 3: the key ends within the column that begins at byte 1"),
        ("16 01", "byte 2: the key ends within the column"),
        ("1d", "byte 1: the key ends within the column"),
        ("21 80", "byte 2: the key ends within the column"),
        ("30 00", "byte 2: the key ends within the column"),
        ("02 ff 00", "byte 0: the text that begins here isn't UTF-8"),
        ("16 0001", "byte 0: the integer that begins here is longer than it needs to be"),
        ("12 fffe", "byte 0: the integer that begins here is longer than it needs to be"),
        ("1d 08 0100000000000000", "longer than it needs to be"),
        ("15 00", "longer than it needs to be"),
    ],
)
def test_the_refusal_of_invalid_bytes_names_their_place(key: str, text: str) -> None:
    with pytest.raises(MinkaError, match=text) as refusal:
        decode_key(bytes.fromhex(key))
    assert refusal.value.code is Code.INVALID_ARGUMENT


@given(st.binary(max_size=40))
def test_decoded_bytes_encode_to_the_same_bytes_again(key: bytes) -> None:
    try:
        columns = decode_key(key)
    except MinkaError:
        return
    assert encode_key(columns) == key or _has_nan(columns)


def _has_nan(part: Any) -> bool:
    return any(map(_has_nan, part)) if isinstance(part, tuple) else isinstance(part, float) and math.isnan(part)


@pytest.mark.parametrize("columns", ["EWR", b"EWR", "", 5, None, date(2013, 1, 1), Decimal("1.5")])
@pytest.mark.parametrize("make", [encode_key, prefix_range])
def test_a_single_value_is_refused_where_columns_are_expected(make: Any, columns: Any) -> None:
    text = f"the columns are {type(columns).__name__}, not a sequence; a single column is"
    with pytest.raises(MinkaError, match=text) as refusal:
        make(columns)
    assert refusal.value.code is Code.INVALID_ARGUMENT
