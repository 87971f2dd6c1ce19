"""The progress of a job, for a caller that asks for it: named stages with tasks, rows, bytes, rates and time left.

Spark counts a stage's tasks, and the rows that they have read (`stage_tasks`). In a session whose driver is in
this process, Spark counts rows also while a task runs; with Spark Connect it counts only tasks. A job sets its own
counts, such as the rows that nodes have taken in, on its `Stage`; the job's counts replace Spark's.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final

from pyspark.sql import SparkSession

from minka.spark.failures import spark_failures
from minka.spark.report import StageReport
from minka.spark.stage_tasks import Counted, tasks_of

INTERVAL_S: Final = 0.5
WINDOW_S: Final = 5.0  # rates are those of the last five seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The present progress of a job. None means not known; times are in seconds."""

    job: str
    job_seconds: float
    stage: str
    number: int  # of the stage, from 1 on
    stages: int
    seconds: float  # since the stage began; all fields below are the stage's, too
    is_over: bool = False
    tasks_done: int | None = None
    tasks: int | None = None  # may grow, since Spark plans some tasks only later
    rows: int | None = None
    rows_total: int | None = None
    bytes: int | None = None
    bytes_total: int | None = None
    rows_per_s: float | None = None
    bytes_per_s: float | None = None
    blocker: str = ""  # the reason why the stage doesn't go on

    @property
    def fraction(self) -> float | None:
        """The part of the stage that is done, from 0 to 1. It is measured in bytes if these are known, else in rows,
        else in tasks.
        """
        if self.is_over:
            return 1.0
        for done, total in (self.bytes, self.bytes_total), (self.rows, self.rows_total), (self.tasks_done, self.tasks):
            if done is not None and total:
                return min(done / total, 1.0)
        return None

    @property
    def eta_s(self) -> float | None:
        """The seconds that the stage still takes at the present rate; None if that isn't known."""
        fraction = self.fraction
        return self.seconds * (1 - fraction) / fraction if fraction else None


OnProgress = Callable[[Progress], None]
"""A function that a job calls with its progress, every half second, on a thread of its own."""


class _Rate:
    """A rate per second, over the last `WINDOW_S` seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def update(self, now: float, count: int | None) -> float | None:
        """The rate, given that `count` units are done at `now` (seconds); None until there are enough samples."""
        samples = self._samples
        if count is None or (samples and count < samples[-1][1]):
            samples.clear()  # the count fell, since Spark has begun its own next stage
        if count is None:
            return None
        samples.append((now, count))
        while len(samples) > 2 and now - samples[0][0] > WINDOW_S:
            samples.popleft()
        elapsed = now - samples[0][0]
        return (count - samples[0][1]) / elapsed if elapsed > 0 else None


class Stage:
    """A stage of a running job. The counts that the job sets here replace Spark's counts."""

    def __init__(self, name: str, rows_total: int | None = None, bytes_total: int | None = None) -> None:
        self.name = name
        self.rows: int | None = None
        self.bytes: int | None = None
        self.rows_total = rows_total
        self.bytes_total = bytes_total
        self.blocker = ""
        self._begun = time.monotonic()
        self._row_rate = _Rate()
        self._byte_rate = _Rate()

    def progress(self, job: "Job", spark: Counted, *, is_over: bool = False) -> Progress:
        """The stage's present progress. Its rows are the job's own count if the job has set one, otherwise Spark's."""
        now = time.monotonic()
        rows = spark.rows if self.rows is None else self.rows
        return Progress(
            job=job.name,
            job_seconds=job.seconds,
            stage=self.name,
            number=job.stages.index(self.name) + 1,
            stages=len(job.stages),
            seconds=now - self._begun,
            is_over=is_over,
            tasks_done=spark.tasks_done,
            tasks=spark.tasks,
            rows=rows,
            rows_total=self.rows_total,
            bytes=self.bytes,
            bytes_total=self.bytes_total,
            rows_per_s=self._row_rate.update(now, rows),
            bytes_per_s=self._byte_rate.update(now, self.bytes),
            blocker="" if is_over else self.blocker,
        )


class Job:
    """A running job. The function `running` makes it."""

    def __init__(self, name: str, spark: SparkSession, stages: Sequence[str], on_progress: OnProgress | None) -> None:
        self.name = name
        self.stages = tuple(stages)
        self.started = time.time()  # Unix seconds
        self.reports: tuple[StageReport, ...] = ()  # of the stages that have ended
        self._spark = spark
        self._on_progress = on_progress
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds since the job began."""
        return time.monotonic() - self._begun

    @contextmanager
    def stage(self, name: str, *, rows_total: int | None = None, bytes_total: int | None = None) -> Iterator[Stage]:
        """The body of `with` is the stage with this name, one of the job's `stages`. All work that Spark does for this
        thread in the body counts towards the stage.
        """
        stage = Stage(name, rows_total, bytes_total)
        with tasks_of(self._spark, f"minka {self.name}: {name}") as counted:
            self._tell(stage.progress(self, Counted()))
            with self._telling(lambda: stage.progress(self, counted())):
                yield stage
            last = stage.progress(self, counted(), is_over=True)
        self.reports += (StageReport(name=name, seconds=round(last.seconds, 3), rows=last.rows, bytes=last.bytes),)
        self._tell(last)

    def _tell(self, progress: Progress) -> None:
        if self._on_progress is not None:
            self._on_progress(progress)

    @contextmanager
    def _telling(self, look: Callable[[], Progress]) -> Iterator[None]:
        """While the body of `with` runs, let a thread call `on_progress` every half second. If `on_progress` raises an
        error, raise the error at the end.
        """
        if self._on_progress is None:
            yield
            return
        over, errors = Event(), list[Exception]()

        def tell_again() -> None:
            try:
                while not over.wait(INTERVAL_S):
                    self._tell(look())
            except Exception as error:  # noqa: BLE001  # the job's thread raises it
                errors.append(error)

        thread = Thread(target=tell_again, name=f"progress of {self.name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        if errors:
            raise errors[0]


@contextmanager
def running(
    name: str, spark: SparkSession, stages: Sequence[str], on_progress: OnProgress | None = None
) -> Iterator[Job]:
    """The body of `with` is a job with these stages.

    `on_progress` is called when a stage begins and ends; between these, a thread calls it every half second. An error
    of Spark in the body becomes a MinkaError (see `spark_failures`).

        with running("digest", spark, ["read"], on_progress) as job:
            with job.stage("read") as stage:
                ...
    """
    with spark_failures():
        yield Job(name, spark, stages, on_progress)
