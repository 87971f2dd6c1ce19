"""A snapshot has the rows of a partition at one offset of the log. Each replica has the same rows, even while nodes die
and partitions split.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from minka import Client
from minka.admin.control import Control
from minka.bulk.snapshot_reads import SnapshotClient
from minka.cluster.key_ranges import ALL_KEYS, KeyRange
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, OperationState
from minka.v1.snapshots_pb2 import PartitionSnapshot
from tests.cluster.cluster import QUICK, eventually, wait_ended, wait_settled
from tests.cluster.snapshots import pairs, read_all

MURMUR3 = HashFunction.HASH_FUNCTION_MURMUR3
AWKWARD = [b"\x00", b"\x00\x00", "\U0010ffff".encode(), b"\xff" * 4096, b"k" * 4096]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        control.create_keyspace("hashed", 4, MURMUR3, replicas=3)
        control.create_keyspace("ranged", 0, HashFunction.HASH_FUNCTION_UNSPECIFIED, replicas=3, split_points=[b"m"])
        wait_settled(control, live=3)
        yield cluster


def folders(cluster: LocalCluster, snapshot: PartitionSnapshot) -> list[Path]:
    paths = [node.data_dir / "snapshots" / snapshot.snapshot_id for node in cluster.nodes.values()]
    return [path for path in paths if path.exists()]


def in_sync(control: Control, partition: int) -> list[str]:
    return next(list(row.isr) for row in control.status().table.partitions if row.id == partition)


def test_a_partition_is_read_as_it_was_at_one_version(cluster: LocalCluster) -> None:
    """In each round, a writer sets all keys to the round's number, with one batch for each partition. So in each
    snapshot, all rows have the same number.
    """
    keys = [b"key-%04d" % number for number in range(400)]
    stop = threading.Event()
    with Client(cluster.endpoints, keyspace="hashed") as client, SnapshotClient(cluster.endpoints) as reader:

        def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                client.put_many(dict.fromkeys(keys, b"%d" % number))

        client.put_many(dict.fromkeys(keys, b"0"))
        writer = threading.Thread(target=write)
        writer.start()
        try:
            keyspace = reader.keyspace("hashed")
            seen: set[bytes] = set()
            for row in reader.partitions(keyspace):
                versions = []
                for _ in range(3):
                    (snapshot,) = reader.open(keyspace, row.id, ALL_KEYS)
                    found = read_all(reader, snapshot)
                    assert len(set(found.values())) == 1, "a batch was torn"
                    seen.update(found)
                    versions.append(snapshot.offset)
                    reader.release(snapshot)
                assert versions == sorted(versions)
            assert seen == set(keys)
        finally:
            stop.set()
            writer.join()


def test_every_replica_has_the_same_and_the_digest_is_by_its_definition(cluster: LocalCluster) -> None:
    with Client(cluster.endpoints, keyspace="ranged") as client, SnapshotClient(cluster.endpoints) as reader:
        client.put_many({key: b"v" * number for number, key in enumerate(AWKWARD)})
        keyspace = reader.keyspace("ranged")
        left, _ = reader.partitions(keyspace)
        (snapshot,) = reader.open(keyspace, left.id, KeyRange(b"", b"m"))
        found = read_all(reader, snapshot)
        assert found == {key: b"v" * number for number, key in enumerate(AWKWARD) if key < b"m"}
        hashes = [xxhash.xxh64_intdigest(value, xxhash.xxh64_intdigest(key, 42)) for key, value in found.items()]
        for node in snapshot.nodes:
            (bucket,) = reader.digest(snapshot, node, ALL_KEYS).buckets
            assert (bucket.rows, bucket.bytes) == (len(found), sum(len(k) + len(v) for k, v in found.items()))
            assert bucket.sum == sum(hashes) % 2**64
            by_bucket = reader.digest(snapshot, node, ALL_KEYS, buckets=16).buckets
            assert sum(one.rows for one in by_bucket) == len(found)
            wanted = [one.bucket for one in by_bucket]
            told = {k: v for b in reader.read(snapshot, ALL_KEYS, buckets=wanted, of_buckets=16) for k, v in pairs(b)}
            assert told == {key: h.to_bytes(8, "big") for key, h in zip(found, hashes, strict=True)}
        keys = [b.keys for b in reader.read(snapshot, KeyRange(b"\x00\x00", b""), keys_only=True)]
        assert keys == [b"".join(key for key in sorted(found) if key >= b"\x00\x00")]
        eventually("all replicas keep it", lambda: len(folders(cluster, snapshot)) == 3)
        reader.release(snapshot)
        eventually("no replica keeps it", lambda: not folders(cluster, snapshot))
        with pytest.raises(MinkaError) as gone:
            read_all(reader, snapshot)
        assert gone.value.code is Code.SNAPSHOT_GONE


def test_a_replica_that_makes_a_snapshot_late_keeps_it_until_its_release(cluster: LocalCluster) -> None:
    """A node is down when a reader opens a snapshot. When the node is back, it makes the snapshot from the log, and
    keeps the snapshot until the reader releases it.
    """
    with (
        Control(cluster.endpoints) as control,
        Client(cluster.endpoints, keyspace="hashed") as client,
        SnapshotClient(cluster.endpoints) as reader,
    ):
        client.put_many({b"late-%03d" % number: b"x" for number in range(100)})
        keyspace = reader.keyspace("hashed")
        row = reader.partitions(keyspace)[0]
        away = next(node for node in row.isr if node != row.leader)
        cluster.kill(away)
        eventually("it isn't in sync", lambda: away not in in_sync(control, row.id))
        (snapshot,) = reader.open(keyspace, row.id, ALL_KEYS)
        assert away not in snapshot.nodes
        cluster.restart(away)
        eventually("all replicas keep it", lambda: len(folders(cluster, snapshot)) == 3)
        reader.release(snapshot)
        eventually("no replica keeps it", lambda: not folders(cluster, snapshot))


def test_a_partition_without_data_costs_nothing(cluster: LocalCluster) -> None:
    with Control(cluster.endpoints) as control, SnapshotClient(cluster.endpoints) as reader:
        control.create_keyspace("empty", 1, MURMUR3, replicas=3)
        wait_settled(control, live=3)
        keyspace = reader.keyspace("empty")
        (snapshot,) = reader.open(keyspace, reader.partitions(keyspace)[0].id, ALL_KEYS)
        assert (snapshot.snapshot_id, snapshot.offset) == ("", 0)
        assert read_all(reader, snapshot) == {}


def test_a_split_since_the_plan_gives_two_snapshots(cluster: LocalCluster) -> None:
    with (
        Control(cluster.endpoints) as control,
        Client(cluster.endpoints, keyspace="splitting") as client,
        SnapshotClient(cluster.endpoints) as reader,
    ):
        unhashed = HashFunction.HASH_FUNCTION_UNSPECIFIED
        control.create_keyspace("splitting", 0, unhashed, replicas=3, split_points=[])
        wait_settled(control, live=3)
        client.put_many({b"%03d" % number: b"x" for number in range(1000)})
        keyspace = reader.keyspace("splitting")
        (row,) = reader.partitions(keyspace)
        operation = control.split("splitting", [b"400"], "test")
        assert operation is not None
        assert wait_ended(control, operation.id).state == OperationState.OPERATION_STATE_SUCCEEDED
        wanted = KeyRange(b"100", b"900")
        snapshots = list(reader.open(keyspace, row.id, wanted))
        assert [(one.start_key, one.end_key) for one in snapshots] == [(b"", b"400"), (b"400", b"")]
        found = [list(read_all(reader, one, wanted)) for one in snapshots]
        assert [key for part in found for key in part] == [b"%03d" % number for number in range(100, 900)]


def test_a_reader_goes_on_at_another_node(cluster: LocalCluster) -> None:
    """After the first batch, the node that serves the read is killed. The reader gets the other rows from another node:
    each row once, in order.
    """
    with (
        Control(cluster.endpoints) as control,
        Client(cluster.endpoints, keyspace="large") as client,
        SnapshotClient(cluster.endpoints) as reader,
    ):
        control.create_keyspace("large", 1, MURMUR3, replicas=3)
        wait_settled(control, live=3)
        rows = {b"%06d" % number: b"v" * 1000 for number in range(8000)}
        client.put_many(rows)
        keyspace = reader.keyspace("large")
        (row,) = reader.partitions(keyspace)
        (snapshot,) = reader.open(keyspace, row.id, ALL_KEYS, part_bytes=1)
        assert list(snapshot.cuts) == sorted(set(snapshot.cuts))
        eventually("all replicas keep it", lambda: len(folders(cluster, snapshot)) == 3)
        batches = reader.read(snapshot, ALL_KEYS)
        found = list(pairs(next(batches)))
        assert snapshot.nodes[0] == row.leader
        cluster.kill(row.leader)
        found += [pair for batch in batches for pair in pairs(batch)]
        assert found == sorted(rows.items())
        cluster.restart(row.leader)
        wait_settled(control, live=3)
        eventually("the killed node no longer has the snapshot", lambda: len(folders(cluster, snapshot)) == 2)
