"""Finds the partition of a keyspace to which each row of a data frame belongs."""

from bisect import bisect_right
from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import IntegerType

from minka.cluster.hashing import digest_of
from minka.cluster.key_ranges import is_by_ranges
from minka.v1.cluster_pb2 import Keyspace, Partition

_Place = Callable[[list[bytes]], list[int]]


def place_column(key: Column, keyspace: Keyspace, rows: Sequence[Partition]) -> Column:
    """The expression for the place that a key's partition has in `rows`, the keyspace's partitions in order."""
    place_of = _by_range(rows) if is_by_ranges(keyspace) else _by_hash(keyspace)

    def places(keys: pa.Array) -> pa.Array:
        return pa.array(place_of([key or b"" for key in keys.to_pylist()]), pa.int32())

    place: Column = arrow_udf(places, IntegerType())(key)  # type: ignore[call-overload]  # the hints say the UDF's kind
    return place


def _by_hash(keyspace: Keyspace) -> _Place:
    count = keyspace.partition_count
    digest = digest_of(keyspace.hash, count)
    return lambda keys: [digest(key) % count for key in keys]


def _by_range(rows: Sequence[Partition]) -> _Place:
    starts = [row.start_key for row in rows][1:]
    return lambda keys: [bisect_right(starts, key) for key in keys]
