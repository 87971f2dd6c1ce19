"""Converts Arrow's columns to Python's lists of bytes."""

import pyarrow as pa


def binary_columns(batch: pa.RecordBatch, *places: int) -> tuple[list[bytes], ...]:
    """Convert the binary columns at these places to lists; a null becomes None."""
    return tuple(batch.column(place).to_pylist() for place in places)
