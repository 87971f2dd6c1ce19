"""Converts values of columns (JSON objects, see `minka.rows.values`) to Arrow arrays of given types."""

from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from minka.cluster.key_ranges import readable
from minka.errors import Code, MinkaError
from minka.rows import decode_value


def arrow_values(
    keys: pa.BinaryArray, values: pa.BinaryArray, names: Sequence[str], kinds: Sequence[pa.DataType]
) -> list[pa.Array]:
    """Convert values to the columns with these names and types. A column is null in a row whose object lacks the name,
    and in a row without a value.

    Raises MinkaError(INVALID_ARGUMENT) with the key of the first value that isn't an object with such columns.
    """
    converters = [_converter(kind) for kind in kinds]
    columns: list[list[Any]] = [[] for _ in names]
    places = list(zip(names, converters, columns, strict=True))
    name = ""
    for row, value in enumerate(values.to_pylist()):
        try:
            found = {} if value is None else decode_value(value, exact=True)
            for name, convert, column in places:
                part = found.get(name)
                column.append(None if part is None else convert(part))
        except (MinkaError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            why = error.message if isinstance(error, MinkaError) else f"column {name!r}: {error}"
            raise MinkaError(Code.INVALID_ARGUMENT, f"key {readable(keys[row].as_py())}: {why}") from None
    arrays = []
    for name, kind, column in zip(names, kinds, columns, strict=True):
        try:
            arrays.append(pa.array(column, kind))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise MinkaError(Code.INVALID_ARGUMENT, f"column {name!r}: {error}") from None
    return arrays


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """A function that converts a JSON value to a value that `pa.array` takes for this type."""
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_integer(kind):
        return _whole
    if pa.types.is_binary(kind):
        return lambda part: b64decode(part, validate=True)
    if pa.types.is_date(kind):
        return date.fromisoformat
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat
    if pa.types.is_decimal(kind):
        return lambda part: part if isinstance(part, Decimal) else Decimal(part)
    if pa.types.is_string(kind):
        return _text
    if pa.types.is_list(kind):
        inner = _converter(kind.value_type)
        return lambda part: [None if one is None else inner(one) for one in part]
    if pa.types.is_map(kind):
        inner = _converter(kind.item_type)
        return lambda part: [(name, None if one is None else inner(one)) for name, one in part.items()]
    if pa.types.is_struct(kind):
        fields = [(field.name, _converter(field.type)) for field in kind]
        return lambda part: {name: None if part.get(name) is None else one(part[name]) for name, one in fields}
    return _same


def _same(part: Any) -> Any:
    return part


def _whole(part: Any) -> int:
    if type(part) is not int:
        raise TypeError(f"{part!r} isn't a whole number")
    return part


def _text(part: Any) -> str:
    if type(part) is not str:
        raise TypeError(f"{part!r} isn't text")
    return part
