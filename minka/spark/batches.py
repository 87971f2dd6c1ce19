"""Converts Arrow's columns to Python's lists of bytes."""

import pyarrow as pa


def binary_columns(batch: pa.RecordBatch, *places: int) -> tuple[list[bytes], ...]:
    """The columns at these places, which are binary, as lists; a null is None."""
    return tuple(batch.column(place).to_pylist() for place in places)
