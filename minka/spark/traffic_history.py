"""Reads the history of traffic that nodes keep, as a data frame. Each task reads a slice of time from one node."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from minka.bulk.load_history import HistoryClient, NodeInterval
from minka.errors import MinkaError
from minka.tls import Tls
from minka.v1.cluster_pb2 import NodeState, PartitionTable
from minka.wire.history_rows import BUCKETS, PartitionInterval, quantile_ms

# The kinds of rows: about a node in an interval; about a partition on a node in an interval; about a slice that could
# not be read.
NODE: Final = "node"
PARTITION: Final = "partition"
MISSING: Final = "missing"

_SLICE_MS: Final = 6 * 3_600_000
_BATCH_ROWS: Final = 4096
_COLUMNS: Final = {
    pa.string(): "kind node error",
    pa.timestamp("us", "UTC"): "start",
    pa.int64(): "interval_ms free_bytes total_bytes capacity_bytes cpu_ms partition_id keyspace_id"
    " reads writes bytes_read bytes_written bytes keys",
    pa.bool_(): "leads",
    pa.float64(): "read_p50_ms read_p99_ms write_p50_ms write_p99_ms",
    pa.list_(pa.int64()): "reads_took writes_took",
}
_READ: Final = pa.schema([(name, kind) for kind, names in _COLUMNS.items() for name in names.split()])
_NAMES: Final = "partition_id long, keyspace string, partition string"


def history(
    spark: SparkSession,
    endpoints: Sequence[str],
    table: PartitionTable,
    from_ms: int,
    to_ms: int,
    *,
    tls: Tls | None = None,
    timeout: float = 120.0,
) -> DataFrame:
    """The intervals of all nodes in `table`. Each interval began at `from_ms` or later and before `to_ms` (Unix
    milliseconds).
    docs/pipeline.md lists the columns. A task reads a slice of six hours, for at most `timeout` seconds. If a node
    doesn't send a slice, this raises no error: a row of the kind MISSING has the reason.
    """
    nodes = sorted(node.id for node in table.nodes if node.state != NodeState.NODE_STATE_LEFT)
    slices = tuple(
        (node, start, min(start + _SLICE_MS, to_ms)) for node in nodes for start in range(from_ms, to_ms, _SLICE_MS)
    )
    task = _ReadSlices(tuple(endpoints), tls, timeout, slices)
    rows = spark.range(0, len(slices), 1, len(slices)).mapInArrow(task.run, from_arrow_schema(_READ))
    keyspaces = {one.id: one.name for one in table.keyspaces}
    names = [(row.id, (name := keyspaces.get(row.keyspace_id)), f"{name}/{row.slot}") for row in table.partitions]
    return rows.join(F.broadcast(spark.createDataFrame(names, _NAMES)), "partition_id", "left")


@dataclass(frozen=True, slots=True)
class _ReadSlices:
    """The work of a task: it gets the numbers of slices, and reads these slices."""

    endpoints: tuple[str, ...]
    tls: Tls | None
    timeout: float
    slices: tuple[tuple[str, int, int], ...]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._slice(*self.slices[number])

    def _slice(self, node: str, from_ms: int, to_ms: int) -> Iterator[pa.RecordBatch]:
        rows: list[dict[str, Any]] = []
        try:
            with HistoryClient(self.endpoints, tls=self.tls, timeout=self.timeout) as client:
                for interval in client.read(node, from_ms, to_ms):
                    rows += _rows_of(interval)
                    if len(rows) >= _BATCH_ROWS:
                        yield _batch(rows)
                        rows = []
        except MinkaError as error:
            rows.append({"kind": MISSING, "node": node, "start": _time(from_ms), "error": str(error)})
        if rows:
            yield _batch(rows)


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, _READ)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _rows_of(interval: NodeInterval) -> Iterator[dict[str, Any]]:
    common = {"node": interval.node, "start": _time(interval.start_ms), "interval_ms": interval.interval_ms}
    yield common | {
        "kind": NODE,
        "free_bytes": interval.free_bytes,
        "total_bytes": interval.total_bytes,
        "capacity_bytes": interval.capacity_bytes,
        "cpu_ms": interval.cpu_ms,
    }
    for row in interval.partitions:
        yield common | {
            "kind": PARTITION,
            "partition_id": row.partition_id,
            "keyspace_id": row.keyspace_id,
            "leads": row.leads,
            "reads": row.reads,
            "writes": row.writes,
            "bytes_read": row.bytes_read,
            "bytes_written": row.bytes_written,
            "bytes": row.bytes,
            "keys": row.keys,
            "read_p50_ms": quantile_ms(row.reads_took, 0.5),
            "read_p99_ms": quantile_ms(row.reads_took, 0.99),
            "write_p50_ms": quantile_ms(row.writes_took, 0.5),
            "write_p99_ms": quantile_ms(row.writes_took, 0.99),
            "reads_took": row.reads_took if any(row.reads_took) else None,
            "writes_took": row.writes_took if any(row.writes_took) else None,
        }


# Sums


def summed(rows: DataFrame, step_ms: int) -> list[NodeInterval]:
    """Let Spark add up the intervals of each step of `step_ms`, as `minka.load_report.analysis.coarser` does."""
    at = F.unix_millis("start")
    rows = rows.withColumn("at_ms", at - at % step_ms)
    intervals: dict[tuple[int, str], NodeInterval] = {}
    for one in _of_nodes(rows).toArrow().to_pylist():
        intervals[one["start_ms"], one["node"]] = NodeInterval(**one)
    for batch in _of_partitions(rows).toArrow().to_batches():
        for one in batch.to_pylist():
            place = one.pop("start_ms"), one.pop("node")
            intervals[place].partitions.append(PartitionInterval(**one))
    return [intervals[place] for place in sorted(intervals)]


def _of_nodes(rows: DataFrame) -> DataFrame:
    groups = rows.where(F.col("kind") == NODE).groupBy("node", F.col("at_ms").alias("start_ms"))
    return groups.agg(
        F.sum("interval_ms").alias("interval_ms"),
        F.min("free_bytes").alias("free_bytes"),
        F.max_by("total_bytes", "start").alias("total_bytes"),
        F.max_by("capacity_bytes", "start").alias("capacity_bytes"),
        F.sum("cpu_ms").alias("cpu_ms"),
    )


def _of_partitions(rows: DataFrame) -> DataFrame:
    groups = rows.where(F.col("kind") == PARTITION).groupBy("node", F.col("at_ms").alias("start_ms"), "partition_id")
    return groups.agg(
        F.max_by("keyspace_id", "start").alias("keyspace_id"),
        F.bool_or("leads").alias("leads"),
        *(F.sum(name).alias(name) for name in ("reads", "writes", "bytes_read", "bytes_written")),
        *(F.max_by(name, "start").alias(name) for name in ("bytes", "keys")),
        *(F.expr(_ADDED.format(name)).alias(name) for name in ("reads_took", "writes_took")),
    )


# The histograms are added bucket by bucket; collect_list leaves out the nulls.
_ADDED: Final = (
    f"aggregate(collect_list({{0}}), array_repeat(0L, {BUCKETS}), (sum, one) -> zip_with(sum, one, (a, b) -> a + b))"
)
