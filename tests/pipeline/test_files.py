"""Jobs read files: every job leaves out unreadable lines, and exported files are read back unchanged."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from minka import Client
from minka.admin.control import Control
from minka.errors import Code, MinkaError
from minka.spark.digesting import digest
from minka.spark.exporting import export
from minka.spark.filling import FileLoad, LoadOptions, load, load_files
from minka.spark.inputs import read_files
from minka.spark.pairs import UNREADABLE, PairColumns, pairs_of
from minka.spark.split_planning import splits
from minka.spark.verifying import verify
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from tests.cluster.cluster import wait_settled

PLAIN = PairColumns(("key",), ("value",))
BY_ID = PairColumns(("id",))


def made(cluster: LocalCluster, *names: str) -> None:
    with Control(cluster.endpoints) as control:
        for name in names:
            control.create_keyspace(name, 2, HashFunction.HASH_FUNCTION_MURMUR3, replicas=1)
        wait_settled(control, live=3)


AWKWARD = {
    b"a": b"  padded  ",
    b" k ": b"v",
    b"\ttab\t": b"\tt\t",
    b"empty": b"",
    b"quotes": b'say "hi"',
    b"quote": b'"',
    b"escaped": b'\\"',
    b"backslash": b"a\\",
    b"comma": b"a,b",
    b"lines": b"x\ny\r\nz\rw\n",
    b"spaces": b"   ",
    b"#hash": b"#",
    b"\x00nul": b"a\x00b",
    "é".encode(): "\U0010ffff\u2028".encode(),
    b"null": b"null",
}


@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_awkward_text_is_exported_and_loaded_unchanged(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, file_format: str
) -> None:
    one, other, folder = f"{file_format}-1", f"{file_format}-2", str(tmp_path / "all")
    made(cluster, one, other)
    with Client(cluster.endpoints, keyspace=one) as client:
        client.put_many(AWKWARD)
    report = export(spark, one, folder, endpoints=cluster.endpoints, file_format=file_format)  # type: ignore[arg-type]
    assert report.rows == len(AWKWARD)
    rows = read_files(spark, folder, file_format)  # type: ignore[arg-type]
    load(spark, rows, other, LoadOptions(columns=PLAIN), endpoints=cluster.endpoints)
    with Client(cluster.endpoints, keyspace=other) as client:
        assert client.get_many(list(AWKWARD)) == AWKWARD


def test_null_and_empty_text_differ_in_exported_csv(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    made(cluster, "nulls")
    schema = "id STRING, note STRING, number INT"
    rows = spark.createDataFrame([("a", None, 1), ("b", "", None), (" ", " ", 3), ("", "d", 4)], schema)
    load(
        spark, rows, "nulls", LoadOptions(columns=PairColumns(("id",), key_form="columns")), endpoints=cluster.endpoints
    )
    for name, given in (("typed", schema), ("text", "")):
        folder = str(tmp_path / name)
        options = {"file_format": "csv", "schema": schema, "key_columns": ["id"]}
        export(spark, "nulls", folder, endpoints=cluster.endpoints, **options)  # type: ignore[arg-type]
        found = read_files(spark, folder, "csv", given).drop(UNREADABLE).selectExpr("id", "note", "int(number)")
        assert sorted(found.collect()) == sorted(rows.collect())


def test_an_unknown_file_format_is_refused(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(MinkaError, match="the format 'orc' isn't one of parquet, csv, json") as refused:
        export(spark, "any", str(tmp_path / "orc"), endpoints=cluster.endpoints, file_format="orc")  # type: ignore[arg-type]
    assert refused.value.code is Code.INVALID_ARGUMENT
    with pytest.raises(MinkaError, match="the format 'orc' isn't one of"):
        read_files(spark, str(tmp_path), "orc")  # type: ignore[arg-type]


BROKEN = b"id,n\na,1\nb,2,EXTRA\nc\nd,caf\xe9\ncaf\xe9,5\ncaf\xe8,6\ne,\xc3\xa9\n"


def test_without_a_schema_lines_of_csv_that_cannot_be_read_are_bad(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    made(cluster, "broken")
    source, bad = tmp_path / "broken.csv", str(tmp_path / "bad")
    source.write_bytes(BROKEN)
    with pytest.raises(MinkaError) as refused:
        load_files(
            spark,
            "broken",
            FileLoad(source=str(source), options=LoadOptions(columns=BY_ID)),
            endpoints=cluster.endpoints,
        )
    assert refused.value.code is Code.BAD_ROWS
    options = LoadOptions(columns=BY_ID, max_bad=5, bad_rows=bad)
    report = load_files(spark, "broken", FileLoad(source=str(source), options=options), endpoints=cluster.endpoints)
    assert (report.rows, report.bad) == (2, 5)
    texts = {row[UNREADABLE] for row in spark.read.json(bad).collect()}
    assert texts == {"b,2,EXTRA", "c", "d,caf\ufffd", "caf\ufffd,5", "caf\ufffd,6"}
    with Client(cluster.endpoints, keyspace="broken") as client:
        found = client.get_many([b"a", b"b", b"c", b"d", b"e", "caf\ufffd".encode()])
    assert found == {b"a": b'{"n":"1"}', b"e": '{"n":"é"}'.encode()}


def test_a_line_is_bad_even_if_a_job_needs_only_its_good_columns(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "some.csv").write_text("id,n,m\na,1,x\nb,2,x,EXTRA\n")
    rows = read_files(spark, str(tmp_path / "some.csv"))
    assert [row[UNREADABLE] for row in rows.select("id", UNREADABLE).orderBy("id").collect()] == [None, "b,2,x,EXTRA"]


def test_text_that_is_not_utf_8_is_bad_in_json_and_in_a_header(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"id":"a","n":"1"}\n{"id":"caf\xe9","n":"2"}\n')
    for schema in ("", "id STRING, n STRING"):
        rows = read_files(spark, str(tmp_path / "a.json"), "json", schema)
        assert sorted(bool(row[UNREADABLE]) for row in rows.select("id", UNREADABLE).collect()) == [False, True]
    (tmp_path / "a.csv").write_bytes(b"id,caf\xe9\na,1\n")
    with pytest.raises(MinkaError, match="isn't UTF-8"):
        read_files(spark, str(tmp_path / "a.csv"))


def test_a_byte_order_mark_is_skipped_and_an_empty_file_has_no_columns(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "mark.csv").write_bytes(b"\xef\xbb\xbfid,n\na,1\n")
    assert [row.asDict() for row in read_files(spark, str(tmp_path / "mark.csv")).collect()] == [
        {"id": "a", "n": "1", UNREADABLE: None}
    ]
    (tmp_path / "empty.csv").touch()
    assert read_files(spark, str(tmp_path / "empty.csv")).columns == []


def test_every_job_leaves_out_lines_that_cannot_be_read(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """A load, a verification with a repair, the search for split points and a digest read the same file, which has a
    bad line. A repair must not write the row that the load left out.
    """
    made(cluster, "partly")
    (tmp_path / "a.csv").write_text("id,n\na,1\nb,notanumber\nc,3\n")
    rows = read_files(spark, str(tmp_path / "a.csv"), schema="id STRING, n INT")
    options = LoadOptions(columns=BY_ID, max_bad=1, bad_rows=str(tmp_path / "bad"))
    assert load(spark, rows, "partly", options, endpoints=cluster.endpoints).rows == 2
    found = verify(spark, rows, "partly", BY_ID, endpoints=cluster.endpoints, repair=True)
    assert (found.is_same, found.rows, found.repaired) == (True, 2, 0)
    with Client(cluster.endpoints, keyspace="partly") as client:
        assert client.get("b") is None
    assert splits(spark, rows, BY_ID, 2).rows == 2
    with pytest.raises(MinkaError, match="1 of 3 lines can't be read"):
        digest(spark, pairs_of(rows, BY_ID))
