"""Filters that Spark pushes down: the source reads each row that passes the filters, and may skip other rows.
Hypothesis makes the rows and filters.
"""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    TimestampNTZType,
)

from minka.cluster.key_ranges import KeyRange
from minka.rows import encode_key, scaled
from minka.spark.predicates import WantedKeys, wanted_keys
from minka.spark.source_options import KeyFormat

TEXT = st.text("ab\x00\U0010ffff", max_size=4)
VALUES: dict[DataType, st.SearchStrategy[Any]] = {
    LongType(): st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
    StringType(): TEXT,
    BinaryType(): st.binary(max_size=3),
    DateType(): st.dates(date(1969, 12, 30), date(1970, 1, 3)),
    TimestampNTZType(): st.datetimes(datetime(1969, 12, 31), datetime(1970, 1, 2)),  # noqa: DTZ001  # NTZ: no time zone
    DecimalType(4, 1): st.decimals(-99, 99, places=1),
    DoubleType(): st.sampled_from([-1.5, -0.0, 0.0, 1.5]),
}


def filters(name: str, values: st.SearchStrategy[Any], is_text: bool) -> st.SearchStrategy[Filter]:
    path = (name,)
    kinds = [
        *(st.builds(kind, st.just(path), values) for kind in (EqualTo, GreaterThan, GreaterThanOrEqual)),
        *(st.builds(kind, st.just(path), values) for kind in (LessThan, LessThanOrEqual)),
        st.builds(In, st.just(path), st.lists(values | st.none(), min_size=1, max_size=3).map(tuple)),
        st.just(IsNotNull(path)),
        st.builds(Not, st.builds(EqualTo, st.just(path), values)),
    ]
    return st.one_of(*kinds, *([st.builds(StringStartsWith, st.just(path), values)] if is_text else []))


def passes(one: Any, row: dict[str, Any]) -> bool:
    if isinstance(one, Not):
        return not passes(one.child, row)
    value = row[one.attribute[0]]
    match one:
        case EqualTo():
            return bool(value == one.value)
        case In():
            return value in one.value
        case GreaterThan():
            return bool(value > one.value)
        case GreaterThanOrEqual():
            return bool(value >= one.value)
        case LessThan():
            return bool(value < one.value)
        case LessThanOrEqual():
            return bool(value <= one.value)
        case StringStartsWith():
            return bool(value.startswith(one.value))
        case _:
            return True


def is_wanted(wanted: WantedKeys, key: bytes) -> bool:
    return wanted.range.contains(key) and (wanted.keys is None or key in wanted.keys)


def compared(value: Any) -> Any:
    """Return a value that Python sorts as Spark does: Spark sorts texts by their UTF-8 bytes."""
    return value.encode() if isinstance(value, str) else value


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[StructField], list[dict[str, Any]], list[Filter]]:
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    fields = [StructField(f"c{place}", kind) for place, kind in enumerate(kinds)]
    row = st.fixed_dictionaries({field.name: VALUES[field.dataType] for field in fields})
    rows = draw(st.lists(row, min_size=1, max_size=5))
    # Many of the filters compare with values of the rows, so that they often match.
    of = [
        filters(
            field.name,
            st.sampled_from([row[field.name] for row in rows]) | VALUES[field.dataType],
            isinstance(field.dataType, StringType),
        )
        for field in fields
    ]
    return fields, rows, draw(st.lists(st.one_of(of), max_size=4))


@given(cases())
def test_no_row_that_passes_is_left_unread(case: tuple[list[StructField], list[dict[str, Any]], list[Filter]]) -> None:
    fields, rows, pushed = case
    wanted = wanted_keys(pushed, fields, "columns")
    for row in rows:
        parts = [
            scaled(row[field.name], 1) if isinstance(field.dataType, DecimalType) else row[field.name]
            for field in fields
        ]
        if all(passes(one, row) for one in pushed):
            assert not wanted.is_nothing
            assert is_wanted(wanted, encode_key(parts)), (row, pushed)


@given(st.data())
@pytest.mark.parametrize(("kind", "format_"), [(StringType(), "text"), (BinaryType(), "binary")])
def test_no_plain_key_that_passes_is_left_unread(kind: DataType, format_: KeyFormat, data: st.DataObject) -> None:
    keys = data.draw(st.lists(VALUES[kind].filter(bool), min_size=1, max_size=5))
    of = filters("key", st.sampled_from(keys) | VALUES[kind], isinstance(kind, StringType))
    pushed = data.draw(st.lists(of, max_size=4))
    wanted = wanted_keys(pushed, [StructField("key", kind)], format_)
    for key in keys:
        if all(passes(one, {"key": key}) for one in pushed):
            assert not wanted.is_nothing
            assert is_wanted(wanted, compared(key)), (key, pushed)


KEY = [StructField("key", BinaryType())]
PAIR = [StructField("day", DateType()), StructField("flight", LongType())]
DAY = date(2013, 1, 1)


@pytest.mark.parametrize(
    ("pushed", "expected"),
    [
        ([EqualTo(("key",), b"a")], WantedKeys(KeyRange(), (b"a",))),
        ([In(("key",), (b"b", None, b"a"))], WantedKeys(KeyRange(), (b"a", b"b"))),
        ([GreaterThanOrEqual(("key",), b"a"), LessThan(("key",), b"c")], WantedKeys(KeyRange(b"a", b"c"))),
        ([GreaterThan(("key",), b"a"), LessThanOrEqual(("key",), b"c")], WantedKeys(KeyRange(b"a\x00", b"c\x00"))),
        ([GreaterThan(("other",), b"a")], WantedKeys()),
    ],
)
def test_plain_keys(pushed: list[Filter], expected: WantedKeys) -> None:
    assert wanted_keys(pushed, KEY, "binary") == expected


def test_nothing_is_read_for_filters_that_exclude_each_other() -> None:
    assert wanted_keys([LessThan(("key",), b"a"), GreaterThan(("key",), b"b")], KEY, "binary").is_nothing
    assert wanted_keys([EqualTo(("key",), b"a"), EqualTo(("key",), b"b")], KEY, "binary").is_nothing
    assert wanted_keys([LessThan(("key",), b"")], KEY, "binary").is_nothing


def test_equal_columns_make_a_prefix() -> None:
    of_day = wanted_keys([EqualTo(("day",), DAY)], PAIR, "columns")
    assert of_day == WantedKeys(KeyRange(encode_key([DAY]), encode_key([DAY]) + b"\xff"))
    one = wanted_keys([EqualTo(("flight",), 7), EqualTo(("day",), DAY)], PAIR, "columns")
    assert one.keys == (encode_key([DAY, 7]),)
    some = wanted_keys([In(("flight",), (7, 9)), EqualTo(("day",), DAY)], PAIR, "columns")
    assert some.keys == (encode_key([DAY, 7]), encode_key([DAY, 9]))
    part = wanted_keys([EqualTo(("day",), DAY), GreaterThanOrEqual(("flight",), 7)], PAIR, "columns")
    assert part.range == KeyRange(encode_key([DAY, 7]), encode_key([DAY]) + b"\xff")


def test_a_filter_with_a_value_that_no_key_has_restricts_nothing() -> None:
    field = [StructField("price", DecimalType(4, 1))]
    assert wanted_keys([EqualTo(("price",), Decimal("1.23"))], field, "columns") == WantedKeys()
