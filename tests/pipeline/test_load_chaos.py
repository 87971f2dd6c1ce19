"""While a load runs, tasks, nodes and the driver are killed at random moments; in the end every row is there once."""

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from minka import Client
from minka.admin.control import Control
from minka.bulk.bulk_loads import LoadClient
from minka.spark.filling import file_load_of, resume
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from minka.v1.loads_pb2 import LoadState
from tests.cluster.cluster import QUICK, eventually, wait_settled
from tests.pipeline.loads import (
    RANGES,
    assert_same,
    child,
    frame,
    kill_workers,
    spooled,
    state_of,
    wait_for_files,
)

MURMUR3 = HashFunction.HASH_FUNCTION_MURMUR3


@pytest.fixture(scope="module")
def cluster(spark: SparkSession) -> Iterator[LocalCluster]:
    with LocalCluster(3, config=QUICK) as cluster:
        yield cluster


def made_keyspace(rng: random.Random, control: Control, name: str, rows: int) -> int:
    """Create a keyspace; returns its number of partitions."""
    partitions = rng.randint(1, 8)
    if rng.random() < 0.5:
        control.create_keyspace(name, partitions, MURMUR3, replicas=3)
    else:
        points = sorted({b"k%06d" % rng.randrange(1, rows) for _ in range(partitions - 1)})
        control.create_keyspace(name, 0, RANGES, replicas=3, split_points=points)
        partitions = len(points) + 1
    wait_settled(control, live=3)
    return partitions


def disturb(rng: random.Random, cluster: LocalCluster, pid: int, is_over: Callable[[], bool]) -> list[str]:
    """Kill tasks of the Spark below process `pid`, or a node, up to three times; returns the names of the victims."""
    done: list[str] = []
    for _ in range(rng.randint(0, 3)):
        time.sleep(rng.uniform(0, 1))  # a random moment
        if is_over():
            break
        if rng.random() < 0.5:
            eventually("there are tasks", lambda: killed_workers(pid, done) or is_over() or None, 120)
        else:
            victim = rng.choice(sorted(cluster.nodes))
            cluster.kill(victim)
            time.sleep(rng.choice((0, 0, 1.5)))  # sometimes long enough for the controller to mark the node FAILED
            cluster.restart(victim)
            done.append(victim)
    return done


def killed_workers(pid: int, done: list[str]) -> bool:
    workers = kill_workers(pid)
    done += [f"{workers} workers of Spark"] if workers else []
    return workers > 0


def killed(rng: random.Random, cluster: LocalCluster, process: subprocess.Popen[bytes], load_id: str) -> list[str]:
    """Kill the driver at a random moment after the load has begun, and before that perhaps tasks and nodes. Returns the
    names of the victims.
    """
    eventually(f"{load_id} begins", lambda: state_of(cluster, load_id) is not None, 120, every=0.2)
    moment = rng.choice(("now", "upload", "commit", "random"))
    done = disturb(rng, cluster, process.pid, lambda: process.poll() is not None)
    if moment == "upload" and process.poll() is None:
        wait_for_files(cluster, load_id, 1)
    elif moment == "commit":
        eventually(
            f"{load_id} is committed",
            lambda: state_of(cluster, load_id) != LoadState.LOAD_STATE_STAGING or process.poll() is not None or None,
            120,
        )
    elif moment == "random":
        time.sleep(rng.uniform(0, 2))
    process.kill()
    return [*done, f"the driver ({moment})"]


def try_to_lose_rows(
    spark: SparkSession, cluster: LocalCluster, folder: Path, rng: random.Random, name: str, rows: int, limit: str
) -> None:
    """Load `rows` rows while tasks, nodes and the driver are killed, and compare every replica with the source."""
    source, path, is_over_old = frame(spark, rows), str(folder / "source.parquet"), rng.random() < 0.5
    source.repartition(rng.randint(1, 6)).write.parquet(path)
    with Control(cluster.endpoints) as control:
        made_keyspace(rng, control, name, rows)
        if is_over_old:
            with Client(cluster.endpoints, keyspace=name, timeout=30) as client:
                client.put_many({b"k%06d" % number: b"old" for number in rng.sample(range(rows), 500)})
        asked = [path, name, "--key", "key", "--value", "value", "--id", name, "--limit", limit]
        with child(cluster, *asked, "--on-conflict", "replace", errors=folder / "errors") as process:
            done = killed(rng, cluster, process, name)
        with LoadClient(cluster.endpoints) as client:
            (found,) = client.describe(name).loads
            staged = {file.name for file in client.staged(found, client.targets(name)).values()}
        assert file_load_of(found.job).source == f"file:{path}"
        with ThreadPoolExecutor(1) as pool:
            resumed = pool.submit(resume, spark, name, endpoints=cluster.endpoints, timeout=60)
            later = disturb(rng, cluster, os.getpid(), resumed.done)
            report = resumed.result()
        print(f"{name}: {rows} rows, killed: {', '.join(done + later)}; was done: {report.was_done}")  # noqa: T201 - with -s
        assert report.rows == rows
        if not later:
            assert staged <= set.union(*spooled(cluster, name).values()), "uploaded files are not made again"
        assert resume(spark, name, endpoints=cluster.endpoints, timeout=60).was_done
        wait_settled(control, live=3)
        assert_same(cluster, source, name)


@pytest.mark.seeds(1)
@pytest.mark.timeout(300)
def test_a_load_has_every_row_once_although_processes_are_killed(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    try_to_lose_rows(spark, cluster, tmp_path, rng, f"seed{seed}", rng.randint(20_000, 50_000), "1MiB")


@pytest.mark.soak
@pytest.mark.seeds(20)
@pytest.mark.timeout(600)
def test_a_load_of_a_million_rows_has_every_row_once_although_processes_are_killed(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, seed: int
) -> None:
    try_to_lose_rows(spark, cluster, tmp_path, random.Random(seed), f"million{seed}", 1_000_000, "16MiB")
