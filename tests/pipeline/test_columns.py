"""Keys and values that real Spark writes equal those of `minka.rows`, and Spark reads them back."""

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from minka.errors import MinkaError
from minka.rows import Single, decode_value, encode_key, encode_value, scaled
from minka.spark.columns import key_column, value_column, value_fields

_ZONE = "America/Los_Angeles"
_SUMMER = datetime(2024, 7, 1, 12, 30, 15, 123456, tzinfo=UTC)
_SKIPPED = datetime(2024, 3, 10, 2, 30, tzinfo=UTC).replace(tzinfo=None)  # a time that the zone's clocks skip
_TEXTS = [
    "",
    "EWR",
    "\x00",
    "a\x00b\x00\x00",
    "é\x00",
    "00\x00,",
    "a,b",
    '\u2028/\\"\x7f\x1f\x0b\n\t',
    "日本\U0001f4a9",
]
_NUMBERS = [
    0,
    *(sign * (1 << bits) + step for bits in (8, 16, 24, 40, 56, 62) for sign in (1, -1) for step in (-1, 0, 1)),
]


@pytest.fixture(autouse=True)
def _far_from_utc(spark: SparkSession) -> Iterator[None]:
    """Give the session another time zone: the written rows must not depend on it."""
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", _ZONE)
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


def _local(moment: datetime) -> datetime:
    """Convert the moment to the form that PySpark takes and returns: without a zone, in this process's local time."""
    return moment.astimezone().replace(tzinfo=None)


def _keys(frame: DataFrame) -> list[bytes]:
    return [bytes(row.k) for row in frame.select(key_column(frame.schema.fields).alias("k")).collect()]


def _values(frame: DataFrame) -> list[bytes]:
    return [bytes(row.v) for row in frame.select(value_column(frame.schema.fields).alias("v")).collect()]


def test_keys_of_text_and_integers_equal_those_of_encode_key(spark: SparkSession) -> None:
    extremes = [2**63 - 1, -(2**63), -(2**63) + 1, -(2**63) + 2]
    numbers = [*_NUMBERS, *extremes, None]
    rows = [(number, (_TEXTS * 9)[place] if number else None) for place, number in enumerate(numbers)]
    assert len(rows) <= len(_TEXTS) * 9
    frame = spark.createDataFrame(rows, "n bigint, t string")
    assert _keys(frame) == [encode_key(row) for row in rows]


def test_keys_of_other_types_that_spark_encodes_equal_those_of_encode_key(spark: SparkSession) -> None:
    rows: list[Any] = [
        (1, -2, 3, True, b"\x00\xff\x00", date(1969, 12, 31), _SUMMER, None),
        (
            -128,
            32767,
            -(2**31),
            False,
            b"",
            date(1, 1, 1),
            datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            None,
        ),
        (None, None, None, None, None, None, None, None),
    ]
    schema = "a tinyint, b smallint, c int, d boolean, e binary, f date, g timestamp, h void"
    given = [(*row[:6], _local(row[6]) if row[6] else None, None) for row in rows]
    assert _keys(spark.createDataFrame(given, schema)) == [encode_key(row) for row in rows]


def test_keys_that_go_through_arrow_equal_those_of_encode_key(spark: SparkSession) -> None:
    rows: list[Any] = [
        ("a", 1.5, 0.1, Decimal("-1.50"), Decimal("12345678901234567890123456789012345.678"), _SKIPPED),
        ("b\x00", -0.0, float("nan"), Decimal("0.00"), Decimal("-18446744073709551.616"), _SKIPPED),
        (None, None, None, None, None, None),
    ]
    frame = spark.createDataFrame(rows, "t string, d double, f float, p decimal(5,2), q decimal(38,3), n timestamp_ntz")
    expected = [
        encode_key((t, d, Single(f), scaled(p, 2), scaled(q, 3), n)) if t else encode_key((None,) * 6)
        for t, d, f, p, q, n in rows
    ]
    assert _keys(frame) == expected


def test_rows_sorted_by_key_are_sorted_by_their_columns(spark: SparkSession) -> None:
    frame = spark.range(500).select(
        (F.hash("id") % 7).cast("string").alias("t"), (F.xxhash64("id") % 1000).alias("n"), F.col("id")
    )
    by_key = frame.orderBy(key_column(frame.schema.fields)).collect()
    assert by_key == sorted(by_key, key=lambda row: (row.t.encode(), row.n, row.id))


def test_any_name_of_a_column_works(spark: SparkSession) -> None:
    row = {"a.b": 1, "a`b": 2, 'é"': 3, "a b": 4}
    frame = spark.createDataFrame([tuple(row.values())], T.StructType([T.StructField(n, T.IntegerType()) for n in row]))
    assert _keys(frame) == [encode_key((1, 2, 3, 4))]
    assert _values(frame) == [encode_value(row)]


def test_values_equal_those_of_encode_value_and_are_read_back(spark: SparkSession) -> None:
    schema = (
        "i int, l bigint, b boolean, t string, y binary, d date, m timestamp, n timestamp_ntz, p decimal(38,10), "
        "x double, a array<decimal(5,2)>, s struct<u: string, v: array<double>>, k map<string, date>, z void"
    )
    full: dict[str, Any] = {
        "i": -5, "l": 2**63 - 1, "b": True, "t": "", "y": b"\x00\xff\x10", "d": date(2013, 1, 31),
        "m": _SUMMER, "n": _SKIPPED, "p": Decimal("1234567890123456789012345678.0123456789"),
        "x": 0.1, "a": [Decimal("1.50"), None, Decimal("-0.01")], "s": {"u": None, "v": [1e-7, 1e7]},
        "k": {"": None, "a.b": date(1, 1, 1)}, "z": None,
    }  # fmt: skip
    small = {
        **full,
        "p": Decimal("1E-10"),
        "a": [],
        "s": {"u": "x", "v": []},
        "k": {},
        "m": datetime(1970, 1, 1, tzinfo=UTC),
    }
    rows = [full, small, dict.fromkeys(full), *({**dict.fromkeys(full), "t": text} for text in _TEXTS)]
    given = [tuple({**row, "m": row["m"] and _local(row["m"])}.values()) for row in rows]
    frame = spark.createDataFrame(given, schema)
    written = _values(frame)
    assert written == [encode_value(row) for row in rows]
    values = spark.createDataFrame([(value,) for value in written], "v binary")
    back = values.select(value_fields(F.col("v"), frame.schema).alias("r")).select("r.*").collect()
    assert back == frame.collect()
    assert decode_value(written[0], exact=True)["p"] == full["p"]


def test_numbers_are_written_as_java_writes_them(spark: SparkSession) -> None:
    numbers = [0.0, -0.0, 1.0, -1.5, 0.001, 0.00099, 1e-5, 123456.789, 9999999.0, 1e7, 1.5e10, 5e-324, 1.8e308, 1 / 3]
    numbers += [math.nan, math.inf, -math.inf, *(round(n * 1.37, 2) for n in range(200))]
    frame = spark.createDataFrame([(number,) for number in numbers], "x double")
    written = _values(frame)
    assert written == [encode_value({"x": number}) for number in numbers]
    values = spark.createDataFrame([(value,) for value in written], "v binary")
    back = [row.r.x for row in values.select(value_fields(F.col("v"), frame.schema).alias("r")).collect()]
    assert list(map(repr, back)) == list(map(repr, numbers))


def test_years_before_0_and_after_9999_are_read_back(spark: SparkSession) -> None:
    sql = "SELECT date'-0001-01-01' a, date'+10000-12-31' b, timestamp'0000-01-01 00:00:00.000001 UTC' c"
    frame = spark.sql(sql)
    read = value_fields(value_column(frame.schema.fields), frame.schema)
    row = frame.select(value_column(frame.schema.fields).alias("v"), (read == F.struct("*")).alias("same")).first()
    assert row is not None
    assert bytes(row.v) == b'{"a":"-0001-01-01","b":"+10000-12-31","c":"0000-01-01T00:00:00.000001Z"}'
    assert row.same


def _read(values: DataFrame) -> Any:
    schema = T.StructType([T.StructField("a", T.IntegerType()), T.StructField("t", T.StringType())])
    return [row.r for row in values.select(value_fields(F.col("v"), schema).alias("r")).collect()]


def test_a_column_that_the_value_lacks_is_null(spark: SparkSession) -> None:
    values = spark.createDataFrame([(b'{"a":1}',), (b"{}",), (None,)], "v binary").coalesce(1)
    assert _read(values) == [T.Row(a=1, t=None), T.Row(a=None, t=None), None]


_NO_VALUE = r"MALFORMED_RECORD|INVALID_UTF8|USER_RAISED|FAILFAST"


@pytest.mark.parametrize(
    "value",
    [b"", b" ", b"null", b"1", b"[]", b"\xff", b'{"a":1', b"{'a':1}", b'{"a":1.5}', b'{"a":"x"}', b'{"t":"\xff"}'],
)
def test_a_malformed_value_fails_the_query(spark: SparkSession, value: bytes) -> None:
    with pytest.raises(Exception, match=_NO_VALUE):
        _read(spark.sql(f"SELECT X'{value.hex()}' v"))


@pytest.mark.parametrize("value", [b'{"a":1.5}', b'{"t":"\xff"}'])
def test_a_malformed_value_fails_the_query_s_tasks(spark: SparkSession, value: bytes) -> None:
    with pytest.raises(Exception, match=_NO_VALUE):
        _read(spark.createDataFrame([(value,)], "v binary"))


@pytest.mark.parametrize("expression", [key_column, value_column])
def test_invalid_utf8_fails_the_query(spark: SparkSession, expression: Any) -> None:
    frame = spark.sql("SELECT cast(X'61ff' AS string) t")
    column: Column = expression(frame.schema.fields)
    with pytest.raises(Exception, match="INVALID_UTF8"):
        frame.select(column).collect()


def _field(kind: str) -> list[T.StructField]:
    schema = T.StructType.fromDDL(f"c {kind}")
    assert isinstance(schema, T.StructType)
    return list(schema.fields)


@pytest.mark.parametrize("kind", ["array<int>", "map<string, int>", "struct<a: int>", "interval day", "variant"])
def test_the_refusal_of_a_type_in_a_key_names_the_column(spark: SparkSession, kind: str) -> None:
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT: column c is of type"):
        key_column(_field(kind))


@pytest.mark.parametrize("kind", ["map<int, int>", "interval day", "array<map<date, int>>", "struct<a: variant>"])
def test_a_value_refuses_types_that_json_would_change(spark: SparkSession, kind: str) -> None:
    with pytest.raises(MinkaError, match=r"INVALID_ARGUMENT: column c.* is of type"):
        value_column(_field(kind))
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT"):
        value_fields(F.lit(b"{}"), T.StructType(_field(kind)))


def test_two_columns_with_the_same_name_are_refused(spark: SparkSession) -> None:
    with pytest.raises(MinkaError, match="2 columns have the name c"):
        value_column(_field("int") * 2)


def test_a_key_needs_a_column(spark: SparkSession) -> None:
    with pytest.raises(MinkaError, match="at least one column"):
        key_column([])


def test_a_key_of_nine_columns_compiles(spark: SparkSession) -> None:
    """The code that Spark generates for the whole key must stay below the JVM's limit for one method."""
    frame = spark.range(10).select(*(F.xxhash64("id", F.lit(n)).alias(f"c{n}") for n in range(9)))
    rows = [tuple(row) for row in frame.collect()]
    assert _keys(frame) == [encode_key(row) for row in rows]
