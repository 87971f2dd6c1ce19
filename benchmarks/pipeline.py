"""Measures the data pipeline on Spark: loads by ingest and by put, exports, and split points. Ingest is compared with
the ceiling of this machine, which is the same sort and the same files, taken into one local RocksDB. Put is compared
with a load of the same rows from Spark into Redis, with pipelines.
"""

import os
import shutil
import socket
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rocksdict import Cache, IngestExternalFileOptions, Rdict

from benchmarks.cluster import Clients
from benchmarks.kv_worker import Work
from benchmarks.measure import MINKA, Goal, Report, Sample, main, percentile
from benchmarks.peers import REDIS, missing
from benchmarks.processes import Group, free_ports
from minka.admin.control import Control
from minka.bulk.sst_files import SstWriter
from minka.spark import session
from minka.spark.arrow_lists import binary_columns
from minka.spark.exporting import export
from minka.spark.filling import LoadOptions, load
from minka.spark.pairs import PairColumns, pairs_of
from minka.spark.split_planning import splits
from minka.testing.local_cluster import LocalCluster
from minka.testing.loopback_ports import LOOPBACK
from minka.v1.cluster_pb2 import HashFunction, PartitionState
from minkad.storage.rocks_data import data_options

CEILING: Final = "local RocksDB"
COPY: Final = "Parquet to Parquet"
_PAIR: Final = PairColumns(("key",), ("value",))
_PARTITIONS: Final = 16
_OF_THE_CEILING: Final = 0.7
_CPU_SHARE: Final = 1 / 8
_EXPORT_ROWS: Final = 1_000_000
_FOREGROUND: Final = 3.0
_IDLE_SECONDS: Final = 5.0
_ALONE_SECONDS: Final = 10.0
_LARGEST_SHARE: Final = 1.15


def run(report: Report) -> None:
    """Measure all cases, and add them to the report."""
    rows = 100_000 if report.options.quick else 5_000_000
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="minka-pipeline-")))
        spark = session("local[*]", app_name="benchmark")
        stack.callback(spark.stop)
        cluster = stack.enter_context(LocalCluster(2))
        source = _source(spark, folder, rows)
        _create(cluster, "warm")
        _load(spark, source.limit(10_000), cluster, "warm", "ingest")
        export(spark, "warm", str(folder / "warm"), endpoints=cluster.endpoints)
        for number in range(report.options.rounds):
            _round(report, spark, source, cluster, folder, rows, number)
        _foreground(report, spark, source, cluster)
        _splits(report, spark, rows // 5)


def _source(spark: SparkSession, folder: Path, rows: int) -> DataFrame:
    """Write and read back rows with keys of 16 bytes and values of 100 bytes. Half of each value can be compressed."""
    path = str(folder / "source.parquet")
    hashed = "sha2(cast(id as string), 256)"
    frame = spark.range(rows).selectExpr(
        "cast(substr(md5(cast(id as string)), 1, 16) as binary) key",
        f"cast(concat(substr({hashed}, 1, 50), repeat('v', 50)) as binary) value",
    )
    frame.repartition(8).write.parquet(path)
    return spark.read.parquet(path)


def _round(
    report: Report, spark: SparkSession, source: DataFrame, cluster: LocalCluster, folder: Path, rows: int, number: int
) -> None:
    rate = report.case("ingest: rows from Parquet, 2 nodes", "rows/s", CEILING, Goal(ratio=_OF_THE_CEILING))
    report.add(rate, CEILING, Sample(rows / _timed(lambda: _ceiling(spark, source, folder / f"local-{number}"))))
    cpu: dict[str, float] = {}
    for mode in ("ingest", "put"):
        name = f"{mode}{number}"
        _create(cluster, name)
        idle, before = _idle_cpu(cluster), _cpu_of(cluster)
        seconds = _timed(lambda mode=mode, name=name: _load(spark, source, cluster, name, mode))  # type: ignore[misc]
        cpu[mode] = (_cpu_of(cluster) - before - idle * seconds) * 1_000_000 / rows
        case = rate if mode == "ingest" else report.case("put: the same rows", "rows/s", REDIS)
        report.add(case, MINKA, Sample(rows / seconds, details={"daemons_cpu_s_per_M": cpu[mode]}))
        if mode == "ingest":
            _export(report, spark, source, cluster, name, rows, folder / f"export-{number}")
    share = report.case("daemons' CPU a row beyond idle, ingest beside put", "of put's", goal=Goal(at_most=_CPU_SHARE))
    report.add(share, MINKA, Sample(cpu["ingest"] / cpu["put"]))
    _redis(report, spark, source, rows)


def _export(
    report: Report, spark: SparkSession, source: DataFrame, cluster: LocalCluster, name: str, rows: int, folder: Path
) -> None:
    case = report.case("export to Parquet, 2 nodes", "rows/s", COPY, Goal(at_least=_EXPORT_ROWS))
    copy = Path(f"{folder}-copy")
    report.add(
        case, MINKA, Sample(rows / _timed(lambda: export(spark, name, str(folder), endpoints=cluster.endpoints)))
    )
    report.add(case, COPY, Sample(rows / _timed(lambda: source.write.parquet(str(copy)))))
    shutil.rmtree(folder)
    shutil.rmtree(copy)


def _timed(work: Callable[[], Any]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _create(cluster: LocalCluster, name: str) -> None:
    with Control(cluster.endpoints) as control:
        control.create_keyspace(name, _PARTITIONS, HashFunction.HASH_FUNCTION_MURMUR3, 1)
        while any(row.state != PartitionState.PARTITION_STATE_ONLINE for row in control.table().partitions):
            time.sleep(0.05)


def _load(spark: SparkSession, source: DataFrame, cluster: LocalCluster, name: str, mode: Any) -> None:
    options = LoadOptions(columns=_PAIR, mode=mode, on_conflict="replace")
    load(spark, source, name, options, endpoints=cluster.endpoints)


def _idle_cpu(cluster: LocalCluster) -> float:
    """The processor time that all idle daemons use, in seconds per second."""
    before, seconds = _cpu_of(cluster), _timed(lambda: time.sleep(_IDLE_SECONDS))
    return (_cpu_of(cluster) - before) / seconds


def _cpu_of(cluster: LocalCluster) -> float:
    """The processor seconds of the daemons and of all their child processes."""
    total = 0.0
    for node in cluster.nodes.values():
        total += _cpu(node.pid)
        children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text("utf-8").split()
        total += sum(_cpu(int(child)) for child in children)
    return total


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / 100  # of the process, and of ended children


# An ingest without a cluster: the fastest that this machine could do


def _ceiling(spark: SparkSession, source: DataFrame, folder: Path) -> None:
    """Do the work of an ingest without a cluster: sort the rows, write the files, and ingest them into one RocksDB."""
    folder.mkdir()
    pairs = pairs_of(source, _PAIR)
    place = F.pmod(F.xxhash64("key"), F.lit(_PARTITIONS)).cast("int").alias("place")
    sorted_ = pairs.select(place, "key", "value").repartitionById(_PARTITIONS, "place").sortWithinPartitions("key")

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer, path = None, folder / "none"
        for batch in batches:
            if writer is None:
                path = folder / f"{batch.column(0)[0].as_py()}.sst"
                writer = SstWriter(path)
            writer.put_many(*binary_columns(batch, 1, 2))
        if writer is not None:
            writer.finish()
            yield pa.RecordBatch.from_pydict({"path": [str(path)]})

    files = [row.path for row in sorted_.mapInArrow(write, "path string").collect()]
    options = data_options(Cache(1 << 20))
    options.create_if_missing(True)
    db = Rdict(str(folder / "db"), options)
    ingest = IngestExternalFileOptions()
    ingest.set_move_files(True)
    for file in files:
        db.ingest_external_file([file], ingest)
    db.close()
    shutil.rmtree(folder)


# Redis


def _redis(report: Report, spark: SparkSession, source: DataFrame, rows: int) -> None:
    case = report.case("put: the same rows", "rows/s", REDIS)
    if absent := missing(REDIS):
        report.absent[REDIS] = absent
        return
    with Group(REDIS) as group:
        (port,) = free_ports(1)
        settings = ("--bind", LOOPBACK, "--port", str(port), "--save", "", "--appendonly", "yes")
        group.start("redis", ["redis-server", *settings, "--appendfsync", "always", "--dir", str(group.directory)])
        group.wait_until("Redis answers", lambda: _answers(port))
        pairs = pairs_of(source, _PAIR)
        seconds = _timed(lambda: pairs.mapInArrow(lambda batches: _set_all(port, batches), "rows long").collect())
    report.add(case, REDIS, Sample(rows / seconds))


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _set_all(port: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send SET for every row, in pipelines of a thousand."""
    count = 0
    with socket.create_connection((LOOPBACK, port)) as connection:
        for batch in batches:
            keys, values = binary_columns(batch, 0, 1)
            for start in range(0, len(keys), 1000):
                some = list(zip(keys[start : start + 1000], values[start : start + 1000], strict=True))
                connection.sendall(
                    b"".join(b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(k), k, len(v), v) for k, v in some)
                )
                missing_bytes = len(b"+OK\r\n") * len(some)
                while missing_bytes:
                    missing_bytes -= len(connection.recv(missing_bytes))
            count += len(keys)
    yield pa.RecordBatch.from_pydict({"rows": [count]})


# Clients during an ingest


def _foreground(report: Report, spark: SparkSession, source: DataFrame, cluster: LocalCluster) -> None:
    """Measure the latencies of a client that puts every 10 ms: first without other work, then during two ingests into
    other keyspaces. During the first ingest, Spark has a separate processor, as if on another machine; during the
    second one, it shares all processors.
    """
    _create(cluster, "foreground")
    for number in range(report.options.rounds):
        alone = _p99(cluster, lambda: time.sleep(_ALONE_SECONDS))
        for where, kept_apart in ("apart", True), ("on the same processors", False):
            goal = Goal(at_most=_FOREGROUND) if kept_apart else None
            case = report.case(f"p99 of a client during an ingest, Spark {where}, beside idle", "x", goal=goal)
            name = f"{'apart' if kept_apart else 'beside'}{number}"
            _create(cluster, name)
            with _apart(spark, cluster) if kept_apart else nullcontext():
                busy = _p99(cluster, lambda name=name: _load(spark, source, cluster, name, "ingest"))  # type: ignore[misc]
            report.add(case, MINKA, Sample(busy / alone, details={"idle_ms": alone * 1000, "busy_ms": busy * 1000}))


@contextmanager
def _apart(spark: SparkSession, cluster: LocalCluster) -> Iterator[None]:
    """Within the block, let Spark run only on the last processor. The daemons, this process and its clients run on the
    other processors.
    """
    everywhere = os.sched_getaffinity(0)
    last = {max(everywhere)}
    gateway: Any = spark.sparkContext._gateway
    _run_on(last, gateway.proc.pid)
    for pid in (os.getpid(), *(node.pid for node in cluster.nodes.values())):
        _run_on(everywhere - last or last, pid, but=gateway.proc.pid)
    try:
        yield
    finally:
        _run_on(everywhere, os.getpid())


def _run_on(processors: set[int], pid: int, but: int = 0) -> None:
    """Let the threads of a process and of its descendants, except `but`, run only on these processors."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has just ended
            os.sched_setaffinity(int(task.name), processors)
            for child in map(int, (task / "children").read_text("utf-8").split()):
                if child != but:
                    _run_on(processors, child, but)


def _p99(cluster: LocalCluster, meanwhile: Callable[[], Any]) -> float:
    work = Work([*cluster.endpoints], "foreground", "put", 1, 0, 600, 1000, gap_s=0.01)
    with Clients([work]) as clients:
        clients.begin()
        meanwhile()
        clients.stop()
        done = clients.end()
    found = percentile(sorted(took for _, _, took in done.calls), 99)
    assert found is not None, "it has made calls"
    return found


# Split points


def _splits(report: Report, spark: SparkSession, rows: int) -> None:
    key = "concat('u', lpad(cast(cast(pow(rand(1), 4) * 100000 as int) as string), 6, '0'), '-', id)"
    frame = spark.range(rows).selectExpr(f"{key} key", "repeat('x', cast(10 + pow(rand(2), 8) * 2000 as int)) value")
    frame = frame.persist()
    for ranges in (64, 512):
        found = splits(spark, frame, _PAIR, ranges)
        points = [point.encode() for point in found.points]
        sizes = [0] * ranges
        for row in frame.selectExpr("key", "octet_length(key) + octet_length(value) + 16 size").toLocalIterator():
            sizes[bisect_right(points, row.key.encode())] += row["size"]
        case = report.case(f"split points: largest of {ranges} ranges", "of mean", goal=Goal(at_most=_LARGEST_SHARE))
        report.add(case, MINKA, Sample(max(sizes) / (sum(sizes) / ranges), details={"took_s": found.seconds}))
    frame.unpersist()


if __name__ == "__main__":
    main("pipeline", __doc__, run)
