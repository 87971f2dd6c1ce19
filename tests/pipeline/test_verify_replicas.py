"""`verify` compares every replica: it names damaged and missing replicas, and leaves no snapshot on the nodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

from minka.admin.control import Control
from minka.bulk.snapshot_reads import SnapshotClient
from minka.cluster.key_ranges import ALL_KEYS
from minka.errors import Code, MinkaError
from minka.spark import verifying
from minka.spark.filling import LoadOptions, load
from minka.spark.held_snapshots import HeldSnapshots
from minka.spark.verifying import VerifyReport, verify
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, Partition
from minka.v1.snapshots_pb2 import PartitionSnapshot
from minkactl.cli import cli
from tests.cluster.cluster import CALM, QUICK, eventually, wait_settled
from tests.pipeline.loads import PLAIN, frame

MURMUR3 = HashFunction.HASH_FUNCTION_MURMUR3
ROWS = 1500  # more than the differences that a report names


@pytest.fixture(scope="module")
def cluster(spark: SparkSession) -> Iterator[LocalCluster]:
    with LocalCluster(3, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        control.create_keyspace("kept", 2, MURMUR3, replicas=3)
        control.create_keyspace("single", 6, MURMUR3, replicas=1)
        wait_settled(control, live=3)
        for keyspace in ("kept", "single"):
            load(spark, rows_of(spark), keyspace, LoadOptions(columns=PLAIN), endpoints=cluster.endpoints, timeout=30)
        yield cluster


def run(cluster: LocalCluster, source: DataFrame, keyspace: str, timeout: float = 30) -> VerifyReport:
    return verify(source.sparkSession, source, keyspace, PLAIN, endpoints=cluster.endpoints, timeout=timeout)


def rows_of(spark: SparkSession, tag: str = "") -> DataFrame:
    return frame(spark, ROWS, tag)


def partitions(cluster: LocalCluster, keyspace: str) -> list[Partition]:
    with SnapshotClient(cluster.endpoints) as client:
        return client.partitions(client.keyspace(keyspace))


def snapshots(cluster: LocalCluster) -> set[Path]:
    return {path for node in cluster.nodes.values() for path in (node.data_dir / "snapshots").glob("*")}


def damage(cluster: LocalCluster, node: str, partition: int) -> None:
    """Change some bytes in the middle of the largest file of the replica."""
    folder = cluster.node(node).data_dir / "partitions" / str(partition)
    # When a load ends, a follower may only have its mark in the log, and take the file in a moment later.
    eventually("the follower has taken a file in", lambda: any(folder.glob("*.sst")))
    path = max(folder.glob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(byte ^ 0xFF for byte in content[middle : middle + 64])
    with path.open("r+b") as file:  # the node has this file open, and goes on reading it
        file.write(content)


def test_a_replica_whose_node_is_away_is_named(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    source = rows_of(spark)
    rows = partitions(cluster, "kept")
    away = next(node for node in rows[0].isr if node != rows[0].leader)
    before = run(cluster, source, "kept")
    assert (before.is_same, before.replicas, before.replicas_unread) == (True, 6, ())
    cluster.kill(away)
    try:
        found = run(cluster, source, "kept")
        assert not found.is_same
        assert (found.missing, found.different, found.extra, found.replicas) == (0, 0, 0, 4)
        assert [(one.partition, one.node) for one in found.replicas_unread] == [(row.id, away) for row in rows]
        assert found.replicas_different == ()
        source.write.parquet(str(tmp_path / "source.parquet"))
        options = ["--key", "key", "--value", "value", "--quiet", "--endpoints", ",".join(cluster.endpoints)]
        shown = CliRunner().invoke(cli, ["data", "verify", str(tmp_path / "source.parquet"), "kept", *options])
        assert shown.exit_code == 1, shown.stderr
        assert "WASN'T READ BECAUSE" in shown.stdout
        assert away in shown.stdout
    finally:
        cluster.restart(away)
        with Control(cluster.endpoints) as control:
            wait_settled(control, live=3)
    assert run(cluster, source, "kept").is_same


def test_a_verification_holds_few_snapshots_and_releases_all(
    spark: SparkSession, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verification compares two partitions at a time, so it holds few snapshots even if all partitions differ."""
    most, hold = [0], HeldSnapshots.hold
    before = snapshots(cluster)  # a node that restarted may still keep some

    def counted(self: HeldSnapshots, snapshot: PartitionSnapshot) -> None:
        hold(self, snapshot)
        most[0] = max(most[0], len(self._held))

    monkeypatch.setattr(verifying, "_GROUP", 2)
    monkeypatch.setattr(HeldSnapshots, "hold", counted)
    other = rows_of(spark, "other")
    found = run(cluster, other, "single")
    assert (found.different, found.missing, found.extra) == (ROWS, 0, 0)
    assert sorted(found.partitions_different) == sorted(row.id for row in partitions(cluster, "single"))
    assert [one.key for one in found.differences] == [f"k{number:06}" for number in range(1000)]
    assert 1 <= most[0] <= 3
    eventually("none is left", lambda: snapshots(cluster) <= before or None)


def test_a_verification_that_fails_releases_its_snapshots(spark: SparkSession, cluster: LocalCluster) -> None:
    before, last = snapshots(cluster), partitions(cluster, "single")[-1].leader
    cluster.kill(last)
    try:
        with pytest.raises(MinkaError) as failed:
            run(cluster, rows_of(spark, "other"), "single", timeout=3)
        assert failed.value.code in (Code.PARTITION_OFFLINE, Code.UNREACHABLE)
        left = snapshots(cluster) - before
        assert {path for path in left if cluster.node(last).data_dir not in path.parents} == set()
    finally:
        cluster.restart(last)
        with Control(cluster.endpoints) as control:
            wait_settled(control, live=3)


def test_snapshots_that_are_held_are_renewed(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed, renew = list[str](), SnapshotClient.renew

    def recorded(self: SnapshotClient, snapshot: PartitionSnapshot) -> None:
        renew(self, snapshot)
        renewed.append(snapshot.snapshot_id)

    monkeypatch.setattr(SnapshotClient, "renew", recorded)
    with SnapshotClient(cluster.endpoints) as client, HeldSnapshots(cluster.endpoints, renew_s=0.01) as held:
        keyspace = client.keyspace("kept")
        one, other = (next(client.open(keyspace, row.id, ALL_KEYS)) for row in client.partitions(keyspace))
        held.hold(one)
        held.hold(other)
        eventually("both are renewed", lambda: {one.snapshot_id, other.snapshot_id} <= set(renewed) or None)
        held.release(client, one)
        count = len(renewed)
        eventually("one is renewed again", lambda: len(renewed) > count + 3 or None)
        assert set(renewed[count + 1 :]) == {other.snapshot_id}
    # A node that restarted may still take snapshots for a reader that has ended. So the test checks only its own two
    # snapshots.
    held_ids = {one.snapshot_id, other.snapshot_id}
    eventually("none is left", lambda: held_ids.isdisjoint(path.name for path in snapshots(cluster)))


def test_a_damaged_replica_differs(spark: SparkSession) -> None:
    with LocalCluster(3, config=CALM) as cluster, Control(cluster.endpoints) as control:
        control.create_keyspace("damaged", 2, MURMUR3, replicas=3)
        wait_settled(control, live=3)
        load(spark, rows_of(spark), "damaged", LoadOptions(columns=PLAIN), endpoints=cluster.endpoints, timeout=30)
        row = partitions(cluster, "damaged")[0]
        follower = next(node for node in row.isr if node != row.leader)
        damage(cluster, follower, row.id)
        found = run(cluster, rows_of(spark), "damaged")
    assert not found.is_same
    (different,) = found.replicas_different
    assert (different.partition, different.node) == (row.id, follower)
    assert "CORRUPT_DATA" in different.error
    assert (found.missing, found.different, found.extra, found.replicas) == (0, 0, 0, 5)
