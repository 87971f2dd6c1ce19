"""Later runs with the id of an earlier load, and runs that are refused before they begin a load."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from minka import Client
from minka.admin.control import Control
from minka.bulk.bulk_loads import LoadClient, LoadTarget
from minka.errors import Code, MinkaError
from minka.spark import filling
from minka.spark.filling import FileLoad, LoadOptions, LoadReport, load, load_files, resume
from minka.spark.load_source import bytes_of
from minka.spark.pairs import PairColumns
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from minka.v1.loads_pb2 import Load, LoadFile, LoadState
from tests.cluster.cluster import wait_ended, wait_settled
from tests.pipeline.loads import PLAIN, RANGES, assert_same, frame, loaded, state_of

ROWS = 300
KEYSPACE = "again"


@pytest.fixture(scope="module", autouse=True)
def _keyspace(cluster: LocalCluster) -> None:
    with Control(cluster.endpoints) as control:
        for name in (KEYSPACE, "twins"):
            control.create_keyspace(name, 2, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        control.create_keyspace("moving", 0, RANGES, replicas=1, split_points=[b"k000150"])
        wait_settled(control, live=3)


def break_off(patch: pytest.MonkeyPatch) -> None:
    """Let every load break off before its commit, when all of its files are in the spools."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    patch.setattr(LoadClient, "commit", die)


def value_of(cluster: LocalCluster, key: str) -> bytes | None:
    with Client(cluster.endpoints, keyspace=KEYSPACE, timeout=30) as client:
        return client.get(key)


def what_of(source: Path, key: str = "id", value: str = "text") -> FileLoad:
    columns = PairColumns((key,), (value,))
    return FileLoad(source=str(source), options=LoadOptions(columns=columns, on_conflict="replace"))


def run(spark: SparkSession, cluster: LocalCluster, what: FileLoad, load_id: str) -> LoadReport:
    return load_files(spark, KEYSPACE, what, endpoints=cluster.endpoints, load_id=load_id, timeout=30)


def test_a_run_is_refused_if_the_files_have_changed_since_the_run_that_broke_off(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("id,text\nfile,old\n")
    with monkeypatch.context() as patch:
        break_off(patch)
        with pytest.raises(KeyboardInterrupt):
            run(spark, cluster, what_of(source), "nightly")
    source.write_text("id,text\nfile,newer\n")
    with pytest.raises(MinkaError, match=r"begun with another source, .*; these rows need another id") as refused:
        run(spark, cluster, what_of(source), "nightly")
    assert refused.value.code is Code.LOAD_EXISTS
    with pytest.raises(MinkaError, match="LOAD_EXISTS: load nightly was begun with another source"):
        resume(spark, "nightly", endpoints=cluster.endpoints, timeout=30)
    assert value_of(cluster, "file") is None
    assert run(spark, cluster, what_of(source), "nightly-2").rows == 1
    assert value_of(cluster, "file") == b"newer"


def test_a_run_with_other_options_is_refused_before_and_after_the_end_of_the_load(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`resume` uses the options that are kept with the load, so other runs with the same id must have these options,
    too.
    """
    source = tmp_path / "rows.csv"
    source.write_text("id,text\noptions,words\n")
    wrong, right = what_of(source, "text", "id"), what_of(source)
    with monkeypatch.context() as patch:
        break_off(patch)
        with pytest.raises(KeyboardInterrupt):
            run(spark, cluster, wrong, "options")
    with pytest.raises(MinkaError, match=r"LOAD_EXISTS: load options was begun with other options; these"):
        run(spark, cluster, right, "options")
    assert resume(spark, "options", endpoints=cluster.endpoints, timeout=30).rows == 1
    assert value_of(cluster, "words") == b"options"
    with pytest.raises(MinkaError, match=r"LOAD_EXISTS: load options was begun with other options; these"):
        run(spark, cluster, right, "options")
    assert run(spark, cluster, wrong, "options").was_done


def test_a_data_frame_with_another_schema_or_other_files_is_refused(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    for name in ("monday", "tuesday"):
        frame(spark, ROWS, name).write.parquet(str(tmp_path / name))

    def read(name: str) -> DataFrame:
        return spark.read.parquet(str(tmp_path / name))

    def run(source: DataFrame) -> LoadReport:
        return loaded(cluster, source, KEYSPACE, "frame", on_conflict="replace")

    assert run(read("monday")).rows == ROWS
    assert run(read("monday")).was_done
    for other in (read("tuesday"), read("monday").selectExpr("*", "1 more")):
        with pytest.raises(MinkaError, match="LOAD_EXISTS: load frame was begun with another source"):
            run(other)


def test_the_slower_of_two_simultaneous_runs_finds_the_load_done(
    spark: SparkSession, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = frame(spark, ROWS)
    staged = LoadClient.staged
    faster = list[LoadReport]()

    def overtaken(self: LoadClient, found: Load, targets: Iterable[LoadTarget]) -> dict[int, LoadFile]:
        """Let another run do the whole load once the slower run has seen that there are no files."""
        monkeypatch.setattr(LoadClient, "staged", staged)
        before = staged(self, found, targets)
        faster.append(loaded(cluster, source, "twins", "twins"))
        return before

    monkeypatch.setattr(LoadClient, "staged", overtaken)
    slower = loaded(cluster, source, "twins", "twins")
    assert (faster[0].rows, faster[0].was_done) == (ROWS, False)
    assert (slower.rows, slower.was_done) == (ROWS, True)
    assert_same(cluster, source, "twins")


def test_a_load_succeeds_if_partitions_are_split_and_moved_before_its_commit(
    spark: SparkSession, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, source = LoadClient.commit, frame(spark, ROWS)

    def late(self: LoadClient, found: Load, files: Sequence[LoadFile]) -> Load:
        monkeypatch.setattr(LoadClient, "commit", commit)
        with Control(cluster.endpoints) as control:
            operation = control.split("moving", [b"k000050", b"k000250"], "test")
            assert operation is not None
            wait_ended(control, operation.id)
            table = wait_settled(control, live=3)
            (moving,) = (one.id for one in table.keyspaces if one.name == "moving")
            rows, nodes = [row for row in table.partitions if row.keyspace_id == moving], sorted(cluster.nodes)
            assert len(rows) == 4
            others = {row.id: [nodes[(nodes.index(row.leader) + 1) % 3]] for row in rows}
            operation = control.apply_plan(control.plan_reassign(partitions=others), "test")
            wait_ended(control, operation.id)
        return self.commit(found, files)

    monkeypatch.setattr(LoadClient, "commit", late)
    assert loaded(cluster, source, "moving", "moving").rows == ROWS
    assert_same(cluster, source, "moving")


def test_no_load_is_begun_if_the_arguments_are_refused(spark: SparkSession, cluster: LocalCluster) -> None:
    """Loads that a refused run has begun would be kept for a day, and a cluster permits only a few loads at once."""
    source = frame(spark, ROWS)
    columns = {"columns": PairColumns(("key",), ("valu",))}
    full = source.limit(1).selectExpr("key", "value", "interval '1' day a_type_that_no_value_has")
    for rows, options, problem in (
        (source, columns, "the source has no column 'valu'"),
        (source, {"columns": PLAIN, "last_by": "nope"}, "nope"),
        (full, {"columns": PairColumns(("key",))}, "a_type_that_no_value_has is of type"),
    ):
        with pytest.raises(MinkaError, match=problem) as refused:
            load(
                spark,
                rows,
                KEYSPACE,
                LoadOptions(**options),
                endpoints=cluster.endpoints,
                load_id="mistake",
                timeout=30,
            )
        assert refused.value.code is Code.INVALID_ARGUMENT
        assert state_of(cluster, "mistake") is None


def test_a_load_without_room_does_not_begin(
    spark: SparkSession, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "bytes_of", lambda _: 1 << 59)
    with pytest.raises(MinkaError, match="has room for") as refused:
        loaded(cluster, frame(spark, ROWS), KEYSPACE, "large")
    assert refused.value.code is Code.DISK_FULL
    assert state_of(cluster, "large") is None


def test_a_load_is_aborted_if_its_source_raises_an_error(spark: SparkSession, cluster: LocalCluster) -> None:
    """The run aborts its load, since no file is in the spools, and another run would be refused in the same way."""

    def refuse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            raise MinkaError(Code.INVALID_ARGUMENT, f"the {batch.num_rows} rows can't be read")
        yield from ()

    source = frame(spark, ROWS).mapInArrow(refuse, "key string, value string")
    with pytest.raises(MinkaError, match=r"INVALID_ARGUMENT: the .* rows can't be read"):
        loaded(cluster, source, KEYSPACE, "unreadable")
    assert state_of(cluster, "unreadable") == LoadState.LOAD_STATE_ABORTED


def test_a_load_that_another_program_began_is_continued(spark: SparkSession, cluster: LocalCluster) -> None:
    """The text that another program keeps with a load has no options, so the run's options aren't compared."""
    with LoadClient(cluster.endpoints) as client:
        client.begin("foreign", KEYSPACE, job="of another program")
    assert loaded(cluster, frame(spark, ROWS), KEYSPACE, "foreign", on_conflict="replace").rows == ROWS


def test_the_size_of_a_source_is_known_only_if_it_is_files_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    frame(spark, ROWS).write.parquet(str(tmp_path / "rows"))
    rows = spark.read.parquet(str(tmp_path / "rows"))
    size = sum(path.stat().st_size for path in (tmp_path / "rows").glob("*.parquet"))
    assert bytes_of(rows) == size
    for unknown in (
        rows.join(rows.withColumnRenamed("value", "other"), "key"),
        rows.where("key > 'k'"),
        rows.selectExpr("key", "repeat(value, 9) value"),
        rows.union(rows),
    ):
        assert bytes_of(unknown) == 0
