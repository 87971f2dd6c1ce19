"""The daemon does all of its work with only the system calls that configs/minkad.service allows."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from minka import Client
from minka.admin.control import Control
from minka.bulk.bulk_loads import LoadClient
from minka.bulk.snapshot_reads import SnapshotClient
from minka.cluster.key_ranges import ALL_KEYS
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from minka.v1.loads_pb2 import LoadState
from minkad.process.priority import NICENESS
from tests.cluster.cluster import QUICK, wait_settled
from tests.cluster.loads import read_all, rows_of, upload
from tests.cluster.snapshots import read_all as read_snapshot
from tests.cluster.system_calls import filtered

UNIT = Path(__file__).parents[2] / "configs/minkad.service"
ROWS = {b"key-%04d" % number: b"%d" % number for number in range(1000)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(["athens"], config=QUICK, env=filtered(UNIT, tmp_path_factory.mktemp("filter")))
    with cluster, Control(cluster.endpoints) as control:
        for keyspace in ("put", "loaded"):
            control.create_keyspace(keyspace, 4, HashFunction.HASH_FUNCTION_MURMUR3, replicas=1)
        wait_settled(control, live=1)
        yield cluster


def niceness_by_name(cluster: LocalCluster) -> dict[str, set[int]]:
    """Return the niceness of each thread of the daemon, by the thread's name."""
    process = cluster.node("athens").process
    assert process is not None
    found: dict[str, set[int]] = {}
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        found.setdefault(name, set()).add(os.getpriority(os.PRIO_PROCESS, int(task.name)))
    return found


def test_the_filter_is_in_force(cluster: LocalCluster) -> None:
    process = cluster.node("athens").process
    assert process is not None
    assert "\nSeccomp:\t2\n" in Path(f"/proc/{process.pid}/status").read_text()


def test_flushes_and_compactions_have_a_lower_priority(cluster: LocalCluster) -> None:
    niceness = niceness_by_name(cluster)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    low = {max(NICENESS, own)}
    assert (niceness.pop("rocksdb:low"), niceness.pop("rocksdb:high")) == (low, low)
    assert set().union(*niceness.values()) == {own}


def test_rows_are_put_and_read_from_a_snapshot(cluster: LocalCluster) -> None:
    with Client(cluster.endpoints, keyspace="put") as client, SnapshotClient(cluster.endpoints) as reader:
        client.put_many(ROWS)
        keyspace = reader.keyspace("put")
        found: dict[bytes, bytes] = {}
        for row in reader.partitions(keyspace):
            (snapshot,) = reader.open(keyspace, row.id, ALL_KEYS)
            found |= read_snapshot(reader, snapshot)
            reader.release(snapshot)
        assert found == ROWS


def test_a_load_is_taken_in(cluster: LocalCluster, tmp_path: Path) -> None:
    rows = rows_of(2000)
    with LoadClient(cluster.endpoints) as client:
        load = client.begin("load", "loaded")
        client.commit(load, upload(client, load, "loaded", rows, tmp_path))
        assert client.wait(load.id).state == LoadState.LOAD_STATE_DONE
    assert read_all(cluster, "loaded", list(rows)) == rows
