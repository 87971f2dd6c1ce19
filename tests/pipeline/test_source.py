"""The data source reads from real daemons, with and without push-down of filters, and writes to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import Filter, GreaterThanOrEqual, In, LessThan
from pyspark.sql.types import BinaryType, StructType

from minka import Client
from minka.admin.control import Control
from minka.rows import decode_value, encode_key, encode_value
from minka.spark.column_layout import Layout
from minka.spark.reader import FilteringReader, PartitionPart, SingleKeys, SnapshotReader
from minka.spark.source_options import SourceOptions
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from tests.cluster.cluster import CALM, eventually, wait_settled

AWKWARD = {
    b"\x00": b"",
    b"\x00\x00": b"\x00",
    b"\xff" * 4096: b"v" * 100_000,
    "\U0010ffff é \u0000 \u2028".encode(): b"all of Unicode",
    **{bytes([number]): bytes([number]) for number in range(1, 256)},
}
UNHASHED = HashFunction.HASH_FUNCTION_UNSPECIFIED
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def cluster(spark: SparkSession) -> Iterator[LocalCluster]:  # Spark has to start before gRPC has threads
    with LocalCluster(2, config=CALM) as cluster, Control(cluster.endpoints) as control:
        for name in ("hashed", "written", "upserted", "rows", "large"):
            control.create_keyspace(name, 3, HashFunction.HASH_FUNCTION_MURMUR3, replicas=1)
        control.create_keyspace("ranged", 0, UNHASHED, replicas=2, split_points=[b"\x20", b"k1", b"k5", b"z"])
        control.create_keyspace("flights", 0, UNHASHED, replicas=2, split_points=[encode_key([date(2013, 1, 3)])])
        wait_settled(control, live=2)
        with Client(cluster.endpoints) as client:
            for name in ("hashed", "ranged"):
                client.keyspace(name).put_many(AWKWARD)
                client.keyspace(name).put_many({f"k{number:05}": b"%d" % number for number in range(10_000)})
        yield cluster


def source(spark: SparkSession, cluster: LocalCluster, keyspace: str, schema: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("minka").options(endpoints=",".join(cluster.endpoints), keyspace=keyspace, **options)
    return (reader.schema(schema) if schema else reader).load()


def write(frame: DataFrame, cluster: LocalCluster, keyspace: str, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("minka").mode(mode)
    writer.options(endpoints=",".join(cluster.endpoints), keyspace=keyspace, **options).save()


@contextmanager
def pushing(spark: SparkSession, *, down: bool) -> Iterator[None]:
    before = spark.conf.get(PUSH_DOWN)
    spark.conf.set(PUSH_DOWN, str(down).lower())
    yield
    spark.conf.set(PUSH_DOWN, str(before))


@pytest.mark.parametrize("keyspace", ["hashed", "ranged"])
def test_every_row_is_read_once_and_unchanged(spark: SparkSession, cluster: LocalCluster, keyspace: str) -> None:
    rows = source(spark, cluster, keyspace).collect()
    expected = {**AWKWARD, **{b"k%05d" % number: b"%d" % number for number in range(10_000)}}
    assert len(rows) == len(expected)
    assert {bytes(row.key): bytes(row.value) for row in rows} == expected


@pytest.mark.parametrize(("keyspace", "down"), [("ranged", True), ("hashed", True), ("ranged", False)])
def test_filters_give_the_right_rows(spark: SparkSession, cluster: LocalCluster, keyspace: str, down: bool) -> None:
    """This test has one filter for each way of reading; tests/unit/spark/test_predicates.py tests every predicate."""
    frame = source(spark, cluster, keyspace, "key binary, value binary")

    def keys(condition: str) -> list[bytes]:
        with pushing(spark, down=down):
            return sorted(bytes(row.key) for row in frame.where(condition).select("key").collect())

    assert keys("key in (X'00', X'0000', X'6B3030303031', X'7A7A')") == [b"\x00", b"\x00\x00", b"k00001"]
    assert keys("key >= binary('k00010') and key < binary('k00020')") == [b"k%05d" % n for n in range(10, 20)]
    if down and keyspace == "ranged":
        assert keys("key = X'00'") == [b"\x00"]
        assert keys("key > binary('k09998')") == sorted([b"k09999", *(key for key in AWKWARD if key > b"k09998")])
        assert keys("key < X'00'") == []
        assert keys("value = binary('77')") == [b"k00077"]


def test_filters_leave_out_partitions_without_wanted_keys(cluster: LocalCluster) -> None:
    options = SourceOptions.of({"endpoints": ",".join(cluster.endpoints), "keyspace": "ranged"})
    layout = Layout.of(StructType().add("key", BinaryType()), options)

    def parts(*filters: Filter) -> Any:
        reader = FilteringReader(options, layout)
        assert list(reader.pushFilters(list(filters))) == list(filters)
        return reader.partitions()

    key = ("key",)
    assert [type(part) for part in parts()] == [PartitionPart] * 5
    (part,) = parts(GreaterThanOrEqual(key, b"k2"), LessThan(key, b"k3"))
    assert part.wanted == (b"k2", b"k3")
    singles = parts(In(key, (b"\x00", b"k00001", b"k2")))
    assert [type(part) for part in singles] == [SingleKeys] * 3
    assert parts(In(key, (b"k2",)), In(key, (b"k3",)))[0].value is None


def test_a_large_partition_is_read_by_several_tasks(spark: SparkSession, cluster: LocalCluster) -> None:
    with Client(cluster.endpoints, keyspace="large", timeout=30) as client, Control(cluster.endpoints) as control:
        for part in range(3):  # several puts, since each flush of the memory ends a table
            client.put_many({b"%d-%04d" % (part, number): b"%d" % number * 2000 for number in range(2000)})
        (large,) = (one.id for one in control.table().keyspaces if one.name == "large")
        ids = {row.id for row in control.table().partitions if row.keyspace_id == large}

        def is_told() -> bool:
            return all(stats.bytes > 2_000_000 for stats in control.status().replicas if stats.partition_id in ids)

        eventually("the nodes have reported the sizes", is_told)
    options = {"endpoints": ",".join(cluster.endpoints), "keyspace": "large", "splitBytes": "1000000"}
    reader = SnapshotReader(
        SourceOptions.of(options), Layout.of(StructType().add("key", BinaryType()), SourceOptions.of(options))
    )
    assert all(part.snapshot for part in reader.partitions() if isinstance(part, PartitionPart))
    frame = source(spark, cluster, "large", "key string", splitBytes="1000000")
    keys = [row.key for row in frame.collect()]
    assert len(keys) == len(set(keys)) == 6000


def test_keys_alone_are_read_as_text(spark: SparkSession, cluster: LocalCluster) -> None:
    frame = source(spark, cluster, "ranged", "key string").where("key like 'k0001%'")
    assert [row.key for row in frame.orderBy("key").collect()] == [f"k{number:05}" for number in range(10, 20)]
    with pytest.raises(PySparkException, match=r"INVALID_ARGUMENT: the row of the key 0x80.* isn't UTF-8 text"):
        source(spark, cluster, "ranged", "key string").where("key > 'x'").collect()


def test_rows_are_written_replaced_and_deleted(spark: SparkSession, cluster: LocalCluster) -> None:
    frame = spark.range(5000).selectExpr("concat('k', id) key", "cast(id as string) value")
    write(frame, cluster, "written", batchBytes="10000")
    with Client(cluster.endpoints, keyspace="written") as client:
        assert client.get_many(["k0", "k4999", "k5000"]) == {"k0": b"0", "k4999": b"4999"}
        changes = spark.createDataFrame(
            [("k0", None, True), ("k1", "new", False), ("k2", "first", False), ("k2", "last", False)],
            "key string, value string, gone boolean",
        ).coalesce(1)
        write(changes, cluster, "written", deleteColumn="gone", batchBytes="1")
        assert client.get_many(["k0", "k1", "k2"]) == {"k1": b"new", "k2": b"last"}
    assert source(spark, cluster, "written").count() == 4999


FLIGHTS = "day date, carrier string, number int, delay double, price decimal(10,2), left timestamp, tags array<string>"
KEYS = [(1, "UA", 1545, 2.5), (1, "UA", 1546, None), (2, "B6", -1, float("inf")), (3, "\u0000é", 2**31 - 1, -0.0)]
ROWS = [
    (date(2013, 1, day), carrier, number, delay, Decimal("12.30"), datetime(2013, 1, day, 5, 17), ["a", None])  # noqa: DTZ001  # the session's time zone
    for day, carrier, number, delay in KEYS
]


def test_rows_of_columns_are_the_same_for_spark_and_the_client(spark: SparkSession, cluster: LocalCluster) -> None:
    options = {"keyColumns": "day, carrier, number"}
    frame = spark.createDataFrame(ROWS, FLIGHTS)
    write(frame, cluster, "flights", **options)
    back = source(spark, cluster, "flights", FLIGHTS, **options)
    assert sorted(map(tuple, back.collect())) == sorted(ROWS)
    with pushing(spark, down=False):
        assert sorted(map(tuple, back.collect())) == sorted(ROWS)
        assert back.where("day = date'2013-01-01' and carrier = 'UA' and number > 1545").count() == 1
    with Client(cluster.endpoints, keyspace="flights") as client:
        value = client.get(encode_key((date(2013, 1, 1), "UA", 1545)))
        assert value is not None
        assert decode_value(value)["delay"] == 2.5
        client.put(encode_key((date(2013, 1, 4), "AA", 1)), encode_value({"delay": 7, "price": Decimal("1.00")}))
    found = back.where("day = date'2013-01-04'").collect()
    assert [(row.carrier, row.number, row.delay, row.price, row.tags) for row in found] == [
        ("AA", 1, 7.0, Decimal("1.00"), None)
    ]
    assert back.where("day = date'2013-01-01' and carrier = 'UA' and number > 1545").count() == 1
    assert back.where("day in (date'2013-01-02', date'2013-01-03')").select("number").count() == 2
    with Client(cluster.endpoints, keyspace="flights") as client:
        client.put(encode_key((date(2013, 1, 5), "AA", 1)), b"[1]")
        with pytest.raises(PySparkException, match=r"INVALID_ARGUMENT: key 0x.*isn't a JSON object"):
            back.where("day = date'2013-01-05'").collect()
        client.delete(encode_key((date(2013, 1, 5), "AA", 1)))
        client.delete(encode_key((date(2013, 1, 4), "AA", 1)))


@pytest.mark.parametrize(
    ("options", "schema", "problem"),
    [
        ({"keyspace": "nothing"}, "", "UNKNOWN_KEYSPACE"),
        ({"endpoint": "x"}, "", "option 'endpoint' isn't one of endpoints, "),
        ({"splitBytes": "many"}, "", "option 'splitBytes' is 'many', not a whole number from 0 on"),
        ({"keyColumns": "a"}, "", "keyColumns needs the types of the columns"),
        ({"keyColumns": "a"}, "b int", "the schema has no column 'a' for the key"),
        ({"keyFormat": "json"}, "", "'keyFormat' is 'json', not one of binary, text, columns"),
        ({"keyColumns": "a,b", "keyFormat": "text"}, "a string, b string", "a key of 2 columns can't have keyFormat"),
        ({"tlsCa": "x.pem"}, "", "'tlsCert' is missing"),
        ({}, "key int", "column 'key' is int, but a key is binary or string"),
    ],
)
def test_an_error_names_the_mistake_in_options_or_schema(
    spark: SparkSession, cluster: LocalCluster, options: dict[str, str], schema: str, problem: str
) -> None:
    with pytest.raises(AnalysisException, match=problem):
        source(spark, cluster, schema=schema, **{"keyspace": "hashed", **options}).collect()


def test_rows_without_a_key_or_a_column_for_the_value_are_refused(spark: SparkSession, cluster: LocalCluster) -> None:
    """tests/unit/spark/test_layout.py tests the other reasons to refuse a row."""
    with pytest.raises(PySparkException, match="empty key"):
        write(spark.createDataFrame([("", "x")], "key string, value string"), cluster, "upserted")
    with pytest.raises(AnalysisException, match="no column for the value"):
        write(spark.createDataFrame([("a",)], "key string"), cluster, "upserted")


def test_overwrite_is_refused(spark: SparkSession, cluster: LocalCluster) -> None:
    with pytest.raises(AnalysisException, match='"append" sets the values'):
        write(spark.createDataFrame([("a", "b")], "key string, value string"), cluster, "upserted", mode="overwrite")
