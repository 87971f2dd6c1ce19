"""Rows of a data frame that can't be in a keyspace are refused. tests/pipeline/test_source.py has a test within
Spark.
"""

import pyarrow as pa
import pytest
from pyspark.sql.types import BooleanType, DataType, StringType, StructType

from minka.errors import Code, MinkaError
from minka.spark.column_layout import Layout
from minka.spark.source_options import SourceOptions


def layout(delete_column: str = "", **columns: DataType) -> Layout:
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind)
    place = {"endpoints": "athens:7400", "keyspace": "flights", "deleteColumn": delete_column}
    return Layout.of(schema, SourceOptions.of(place))


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("", "x", "column 'key' has an empty key"),
        (None, "x", "column 'key' has a null, which isn't a key"),
        ("a", None, "column 'value' has a null; to delete keys, use the option deleteColumn"),
    ],
)
def test_a_row_that_can_not_be_in_a_keyspace_is_refused(key: str | None, value: str | None, problem: str) -> None:
    batch = pa.RecordBatch.from_pydict({"key": ["k", key], "value": ["v", value]})
    plain = layout(key=StringType(), value=StringType())
    with pytest.raises(MinkaError, match=problem) as refused:
        _ = plain.keys_of(batch), plain.values_of(batch)
    assert refused.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("mark", [False, None])
def test_only_rows_that_are_marked_delete_their_keys(mark: bool | None) -> None:
    of_changes = layout("gone", key=StringType(), value=StringType(), gone=BooleanType())
    rows: dict[str, list[object]] = {"key": ["a", "b", "c"], "value": ["v", None, "w"], "gone": [mark, True, True]}
    assert of_changes.values_of(pa.RecordBatch.from_pydict(rows)) == [b"v", None, None]
    rows["gone"][1] = mark
    with pytest.raises(MinkaError, match="null in a row that 'gone' doesn't mark for deletion") as refused:
        of_changes.values_of(pa.RecordBatch.from_pydict(rows))
    assert refused.value.code is Code.INVALID_ARGUMENT


def test_the_column_of_deletes_is_boolean() -> None:
    with pytest.raises(MinkaError, match="'value', which isn't a boolean column"):
        layout("value", key=StringType(), value=StringType())
