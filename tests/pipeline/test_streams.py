"""A stream of a keyspace's changes is complete, keeps the order of each key's changes, and can be resumed, even while
partitions are split.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from minka import Client
from minka.admin.control import Control
from minka.spark import LoadOptions, PairColumns, load
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, OperationState
from tests.cluster.cluster import CALM, wait_ended, wait_settled

CHANGES = "key string, value string, _change string, _partition int, _offset long"
UNHASHED = HashFunction.HASH_FUNCTION_UNSPECIFIED


@pytest.fixture(scope="module")
def cluster(spark: SparkSession) -> Iterator[LocalCluster]:  # Spark has to start before gRPC has threads
    config = CALM | {"storage": {"change_retention_mib": 1, "log_retention_mib": 1}}
    with LocalCluster(2, config=config) as cluster, Control(cluster.endpoints) as control:
        for name in ("hashed", "copied", "loaded"):
            control.create_keyspace(name, 2, HashFunction.HASH_FUNCTION_MURMUR3, replicas=2)
        for name in ("ranged", "forgotten"):
            control.create_keyspace(name, 0, UNHASHED, replicas=2, split_points=[])
        wait_settled(control, live=2)
        yield cluster


def changes(spark: SparkSession, cluster: LocalCluster, keyspace: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("minka").schema(CHANGES)
    return reader.options(endpoints=",".join(cluster.endpoints), keyspace=keyspace, **options).load()


class Sink:
    """Collects the rows that a query returns, batch by batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}

    @property
    def rows(self) -> list[Row]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    def start(self, frame: DataFrame, checkpoint: Path) -> StreamingQuery:
        def take(batch: DataFrame, number: int) -> None:
            self.batches[number] = batch.collect()

        return frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).start()


def caught_up(query: StreamingQuery, done: Callable[[], bool]) -> None:
    while not done():
        query.processAllAvailable()


def by_key(rows: list[Row]) -> dict[str, list[Any]]:
    found = defaultdict(list)
    for row in rows:
        found[row.key].append(None if row["_change"] == "delete" else row.value)
    return dict(found)


def test_puts_and_deletes_come_in_order_and_a_stopped_query_goes_on(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    sink = Sink()
    with Client(cluster.endpoints, keyspace="hashed") as client:
        client.put("before", b"the beginning")
        query = sink.start(changes(spark, cluster, "hashed"), tmp_path)
        query.processAllAvailable()
        for number in range(20):
            client.put_many({f"k{key}": b"%d" % number for key in range(10)})
        client.delete("k3")
        caught_up(query, lambda: len(sink.rows) == 201)
        query.stop()
        client.put("k3", b"again")
        client.delete_many(["k4", "k5"])
        query = sink.start(changes(spark, cluster, "hashed"), tmp_path)
        caught_up(query, lambda: len(sink.rows) == 204)
        query.stop()
    written = [str(number) for number in range(20)]
    expected: dict[str, list[Any]] = {f"k{key}": [*written] for key in range(10)}
    expected["k3"] += [None, "again"]
    expected["k4"] += [None]
    expected["k5"] += [None]
    assert by_key(sink.rows) == expected
    of_partition = defaultdict(list)
    for row in sink.rows:
        of_partition[row["_partition"]].append(row["_offset"])
    assert len(of_partition) == 2
    assert all(offsets == sorted(offsets) for offsets in of_partition.values())


def test_splits_lose_no_change_and_keep_the_order_of_each_key(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    sink = Sink()
    keys = [f"{number:03}" for number in range(100)]
    with Client(cluster.endpoints, keyspace="ranged") as client, Control(cluster.endpoints) as control:
        query = sink.start(changes(spark, cluster, "ranged", startingOffsets="earliest"), tmp_path)
        query.processAllAvailable()
        query.stop()  # so that a parent, its child and the child's child are in one batch
        for number, point in enumerate((b"050", b"070")):
            client.put_many(dict.fromkeys(keys, b"%d before" % number))
            operation = control.split("ranged", [point], "test")
            assert operation is not None
            assert wait_ended(control, operation.id).state == OperationState.OPERATION_STATE_SUCCEEDED
            client.put_many(dict.fromkeys(keys, b"%d after" % number))
        query = sink.start(changes(spark, cluster, "ranged", startingOffsets="earliest"), tmp_path)
        caught_up(query, lambda: len(sink.rows) == 400)
        client.put_many(dict.fromkeys(keys, b"at last"))
        caught_up(query, lambda: len(sink.rows) == 500)
        query.stop()
    assert by_key(sink.rows) == {key: ["0 before", "0 after", "1 before", "1 after", "at last"] for key in keys}


def test_a_query_fails_if_changes_that_it_needs_are_no_longer_kept(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    sink = Sink()
    with Client(cluster.endpoints, keyspace="forgotten") as client:
        client.put("first", b"1")
        query = sink.start(changes(spark, cluster, "forgotten", startingOffsets="earliest"), tmp_path)
        caught_up(query, lambda: len(sink.rows) == 1)
        query.stop()
        for number in range(12):
            client.put(f"large {number}", b"v" * 600_000)
        query = sink.start(changes(spark, cluster, "forgotten", startingOffsets="earliest"), tmp_path)
        with pytest.raises(StreamingQueryException, match=r"CHANGES_GONE: .*after offset \d+ are kept, not after 1"):
            query.processAllAvailable()
        query.stop()


def test_a_stream_copies_one_keyspace_into_another(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    frame = changes(spark, cluster, "hashed").selectExpr("key", "value", "_change = 'delete' gone")
    writer = frame.writeStream.format("minka").option("checkpointLocation", str(tmp_path))
    options = {"endpoints": ",".join(cluster.endpoints), "keyspace": "copied", "deleteColumn": "gone"}
    query = writer.options(**options).start()
    query.processAllAvailable()
    with Client(cluster.endpoints) as client:
        source, copy = client.keyspace("hashed"), client.keyspace("copied")
        source.put_many({f"c{number}": b"%d" % number for number in range(1000)})
        source.delete_many([f"c{number}" for number in range(0, 1000, 2)])
        expected = {f"c{number}": b"%d" % number for number in range(1, 1000, 2)}
        caught_up(query, lambda: copy.get_many([f"c{number}" for number in range(1000)]) == expected)
    query.stop()


def test_a_stream_has_the_rows_of_a_load_as_changes(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    sink = Sink()
    with Client(cluster.endpoints, keyspace="loaded") as client:
        query = sink.start(changes(spark, cluster, "loaded"), tmp_path)
        query.processAllAvailable()
        client.put("k5", b"before")
        frame = spark.range(1000).selectExpr("concat('k', id) key", "cast(id as string) value")
        options = LoadOptions(columns=PairColumns(("key",), ("value",)), on_conflict="replace")
        load(spark, frame, "loaded", options, endpoints=cluster.endpoints)
        client.put("k5", b"after")
        caught_up(query, lambda: len(sink.rows) == 1002)
        query.stop()
    found = by_key(sink.rows)
    assert found.pop("k5") == ["before", "5", "after"]
    assert found == {f"k{number}": [str(number)] for number in range(1000) if number != 5}


def test_a_read_without_changes_refuses_their_columns(spark: SparkSession, cluster: LocalCluster) -> None:
    options = {"endpoints": ",".join(cluster.endpoints), "keyspace": "hashed"}
    with pytest.raises(AnalysisException, match="only changes have the column '_change': use readStream"):
        spark.read.format("minka").schema(CHANGES).options(**options).load().collect()
