"""Between Arrow's columns and Python's lists of bytes."""

import pyarrow as pa


def binary_columns(batch: pa.RecordBatch, *places: int) -> tuple[list[bytes], ...]:
    """Columns of binary without nulls, as lists."""
    return tuple(batch.column(place).to_pylist() for place in places)
