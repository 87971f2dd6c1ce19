"""Fills a keyspace from a data frame or files: by ingesting files of sorted rows, or by putting the rows.

In an ingest, Spark computes each row's partition, sorts the rows, and writes one file for each partition. Each file is
uploaded to the spool of every replica (`minka.bulk`). Nothing is visible until the commit names one file for each
partition; from then on the nodes take all files in, even if this process has died. If a load breaks off before the
commit, a new run with the same id continues it: files that are in the spools already aren't made again. A run with
other options or another source than the first run is refused, so that all files are made of the same rows.
"""

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from threading import Event, Thread
from typing import Any, ClassVar, Final, Literal, get_args

from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F

import minka
from minka.bulk.bulk_loads import LoadClient, LoadTarget
from minka.contexts import given_or_resolved
from minka.errors import Code, MinkaError
from minka.spark.failures import spark_failures
from minka.spark.inputs import FORMATS, FileFormat, absolute, read_files
from minka.spark.load_source import bytes_of, fingerprint, noted, refuse_another, refuse_foreign, without_fingerprint
from minka.spark.load_task import TASK_SCHEMA, LoadTask, OnConflict
from minka.spark.pairs import UNREADABLE, PairColumns, chosen, column_of, pairs_of, problem_of
from minka.spark.partitioning import place_column
from minka.spark.progress import Job, OnProgress, Stage, running
from minka.spark.report import Report, timestamp
from minka.tls import Tls
from minka.v1.cluster_pb2 import Keyspace, Partition
from minka.v1.load_api_pb2 import GetLoadsResponse
from minka.v1.loads_pb2 import Load, LoadFile, LoadState

Mode = Literal["ingest", "put"]
_TOUCH_SECONDS: Final = 20.0
_WATCH_SECONDS: Final = 1.0
_SHARE: Final = 3  # the compressed files have at least a third of the source's bytes
_PROBLEM: Final = "_problem"
_BAD: Final = "BAD_ROWS: "
_FINAL: Final = (Code.INVALID_ARGUMENT, Code.TOO_LARGE, Code.DISK_FULL)  # the same load would be refused again
_REASON: Final = re.compile(r"\b([A-Z]+_[A-Z_]+): (.+)")  # finds the code and the message in the reason of an abort


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options of a load, for example `LoadOptions(columns=PairColumns(("day", "number")))`.

    The mode "ingest" sends sorted files to the nodes, and all rows become visible together at the end; "put" puts the
    rows in batches, which become visible one by one. With "put" it isn't a conflict if the keyspace already
    has a row's key with the same value: an earlier attempt may have put the row.
    """

    columns: PairColumns
    mode: Mode = "ingest"
    on_conflict: OnConflict = "error"  # for keys that the keyspace has already; "keep": the old value stays
    last_by: str = ""  # of rows with the same key, the greatest in this column counts; "": such rows are refused
    max_bad: int = 0  # the most rows that may be left out since they can't be in a keyspace; they go to `bad_rows`
    bad_rows: str = ""  # the folder for the rows that are left out, as JSON with the reasons
    rate_limit: int = 0  # bytes a second to each node; 0: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLoad:
    """The source and options of a load from files. The load's row keeps them, so anybody can continue the load."""

    source: str  # a file or a folder, as `path` of `read_files`
    file_format: FileFormat | None = None
    schema: str = ""  # DDL
    options: LoadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport(Report):
    """The result of a load. `rows` and `bytes` count what the load has written."""

    job: ClassVar[str] = "load"

    load_id: str = ""  # "": the mode is "put"
    mode: Mode
    partitions: int  # the number of partitions that got rows
    repeated: int = 0  # rows left out since another row of the same key counted
    kept: int = 0  # rows left out since the keyspace had their key
    bad: int = 0  # rows left out since they can't be in a keyspace
    was_done: bool = False  # an earlier run of this load has done everything


def load(
    spark: SparkSession,
    source: DataFrame,
    keyspace: str,
    options: LoadOptions,
    *,
    endpoints: Sequence[str] | None = None,
    context: str | None = None,
    load_id: str = "",
    requested_by: str = "",
    job_text: str = "",
    tls: Tls | None = None,
    timeout: float = 300.0,
    on_progress: OnProgress | None = None,
) -> LoadReport:
    """Load the data frame into a keyspace. With the id of an earlier load of the same rows this continues that load, or
    reports that it was done. Each step waits at most `timeout` seconds for a node that restarts, or for an election.
    `job_text` is a note that is kept with the load; as JSON, together with a fingerprint, it may have at most 8 KiB.

    A load can't be continued with other options, with another schema, or with a data frame that reads files of other
    names: such a run is refused. Other differences between the rows can't be noticed.

    Raises MinkaError: INVALID_ARGUMENT, UNKNOWN_KEYSPACE, DISK_FULL, NOT_ENOUGH_REPLICAS, DUPLICATE_KEY, KEY_EXISTS,
    BAD_ROWS, LOAD_EXISTS, LOAD_ENDED, SPARK_FAILED. A load that is refused because of its rows is aborted; a load that
    broke off for another reason can be continued.
    """
    endpoints, tls = given_or_resolved(endpoints, tls, context)
    return _loaded(
        *(spark, source, endpoints, keyspace, options, {"note": job_text}, ""),
        load_id=load_id,
        requested_by=requested_by,
        tls=tls,
        timeout=timeout,
        on_progress=on_progress,
    )


def load_files(
    spark: SparkSession,
    keyspace: str,
    files: FileLoad,
    *,
    endpoints: Sequence[str] | None = None,
    context: str | None = None,
    load_id: str = "",
    requested_by: str = "",
    tls: Tls | None = None,
    timeout: float = 300.0,
    on_progress: OnProgress | None = None,
) -> LoadReport:
    """Load files. If the load breaks off, `resume` can continue it. Another run with the same id is refused if it has
    other options, or files of other names, sizes or times. Raises the errors of `load` and `read_files`.
    """
    if files.file_format is not None:
        chosen("file_format", files.file_format, FORMATS)
    endpoints, tls = given_or_resolved(endpoints, tls, context)
    bad_rows = files.options.bad_rows and absolute(spark, files.options.bad_rows)
    files = replace(files, source=absolute(spark, files.source), options=replace(files.options, bad_rows=bad_rows))
    source = read_files(spark, files.source, files.file_format, files.schema)
    return _loaded(
        *(spark, source, endpoints, keyspace, files.options, asdict(files), files.source),
        load_id=load_id,
        requested_by=requested_by,
        tls=tls,
        timeout=timeout,
        on_progress=on_progress,
    )


def resume(
    spark: SparkSession,
    load_id: str,
    *,
    endpoints: Sequence[str] | None = None,
    context: str | None = None,
    tls: Tls | None = None,
    timeout: float = 300.0,
    on_progress: OnProgress | None = None,
) -> LoadReport:
    """Continue a load of files that broke off. The files must not have changed. Raises UNKNOWN_LOAD; INVALID_ARGUMENT
    if the load was not begun by `load_files`; and the errors of `load_files`.
    """
    endpoints, tls = given_or_resolved(endpoints, tls, context)
    with LoadClient(endpoints, tls=tls, timeout=timeout) as client:
        (known,) = client.describe(load_id).loads
        table = client.control.table()
    keyspace = next((one.name for one in table.keyspaces if one.id == known.keyspace_id), "")
    return load_files(
        *(spark, keyspace, file_load_of(known.job)),
        endpoints=endpoints,
        load_id=load_id,
        tls=tls,
        timeout=timeout,
        on_progress=on_progress,
    )


def _loaded(
    spark: SparkSession,
    source: DataFrame,
    endpoints: Sequence[str],
    keyspace: str,
    options: LoadOptions,
    document: dict[str, Any],
    path: str,
    *,
    load_id: str,
    requested_by: str,
    tls: Tls | None,
    timeout: float,
    on_progress: OnProgress | None,
) -> LoadReport:
    """Load the source. The load's row keeps `document`, the description of the job in JSON. `path` is the path of
    the source's files; "" if the source is the user's own data frame.
    """
    _check(options)
    with LoadClient(endpoints, tls=tls, timeout=timeout) as client:
        run = _Run(spark, client, tuple(endpoints), tls, timeout, options, keyspace)
        stages = ["check", "put"] if options.mode == "put" else ["check", "sort and upload", "commit", "take in"]
        with running("load", spark, stages, on_progress) as job:
            if options.mode == "put":
                return run.put(job, source)
            return run.ingest(job, source, load_id, requested_by, document, path)


def _check(options: LoadOptions) -> None:
    """Raise INVALID_ARGUMENT for options that aren't known, or can't be combined."""
    chosen("mode", options.mode, get_args(Mode))
    chosen("on_conflict", options.on_conflict, get_args(OnConflict))
    if options.max_bad < 0 or options.rate_limit < 0:
        raise MinkaError(Code.INVALID_ARGUMENT, "max_bad and rate_limit can't be negative")
    if options.max_bad and not options.bad_rows:
        raise MinkaError(Code.INVALID_ARGUMENT, "max_bad needs bad_rows, the folder for rows that are left out")
    if options.rate_limit and options.mode == "put":
        text = "rate_limit is for mode ingest: mode put sends only as fast as the nodes acknowledge"
        raise MinkaError(Code.INVALID_ARGUMENT, text)


def job_text_of(what: FileLoad) -> str:
    """The text for the load's row, from which `file_load_of` reads the load again."""
    return json.dumps(asdict(what), separators=(",", ":"))


def file_load_of(text: str) -> FileLoad:
    """Read the text that `job_text_of` made. Raises INVALID_ARGUMENT for any other text."""
    try:
        document = without_fingerprint(json.loads(text))
        options = document["options"]
        given = options["columns"]
        columns = PairColumns(tuple(given["key"]), tuple(given["value"]), given["key_form"], given["value_form"])
        return FileLoad(**{**document, "options": LoadOptions(**{**options, "columns": columns})})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"the load was not begun by load_files: {text[:100]!r}") from error


class _Run:
    """One run of a load; several runs with the same id make up the load if the earlier ones broke off."""

    def __init__(
        self,
        spark: SparkSession,
        client: LoadClient,
        endpoints: tuple[str, ...],
        tls: Tls | None,
        timeout: float,
        options: LoadOptions,
        keyspace: str,
    ) -> None:
        self._spark = spark
        self._client = client
        self._endpoints = endpoints
        self._tls = tls
        self._timeout = timeout
        self._options = options
        self._name = keyspace
        self._bad = 0

    def ingest(
        self, job: Job, source: DataFrame, load_id: str, requested_by: str, document: dict[str, Any], path: str
    ) -> LoadReport:
        """Do all steps of the load that earlier runs haven't done."""
        client = self._client
        with job.stage("check"):
            pairs = self._checked(source)
            marks = fingerprint(source, asdict(self._options), path)
            found, is_new = self._begin(load_id, requested_by, noted(document, marks), bytes_of(source))
            refuse_another(found, marks)
        was_done = found.state == LoadState.LOAD_STATE_DONE
        files, rows = list[LoadFile](), list[Row]()
        if found.state == LoadState.LOAD_STATE_STAGING:
            with job.stage("sort and upload"), self._kept_alive(found.id):
                try:
                    with spark_failures():
                        files, rows = self._upload(pairs, found)
                except MinkaError as error:
                    found, was_done = self._end_of(found, error, is_new), True
            if not was_done:
                with job.stage("commit"):
                    found = client.commit(found, files)
        if found.state != LoadState.LOAD_STATE_DONE:
            with job.stage("take in", rows_total=found.rows) as stage:
                found = client.wait(found.id, lambda answer: _follow(stage, answer))
        return self._report(job, rows, load_id=found.id, written=found, was_done=was_done)

    def put(self, job: Job, source: DataFrame) -> LoadReport:
        """Put the rows. No load is recorded, and each row is visible at once."""
        with job.stage("check"):
            pairs = self._checked(source)
            keyspace, partitions, targets = self._targets()
        with job.stage("put"):
            task = self._task(keyspace, targets, Load())
            rows = self._run(pairs, keyspace, partitions, task, range(len(partitions)))
        return self._report(job, rows)

    def _checked(self, source: DataFrame) -> DataFrame:
        """The pairs of the source, each with the problem that keeps it out of the keyspace, if any. Raises the errors
        that Spark finds in the options before it reads rows, and INVALID_ARGUMENT if the folder of bad rows has other
        files.
        """
        options = self._options
        by = [column_of(source, options.last_by).alias("_by")] if options.last_by else []
        pairs = pairs_of(source, options.columns, *by)
        found = pairs.withColumn(_PROBLEM, problem_of(pairs))
        _ = found.schema  # this makes Spark Connect check the query, which it otherwise does later
        if options.max_bad:
            refuse_foreign(self._spark, options.bad_rows)
        return found

    def _begin(self, load_id: str, requested_by: str, job_text: str, bytes_: int) -> tuple[Load, bool]:
        """Begin the load, or find it. Returns the load, and True if this run has begun it. All checks come first, since
        a load that was begun counts towards the cluster's limit of simultaneous loads. Raises LOAD_ENDED for a load
        that was aborted.
        """
        client = self._client
        known = self._known(load_id) if load_id else None
        if known is None or known.state == LoadState.LOAD_STATE_STAGING:
            client.check(self._name, bytes_ // _SHARE, minka.__version__)
        load_id, limit = load_id or f"load-{uuid.uuid4().hex[:12]}", self._options.rate_limit
        found = client.begin(load_id, self._name, requested_by=requested_by, job=job_text, rate_limit=limit)
        if found.state == LoadState.LOAD_STATE_ABORTED:
            raise MinkaError(Code.LOAD_ENDED, f"load {load_id} was aborted: {found.outcome}")
        return found, known is None

    def _known(self, load_id: str) -> Load | None:
        try:
            (found,) = self._client.describe(load_id).loads
        except MinkaError as error:
            if error.code is Code.UNKNOWN_LOAD:
                return None
            raise
        return found

    def _end_of(self, found: Load, error: MinkaError, is_new: bool) -> Load:
        """Return the load if another run with the same id has committed it, so that this run's error doesn't matter.
        Otherwise raise the error. Before that, abort the load if all of this is true: this run has begun it, every
        other run would be refused in the same way, and no file is in the spools.
        """
        with suppress(MinkaError):
            (now,) = self._client.describe(found.id).loads
            if now.state in (LoadState.LOAD_STATE_COMMITTED, LoadState.LOAD_STATE_DONE):
                return now
            if is_new and error.code in _FINAL and not self._client.staged(found, self._targets()[2]):
                self._abort(found, str(error))
        raise error

    def _upload(self, pairs: DataFrame, found: Load) -> tuple[list[LoadFile], list[Row]]:
        """Make and upload the files of the load, except the files that an earlier run has left in the spools. Returns
        all files, and the results of the tasks.
        """
        keyspace, partitions, targets = self._targets()
        staged = self._client.staged(found, targets)
        missing = [place for place, target in enumerate(targets) if target.partition_id not in staged]
        task, there = self._task(keyspace, targets, found), sum(file.rows for file in staged.values())
        rows = self._run(pairs, keyspace, partitions, task, missing, there)
        return [*staged.values(), *(LoadFile.FromString(bytes(row.file)) for row in rows if row.file)], rows

    def _targets(self) -> tuple[Keyspace, list[Partition], tuple[LoadTarget, ...]]:
        """The keyspace, its partitions and their targets, in the order of slots or ranges, all from one table."""
        keyspace, partitions, targets = self._client.layout(self._name)
        return keyspace, partitions, tuple(targets)

    def _task(self, keyspace: Keyspace, targets: tuple[LoadTarget, ...], found: Load) -> LoadTask:
        return LoadTask(
            endpoints=self._endpoints,
            tls=self._tls,
            timeout=self._timeout,
            keyspace=keyspace.SerializeToString(),
            load=found.SerializeToString(),
            targets=targets,
            on_conflict=self._options.on_conflict,
            refuses_repeated=not self._options.last_by,
        )

    def _run(
        self,
        found: DataFrame,
        keyspace: Keyspace,
        partitions: list[Partition],
        task: LoadTask,
        wanted: Sequence[int],
        there: int = 0,
    ) -> list[Row]:
        """Run the tasks for the `wanted` partitions, and return their results. `there` is the number of rows in
        the files that already exist for the other partitions. Raises the error of the first task that failed for good,
        and BAD_ROWS.
        """
        options, counted = self._options, Observation()
        if not wanted:
            self._count_bad(task, found)
            return []
        checked = found.observe(counted, *_counts())
        if not options.max_bad:
            text = F.concat(
                F.lit(_BAD), F.col(_PROBLEM), F.lit("; its key is "), F.coalesce(F.hex("key"), F.lit("none"))
            )
            checked = checked.where(F.when(F.col(_PROBLEM).isNotNull(), F.raise_error(text)).otherwise(F.lit(True)))
        good = checked.where(F.col(_PROBLEM).isNull())
        placed = good.withColumn("place", place_column(F.col("key"), keyspace, partitions))
        if len(wanted) < len(partitions):
            placed = placed.where(F.col("place").isin(list(wanted)))
        # If several rows of a key have the same `last_by`, their values decide. So every attempt of a task, and
        # `verify`, choose the same row.
        order = [F.col("key"), *([F.col("_by").desc(), F.col("value")] if options.last_by else [])]
        sorted_ = placed.repartitionById(len(partitions), "place").sortWithinPartitions(*order)
        run = task.put if options.mode == "put" else task.ingest
        try:
            rows = sorted_.select("place", "key", "value").mapInArrow(run, TASK_SCHEMA).collect()
        except Exception as error:
            raise self._refusal(task, error) from error
        # If the result has no rows, Spark's plan may have left out the observation, so the rows are counted again.
        counts = counted.get if rows else _counted(found)
        self._bad = counts["bad"]
        self._check_counts(found, counts["rows"] - self._bad, rows, there, is_all=len(wanted) == len(partitions))
        if self._bad:
            self._count_bad(task, found)
        return rows

    def _refusal(self, task: LoadTask, error: Exception) -> Exception:
        """Find the error that ended the load. `error` may come from a task that failed only because another task had
        refused a row and aborted the load. In this case the load's outcome has the error of that other task.
        """
        found = str(error)
        if _BAD in found:
            why = found.partition(_BAD)[2].splitlines()[0]
            self._abort(Load.FromString(task.load), f"{Code.BAD_ROWS.name}: {why}")
            return MinkaError(Code.BAD_ROWS, why)
        load_id = Load.FromString(task.load).id
        (now,) = self._client.describe(load_id).loads if load_id else (Load(),)
        found_why = _REASON.search(now.outcome)
        if found_why is not None and found_why[1] in Code.__members__:
            return MinkaError(Code[found_why[1]], found_why[2])
        if now.state == LoadState.LOAD_STATE_ABORTED:
            return MinkaError(Code.LOAD_ENDED, f"load {load_id} is over: {now.outcome}")
        return error

    def _check_counts(self, found: DataFrame, read: int, rows: list[Row], there: int, *, is_all: bool) -> None:
        """Check that every row that was read is written or counted as left out: if Spark silently gives up a task, that
        task's rows are missing. Raises INTERNAL.
        """
        options = self._options
        if not is_all and (options.last_by or options.on_conflict == "keep"):
            return  # the number of rows left out of the earlier files isn't known
        written = there + sum(row.rows + row.repeated + row.kept for row in rows)
        if read != written:  # after a machine has died, Spark counts repeated work twice; so count again
            counts = _counted(found)
            self._bad, read = counts["bad"], counts["rows"] - counts["bad"]
        if read != written:
            text = f"{read} rows were read, but {written} were written or left out"
            raise MinkaError(Code.INTERNAL, text)

    def _count_bad(self, task: LoadTask, found: DataFrame) -> None:
        """Write bad rows to their folder, if one is given. Raises BAD_ROWS if there are too many."""
        options = self._options
        if not options.max_bad:
            return
        columns = [F.col(_PROBLEM).alias("problem"), *(F.col(c) for c in found.columns if c == UNREADABLE)]
        shown = [F.base64(F.col(name)).alias(f"{name}_base64") for name in ("key", "value")]
        bad = found.where(F.col(_PROBLEM).isNotNull())
        self._bad = bad.count()
        if not self._bad:
            return
        bad.select(*columns, *shown).limit(options.max_bad + 1).write.mode("overwrite").json(options.bad_rows)
        if self._bad > options.max_bad:
            text = f"{self._bad} rows can't be loaded, only {options.max_bad} may be left out; see {options.bad_rows}"
            self._abort(Load.FromString(task.load), f"{Code.BAD_ROWS.name}: {text}")
            raise MinkaError(Code.BAD_ROWS, text)

    def _abort(self, found: Load, why: str) -> None:
        if found.id:
            self._client.abort(found.id, requested_by="the load itself", reason=why[:500])

    @contextmanager
    def _kept_alive(self, load_id: str) -> Iterator[None]:
        """Tell the cluster that the load goes on while tasks run, and stop the tasks if the load is aborted."""
        over = Event()
        tag = f"minka-{load_id}"
        add, cancel, remove = tagging(self._spark)

        def watch() -> None:
            touched = time.monotonic()
            with LoadClient(self._endpoints, tls=self._tls, timeout=self._timeout) as client:
                while not over.wait(_WATCH_SECONDS):
                    with suppress(MinkaError):  # the tasks report such errors
                        (found,) = client.describe(load_id).loads
                        if found.state == LoadState.LOAD_STATE_ABORTED:
                            cancel(tag)  # in each round, since a job may begin after this call
                        elif time.monotonic() - touched > _TOUCH_SECONDS:
                            client.touch(load_id)
                            touched = time.monotonic()

        add(tag)
        thread = Thread(target=watch, name=f"watch {load_id}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            remove(tag)

    def _report(
        self, job: Job, rows: list[Row], *, load_id: str = "", written: Load | None = None, was_done: bool = False
    ) -> LoadReport:
        return LoadReport(
            keyspace=self._name,
            started=timestamp(job.started),
            seconds=round(job.seconds, 3),
            rows=sum(row.rows for row in rows) if written is None else written.rows,
            bytes=sum(row.bytes for row in rows) if written is None else written.bytes,
            stages=job.reports,
            load_id=load_id,
            mode=self._options.mode,
            partitions=sum(row.rows > 0 for row in rows) if written is None else written.parts,
            repeated=sum(row.repeated for row in rows),
            kept=sum(row.kept for row in rows),
            bad=self._bad,
            was_done=was_done,
        )


def tagging(spark: SparkSession) -> tuple[Callable[[str], object], Callable[[str], object], Callable[[str], object]]:
    """Three functions that take a tag: the first adds it to the calling thread's jobs, the second cancels all jobs that
    have the tag, and the third removes the tag from the calling thread.
    """
    from pyspark.sql.utils import is_remote

    if is_remote():
        return spark.addTag, spark.interruptTag, spark.removeTag
    # `interruptTag` of a classic session finds only jobs that the calling thread has tagged.
    context = spark.sparkContext
    return context.addJobTag, context.cancelJobsWithTag, context.removeJobTag


def _counts() -> tuple[Column, Column]:
    return F.count(F.lit(1)).alias("rows"), F.count(_PROBLEM).alias("bad")


def _counted(found: DataFrame) -> dict[str, int]:
    counts = found.agg(*_counts()).first()
    assert counts is not None, "an aggregate of all has one row"
    return {"rows": counts.rows, "bad": counts.bad}


def _follow(stage: Stage, answer: GetLoadsResponse) -> None:
    (found,) = answer.loads
    stage.rows = found.rows * found.parts_done // max(1, found.parts)
    stage.blocker = f"{answer.blockers[0].partition}: {answer.blockers[0].reason}" if answer.blockers else ""
