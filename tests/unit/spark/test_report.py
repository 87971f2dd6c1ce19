"""Reports as JSON, and the progress of a job."""

import json

import pytest

from minka.errors import Code, MinkaError
from minka.spark.digesting import DigestReport
from minka.spark.progress import Progress
from minka.spark.report import Report, StageReport, timestamp

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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "this isn't a job's report"),
        ("[]", "this isn't a job's report"),
        ('{"rows": 1}', "this isn't a job's report"),
        ('{"job": "load"}', "a report of the job 'load', not of 'digest'"),
        ('{"job": "digest", "rows": 1}', "the report lacks started, seconds, bytes, xor, sum"),
        (REPORT.to_json().replace('"name"', '"nome"'), "this isn't a job's report"),
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
