"""Helpers of tests that disturb loads: they start slow loads, kill processes, and check the loaded rows."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from minka.bulk.bulk_loads import LoadClient
from minka.spark.filling import LoadOptions, LoadReport, load
from minka.spark.pairs import PairColumns
from minka.spark.verifying import VerifyReport, verify
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from minka.v1.loads_pb2 import LoadState
from tests.cluster.cluster import eventually
from tests.pipeline.conftest import CONF

RANGES: Final = HashFunction.HASH_FUNCTION_UNSPECIFIED
PLAIN: Final = PairColumns(("key",), ("value",))
SLOW: Final = 100_000  # bytes a second to each node: ROWS then take some seconds
ROWS: Final = 8000


def frame(spark: SparkSession, rows: int = ROWS, tag: str = "") -> DataFrame:
    """Make rows with the keys k000000, k000001 and so on, whose values can't be compressed much."""
    return spark.range(rows).selectExpr("printf('k%06d', id) key", f"concat('{tag}', sha2(string(id), 256)) value")


def loaded(
    cluster: LocalCluster, source: DataFrame, keyspace: str, load_id: str, timeout: float = 60.0, **options: Any
) -> LoadReport:
    """Load the rows, and return the report."""
    chosen = LoadOptions(columns=PLAIN, **options)
    return load(
        source.sparkSession, source, keyspace, chosen, endpoints=cluster.endpoints, load_id=load_id, timeout=timeout
    )


def compared(cluster: LocalCluster, source: DataFrame, keyspace: str) -> VerifyReport:
    """Compare every replica with the source."""
    return verify(source.sparkSession, source, keyspace, PLAIN, endpoints=cluster.endpoints)


def assert_same(cluster: LocalCluster, source: DataFrame, keyspace: str) -> None:
    """Check that all replicas have exactly these rows."""
    report = compared(cluster, source, keyspace)
    assert report.is_same, report
    assert not report.replicas_different
    assert report.replicas >= report.partitions


def state_of(cluster: LocalCluster, load_id: str) -> "LoadState.ValueType | None":
    """The load's state; None if the load doesn't exist."""
    with LoadClient(cluster.endpoints) as client:
        return next((one.state for one in client.all() if one.id == load_id), None)


def spooled(cluster: LocalCluster, load_id: str) -> dict[str, set[str]]:
    """The names of the load's files in the spool of each node."""
    with LoadClient(cluster.endpoints) as client:
        return _files(cluster, number_of(client, load_id))


def number_of(client: LoadClient, load_id: str) -> int:
    """The number of the load; 0 if the load doesn't exist."""
    return next((one.number for one in client.all() if one.id == load_id), 0)


def _files(cluster: LocalCluster, number: int) -> dict[str, set[str]]:
    folders = {name: node.data_dir / "spool" / str(number) for name, node in cluster.nodes.items()}
    return {name: {path.stem for path in folder.glob("*.sst")} for name, folder in folders.items()}


def wait_for_files(cluster: LocalCluster, load_id: str, count: int) -> None:
    """Wait until all spools together have at least `count` files of the load."""
    with LoadClient(cluster.endpoints) as client:
        number = eventually(f"load {load_id}", lambda: number_of(client, load_id) or None, 120, every=0.2)
    eventually(f"{count} files of {load_id}", lambda: sum(map(len, _files(cluster, number).values())) >= count, 120)


@contextmanager
def child(cluster: LocalCluster, *arguments: str, errors: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `minkactl data load` in another process, which starts a Spark of its own. Its stderr goes to the file
    `errors`, and its report to the file of the same name with the ending .json.
    """
    settings = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
    asked = [
        sys.executable,
        "-m",
        "minkactl",
        "data",
        "load",
        *arguments,
        "-o",
        "json",
        "--master",
        "local[2]",
        *settings,
    ]
    with errors.open("wb") as stderr, errors.with_suffix(".json").open("wb") as stdout:
        process = subprocess.Popen([*asked, "--endpoints", ",".join(cluster.endpoints)], stdout=stdout, stderr=stderr)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def kill_workers(pid: int) -> int:
    """Kill all Python processes that run Spark's tasks below the process `pid`; returns the number of killed
    processes.
    """
    children = _children_by_parent()
    daemons = [one for one in _below(children, pid) if _is_daemon(one) and not _is_daemon(_parent_of(one))]
    workers = [worker for daemon in daemons for worker in children.get(daemon, ())]
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    return len(workers)


def _children_by_parent() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (parent := _parent_of(int(folder.name))):
            found.setdefault(parent, []).append(int(folder.name))
    return found


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _below(children: dict[int, list[int]], pid: int) -> Iterator[int]:
    for one in children.get(pid, ()):
        yield one
        yield from _below(children, one)


def _is_daemon(pid: int) -> bool:
    try:
        return b"daemon\0pyspark." in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class Stages:
    """Counts the tasks of Spark's stages that have begun since this object was made."""

    def __init__(self, spark: SparkSession) -> None:
        self._store = spark.sparkContext._jsc.sc().statusStore()
        self._first = 0
        self._first += len(list(self._all()))

    def failed(self) -> int:
        """The number of failed attempts of tasks."""
        return sum(one.numFailedTasks() for one in self._all())

    def completed(self) -> int:
        """The number of completed tasks in the last stage."""
        *_, last = self._all()
        return int(last.numCompleteTasks())

    def _all(self) -> Iterator[Any]:
        for number in count(self._first):
            try:
                yield self._store.lastStageAttempt(number)
            except Py4JJavaError:
                return
