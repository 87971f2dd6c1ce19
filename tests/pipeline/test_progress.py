"""The progress that a job reports while Spark runs its stages, and the errors that callers get when Spark fails."""

from collections.abc import Callable, Iterator
from io import StringIO
from logging import StreamHandler
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from minka.errors import Code, MinkaError
from minka.spark.driver import log_file
from minka.spark.progress import Progress, running


def held(spark: SparkSession, folder: Path, gate: Path) -> Callable[[], int]:
    """A query over 4 files of 100 rows each. It reads the last file to its end only once the file `gate` exists."""
    spark.range(0, 400, 1, 4).write.parquet(str(folder))
    path = str(gate)

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        for batch in batches:
            deadline = time.monotonic() + 60
            while 399 in batch.column(0).to_pylist() and not Path(path).exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            yield batch

    return lambda: spark.read.parquet(str(folder)).mapInArrow(wait, "id long").count()


def test_progress_has_tasks_and_rows_while_spark_runs(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.files.openCostInBytes", str(128 << 20))  # one task for each file
    told: list[Progress] = []
    query = held(spark, tmp_path / "rows", tmp_path / "gate")

    def hear(progress: Progress) -> None:
        told.append(progress)
        if progress.tasks_done and progress.rows:
            (tmp_path / "gate").touch()

    try:
        with running("test", spark, ["read", "count"], hear) as job:
            with job.stage("read") as stage:
                assert query() == 400
            with job.stage("count", rows_total=10) as stage:
                stage.rows = 5
    finally:
        spark.conf.unset("spark.sql.files.openCostInBytes")
    (tmp_path / "gate").unlink()  # fails if there is no gate: then the query went on at its deadline
    seen = next(one for one in told if one.tasks_done and one.rows)
    assert (seen.stage, seen.number, seen.stages, seen.is_over) == ("read", 1, 2, False)
    assert seen.tasks is not None
    assert seen.tasks >= 4
    assert seen.eta_s is not None
    ended = [one for one in told if one.is_over]
    assert [(one.stage, one.rows) for one in ended] == [("read", 400), ("count", 5)]
    assert (ended[0].tasks, ended[1].tasks) == (ended[0].tasks_done, None), "tasks of another stage don't count"
    assert [(one.name, one.rows) for one in job.reports] == [("read", 400), ("count", 5)]


def test_a_job_restores_the_user_s_own_job_group(spark: SparkSession) -> None:
    spark.sparkContext.setJobGroup("mine", "what I do")
    with running("test", spark, ["count"]) as job, job.stage("count"):
        spark.range(3).count()
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == "mine"
    assert spark.sparkContext.getLocalProperty("spark.job.description") == "what I do"
    for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
        spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]  # removes it


def test_an_error_in_on_progress_ends_the_job(spark: SparkSession) -> None:
    """While a stage runs, a thread calls `on_progress`. If this call raises an error, the job must raise it, too."""
    told: list[Progress] = []
    failed = Event()

    def fail(progress: Progress) -> None:
        told.append(progress)
        if len(told) == 2:
            failed.set()
            raise LookupError(progress.stage)

    with pytest.raises(LookupError, match="wait"), running("test", spark, ["wait"], fail) as job, job.stage("wait"):
        failed.wait()


def failing(code: str, text: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if code:
            raise MinkaError(Code[code], text)
        raise ValueError(text)

    return fail


def failure(spark: SparkSession, query: Callable[[], object]) -> MinkaError:
    with pytest.raises(MinkaError) as raised, running("test", spark, ["read"]) as job, job.stage("read"):
        query()
    return raised.value


def test_a_job_raises_the_minka_error_that_ended_a_task(spark: SparkSession) -> None:
    rows = spark.range(1)
    error = failure(spark, lambda: rows.mapInArrow(failing("TOO_LARGE", "the value has 17 MiB"), "id long").count())
    assert (error.code, error.message) == (Code.TOO_LARGE, "the value has 17 MiB")


def test_any_other_error_in_a_task_is_reported_with_spark_s_log(spark: SparkSession) -> None:
    error = failure(spark, lambda: spark.range(1).mapInArrow(failing("", "bad luck"), "id long").count())
    assert error.code is Code.SPARK_FAILED
    assert "ValueError: bad luck" in error.message
    log = log_file()
    assert log is not None
    assert error.message.endswith(f"; Spark's log: {log}")
    assert "bad luck" in log.read_text()


def test_a_request_that_spark_refuses_raises_invalid_argument(spark: SparkSession) -> None:
    printed = StringIO()
    logger = PySparkLogger.getLogger("DataFrameQueryContextLogger")
    logger.addHandler(StreamHandler(printed))
    missing = failure(spark, lambda: spark.read.parquet("/nowhere"))
    assert (missing.code, missing.message) == (
        Code.INVALID_ARGUMENT,
        "[PATH_NOT_FOUND] Path does not exist: file:/nowhere.",
    )
    column = failure(spark, lambda: spark.range(1).select(F.col("other")))
    assert column.code is Code.INVALID_ARGUMENT
    assert "with name `other` cannot be resolved" in column.message
    assert printed.getvalue() == "", "PySpark would log it as well, as lines of JSON on stderr"
    with pytest.raises(AnalysisException):
        spark.range(1).select(F.col("other"))
    assert "`other` cannot be resolved" in printed.getvalue(), "errors that aren't Minka's are logged as before"
    logger.removeHandler(logger.handlers[-1])
