"""Joins rows with the values that their keys have in a keyspace."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StructType

from minka.bulk.snapshot_reads import SnapshotClient
from minka.client import Client
from minka.contexts import given_or_resolved
from minka.errors import Code, MinkaError
from minka.spark.pairs import PairColumns, key_of
from minka.spark.partitioning import place_column
from minka.spark.task_process import spare_the_collector
from minka.tls import Tls

How = Literal["left", "inner"]
_KEYS_AT_ONCE: Final = 1000
_KEY: Final = "_lookup_key"
_PLACE: Final = "_lookup_place"


def lookup(
    frame: DataFrame,
    keyspace: str,
    key: str | Sequence[str],
    how: How = "left",
    *,
    endpoints: Sequence[str] | None = None,
    context: str | None = None,
    value: str = "value",
    tls: Tls | None = None,
    timeout: float = 60.0,
) -> DataFrame:
    """The rows of the data frame with one more column, named by `value`: the value (binary) of each row's key. If a key
    has no value, the column is null if `how` is "left"; if it is "inner", the row is left out.

    `key` is a column of text or bytes that is the key itself, or several columns, which are encoded as by
    `minka.rows.encode_key`. Rows are first brought together by the partition of their key, so that each task asks one
    node, in batches, and gets the newest values. Without `endpoints` the cluster is that of `context`, or the one that
    `minka.connect` would find. `timeout`, in seconds, holds for each batch. Raises MinkaError: INVALID_ARGUMENT if a
    key column doesn't exist, or a column named by `value` exists already; UNKNOWN_KEYSPACE.
    """
    if value in frame.columns:
        raise MinkaError(Code.INVALID_ARGUMENT, f"the rows have a column {value!r} already; name another one")
    if how not in ("left", "inner"):
        raise MinkaError(Code.INVALID_ARGUMENT, f"a lookup is 'left' or 'inner', not {how!r}")
    endpoints, tls = given_or_resolved(endpoints, tls, context)
    columns = PairColumns((key,) if isinstance(key, str) else tuple(key))
    with SnapshotClient(endpoints, tls=tls, timeout=timeout) as client:
        found = client.keyspace(keyspace)
        partitions = client.partitions(found)
    keyed = frame.withColumn(_KEY, key_of(columns, frame))
    placed = keyed.withColumn(_PLACE, place_column(keyed[_KEY], found, partitions))
    schema = StructType([*frame.schema.fields]).add(value, BinaryType())
    task = _Lookup(tuple(endpoints), keyspace, how, value, tls, timeout)
    together = placed.repartitionById(len(partitions), _PLACE).drop(_PLACE)
    return together.mapInArrow(task.run, schema)


@dataclass(frozen=True, slots=True)
class _Lookup:
    endpoints: tuple[str, ...]
    keyspace: str
    how: How
    value: str
    tls: Tls | None
    timeout: float

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spare_the_collector()
        with Client(self.endpoints, keyspace=self.keyspace, timeout=self.timeout, tls=self.tls) as client:
            for batch in batches:
                for start in range(0, batch.num_rows, _KEYS_AT_ONCE):
                    yield self._joined(client, batch.slice(start, _KEYS_AT_ONCE))

    def _joined(self, client: Client, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = batch.column(_KEY).to_pylist()
        found = client.get_many({key for key in keys if key})
        values = pa.array([found.get(key) for key in keys], pa.binary())
        joined = batch.drop_columns([_KEY]).append_column(self.value, values)
        return joined.filter(values.is_valid()) if self.how == "inner" else joined
