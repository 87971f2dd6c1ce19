"""Helpers that load rows into a keyspace, and check which rows have arrived."""

from collections.abc import Mapping
from pathlib import Path

from minka import Client
from minka.bulk.bulk_loads import LoadClient, LoadTarget
from minka.bulk.sst_files import write_sst
from minka.cluster.hashing import murmur3
from minka.testing.local_cluster import LocalCluster
from minka.v1.loads_pb2 import Load, LoadFile


def rows_of(count: int, tag: str = "a") -> dict[bytes, bytes]:
    return {f"key-{i:07}".encode(): f"{tag}-{i}".encode() * 3 for i in range(count)}


def upload(
    client: LoadClient, load: Load, keyspace: str, rows: Mapping[bytes, bytes], folder: Path, attempt: str = "1"
) -> list[LoadFile]:
    """Upload the rows, in one file for each partition that gets rows; returns the files."""
    files = []
    targets = client.targets(keyspace)
    for target in targets:
        own = sorted(pair for pair in rows.items() if _belongs(pair[0], target, len(targets)))
        written = write_sst(folder / f"{load.id}-{target.partition_id}-{attempt}.sst", own)
        if written is not None:
            files.append(client.upload(load, target, written, f"p{target.partition_id}-{attempt}"))
    return files


def _belongs(key: bytes, target: LoadTarget, count: int) -> bool:
    if target.slot == target.partition_id:  # in a keyspace by ranges, a partition's slot is its id
        return target.range.contains(key)
    return murmur3(key) % count == target.slot


def read_all(cluster: LocalCluster, keyspace: str, keys: list[bytes]) -> dict[bytes, bytes]:
    with Client(cluster.endpoints) as client:
        return dict(client.keyspace(keyspace).get_many(keys))
