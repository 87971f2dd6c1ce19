"""Decides which columns of a schema make up a row's key and which its value, and converts between columns and bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, BooleanType, IntegerType, LongType, StringType, StructField, StructType

from minka.cluster.key_ranges import readable
from minka.errors import Code, MinkaError
from minka.rows import encode_value
from minka.spark.arrow_values import arrow_values
from minka.spark.key_arrays import decode_keys, key_array
from minka.spark.source_options import KeyFormat, SourceOptions
from minka.v1.changes_pb2 import ChangeBatch
from minka.v1.snapshots_pb2 import RowBatch

KEY: Final = "key"
VALUE: Final = "value"
# These columns exist only if changes are read, and if the schema names them.
CHANGE: Final = "_change"  # "put" or "delete"
PARTITION: Final = "_partition"
OFFSET: Final = "_offset"  # in the partition's log
_OF_CHANGES: Final = {CHANGE: StringType(), PARTITION: IntegerType(), OFFSET: LongType()}
_NONE: Final[Mapping[str, pa.Array]] = MappingProxyType({})
DEFAULT_SCHEMA: Final = "key binary, value binary"


@dataclass(frozen=True, slots=True)
class Layout:
    """Says which columns of a data frame are the key and which are the value, and converts rows accordingly."""

    schema: StructType
    key_fields: tuple[StructField, ...]
    key_format: KeyFormat
    value_fields: tuple[StructField, ...]  # none: only keys are read or written
    has_json: bool  # the value is a JSON object that has the value fields
    delete_column: str

    @classmethod
    def of(cls, schema: StructType, options: SourceOptions) -> Self:
        """The layout that a schema has by these options. Raises INVALID_ARGUMENT if the two don't fit together."""
        names = options.key_columns or (KEY,)
        by_name = {field.name: field for field in schema.fields}
        for name, kind in _OF_CHANGES.items():
            if name in by_name and by_name[name].dataType != kind:
                text = f"column {name!r} is {by_name[name].dataType.simpleString()}, not {kind.simpleString()}"
                raise MinkaError(Code.INVALID_ARGUMENT, text)
        if missing := [name for name in names if name not in by_name]:
            text = f"the schema has no column {missing[0]!r} for the key; name its columns with the option keyColumns"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
        if options.delete_column and not isinstance(
            by_name.get(options.delete_column, StructField("", StringType())).dataType, BooleanType
        ):
            text = f"option 'deleteColumn' names {options.delete_column!r}, which isn't a boolean column"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
        key_fields = tuple(by_name[name] for name in names)
        others = tuple(f for f in schema.fields if f.name not in {*names, *_OF_CHANGES, options.delete_column})
        is_plain = len(others) == 1 and others[0].name == VALUE and isinstance(others[0].dataType, _Bytes)
        key_format = options.key_format
        if key_format != "columns":
            if not isinstance(key_fields[0].dataType, _Bytes):
                text = f"column {names[0]!r} is {key_fields[0].dataType.simpleString()}, but a key is binary or string"
                raise MinkaError(Code.INVALID_ARGUMENT, f"{text}: use the option keyColumns={names[0]}")
            key_format = "text" if isinstance(key_fields[0].dataType, StringType) else "binary"
        return cls(schema, key_fields, key_format, others, bool(others) and not is_plain, options.delete_column)

    def check_no_changes(self) -> None:
        """Check that the schema has no column that only changes have. Raises INVALID_ARGUMENT."""
        if found := [name for name in self.schema.names if name in _OF_CHANGES]:
            raise MinkaError(Code.INVALID_ARGUMENT, f"only changes have the column {found[0]!r}: use readStream")

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema that batches for PySpark must have."""
        return to_arrow_schema(self.schema, timezone="UTC")

    def batch_of(self, rows: RowBatch) -> pa.RecordBatch:
        """Make a batch for PySpark of these rows. Raises INVALID_ARGUMENT for a row that doesn't fit the schema."""
        return self._batch(_column(rows.rows, rows.key_offsets, rows.keys), _values_of(rows))

    def batch_of_pairs(self, pairs: Sequence[tuple[bytes, bytes]]) -> pa.RecordBatch:
        """Make a batch for PySpark of rows that were read one by one. Raises as `batch_of` does."""
        keys, values = zip(*pairs, strict=True)
        return self._batch(pa.array(keys, pa.binary()), pa.array(values, pa.binary()))

    def batch_of_changes(self, changes: ChangeBatch, partition_id: int) -> pa.RecordBatch:
        """Make a batch for PySpark of changes. A deleted key has a null as its value. Raises as `batch_of` does."""
        rows = len(changes.offsets)
        deleted = np.frombuffer(changes.deleted, np.bool_)
        values = _column(rows, changes.value_offsets, changes.values)
        if deleted.any():
            values = pc.if_else(pa.array(deleted), pa.scalar(None, pa.binary()), values)
        of_changes = {
            CHANGE: pa.array(np.where(deleted, "delete", "put"), pa.string()),
            PARTITION: pa.array(np.full(rows, partition_id), pa.int32()),
            OFFSET: pa.array(changes.offsets, pa.int64()),
        }
        return self._batch(_column(rows, changes.key_offsets, changes.keys), values, of_changes)

    def _batch(
        self, keys: pa.BinaryArray, values: pa.BinaryArray | None, of_changes: Mapping[str, pa.Array] = _NONE
    ) -> pa.RecordBatch:
        schema = self.arrow_schema
        columns = dict(of_changes)
        names = [field.name for field in self.key_fields]
        if self.key_format == "columns":
            columns.update(zip(names, decode_keys(keys, [schema.field(name).type for name in names]), strict=True))
        else:
            columns[names[0]] = _cast(keys, schema.field(names[0]).type, keys)
        value_names = [field.name for field in self.value_fields]
        if self.has_json:
            assert values is not None, "values are asked for"
            kinds = [schema.field(name).type for name in value_names]
            columns.update(zip(value_names, arrow_values(keys, values, value_names, kinds), strict=True))
        elif value_names:
            columns[VALUE] = _cast(values, schema.field(VALUE).type, keys)
        if self.delete_column:
            columns[self.delete_column] = pa.array(np.zeros(len(keys), np.bool_))
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def keys_of(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The keys of a data frame's rows. Raises INVALID_ARGUMENT for a row whose columns can't be a key."""
        columns = [batch.column(field.name) for field in self.key_fields]
        keys = key_array(columns) if self.key_format == "columns" else columns[0].cast(pa.binary())
        if keys.null_count:
            raise MinkaError(Code.INVALID_ARGUMENT, f"column {self.key_fields[0].name!r} has a null, which isn't a key")
        if len(keys) and pc.min(pc.binary_length(keys)).as_py() == 0:
            raise MinkaError(Code.INVALID_ARGUMENT, f"column {self.key_fields[0].name!r} has an empty key")
        return keys

    def values_of(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """The rows' values; None for a row whose key is to be deleted. Raises INVALID_ARGUMENT for other nulls."""
        if self.has_json:
            names = [field.name for field in self.value_fields]
            rows = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
            values: list[bytes | None] = [encode_value(dict(zip(names, row, strict=True))) for row in rows]
        elif self.value_fields:
            values = batch.column(VALUE).cast(pa.binary()).to_pylist()
        else:
            values = [b""] * batch.num_rows
        if not self.delete_column:
            if None in values:
                text = "the column 'value' has a null; to delete keys, use the option deleteColumn"
                raise MinkaError(Code.INVALID_ARGUMENT, text)
            return values
        deleted = batch.column(self.delete_column).to_pylist()
        values = [None if is_deleted else value for value, is_deleted in zip(values, deleted, strict=True)]
        if values.count(None) != deleted.count(True):
            text = f"the column 'value' has a null in a row that {self.delete_column!r} doesn't mark for deletion"
            raise MinkaError(Code.INVALID_ARGUMENT, text)
        return values


_Bytes: Final = BinaryType | StringType


def _values_of(rows: RowBatch) -> pa.BinaryArray | None:
    return _column(rows.rows, rows.value_offsets, rows.values) if rows.value_offsets else None


def _column(rows: int, offsets: bytes, data: bytes) -> pa.BinaryArray:
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _cast(column: Any, kind: pa.DataType, keys: pa.BinaryArray) -> pa.Array:
    """Cast the column to this type. Raises INVALID_ARGUMENT, with the row's key, for bytes that aren't text."""
    if column is None:
        raise MinkaError(Code.INTERNAL, "values are asked for, and there are none")
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        for key, value in zip(keys.to_pylist(), column.to_pylist(), strict=True):
            try:
                (value or b"").decode()
            except UnicodeDecodeError as error:
                text = f"the row of the key {readable(key)} isn't UTF-8 text ({error.reason}); read it as binary"
                raise MinkaError(Code.INVALID_ARGUMENT, text) from None
        raise
