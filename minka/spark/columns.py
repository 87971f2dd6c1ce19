"""The formats of `minka.rows` in Spark: expressions that give the same bytes as `encode_key` and `encode_value`.

Wherever possible, these are expressions of Spark's own functions. Spark compiles them, so no row passes through Python.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from minka.errors import Code, MinkaError
from minka.rows.keys import BYTES as BINARY
from minka.rows.keys import FALSE, NULL, TEXT, TRUE, ZERO, encode_key
from minka.spark.key_arrays import decode_keys, key_array

__all__ = ["VALUE_OPTIONS", "decode_keys", "key_array", "key_column", "value_column", "value_fields"]

# With these options of `to_json` and `from_json` a row has the same bytes, whatever the session's settings are.
VALUE_OPTIONS: Final[Mapping[str, str]] = {
    "ignoreNullFields": "false",
    "dateFormat": "yyyy-MM-dd",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
_READING: Final[Mapping[str, str]] = {"mode": "FAILFAST", "allowSingleQuotes": "false"}

_NATIVE_INTEGERS: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DateType, T.TimestampType)
_NATIVE: Final = (*_NATIVE_INTEGERS, T.StringType, T.BinaryType, T.BooleanType, T.NullType)
_THROUGH_ARROW: Final = (T.FloatType, T.DoubleType, T.DecimalType, T.TimestampNTZType)
_SIMPLE_VALUES: Final = (*_NATIVE, *_THROUGH_ARROW)
_LEAST: Final = -(1 << 63)


def key_column(columns: Sequence[T.StructField]) -> Column:
    """The expression for a row's key (binary), made of these columns of a data frame.

    Spark itself encodes text, binary, integers, booleans, dates and timestamps. A key with floats, decimals or
    timestamp_ntz goes through Python, as Arrow arrays, at about half the speed. Raises MinkaError(INVALID_ARGUMENT) if
    a column is of another type, or there is no column. The query fails on text that isn't UTF-8.
    """
    if not columns:
        raise MinkaError(Code.INVALID_ARGUMENT, "a key has at least one column: without one it would be empty")
    for field in columns:
        if not isinstance(field.dataType, (*_NATIVE, *_THROUGH_ARROW)):
            _refuse_type(field.name, field.dataType, "key")
    if all(isinstance(field.dataType, _NATIVE) for field in columns):
        return F.concat(*(_native(_column(field.name), field.dataType) for field in columns))
    encode = arrow_udf(_key_of_arrays, T.BinaryType())  # type: ignore[call-overload]  # the UDF's kind follows from the function's hints
    key: Column = encode(*(_column(field.name) for field in columns))
    return key


def _key_of_arrays(*columns: pa.Array) -> pa.Array:
    return key_array(columns)


def value_column(columns: Sequence[T.StructField]) -> Column:
    """The expression for a row's value (binary), made of these columns of a data frame.

    Raises MinkaError(INVALID_ARGUMENT) if a column has a type whose values would be different when they are read back,
    or if two columns have the same name. The query fails on text that isn't UTF-8; within arrays, maps and structs each
    wrong byte becomes U+FFFD instead.
    """
    _check_values(columns)
    texts = {field.name for field in columns if isinstance(field.dataType, T.StringType)}
    columns_of_row = (
        F.validate_utf8(_column(field.name)).alias(field.name) if field.name in texts else _column(field.name)
        for field in columns
    )
    return F.to_json(F.struct(*columns_of_row), dict(VALUE_OPTIONS)).cast("binary")


def value_fields(value: Column, schema: T.StructType) -> Column:
    """The expression for a struct with the columns that are in a value (binary). A column that the value lacks is null,
    and a null value gives a null struct.

    The query fails on a value that isn't a JSON object in UTF-8, or has a column of another type. Like `from_json`, it
    is lenient in two ways: text after the object is ignored, and a decimal with more places than its column is rounded.
    Raises INVALID_ARGUMENT as `value_column` does.
    """
    _check_values(schema.fields)
    text = F.validate_utf8(value.cast("string"))
    read = F.from_json(text, schema, {**VALUE_OPTIONS, **_READING})
    refused = F.raise_error(F.lit("a value is empty, so it isn't a JSON object"))  # from_json alone would give null
    return F.when(value.isNull(), None).otherwise(F.coalesce(read, refused.cast(schema)))


def _column(name: str) -> Column:
    return F.col(f"`{name.replace('`', '``')}`")


def _refuse_type(name: str, kind: T.DataType, of: str) -> None:
    text = f"column {name} is of type {kind.simpleString()}, which no {of} can have"
    raise MinkaError(Code.INVALID_ARGUMENT, text)


def _native(column: Column, kind: T.DataType) -> Column:
    match kind:
        case T.NullType():
            return _literal(NULL)
        case T.BooleanType():
            return F.when(column, _literal(TRUE)).when(~column, _literal(FALSE)).otherwise(_literal(NULL))
        case T.StringType():
            return _string(TEXT, F.validate_utf8(column))
        case T.BinaryType():
            return _string(BINARY, column)
        case T.DateType():
            return _integer(F.unix_date(column).cast("bigint"))
        case T.TimestampType():
            return _integer(F.unix_micros(column))
        case _:
            return _integer(column.cast("bigint"))


def _literal(*codes: int) -> Column:
    return F.lit(bytes(codes))


def _string(code: int, column: Column) -> Column:
    # Zero bytes must be escaped. Spark can't replace bytes within binary, so they are replaced in its hexadecimal form.
    pairs = F.regexp_replace(F.hex(column), "(..)", "$1,")
    escaped = F.replace(F.replace(pairs, F.lit("00,"), F.lit("00FF")), F.lit(","), F.lit(""))
    data = column.cast("binary")
    data = F.when(F.contains(data, _literal(0)), F.unhex(escaped)).otherwise(data)
    return F.coalesce(F.concat(_literal(code), data, _literal(0)), _literal(NULL))


def _integer(value: Column) -> Column:
    """The encoding of an integer. The expression is short on purpose: with a branch for each length, the code for many
    columns would be too long to compile.
    """
    data = F.unhex(F.hex(value))  # without zero bytes in front
    size = F.length(data)
    positive = F.concat(F.substring(_literal(*range(ZERO + 1, ZERO + 9)), size, F.lit(1)), data)
    size = F.length(F.unhex(F.hex(-value)))
    # A negative value is encoded as the lowest bytes of value - 1: -5 becomes 0xfa, which is the ones' complement of 5.
    data = F.substring(F.unhex(F.hex(value - 1)), 9 - size, F.lit(8))
    negative = F.concat(F.substring(_literal(*range(ZERO - 8, ZERO)), 9 - size, F.lit(1)), data)
    return (
        F.when(value > 0, positive)
        .when(value == 0, _literal(ZERO))
        .when(value == _LEAST, F.lit(encode_key((_LEAST,))))  # -value would not fit in a bigint
        .when(value < 0, negative)
        .otherwise(_literal(NULL))
    )


def _check_values(columns: Iterable[T.StructField], path: str = "") -> None:
    counts = Counter(field.name for field in columns)
    for name, count in counts.items():
        if count > 1:
            raise MinkaError(Code.INVALID_ARGUMENT, f"{count} columns have the name {path}{name}")
    for field in columns:
        _check_value(f"{path}{field.name}", field.dataType)


def _check_value(name: str, kind: T.DataType) -> None:
    match kind:
        case T.StructType():
            _check_values(kind.fields, f"{name}.")
        case T.ArrayType():
            _check_value(f"{name}[]", kind.elementType)
        case T.MapType() if isinstance(kind.keyType, T.StringType):
            _check_value(f"{name}[]", kind.valueType)
        case _ if not isinstance(kind, _SIMPLE_VALUES):
            _refuse_type(name, kind, "value")
