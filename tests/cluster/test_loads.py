"""Loads into real daemons: files that are uploaded, committed and taken in, whatever dies meanwhile."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from minka import Client
from minka.control import Control
from minka.hashing import murmur3
from minka.loads import LoadClient, LoadTarget
from minka.sst import write_sst
from minka.v1.cluster_pb2 import HashFunction
from minka.v1.loads_pb2 import Load, LoadFile, LoadState
from minkactl.playground import LocalCluster
from tests.cluster.cluster import QUICK, eventually, wait_settled

ROWS = 100_000
NODES = ("athens", "byzantium", "cyrene")


def rows_of(count: int, tag: str = "a") -> dict[bytes, bytes]:
    return {f"key-{i:07}".encode(): f"{tag}-{i}".encode() * 3 for i in range(count)}


def upload(
    client: LoadClient, load: Load, keyspace: str, rows: Mapping[bytes, bytes], folder: Path, attempt: str = "1"
) -> list[LoadFile]:
    """All rows, in one file a partition."""
    files = []
    targets = client.targets(keyspace)
    for target in targets:
        own = sorted(pair for pair in rows.items() if _belongs(pair[0], target, len(targets)))
        written = write_sst(folder / f"{load.id}-{target.partition_id}-{attempt}.sst", own)
        if written is not None:
            files.append(client.upload(load, target, written, f"p{target.partition_id}-{attempt}"))
    return files


def _belongs(key: bytes, target: LoadTarget, count: int) -> bool:
    if target.slot == target.partition_id:  # by ranges
        return target.range.contains(key)
    return murmur3(key) % count == target.slot


def read_all(cluster: LocalCluster, keyspace: str, keys: list[bytes]) -> dict[bytes, bytes]:
    with Client(cluster.endpoints) as client:
        return dict(client.keyspace(keyspace).get_many(keys))


def spec_file(cluster: LocalCluster, name: str) -> Path:
    return cluster.node(name).directory / "failpoints"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    cluster = LocalCluster(NODES, config=QUICK)
    for name in NODES:
        cluster.node(name).env = {"MINKA_FAILPOINTS_FILE": str(spec_file(cluster, name))}
    with cluster, Control(cluster.endpoints) as control:
        control.create_keyspace("hashed", 8, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        points = [b"key-0020000", b"key-0060000"]
        control.create_keyspace("ranged", 0, HashFunction.HASH_FUNCTION_UNSPECIFIED, replicas=3, split_points=points)
        wait_settled(control, live=3)
        yield cluster


@pytest.mark.parametrize("keyspace", ["hashed", "ranged"])
def test_a_load_is_taken_in(cluster: LocalCluster, tmp_path: Path, keyspace: str) -> None:
    rows = rows_of(ROWS)
    with LoadClient(cluster.endpoints) as client:
        load = client.begin(f"first-{keyspace}", keyspace)
        files = upload(client, load, keyspace, rows, tmp_path)
        keys = list(rows)[::1000]
        assert not any(read_all(cluster, keyspace, keys).values()), "nothing is visible before the commit"
        client.commit(load, files)
        done = client.wait(load.id)
        assert (done.state, done.rows, done.parts_done) == (LoadState.LOAD_STATE_DONE, ROWS, len(files))
    assert read_all(cluster, keyspace, list(rows)) == rows
