"""Backups as in docs/operations.md: good copies of data directories bring a cluster back, and nodes refuse bad ones."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from minka import Client
from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from minkad.process.exits import REFUSED
from tests.cluster.cluster import QUICK, eventually, wait_settled

pytestmark = pytest.mark.timeout(120)
BEFORE = {b"before-%03d" % number: b"%d" % number for number in range(200)}
AFTER = {b"after-%03d" % number: b"%d" % number for number in range(200)}


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, config=QUICK) as running:
        with Control(running.endpoints) as control:
            control.create_keyspace("flights", 4, HashFunction.HASH_FUNCTION_MURMUR3)
        put(running, BEFORE)
        yield running


def put(cluster: LocalCluster, rows: dict[bytes, bytes]) -> None:
    """Wait until all replicas of all partitions are in sync, then put the rows."""
    with Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="flights") as client:
        wait_settled(control, live=3)
        client.put_many(rows)


def copied(cluster: LocalCluster, name: str, folder: Path) -> None:
    shutil.copytree(cluster.node(name).data_dir, folder / name)


def restored(cluster: LocalCluster, folder: Path) -> None:
    """Kill all nodes, replace their data directories with the copies, and start all nodes."""
    for name in cluster.nodes:
        cluster.kill(name)
    for name in cluster.nodes:
        shutil.rmtree(cluster.node(name).data_dir)
        shutil.copytree(folder / name, cluster.node(name).data_dir)
    for name in cluster.nodes:
        cluster.restart(name, ready=False)


def test_copies_that_were_made_one_after_the_other_are_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    for name in list(cluster.nodes):
        cluster.terminate(name)
        copied(cluster, name, tmp_path)
        cluster.restart(name)
        put(cluster, AFTER)
    restored(cluster, tmp_path)
    first = cluster.node(next(iter(cluster.nodes)))
    eventually("the oldest copy is refused", lambda: first.process is not None and first.process.poll() is not None)
    assert first.process is not None
    assert first.process.returncode == REFUSED
    assert "minkad: DATA_DIRECTORY_ROLLED_BACK: " in first.log.read_text("utf-8")
