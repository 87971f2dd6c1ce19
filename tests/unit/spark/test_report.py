"""Reports as JSON, and the progress of a job."""

import json
from typing import Any

import pytest

from minka.errors import Code, MinkaError
from minka.load_report.analysis import Imbalance
from minka.load_report.forecast import FullForecast
from minka.load_report.proposals import Proposals, ProposedMove, ProposedSplit
from minka.spark.digesting import DigestReport
from minka.spark.exporting import ExportReport
from minka.spark.filling import LoadReport
from minka.spark.load_analysis import ClusterLoadReport, HotPartition
from minka.spark.progress import Progress
from minka.spark.report import Report, StageReport, timestamp
from minka.spark.split_planning import ExpectedRange, SplitsReport
from minka.spark.verifying import Difference, ReplicaDifference, UnreadReplica, VerifyReport

REPORT = DigestReport(
    keyspace="flights",
    started=timestamp(1_700_000_000),
    seconds=2.5,
    rows=3,
    bytes=30,
    stages=(StageReport(name="read", seconds=2.0, rows=3), StageReport(name="compare", seconds=0.5)),
    xor="0" * 16,
    sum="f" * 16,
)


def test_a_report_is_read_back() -> None:
    document = json.loads(REPORT.to_json())
    assert document["job"] == "digest"
    assert document["started"] == "2023-11-14T22:13:20+00:00"
    assert DigestReport.from_json(REPORT.to_json()) == REPORT
    newer = json.dumps(document | {"what_a_newer_version_says": 1})
    assert DigestReport.from_json(newer) == REPORT


COMMON: dict[str, Any] = {
    "keyspace": "flights",
    "started": timestamp(1_700_000_000),
    "seconds": 2.0,
    "rows": 3,
    "bytes": 30,
    "stages": (StageReport(name="read", seconds=2.0, rows=3),),
}
MOVE = ProposedMove(7, "flights/0", ["athens"], ["cyrene"], 90, "athens is busy")
SPLIT = ProposedSplit(8, "authors/0", "authors", 3, "athens", 2, 90, "it is large")
REPORTS = (
    REPORT,
    VerifyReport(
        **COMMON,
        keyspace_rows=2,
        partitions=1,
        partitions_different=(7,),
        missing=1,
        differences=(Difference(key="UA1545", kind="missing", partition=7),),
        replicas_different=(ReplicaDifference(partition=7, node="athens", keys=("a", "b")),),
        replicas_unread=(UnreadReplica(partition=7, node="cyrene", error="it is away"),),
        is_same=False,
    ),
    LoadReport(**COMMON, load_id="nightly", mode="ingest", partitions=1, bad=2),
    ExportReport(**COMMON, destination="/tmp/out", file_format="parquet", since={"7": 1}, versions={"7": 9}),
    SplitsReport(**COMMON, points=("m",), ranges=(ExpectedRange(start="", bytes=15, share=1.0),), count=1, largest=1.0),
    ClusterLoadReport(
        **COMMON,
        from_ms=1,
        to_ms=2,
        step_ms=1,
        nodes=("athens",),
        missing=("cyrene is away",),
        hot=(
            HotPartition(
                partition="flights/0",
                ops=1.5,
                of_cluster=1,
                peak_ops=2.0,
                peak_ms=1,
                peak_node="athens",
                peak_of_node=1.0,
                read_p99_ms=None,
                write_p99_ms=2.0,
                bytes=90,
            ),
        ),
        imbalance=(Imbalance(1, None, 1.0),),
        forecasts=(FullForecast("athens", 1, 9, None, 1.0, 2.0, None, 5, 6, 7, "never"),),
        proposals=Proposals(moves=[MOVE], splits=[SPLIT], notes=["look"]),
    ),
)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.job)
def test_every_report_is_read_back_with_its_types(report: Report) -> None:
    assert type(report).from_json(report.to_json()) == report


def test_all_kinds_of_reports_are_tried() -> None:
    assert {type(report).__name__ for report in REPORTS} == {kind.__name__ for kind in Report.__subclasses__()}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "this isn't a job's report"),
        ("[]", "this isn't a job's report"),
        ('{"rows": 1}', "this isn't a job's report"),
        ('{"job": "load"}', "a report of the job 'load', not of 'digest'"),
        ('{"job": "digest", "rows": 1}', "the report lacks started, seconds, bytes, xor, sum"),
        (REPORT.to_json().replace('"name"', '"nome"'), "this isn't a job's report"),
        (REPORT.to_json().replace('"rows": 3', '"rows": "three"'), "this isn't a job's report"),
    ],
)
def test_malformed_reports_are_refused(text: str, why: str) -> None:
    with pytest.raises(MinkaError) as refused:
        DigestReport.from_json(text)
    assert refused.value.code is Code.INVALID_ARGUMENT
    assert why in refused.value.message


def test_a_report_has_the_name_of_its_job() -> None:
    assert Report.job == ""
    assert REPORT.to_document()["job"] == "digest"


def progress(**known: int | bool) -> Progress:
    return Progress(job="load", job_seconds=9.0, stage="read", number=1, stages=2, seconds=8.0, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "fraction", "eta_s"),
    [
        (progress(), None, None),
        (progress(tasks_done=0, tasks=4), 0.0, None),
        (progress(tasks_done=1, tasks=4), 0.25, 24.0),
        (progress(tasks_done=1, tasks=4, rows=8, rows_total=10), 0.8, 2.0),
        (progress(rows=8, rows_total=10, bytes=50, bytes_total=100), 0.5, 8.0),
        (progress(rows=12, rows_total=10), 1.0, 0.0),
        (progress(rows=12), None, None),
        (progress(is_over=True), 1.0, 0.0),
    ],
)
def test_the_fraction_done_and_the_time_left(known: Progress, fraction: float | None, eta_s: float | None) -> None:
    assert known.fraction == fraction
    assert known.eta_s == (None if eta_s is None else pytest.approx(eta_s))
