"""Spark loads rows into real daemons."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from minka import Client
from minka.admin.control import Control
from minka.bulk.bulk_loads import LoadClient
from minka.errors import Code, MinkaError
from minka.rows import decode_value, encode_key
from minka.spark import filling
from minka.spark.filling import FileLoad, LoadOptions, LoadReport, job_text_of, load, load_files, resume
from minka.spark.inputs import absolute
from minka.spark.pairs import PairColumns
from minka.spark.verifying import verify
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from tests.cluster.cluster import CALM, wait_settled

UNHASHED = HashFunction.HASH_FUNCTION_UNSPECIFIED
PLAIN = PairColumns(("key",), ("value",))


@pytest.fixture(scope="module")
def cluster(spark: SparkSession) -> Iterator[LocalCluster]:  # Spark has to start before gRPC has threads
    with LocalCluster(3, config=CALM) as cluster, Control(cluster.endpoints) as control:
        for name in ("hashed", "done", "put", "conflicts", "bad", "rows", "awkward"):
            control.create_keyspace(name, 4, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        control.create_keyspace("ranged", 0, UNHASHED, replicas=3, split_points=[b"k3", b"k6"])
        control.create_keyspace("md5", 3, HashFunction.HASH_FUNCTION_MD5, replicas=1)
        wait_settled(control, live=3)
        yield cluster


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("concat('k', id) key", "cast(id * id as string) value")


def loaded(spark: SparkSession, cluster: LocalCluster, keyspace: str, frame: DataFrame, **options: Any) -> LoadReport:
    load_id = options.pop("load_id", "")
    chosen = LoadOptions(**{"columns": PLAIN, **options})
    return load(spark, frame, keyspace, chosen, endpoints=cluster.endpoints, load_id=load_id, timeout=30)


def everything(cluster: LocalCluster, keyspace: str, keys: list[str]) -> dict[Any, bytes]:
    with Client(cluster.endpoints, keyspace=keyspace, timeout=30) as client:
        return client.get_many(keys)


@pytest.mark.parametrize("keyspace", ["hashed", "ranged", "md5"])
def test_clients_find_every_row_of_an_ingest(spark: SparkSession, cluster: LocalCluster, keyspace: str) -> None:
    report = loaded(spark, cluster, keyspace, numbers(spark, 2000), load_id=f"first-{keyspace}")
    assert (report.rows, report.bad, report.was_done) == (2000, 0, False)
    assert report.partitions == (4 if keyspace == "hashed" else 3)
    assert [stage.name for stage in report.stages] == ["check", "sort and upload", "commit", "take in"]
    found = everything(cluster, keyspace, [f"k{number}" for number in range(2001)])
    assert found == {f"k{number}": b"%d" % number**2 for number in range(2000)}
    assert LoadReport.from_json(report.to_json()) == report


def test_another_run_of_a_done_load_changes_nothing(spark: SparkSession, cluster: LocalCluster) -> None:
    first = loaded(spark, cluster, "done", numbers(spark, 100), load_id="done")
    with Client(cluster.endpoints, keyspace="done") as client:
        client.put("k7", b"written after the load")
        again = loaded(spark, cluster, "done", numbers(spark, 100), load_id="done")
        assert (first.rows, first.was_done, again.rows, again.was_done) == (100, False, 100, True)
        assert client.get("k7") == b"written after the load"


def test_repeated_puts_do_not_conflict_with_their_own_rows(spark: SparkSession, cluster: LocalCluster) -> None:
    """A second run writes the same rows again, as a repeated task does."""
    rows = numbers(spark, 2000).selectExpr("concat('again-', key) key", "value")
    first, second = (loaded(spark, cluster, "put", rows, mode="put") for _ in range(2))
    assert (first.rows, first.bytes, first.kept) == (second.rows, second.bytes, second.kept)
    assert (first.rows, first.kept, first.load_id) == (2000, 0, "")
    found = everything(cluster, "put", [f"again-k{number}" for number in range(2000)])
    assert found == {f"again-k{number}": b"%d" % number**2 for number in range(2000)}
    with Client(cluster.endpoints, keyspace="put") as client:
        client.put("again-k7", b"mine")
        with pytest.raises(MinkaError, match="the key again-k7 is in the keyspace already") as refused:
            loaded(spark, cluster, "put", rows, mode="put")
        assert refused.value.code is Code.KEY_EXISTS
        kept = loaded(spark, cluster, "put", rows, mode="put", on_conflict="keep")
        assert (kept.rows, kept.kept) == (1999, 1)
        assert client.get("again-k7") == b"mine"


def test_the_options_for_keys_that_exist_already(spark: SparkSession, cluster: LocalCluster) -> None:
    with Client(cluster.endpoints, keyspace="conflicts") as client:
        client.put_many({"k5": b"mine", "k500": b"mine"})
        with pytest.raises(MinkaError, match=r"the key k5(00)? is in the keyspace already") as refused:
            loaded(spark, cluster, "conflicts", numbers(spark, 1000), load_id="refused")
        assert refused.value.code is Code.KEY_EXISTS
        assert client.get("k6") is None, "nothing of a refused load is visible"
        with pytest.raises(MinkaError, match="was aborted: aborted by the load itself: KEY_EXISTS"):
            loaded(spark, cluster, "conflicts", numbers(spark, 1000), load_id="refused")
        kept = loaded(spark, cluster, "conflicts", numbers(spark, 1000), on_conflict="keep")
        assert (kept.rows, kept.kept) == (998, 2)
        assert client.get_many(["k5", "k6", "k500"]) == {"k5": b"mine", "k6": b"36", "k500": b"mine"}
        replaced = loaded(spark, cluster, "conflicts", numbers(spark, 1000), on_conflict="replace")
        assert replaced.rows == 1000
        assert client.get_many(["k5", "k500"]) == {"k5": b"25", "k500": b"250000"}


def test_repeated_keys_are_refused_unless_last_by_chooses_a_row(spark: SparkSession, cluster: LocalCluster) -> None:
    twice = numbers(spark, 100).selectExpr("*", "1 at").union(numbers(spark, 10).selectExpr("key", "'newer'", "2 at"))
    with pytest.raises(MinkaError, match=r"the key k\d comes more than once in the source") as refused:
        loaded(spark, cluster, "rows", twice)
    assert refused.value.code is Code.DUPLICATE_KEY
    report = loaded(spark, cluster, "rows", twice, last_by="at")
    assert (report.rows, report.repeated) == (100, 10)
    found = everything(cluster, "rows", ["k9", "k10"])
    assert found == {"k9": b"newer", "k10": b"100"}


def test_bad_rows_go_to_a_side_file(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    rows = [(f"k{number}", "v") for number in range(100)] + [("", "empty"), (None, "no key"), ("x" * 65_537, "long")]
    frame = spark.createDataFrame([*rows, ("no value", None)], "key string, value string")
    with pytest.raises(MinkaError, match=r"the (key|value) ") as refused:
        loaded(spark, cluster, "bad", frame)
    assert refused.value.code is Code.BAD_ROWS
    report = loaded(spark, cluster, "bad", frame, max_bad=4, bad_rows=str(tmp_path / "bad"))
    assert (report.rows, report.bad) == (100, 4)
    problems = sorted(row.problem for row in spark.read.json(str(tmp_path / "bad")).collect())
    assert problems == ["the key has 65537 bytes", "the key is empty", "the key is null", "the value is null"]


def test_a_folder_with_other_files_is_not_replaced_by_bad_rows(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    frame = spark.createDataFrame([("key", "value"), ("", "empty")], "key string, value string")
    notes, others = tmp_path / "notes", tmp_path / "others"
    (notes / "deep").mkdir(parents=True)
    (notes / "deep" / "note.txt").write_text("a note")
    numbers(spark, 9).write.json(str(others))
    for folder in (notes, others):
        with pytest.raises(MinkaError, match="has other files than those with a load's bad rows") as refused:
            loaded(spark, cluster, "bad", frame, max_bad=1, bad_rows=str(folder), load_id="side")
        assert refused.value.code is Code.INVALID_ARGUMENT
    with Control(cluster.endpoints) as control:
        assert all(one.id != "side" for one in control.loads().loads)
    assert (notes / "deep" / "note.txt").read_text() == "a note"
    assert spark.read.json(str(others)).count() == 9
    (tmp_path / "empty").mkdir()
    assert loaded(spark, cluster, "bad", frame, max_bad=1, bad_rows=str(tmp_path / "empty")).bad == 1


def test_last_by_may_name_a_column_with_a_dot_or_a_field(spark: SparkSession, cluster: LocalCluster) -> None:
    rows = [("dots", "older", 1), ("dots", "newer", 2)]
    frame = spark.createDataFrame(rows, "key string, value string, `changed.at` int")
    assert loaded(spark, cluster, "rows", frame, last_by="changed.at").repeated == 1
    inside = frame.selectExpr("'field' key", "value", "struct(`changed.at` at) changed")
    assert loaded(spark, cluster, "rows", inside, last_by="changed.at").repeated == 1
    assert everything(cluster, "rows", ["dots", "field"]) == {"dots": b"newer", "field": b"newer"}


def test_awkward_keys_are_loaded_unchanged(spark: SparkSession, cluster: LocalCluster) -> None:
    rows = {bytes([number]) * size: bytes([number]) for number in range(256) for size in (1, 2, 4096)}
    frame = spark.createDataFrame([*map(tuple, map(list, rows.items()))], "key binary, value binary")
    report = loaded(spark, cluster, "awkward", frame)
    assert report.rows == len(rows)
    with Client(cluster.endpoints, keyspace="awkward") as client:
        assert client.get_many(list(rows)) == rows


CSV = '''carrier,number,note
UA,1545,"two
lines, and a ""quote"""
B6,725,
AA,oops,bad number
'''


def test_files_are_loaded_and_a_load_is_resumed(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    source = tmp_path / "flights.csv"
    source.write_text(CSV)
    with Control(cluster.endpoints) as control:
        control.create_keyspace("files", 2, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        wait_settled(control, live=3)
        options = LoadOptions(columns=PairColumns(("carrier", "number")), max_bad=1, bad_rows=str(tmp_path / "bad"))
        what = FileLoad(source=str(source), schema="carrier string, number int, note string", options=options)
        control.begin_load("flights", "files", job=job_text_of(what))
        report = resume(spark, "flights", endpoints=cluster.endpoints, timeout=30)
        assert (report.rows, report.bad, report.load_id) == (2, 1, "flights")
        (bad,) = spark.read.json(str(tmp_path / "bad")).collect()
        assert (bad.problem, bad["_unreadable"]) == ("the line can't be read", "AA,oops,bad number")
        with Client(cluster.endpoints, keyspace="files") as client:
            value = client.get(encode_key(("UA", 1545)))
            assert value is not None
            assert decode_value(value) == {"note": 'two\nlines, and a "quote"'}
            again = load_files(spark, "files", what, endpoints=cluster.endpoints, load_id="flights", timeout=30)
            assert again.was_done
        with pytest.raises(MinkaError, match="UNKNOWN_LOAD"):
            resume(spark, "unknown", endpoints=cluster.endpoints, timeout=10)


def test_a_relative_path_is_kept_as_an_absolute_one(spark: SparkSession) -> None:
    """A relative path must be made absolute, since the process that resumes the load may run in another folder."""
    assert absolute(spark, "data/*.csv") == f"file:{Path.cwd()}/data/*.csv"
    assert absolute(spark, "file:/data") == "file:/data"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"columns": PairColumns(("nothing",))}, "the source has no column 'nothing'; it has key, value"),
        ({"columns": PairColumns(())}, "no column is named for the key"),
        ({"max_bad": 1}, "max_bad needs bad_rows, the folder for rows that are left out"),
        ({"mode": "put", "rate_limit": 1}, "rate_limit is for mode ingest"),
        ({"mode": "puts"}, "mode is 'puts', not one of ingest, put"),
        ({"on_conflict": "replce"}, "on_conflict is 'replce', not one of error, replace, keep"),
        ({"columns": PairColumns(("key",), key_form="text")}, "key_form is 'text', not one of auto, columns"),  # type: ignore[arg-type]
        ({"columns": PairColumns(("key",), value_form="json")}, "value_form is 'json', not one of auto, columns"),  # type: ignore[arg-type]
    ],
)
def test_options_that_are_not_valid_are_refused(
    spark: SparkSession, cluster: LocalCluster, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(MinkaError, match=problem) as refused:
        loaded(spark, cluster, "hashed", numbers(spark, 1), **options)
    assert refused.value.code is Code.INVALID_ARGUMENT


def test_a_load_from_an_unknown_file_format_is_refused(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    what = FileLoad(source=str(tmp_path), file_format="orc", options=LoadOptions(columns=PLAIN))  # type: ignore[arg-type]
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT: file_format is 'orc', not one of parquet, csv, json"):
        load_files(spark, "hashed", what, endpoints=cluster.endpoints)


def test_verify_and_load_choose_the_same_of_rows_with_equal_last_by(spark: SparkSession, cluster: LocalCluster) -> None:
    rows = [(f"t{number % 100}", f"value {999 - number}", number // 500) for number in range(1000)]
    frame = spark.createDataFrame(rows, "key string, value string, at int")
    with Control(cluster.endpoints) as control:
        control.create_keyspace("ties", 2, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        wait_settled(control, live=3)
    report = loaded(spark, cluster, "ties", frame, last_by="at")
    assert (report.rows, report.repeated) == (100, 900)
    expected = {
        f"t{key}": min(b"value %d" % (999 - n) for n in range(500, 1000) if n % 100 == key) for key in range(100)
    }
    assert everything(cluster, "ties", list(expected)) == expected
    assert verify(spark, frame, "ties", PLAIN, endpoints=cluster.endpoints, last_by="at").is_same


def test_a_run_counts_bad_rows_even_if_all_files_are_uploaded_already(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run's driver dies after its last task, before it has counted the bad rows. The next run must count
    them.
    """
    frame = spark.createDataFrame([("z1", "v"), ("", "empty"), (None, "no key")], "key string, value string")
    options = {"load_id": "undecided", "max_bad": 1, "bad_rows": str(tmp_path / "bad")}

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(filling._Run, "_count_bad", die)
        with pytest.raises(KeyboardInterrupt):
            loaded(spark, cluster, "bad", frame, **options)
    with pytest.raises(MinkaError, match="2 rows can't be loaded, only 1 may be left out; see ") as refused:
        loaded(spark, cluster, "bad", frame, **options)
    assert refused.value.code is Code.BAD_ROWS
    assert everything(cluster, "bad", ["z1"]) == {}


def test_a_row_of_another_partition_fails_the_load(
    spark: SparkSession, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Spark puts the rows of several partitions into one task, the load must fail, since clients would look for some
    of these rows in other partitions.
    """
    monkeypatch.setattr(filling, "place_column", lambda *_: F.expr("if(key = 'k7', 4, 0)"))
    with pytest.raises(MinkaError, match="INTERNAL: rows of several partitions came to the task of place 0"):
        loaded(spark, cluster, "awkward", numbers(spark, 100), on_conflict="replace")


def test_a_load_of_an_empty_source_succeeds(spark: SparkSession, cluster: LocalCluster) -> None:
    report = loaded(spark, cluster, "awkward", numbers(spark, 0), load_id="nothing")
    assert (report.rows, report.partitions, report.bad) == (0, 0, 0)
    assert loaded(spark, cluster, "awkward", numbers(spark, 0), load_id="nothing").was_done


def test_a_load_whose_files_are_all_uploaded_is_resumed(
    spark: SparkSession, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files are uploaded, although there are fewer files than partitions: a partition without rows has no file."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LoadClient, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            loaded(spark, cluster, "awkward", numbers(spark, 2), load_id="one")
    report = loaded(spark, cluster, "awkward", numbers(spark, 2), load_id="one")
    assert (report.rows, report.was_done) == (2, False)
    assert report.partitions <= 2
