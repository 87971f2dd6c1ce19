"""Each test brings about a failure of which users of TiDB Lightning have complained; a comment names the complaint."""

import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from minka import Client
from minka.admin.control import Control
from minka.bulk.bulk_loads import LoadClient
from minka.errors import Code, MinkaError
from minka.spark.filling import LoadReport, tagging
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from minka.v1.loads_pb2 import LoadState
from tests.cluster.cluster import QUICK, eventually, wait_settled
from tests.cluster.disks import MIB, Disk
from tests.cluster.undo import NotPermitted, Undo
from tests.pipeline.loads import (
    RANGES,
    ROWS,
    SLOW,
    Stages,
    assert_same,
    child,
    frame,
    kill_workers,
    loaded,
    spooled,
    state_of,
    wait_for_files,
)

NODES = ("athens", "byzantium", "cyrene")
MURMUR3 = HashFunction.HASH_FUNCTION_MURMUR3
DISK_BYTES = 128 * MIB  # the disk counts as low when less than a tenth is free
PROGRESS = re.compile(r"\d/4 (check|sort and upload|commit|take in): ")


def spec_file(cluster: LocalCluster, name: str) -> Path:
    return cluster.node(name).directory / "failpoints"


@pytest.fixture(scope="module")
def cluster(spark: SparkSession) -> Iterator[LocalCluster]:
    cluster = LocalCluster(NODES, config=QUICK)
    for name in NODES:
        cluster.node(name).env = {"MINKA_FAILPOINTS_FILE": str(spec_file(cluster, name))}
    with cluster:
        yield cluster


@pytest.fixture
def control(cluster: LocalCluster) -> Iterator[Control]:
    with Control(cluster.endpoints) as control:
        wait_settled(control, live=3)
        yield control
        for name in NODES:
            spec_file(cluster, name).unlink(missing_ok=True)


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    """A thread on which a load runs while the test disturbs it."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def hashed(control: Control, name: str, partitions: int = 6, replicas: int = 3) -> None:
    control.create_keyspace(name, partitions, MURMUR3, replicas=replicas)
    wait_settled(control, live=3)


def ranged(control: Control, name: str, *points: bytes, live: int = 3) -> None:
    control.create_keyspace(name, 0, RANGES, replicas=3, split_points=list(points))
    wait_settled(control, live=live)


def is_full(cluster: LocalCluster, keyspace: str) -> bool:
    with LoadClient(cluster.endpoints) as client:
        try:
            client.check(keyspace, 1000)
        except MinkaError as error:
            return error.code is Code.DISK_FULL
        return False


def is_empty(cluster: LocalCluster, keyspace: str, source: DataFrame) -> bool:
    keys = [row.key for row in source.select("key").collect()]
    with Client(cluster.endpoints, keyspace=keyspace, timeout=30) as client:
        return not any(value is not None for value in client.get_many(keys).values())


# Complaint (tidb 50198): a file was skipped when its retries ran out, and the load reported success.


def test_a_load_fails_if_a_spool_refuses_a_file_every_time(
    spark: SparkSession, cluster: LocalCluster, control: Control
) -> None:
    """One node's spool refuses every file, so the first run fails. The second run makes only the files that are
    missing.
    """
    hashed(control, "skipped", replicas=1)
    source, failing = frame(spark), control.status().table.partitions[0].leader
    spec_file(cluster, failing).write_text("spool.keep.before=error\n")
    with pytest.raises(MinkaError, match=r"failpoint spool\.keep\.before") as refused:
        loaded(cluster, source, "skipped", "skipped")
    assert refused.value.code is Code.NOT_ENOUGH_SPOOLS
    assert state_of(cluster, "skipped") == LoadState.LOAD_STATE_STAGING
    assert is_empty(cluster, "skipped", source)
    spec_file(cluster, failing).unlink()
    before = spooled(cluster, "skipped")
    assert not before[failing]
    report = loaded(cluster, source, "skipped", "skipped")
    assert (report.rows, report.partitions) == (ROWS, 6)
    assert_same(cluster, source, "skipped")
    after = spooled(cluster, "skipped")
    assert all(before[node] <= files for node, files in after.items()), "uploaded files are kept"
    # A task of the first run may have gone on for two more seconds, so its partition may have a second file.
    kept = {name.split("-")[0] for files in before.values() for name in files}
    new = {name.split("-")[0] for node, files in after.items() for name in files - before[node]}
    assert not kept & new, "the first run's files are not made again"
    assert len(kept | new) == 6


# Complaint (tidb 33446): a load retried for 16 hours although the disk was full.


def test_a_full_disk_ends_the_load(spark: SparkSession, tmp_path: Path, beside: ThreadPoolExecutor) -> None:
    """If the disk is full at the start, the load is refused before it sends anything. If the disk becomes full later,
    the load is aborted.
    """
    with Undo() as undo:
        try:
            disk = Disk(undo, tmp_path, "disk", DISK_BYTES)
        except NotPermitted as error:
            pytest.skip(f"the test can't make a disk for its node: {error}")
        cluster = LocalCluster(3, config=QUICK)
        cluster.nodes["byzantium"].config = {"data_dir": str(disk.mount / "data")}
        with cluster, Control(cluster.endpoints) as control:
            ranged(control, "full", b"k002000", b"k004000", b"k006000")
            small = frame(spark)
            small.write.parquet(str(tmp_path / "source"))
            source = spark.read.parquet(str(tmp_path / "source"))
            disk.fill(DISK_BYTES // 10 - 3 * MIB)
            eventually("the node has seen it", partial(is_full, cluster, "full"))
            with pytest.raises(MinkaError, match="byzantium has room for 0 bytes and would get ") as refused:
                loaded(cluster, source, "full", "foreseen")
            assert refused.value.code is Code.DISK_FULL
            assert not any(spooled(cluster, "foreseen").values())
            disk.free()
            eventually("there is room again", lambda: not is_full(cluster, "full"))
            running = beside.submit(loaded, cluster, source, "full", "filled", rate_limit=SLOW)
            wait_for_files(cluster, "filled", 1)
            disk.fill(DISK_BYTES // 10 - 3 * MIB)
            with pytest.raises(MinkaError, match="byzantium: ") as refused:
                running.result()
            assert refused.value.code is Code.DISK_FULL
            assert state_of(cluster, "filled") == LoadState.LOAD_STATE_ABORTED
            disk.free()
            eventually("there is room again", lambda: not is_full(cluster, "full"))
            assert loaded(cluster, source, "full", "again").rows == ROWS


# Complaints (tidb 36674, 43400): a load ended when a node or the controller restarted; (lightning 423): retries were
# logged as errors.


def test_a_load_goes_on_without_errors_while_nodes_restart(
    spark: SparkSession, cluster: LocalCluster, control: Control, tmp_path: Path
) -> None:
    hashed(control, "restarts")
    source, errors = frame(spark), tmp_path / "errors"
    source.write.parquet(str(tmp_path / "source.parquet"))
    arguments = [str(tmp_path / "source.parquet"), "restarts", "--key", "key", "--value", "value"]
    with child(cluster, *arguments, "--id", "restarts", "--limit", "30KiB", errors=errors) as process:
        wait_for_files(cluster, "restarts", 1)
        controller = control.status().coordinator.controller
        follower = next(name for name in NODES if name != controller)
        cluster.restart(follower)
        wait_settled(control, live=3)
        assert state_of(cluster, "restarts") == LoadState.LOAD_STATE_STAGING, "it still uploads"
        cluster.restart(controller)
        assert process.wait() == 0, errors.read_text()
    assert json.loads(errors.with_suffix(".json").read_text())["rows"] == ROWS
    _, *lines = errors.read_text().splitlines()  # the first line says that Spark starts
    assert len(lines) >= 4
    assert all(PROGRESS.match(line) for line in lines), lines
    wait_settled(control, live=3)
    assert_same(cluster, source, "restarts")


# Complaint (tidb 33587): after a permanent error, a load did all its other work, and then tried again.


def test_a_duplicate_key_ends_the_load_at_once(spark: SparkSession, cluster: LocalCluster, control: Control) -> None:
    hashed(control, "twice", partitions=24, replicas=1)
    source = frame(spark)
    first = source.limit(1)
    stages = Stages(spark)
    with pytest.raises(MinkaError, match="the key k000000 comes more than once") as refused:
        loaded(cluster, source.union(first), "twice", "twice")
    assert refused.value.code is Code.DUPLICATE_KEY
    assert state_of(cluster, "twice") == LoadState.LOAD_STATE_ABORTED
    assert stages.completed() + stages.failed() < 24, "only one task's four tries, and simultaneous tasks, ran"
    eventually("its files are gone", lambda: not any(spooled(cluster, "twice").values()) or None)
    assert is_empty(cluster, "twice", source)


def test_a_load_that_a_person_aborts_stops(
    spark: SparkSession, cluster: LocalCluster, control: Control, beside: ThreadPoolExecutor
) -> None:
    hashed(control, "aborted", partitions=2)
    stages = Stages(spark)
    running = beside.submit(loaded, cluster, frame(spark), "aborted", "aborted", rate_limit=1000)  # takes 20 minutes
    eventually("it is there", lambda: state_of(cluster, "aborted") == LoadState.LOAD_STATE_STAGING)
    eventually("it uploads", partial(is_uploading, cluster))
    with LoadClient(cluster.endpoints) as client:
        client.abort("aborted", "the test", "it was a mistake")
    with pytest.raises(MinkaError, match="aborted by the test: it was a mistake") as refused:
        running.result()
    assert refused.value.code is Code.LOAD_ENDED
    assert stages.completed() == 0


def test_a_thread_can_cancel_the_job_of_another_thread(spark: SparkSession, beside: ThreadPoolExecutor) -> None:
    """When a load is aborted, the thread that watches it cancels the job: a waiting task wouldn't notice the abort."""
    add, cancel, remove = tagging(spark)

    def waits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(100)
        yield from batches

    def job() -> None:
        add("waiting")
        try:
            spark.range(1).mapInArrow(waits, "id long").collect()
        finally:
            remove("waiting")

    def is_over() -> bool:
        cancel("waiting")
        return running.done()

    running = beside.submit(job)
    eventually("it is cancelled", is_over)
    with pytest.raises(Exception, match="waiting"):
        running.result()


def is_uploading(cluster: LocalCluster) -> bool:
    return any(any((node.data_dir / "spool" / "parts").glob("*")) for node in cluster.nodes.values())


# The next tests kill tasks and a node. tests/pipeline/test_load_chaos.py also kills the driver.


def test_a_load_succeeds_although_tasks_die(
    spark: SparkSession, cluster: LocalCluster, control: Control, beside: ThreadPoolExecutor
) -> None:
    hashed(control, "tasks")
    source, stages = frame(spark), Stages(spark)
    running = beside.submit(loaded, cluster, source, "tasks", "tasks", rate_limit=SLOW)
    wait_for_files(cluster, "tasks", 1)
    assert kill_workers(os.getpid()) >= 1
    assert running.result().rows == ROWS
    assert stages.failed() >= 1
    assert_same(cluster, source, "tasks")


def test_a_load_succeeds_although_a_node_dies_during_the_upload(
    spark: SparkSession, cluster: LocalCluster, control: Control, beside: ThreadPoolExecutor
) -> None:
    """tests/cluster/test_loads.py kills nodes after the commit, when Spark only waits."""
    ranged(control, "node", b"k003000", b"k005000")
    source, victim = frame(spark), control.status().table.partitions[-1].leader
    spec_file(cluster, victim).write_text("spool.keep.before=kill\n")
    running: Future[LoadReport] = beside.submit(loaded, cluster, source, "node", "node")
    eventually(f"{victim} dies", lambda: not cluster.node(victim).running or None, 60)
    spec_file(cluster, victim).unlink()
    cluster.restart(victim)
    assert running.result().rows == ROWS
    wait_settled(control, live=3)
    assert_same(cluster, source, "node")
