"""Makes the columns `key` and `value`, both binary, out of a data frame with any columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField

from minka.cluster.key_ranges import MAX_KEY_BYTES
from minka.engine.arguments import items
from minka.errors import Code, MinkaError
from minka.spark.columns import key_column, value_column
from minka.wire.kv_frames import MAX_VALUE_BYTES

Form = Literal["auto", "columns"]
UNREADABLE: Final = "_unreadable"  # the text of a CSV or JSON line that can't be read, else null


@dataclass(frozen=True, slots=True)
class PairColumns:
    """The columns of a data frame that become the key, and those that become the value (default: all others).

    With the form `auto`, a single key column of text or bytes is itself the key; a single column of text or bytes that
    `value` names is itself the value. In all other cases, and always with the form `columns`, `minka.rows` encodes the
    columns: keys so that they sort as their columns do, values as JSON objects. Example: in a table with the text
    columns id and v, a row has 3 in v. `PairColumns(("id",))` makes the value {"v":"3"} of this row, and
    `PairColumns(("id",), ("v",))` makes the value 3.
    """

    key: tuple[str, ...]
    value: tuple[str, ...] = ()  # (): all others
    key_form: Form = "auto"
    value_form: Form = "auto"

    def __post_init__(self) -> None:
        """Raise INVALID_ARGUMENT for a str instead of a tuple, since each letter would count as a column."""
        for names in (self.key, self.value):
            items(names, "names of columns")


def _fields_of(columns: PairColumns, frame: DataFrame) -> tuple[list[StructField], list[StructField]]:
    """The fields of the key and of the value. Raises INVALID_ARGUMENT if the data frame doesn't have them, and for
    a form that isn't known.
    """
    chosen("key_form", columns.key_form, get_args(Form))
    chosen("value_form", columns.value_form, get_args(Form))
    fields = {field.name: field for field in frame.schema.fields}
    for name in (*columns.key, *columns.value):
        if name not in fields:
            text = f"the source has no column {name!r}; it has {', '.join(fields) or 'none'}"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
    if not columns.key:
        raise MinkaError(Code.INVALID_ARGUMENT, "no column is named for the key")
    value = columns.value or tuple(name for name in fields if name not in {*columns.key, UNREADABLE})
    return [fields[name] for name in columns.key], [fields[name] for name in value]


def key_of(columns: PairColumns, frame: DataFrame) -> Column:
    """The expression for the key (binary). If a single column itself is the key, a null in it stays null."""
    fields, _ = _fields_of(columns, frame)
    return _itself(fields[0]) if _is_itself(fields, columns.key_form) else key_column(fields)


def _value_of(columns: PairColumns, frame: DataFrame) -> Column:
    """The expression for the value (binary). If a single column itself is the value, a null in it stays null."""
    _, fields = _fields_of(columns, frame)
    if not fields:
        return F.lit(b"")
    # If no column is named for the value, even a single column becomes a JSON object, which keeps the column's name.
    is_itself = bool(columns.value) and _is_itself(fields, columns.value_form)
    return _itself(fields[0]) if is_itself else value_column(fields)


def chosen(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise INVALID_ARGUMENT if the value of this option isn't one of the choices."""
    if value not in choices:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{name} is {value!r}, not one of {', '.join(choices)}")


def column_of(frame: DataFrame, name: str) -> Column:
    """The column with this name. If there is no column "a.b", the name means the field b of the struct a."""
    return F.col(_quoted(name) if name in frame.columns else name)


def pairs_of(frame: DataFrame, columns: PairColumns, *others: Column) -> DataFrame:
    """A data frame with the columns `key` and `value`, the columns `others` of `frame`, and the column UNREADABLE if
    `frame` has it. Raises INVALID_ARGUMENT for columns that can't be a key or a value.
    """
    kept = [*others, *([F.col(UNREADABLE)] if UNREADABLE in frame.columns else [])]
    return frame.select(key_of(columns, frame).alias("key"), _value_of(columns, frame).alias("value"), *kept)


def problem_of(frame: DataFrame) -> Column:
    """The expression for the reason why a pair can't be in a keyspace, as text; null if there is no such reason. The
    expression reads the columns `key`, `value` and, if the data frame has it, UNREADABLE.
    """
    key, value, size = F.col("key"), F.col("value"), F.octet_length
    is_unreadable = F.col(UNREADABLE).isNotNull() if UNREADABLE in frame.columns else F.lit(False)
    return (
        F.when(is_unreadable, F.lit("the line can't be read"))
        .when(key.isNull(), F.lit("the key is null"))
        .when(size(key) == 0, F.lit("the key is empty"))
        .when(size(key) > MAX_KEY_BYTES, F.concat(F.lit("the key has "), size(key), F.lit(" bytes")))
        .when(value.isNull(), F.lit("the value is null"))
        .when(size(value) > MAX_VALUE_BYTES, F.concat(F.lit("the value has "), size(value), F.lit(" bytes")))
    )


def _is_itself(fields: Sequence[StructField], form: Form) -> bool:
    return form == "auto" and len(fields) == 1 and isinstance(fields[0].dataType, BinaryType | StringType)


def _itself(field: StructField) -> Column:
    return F.col(_quoted(field.name)).cast("binary")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
