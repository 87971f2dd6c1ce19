"""Makes the load report: busy partitions, imbalance, forecasts of full nodes, proposals. Spark reads the history from
the nodes, writes it as Parquet if the caller wants that, and sums it up; minka.load_report draws the conclusions.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from minka.admin.control import Control
from minka.admin.plans import Plan, plan_of
from minka.bulk.load_history import NodeInterval
from minka.contexts import given_or_resolved
from minka.errors import Code, MinkaError
from minka.load_report import html as page
from minka.load_report.analysis import Imbalance, LoadAnalysis, analyse, step_of
from minka.load_report.forecast import FullForecast, forecasts
from minka.load_report.plan import make_plan
from minka.load_report.proposals import Proposals, propose
from minka.spark.progress import Job, OnProgress, running
from minka.spark.report import Report, timestamp
from minka.spark.traffic_history import MISSING, NODE, PARTITION, history, summed
from minka.tls import Tls
from minka.v1.cluster_pb2 import PartitionTable

DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HotPartition:
    """A busy partition. `ops` and `peak_ops` are operations a second: on average, and in the busiest step, in which
    `peak_node` served the partition. `of_cluster` is the partition's share of the cluster's operations, and
    `peak_of_node` its share of the operations of `peak_node` in the busiest step.
    """

    partition: str
    ops: float
    of_cluster: float
    peak_ops: float
    peak_ms: int  # Unix milliseconds
    peak_node: str
    peak_of_node: float
    read_p99_ms: float | None
    write_p99_ms: float | None
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLoadReport(Report):
    """The result of `load_report`. `rows` is the number of rows of the history, one for each partition, node and
    interval; `bytes` counts the bytes of clients' requests and answers in the time of the report. Times are Unix
    milliseconds; `to_ms` is 0 if nothing was found. The JSON has no `plan`.
    """

    job: ClassVar[str] = "load-report"

    from_ms: int
    to_ms: int
    step_ms: int  # the length of the steps for `imbalance` and for the peaks
    nodes: tuple[str, ...]  # the nodes that have sent their history
    missing: tuple[str, ...]  # the history that could not be read, a sentence for each node
    hot: tuple[HotPartition, ...]  # the busiest first
    imbalance: tuple[Imbalance, ...]
    forecasts: tuple[FullForecast, ...]
    proposals: Proposals
    html: str = ""
    parquet: str = ""
    # The plan of the proposals, for `minkactl apply`; None if nothing is proposed, or no plan could be made.
    plan: Plan | None = field(default=None, repr=False, compare=False)

    def to_document(self) -> dict[str, Any]:
        """The report as a JSON object, without the plan."""
        document = Report.to_document(self)
        del document["plan"]
        return document


def load_report(
    spark: SparkSession,
    *,
    endpoints: Sequence[str] | None = None,
    context: str | None = None,
    since: timedelta = DAY,
    until: datetime | None = None,
    html: str | Path = "",
    parquet: str | Path = "",
    plan_file: str = "",
    tls: Tls | None = None,
    timeout: float = 120.0,
    on_progress: OnProgress | None = None,
) -> ClusterLoadReport:
    """Report on the load from the time `until - since` to the time `until` (default: now). `html` is a file for the
    page, and `parquet` a folder, which must not exist yet, for the rows of the history. `plan_file` is the file to
    which the caller is going to write `plan.to_json()`; the page names this file. Reading six hours of a node's history
    may take at most `timeout` seconds. Nothing in the cluster is changed. A node that doesn't answer is missing in the
    report; if no controller answers, the report has no plan.

    Raises MinkaError: INVALID_ARGUMENT, UNREACHABLE if no node answers, SPARK_FAILED.
    """
    from_ms, to_ms = _span(since, until)
    endpoints, tls = given_or_resolved(endpoints, tls, context)
    if html and not Path(html).parent.is_dir():
        raise MinkaError(Code.INVALID_ARGUMENT, f"{html}: there is no folder {Path(html).parent}")
    stages = ["look", "read", *(["write Parquet"] if parquet else []), "sum up", "propose"]
    with running("load-report", spark, stages, on_progress) as job, Control(endpoints, tls=tls) as control:
        with job.stage("look"):
            table = control.table()
        rows = history(spark, endpoints, table, from_ms, to_ms, tls=tls, timeout=timeout).persist()
        try:
            read, intervals, found = _gathered(job, rows, parquet)
        finally:
            rows.unpersist()
        with job.stage("propose"):
            expected = forecasts(found.nodes)
            proposals, plan = _planned(control, propose(intervals, found, expected, table))
        name_of = page.names_in(table)
        if html:
            names = {"missing": read.missing, "plan_file": plan_file}
            _write(html, page.render(_name(table), found, expected, proposals, name_of, **names))  # type: ignore[arg-type]
    return ClusterLoadReport(
        started=timestamp(job.started),
        seconds=round(job.seconds, 3),
        rows=read.rows,
        bytes=read.bytes,
        stages=job.reports,
        from_ms=found.from_ms,
        to_ms=found.to_ms,
        step_ms=step_of(read.from_ms, read.to_ms),
        nodes=tuple(sorted({one.node for one in found.nodes})),
        missing=read.missing,
        hot=_hot(found, name_of),
        imbalance=tuple(found.imbalance),
        forecasts=tuple(expected),
        proposals=proposals,
        html=str(html),
        parquet=str(parquet),
        plan=plan,
    )


def _span(since: timedelta, until: datetime | None) -> tuple[int, int]:
    """The beginning and the end of the time to report on, in Unix milliseconds. Raises INVALID_ARGUMENT."""
    if since < timedelta(minutes=1):
        raise MinkaError(Code.INVALID_ARGUMENT, f"since is {since}; the least is one minute")
    to_ms = round((until.timestamp() if until is not None else time.time()) * 1000)
    return to_ms - round(since.total_seconds() * 1000), to_ms


def _gathered(job: Job, rows: DataFrame, parquet: str | Path) -> tuple["_Read", list[NodeInterval], LoadAnalysis]:
    """Read the history, write it as Parquet if the caller wants that, and sum it up."""
    read = _read(job, rows)
    if parquet:
        with job.stage("write Parquet"):
            rows.write.partitionBy("kind").parquet(str(parquet))
    with job.stage("sum up"):
        step_ms = step_of(read.from_ms, read.to_ms)
        intervals = _without_torn_end(summed(rows, step_ms))
        return read, intervals, analyse(intervals, step_ms)


@dataclass(frozen=True, slots=True)
class _Read:
    """Facts about the history that came from the nodes."""

    rows: int
    bytes: int
    from_ms: int
    to_ms: int
    missing: tuple[str, ...]


def _read(job: Job, rows: DataFrame) -> _Read:
    """Let the tasks read all rows from the nodes; Spark then keeps them."""
    with job.stage("read") as stage:
        counted = rows.groupBy("kind").agg(
            F.count(F.lit(1)).alias("rows"),
            F.sum(F.col("bytes_read") + F.col("bytes_written")).alias("bytes"),
            F.min(F.unix_millis("start")).alias("first"),
            F.max(F.unix_millis("start")).alias("last"),
        )
        kinds = {row.kind: row for row in counted.collect()}
        partitions, nodes = kinds.get(PARTITION), kinds.get(NODE)
        lost = rows.where(F.col("kind") == MISSING).groupBy("node").agg(
            F.min_by("error", "start").alias("error"), F.min("start").alias("first"), F.count(F.lit(1)).alias("slices")
        )  # fmt: skip
        missing = tuple(f"{row.node}: {row.error}" for row in lost.orderBy("node").collect())
        stage.rows = partitions.rows if partitions else 0
    return _Read(
        stage.rows,
        partitions.bytes if partitions else 0,
        nodes.first if nodes else 0,
        nodes.last if nodes else 0,
        missing,
    )


def _without_torn_end(intervals: list[NodeInterval]) -> list[NodeInterval]:
    """The intervals. If some nodes have no history of the last step yet, this step is left out, since these nodes would
    seem to do nothing in it.
    """
    steps = sorted({one.start_ms for one in intervals})
    if len(steps) < 2:
        return intervals
    before, last = ({one.node for one in intervals if one.start_ms == step} for step in steps[-2:])
    return intervals if before <= last else [one for one in intervals if one.start_ms < steps[-1]]


def _planned(control: Control, proposals: Proposals) -> tuple[Proposals, Plan | None]:
    """The proposals that the cluster can carry out, and the plan that carries them out."""
    if not proposals.splits and not proposals.moves:
        return proposals, None
    try:
        plan = make_plan(control, proposals, round(time.time() * 1000))
    except MinkaError as error:
        return Proposals(proposals.splits, proposals.moves, [*proposals.notes, f"there is no plan: {error}"]), None
    split, moved = {one.partition_id for one in plan.splits}, {one.partition_id for one in plan.moves}
    kept = Proposals(
        [one for one in proposals.splits if one.partition_id in split],
        [one for one in proposals.moves if one.partition_id in moved],
        list(plan.notes),
    )
    return kept, plan_of(plan) if split or moved else None


def _hot(found: LoadAnalysis, name_of: Callable[[int, int], str]) -> tuple[HotPartition, ...]:
    return tuple(
        HotPartition(
            partition=name_of(one.partition_id, one.keyspace_id),
            ops=one.ops,
            of_cluster=one.of_cluster,
            peak_ops=one.peak.ops,
            peak_ms=one.peak.at_ms,
            peak_node=one.peak.node,
            peak_of_node=one.peak.of_node,
            read_p99_ms=one.read_p99_ms,
            write_p99_ms=one.write_p99_ms,
            bytes=one.bytes,
        )
        for one in found.hot
    )


def _name(table: PartitionTable) -> str:
    return table.cluster.name or table.cluster.id


def _write(path: str | Path, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{path}: {error.strerror}") from error
