"""Counts the tasks that Spark runs for one stage of a job, and the rows that these tasks have read, while they run.
Spark's count of bytes isn't used: it counts the bytes of compressed files, and misses Parquet's reads by vectored I/O.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

CANCEL_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Counted:
    """Spark's counts; None means not known.

    `rows` is the number of rows that one of Spark's own stages has read, from files or a shuffle: the running stage
    that has read most rows, or, if no stage is running, the stage that has read most rows of all.
    """

    tasks_done: int | None = None
    tasks: int | None = None
    rows: int | None = None


@contextmanager
def tasks_of(spark: SparkSession, description: str) -> Iterator[Callable[[], Counted]]:
    """Count the tasks of the Spark jobs that this thread starts in the body of `with`. Yields a function that returns
    the counts; any thread may call it.

    `description` is the name of the tasks on Spark's own pages.
    """
    if is_remote():
        remote = _RemoteTasks()
        spark.registerProgressHandler(remote)  # type: ignore[arg-type]  # any callable will do
        try:
            yield remote.counted
        finally:
            spark.removeProgressHandler(remote)  # type: ignore[arg-type]
        return
    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in _GROUP}
    group = f"minka-{uuid.uuid4()}"
    context.setJobGroup(group, description)
    try:
        yield _LocalTasks(context, group).counted
    except KeyboardInterrupt:
        # This thread's connection to Spark still waits for an answer, so the tasks are cancelled on another thread.
        cancelling = Thread(target=context.cancelJobGroup, args=(group,), daemon=True)
        cancelling.start()
        cancelling.join(CANCEL_TIMEOUT_S)
        before.clear()
        raise
    finally:
        for name, value in before.items():
            context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None removes it


# The properties that setJobGroup sets.
_GROUP: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


class _LocalTasks:
    """Counts the tasks of a job group in a session whose driver is in this process. The counts come from the records
    that Spark keeps for its pages, since PySpark's StatusTracker knows tasks, but neither rows nor bytes.
    """

    def __init__(self, context: SparkContext, group: str) -> None:
        self._tracker = context.statusTracker()
        self._records: Any = context._jsc.sc().statusStore()
        self._group = group

    def counted(self) -> Counted:
        """The present counts of the tasks."""
        try:
            stages = self._stages()
            if not stages:
                return Counted()
            reading = [stage for stage in stages if str(stage.status()) == "ACTIVE"] or stages
            rows = max(stage.inputRecords() + stage.shuffleReadRecords() for stage in reading)
            done, total = sum(stage.numCompleteTasks() for stage in stages), sum(stage.numTasks() for stage in stages)
        except Py4JError:  # Spark is ending; the job's own call raises the error
            return Counted()
        return Counted(done, total, rows or None)

    def _stages(self) -> list[Any]:
        """The group's stages that are neither skipped nor failed."""
        jobs = map(self._tracker.getJobInfo, self._tracker.getJobIdsForGroup(self._group))
        ids = {stage for job in jobs if job is not None for stage in job.stageIds}
        stages = [self._records.lastStageAttempt(one) for one in sorted(ids)]
        return [stage for stage in stages if str(stage.status()) in ("PENDING", "ACTIVE", "COMPLETE")]


class _RemoteTasks:
    """Counts the tasks of a session of Spark Connect. The server's answers have the progress of tasks, but not the
    number of rows.
    """

    def __init__(self) -> None:
        self._operations: dict[str | None, Counted] = {}

    def __call__(self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """Take PySpark's report: see pyspark.sql.connect.shell.progress.ProgressHandler."""
        told = list(stages or ())
        if told:
            self._operations[operation_id] = Counted(
                sum(stage.num_completed_tasks for stage in told),
                sum(stage.num_tasks for stage in told),
            )

    def counted(self) -> Counted:
        """The present counts of the tasks."""
        operations = list(self._operations.values())
        if not operations:
            return Counted()
        return Counted(sum(one.tasks_done or 0 for one in operations), sum(one.tasks or 0 for one in operations))
