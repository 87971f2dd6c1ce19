"""Verification, export and lookup against real daemons."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from minka import Client
from minka.admin.control import Control
from minka.errors import MinkaError
from minka.spark.exporting import ExportReport, export
from minka.spark.filling import LoadOptions, load
from minka.spark.lookups import lookup
from minka.spark.pairs import PairColumns
from minka.spark.split_planning import splits
from minka.spark.verifying import VerifyReport, verify
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from tests.cluster.cluster import CALM, wait_settled

PLAIN = PairColumns(("key",), ("value",))
ROWS = 1500


@pytest.fixture(scope="module")
def cluster(spark: SparkSession) -> Iterator[LocalCluster]:
    with LocalCluster(3, config=CALM) as cluster, Control(cluster.endpoints) as control:
        control.create_keyspace("hashed", 3, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        control.create_keyspace("ranged", 0, HashFunction.HASH_FUNCTION_UNSPECIFIED, replicas=2, split_points=[b"k5"])
        wait_settled(control, live=3)
        for keyspace in ("hashed", "ranged"):
            load(spark, numbers(spark), keyspace, LoadOptions(columns=PLAIN), endpoints=cluster.endpoints, timeout=30)
        yield cluster


def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(ROWS).selectExpr("concat('k', id) key", "cast(id as string) value")


@pytest.mark.parametrize(("keyspace", "replicas"), [("hashed", 9), ("ranged", 4)])
def test_verify_finds_no_difference_after_a_load(
    spark: SparkSession, cluster: LocalCluster, keyspace: str, replicas: int
) -> None:
    same = verify(spark, numbers(spark), keyspace, PLAIN, endpoints=cluster.endpoints)
    assert same.is_same
    assert (same.rows, same.keyspace_rows, same.differences) == (ROWS, ROWS, ())
    assert same.replicas == replicas


def test_differences_are_named_and_repaired(spark: SparkSession, cluster: LocalCluster) -> None:
    def run(*, repair: bool = False) -> VerifyReport:
        return verify(spark, numbers(spark), "ranged", PLAIN, endpoints=cluster.endpoints, repair=repair)

    with Client(cluster.endpoints, keyspace="ranged") as client:
        client.delete_many(["k1", "k2"])
        client.put("k3", b"other")
        client.put_many({"extra": b"1", "zz": b"2"})
        found = run()
        assert not found.is_same
        assert (found.missing, found.different, found.extra) == (2, 1, 2)
        kinds = {difference.key: difference.kind for difference in found.differences}
        assert kinds == {"k1": "missing", "k2": "missing", "k3": "different", "extra": "extra", "zz": "extra"}
        assert {difference.partition for difference in found.differences} == set(found.partitions_different)
        assert found.replicas_different == ()
        assert VerifyReport.from_json(found.to_json()).missing == 2
        repaired = run(repair=True)
        assert (repaired.repaired, repaired.extra) == (3, 2)
        assert client.get_many(["k1", "k2", "k3"]) == {"k1": b"1", "k2": b"2", "k3": b"3"}
        client.delete_many(["extra", "zz"])
    assert run().is_same


def test_every_row_is_missing_in_an_empty_keyspace(spark: SparkSession, cluster: LocalCluster) -> None:
    with Control(cluster.endpoints) as control:
        control.create_keyspace("nothing", 2, HashFunction.HASH_FUNCTION_MURMUR3, replicas=1)
        wait_settled(control, live=3)
    found = verify(spark, numbers(spark), "nothing", PLAIN, endpoints=cluster.endpoints, repair=True)
    assert (found.missing, found.repaired, len(found.differences)) == (ROWS, ROWS, 1000)
    assert found.is_same
    assert verify(spark, numbers(spark), "nothing", PLAIN, endpoints=cluster.endpoints).differences == ()


def test_an_export_and_the_changes_after_it(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    first = export(spark, "ranged", str(tmp_path / "all"), endpoints=cluster.endpoints)
    assert first.rows == ROWS
    frame = spark.read.parquet(str(tmp_path / "all"))
    assert dict(frame.dtypes) == {"key": "binary", "value": "binary"}
    assert verify(spark, frame, "ranged", PLAIN, endpoints=cluster.endpoints).is_same
    with Client(cluster.endpoints, keyspace="ranged") as client:
        client.put("k1", b"changed")
        client.put("k9", b"changed")
        client.delete("k9")
        since = ExportReport.from_json(first.to_json()).versions
        options = {"schema": "key string, value string", "since": since}
        export(spark, "ranged", str(tmp_path / "changes"), endpoints=cluster.endpoints, file_format="json", **options)  # type: ignore[arg-type]
        rows = spark.read.json(str(tmp_path / "changes")).orderBy("_partition", "_offset").collect()
        found = [(row.key, row["value"], row["_change"]) for row in rows]
        assert found == [("k1", "changed", "put"), ("k9", "changed", "put"), ("k9", None, "delete")]
        client.put_many({"k1": b"1", "k9": b"9"})
    with pytest.raises(MinkaError, match="already exists"):
        export(spark, "ranged", str(tmp_path / "all"), endpoints=cluster.endpoints)


_KINDS = {
    "id": ("bigint", "id"),
    "text": ("string", "if(id > 0, 'é' || id, null)"),
    "small": ("tinyint", "-id"),
    "short": ("smallint", "-id"),
    "number": ("int", "id"),
    "single": ("float", "id / 3"),
    "double": ("double", "id / 3"),
    "flag": ("boolean", "id % 2 = 0"),
    "day": ("date", "date'1969-12-31' + int(id)"),
    "at": ("timestamp", "timestamp_micros(id * 1000001)"),
    "clock": ("timestamp_ntz", "timestamp_ntz'2024-03-10 02:30:00.000001'"),
    "price": ("decimal(12,3)", "id / 8"),
    "raw": ("binary", "string(id)"),
    "many": ("array<int>", "array(int(id), null)"),
    "pair": ("struct<a:int>", "struct(int(id) a)"),
}


def test_columns_of_all_types_are_exported_as_spark_would_write_them(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """The exported files have the same rows and types as files that Spark writes."""
    rows = spark.range(50).selectExpr(*(f"cast({value} as {kind}) {name}" for name, (kind, value) in _KINDS.items()))
    with Control(cluster.endpoints) as control:
        control.create_keyspace("kinds", 2, HashFunction.HASH_FUNCTION_MURMUR3, replicas=1)
        wait_settled(control, live=3)
    options = {"endpoints": ",".join(cluster.endpoints), "keyspace": "kinds", "keyColumns": "id"}
    rows.write.format("minka").options(**options).mode("append").save()

    schema = ", ".join(f"{name} {kind}" for name, (kind, _) in _KINDS.items())
    by_spark, by_tasks = str(tmp_path / "spark"), str(tmp_path / "tasks")
    spark.read.format("minka").schema(schema).options(**options).load().write.parquet(by_spark)
    report = export(spark, "kinds", by_tasks, endpoints=cluster.endpoints, schema=schema, key_columns=["id"])
    assert report.rows == 50
    expected, found = spark.read.parquet(by_spark), spark.read.parquet(by_tasks)
    assert found.schema == expected.schema
    assert found.dtypes == rows.dtypes
    assert found.orderBy("id").collect() == expected.orderBy("id").collect() == rows.orderBy("id").collect()


def test_an_export_replaces_the_former_one_only_when_it_is_complete(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """An export that fails leaves the files of the former export unchanged."""
    folder = tmp_path / "kept"
    with Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="bad") as client:
        control.create_keyspace("bad", 4, HashFunction.HASH_FUNCTION_MURMUR3, replicas=1)
        wait_settled(control, live=3)

        def run(into: Path = folder) -> ExportReport:
            schema = "key string, value string"
            return export(spark, "bad", str(into), endpoints=cluster.endpoints, schema=schema, overwrite=True)

        assert run().rows == 0
        assert spark.read.parquet(str(folder)).schema.simpleString() == "struct<key:string,value:string>"
        client.put_many({f"k{number}": b"text" for number in range(100)})
        assert (run().rows, run().rows) == (100, 100)
        assert spark.read.parquet(str(folder)).count() == 100
        before = sorted(path.name for path in folder.iterdir())
        client.put("k100", b"\xff")
        with pytest.raises(MinkaError, match=r"INVALID_ARGUMENT: .*k100"):
            run()
        assert sorted(path.name for path in folder.iterdir()) == before
        with pytest.raises(MinkaError, match=r"INVALID_ARGUMENT: .*k100"):
            run(tmp_path / "new")
        assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    with pytest.raises(MinkaError, match=r"INVALID_ARGUMENT: .*Not a directory"):
        export(spark, "bad", str(tmp_path / "file" / "folder"), endpoints=cluster.endpoints)


@pytest.mark.parametrize("keyspace", ["hashed", "ranged"])
def test_rows_are_joined_with_the_values_of_their_keys(
    spark: SparkSession, cluster: LocalCluster, keyspace: str
) -> None:
    rows = [("k1", 1), ("k2", 2), ("k1", 3), ("none", 4), (None, 5), ("", 6)]
    frame = spark.createDataFrame(rows, "who string, number int")
    left = lookup(frame, keyspace, "who", endpoints=cluster.endpoints)
    assert left.columns == ["who", "number", "value"]
    found = {row.number: row["value"] and bytes(row["value"]) for row in left.collect()}
    assert found == {1: b"1", 2: b"2", 3: b"1", 4: None, 5: None, 6: None}
    inner = lookup(frame, keyspace, "who", "inner", endpoints=cluster.endpoints, value="found")
    assert sorted(row.number for row in inner.where("found is not null").collect()) == [1, 2, 3]
    with pytest.raises(MinkaError, match="the rows have a column 'number' already"):
        lookup(frame, keyspace, "who", endpoints=cluster.endpoints, value="number")


def test_split_points_give_ranges_of_equal_bytes(spark: SparkSession) -> None:
    """Keys and sizes of the rows are skewed. The test adds up the real sizes of the ranges, instead of trusting the
    sizes that the report expects.
    """
    key = "concat('u', lpad(cast(cast(pow(rand(1), 4) * 1000 as int) as string), 6, '0'), '-', id)"
    frame = spark.range(30_000).selectExpr(f"{key} key", "repeat('x', cast(pow(rand(2), 8) * 2000 as int)) value")
    frame = frame.persist()
    report = splits(spark, frame, PLAIN, 16, seed=1)
    assert len(report.points) == 15
    assert list(report.points) == sorted(report.points)
    sizes = [0] * 16
    for row in frame.selectExpr("key", "octet_length(key) + octet_length(value) + 16 size").collect():
        sizes[sum(point <= row.key for point in report.points)] += row["size"]
    assert max(sizes) / (sum(sizes) / 16) <= 1.15
    assert report.points == splits(spark, frame, PLAIN, 16, seed=1).points
    frame.unpersist()


def test_a_key_that_weighs_more_than_a_range_leaves_the_others_equal(spark: SparkSession) -> None:
    rows = [("k", "x" * 1_000_000), *((f"a{number:04}", "x" * 500) for number in range(1000))]
    report = splits(spark, spark.createDataFrame(rows, "key string, value string"), PLAIN, 5)
    assert [one.start for one in report.ranges][-1] == "k"
    shares = [one.share for one in report.ranges]
    assert len(shares) == 5
    assert max(shares[:-1]) / min(shares[:-1]) < 1.2
    with pytest.raises(MinkaError, match="the source has no rows with a key"):
        splits(spark, numbers(spark).where("false"), PLAIN, 5)
    with pytest.raises(MinkaError, match="ranges=1 isn't from 2 to 5000"):
        splits(spark, numbers(spark), PLAIN, 1)
