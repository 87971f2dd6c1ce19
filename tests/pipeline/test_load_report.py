"""The load report of a real cluster names a hot partition, and the report's plan splits the partition."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from threading import Event, Thread

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from minka import Client
from minka.admin.control import Control
from minka.bulk.load_history import HistoryClient, NodeInterval
from minka.errors import Code, MinkaError
from minka.load_report.analysis import coarser
from minka.spark import load_report
from minka.spark.load_analysis import ClusterLoadReport, _without_torn_end
from minka.spark.traffic_history import history, summed
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, PartitionTable
from minka.wire.history_rows import PartitionInterval
from minkactl.cli import cli
from tests.cluster.cluster import QUICK, eventually, wait_settled

HOT = [f"m{number:04}".encode() for number in range(1000)]
COLD = [b"%c%04d" % (letter, number) for letter in b"az" for number in range(200)]
MINUTE_MS = 60_000


@pytest.fixture(scope="module")
def cluster(spark: SparkSession) -> Iterator[LocalCluster]:
    config = QUICK | {"history": {"interval_s": 1}}
    with LocalCluster(3, config=config) as cluster, Control(cluster.endpoints) as control:
        points = [b"g", b"s"]
        control.create_keyspace("ranged", 0, HashFunction.HASH_FUNCTION_UNSPECIFIED, replicas=2, split_points=points)
        wait_settled(control, live=3)
        with Client(cluster.endpoints, keyspace="ranged") as client:
            client.put_many(dict.fromkeys(HOT + COLD, b"v" * 100))
        yield cluster


@contextmanager
def busy(cluster: LocalCluster) -> Iterator[None]:
    """A client reads the same partition again and again while the body of `with` runs. The body begins when the nodes'
    history has several rounds of these reads, so that the fixture's writes hardly count.
    """
    stop, errors, began = Event(), list[Exception](), round(time.time() * 1000)

    def read() -> None:
        try:
            with Client(cluster.endpoints, keyspace="ranged") as client:
                while not stop.wait(0.1):
                    client.get_many(HOT)
                    client.get(COLD[0])
        except Exception as error:  # noqa: BLE001  # raised in the test's own thread
            errors.append(error)

    thread = Thread(target=read)
    thread.start()
    try:
        eventually("the nodes have reported the reads", lambda: told_reads(cluster, began) > 5 * len(HOT), every=0.2)
        yield
    finally:
        stop.set()
        thread.join()
    assert not errors, errors


def told_reads(cluster: LocalCluster, since_ms: int) -> int:
    with HistoryClient(cluster.endpoints) as client:
        found = [one for node in client.nodes() for one in client.read(node, since_ms)]
    return sum(row.reads for one in found for row in one.partitions)


def minkactl(cluster: LocalCluster, *arguments: str) -> Result:
    """Run minkactl in this process, so that it uses the tests' session."""
    return CliRunner().invoke(cli, [*arguments, "--endpoints", ",".join(cluster.endpoints)], prog_name="minkactl")


def hot_row(table: PartitionTable) -> int:
    return next(row.id for row in table.partitions if row.start_key <= HOT[0] and HOT[-1] < row.end_key)


class Page(HTMLParser):
    """Checks that elements are nested, and collects the addresses that a browser would fetch."""

    VOID = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.plots = 0
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.plots += tag == "svg" and ("role", "img") in attrs
        self.fetched += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.fetched += [tag] * (tag in ("script", "link", "iframe", "object", "embed"))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_hot_partition_is_named_and_split_by_the_plan(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    page, rows, plan = tmp_path / "load.html", tmp_path / "rows", tmp_path / "plan.json"
    with Control(cluster.endpoints) as control, busy(cluster):
        hot = hot_row(control.table())
        files = ["--html", str(page), "--parquet", str(rows), "--plan", str(plan)]
        ran = minkactl(cluster, "data", "load-report", "--since", "1h", *files, "--quiet", "-o", "json")
    assert ran.exit_code == 0, ran.stderr
    assert ran.stderr.endswith(f"The plan is in {plan}. Apply it with: minkactl apply {plan}\n")
    report = json.loads(ran.stdout)
    assert (report["job"], report["missing"]) == ("load-report", [])
    assert set(report["nodes"]) == set(cluster.nodes)
    assert report["hot"][0]["partition"] == "ranged/2"
    assert report["hot"][0]["of_cluster"] > 0.9
    assert report["imbalance"][-1]["ops"] > 2.5, "one of three nodes does all the work"
    assert {one["node"] for one in report["forecasts"]} == set(cluster.nodes)
    assert [one["partition"] for one in report["proposals"]["splits"]] == ["ranged/2"]
    assert ClusterLoadReport.from_json(ran.stdout).rows == report["rows"]

    text = page.read_text()
    found = Page(text)
    assert (found.fetched, found.plots) == ([], 8)
    assert not any(mark in text for mark in ("http:", "https:", "url(", "@import"))
    assert "ranged/2" in text
    assert f"minkactl apply {plan}" in text

    frame = spark.read.parquet(str(rows))
    assert frame.where("kind = 'partition'").count() == report["rows"]
    busiest = frame.groupBy("keyspace", "partition", "partition_id").agg({"reads": "sum"}).orderBy("sum(reads)")
    last = busiest.where("keyspace is not null").collect()[-1]
    assert tuple(last)[:3] == ("ranged", "ranged/2", hot)
    assert frame.where("kind = 'node' and free_bytes > 0").select("node").distinct().count() == 3

    applied = minkactl(cluster, "apply", str(plan), "--yes")
    assert applied.exit_code == 0, applied.stderr
    with Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="ranged") as client:
        after = wait_settled(control, live=3)
        assert len(after.partitions) > 3
        with pytest.raises(StopIteration):
            hot_row(after)
        assert client.get_many(HOT) == dict.fromkeys(HOT, b"v" * 100)


def test_spark_sums_up_the_history_as_python_does(spark: SparkSession, cluster: LocalCluster) -> None:
    with busy(cluster):
        pass
    to_ms = round(time.time() * 1000)
    with HistoryClient(cluster.endpoints) as client, Control(cluster.endpoints) as control:
        nodes = client.nodes()
        eventually("all is told until then", lambda: all(list(client.read(node, to_ms)) for node in nodes))
        told = [one for node in nodes for one in client.read(node, 0, to_ms)]
        table = control.table()
    expected = coarser(told, 5000)
    rows = [row for one in expected for row in one.partitions]
    assert any(row.reads for row in rows)
    assert any(row.writes for row in rows)
    frame = history(spark, cluster.endpoints, table, told[0].start_ms - 10 * MINUTE_MS, to_ms)
    for found, wanted in zip(comparable(summed(frame, 5000)), comparable(expected), strict=True):
        assert found == wanted


def comparable(intervals: list[NodeInterval]) -> list[NodeInterval]:
    """Sort the partitions, and make tuples of the buckets, so that the intervals can be compared."""
    return [replace(one, partitions=sorted(map(_plain, one.partitions), key=_id)) for one in intervals]


def _plain(row: PartitionInterval) -> PartitionInterval:
    return replace(row, reads_took=tuple(row.reads_took), writes_took=tuple(row.writes_took))


def _id(row: PartitionInterval) -> int:
    return row.partition_id


def test_a_node_that_is_down_is_named(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    down = sorted(cluster.nodes)[-1]
    cluster.kill(down)
    page = tmp_path / "load.html"
    try:
        report = load_report(spark, endpoints=cluster.endpoints, until=datetime.now(UTC), html=page)
    finally:
        cluster.restart(down)
    assert len(report.missing) == 1
    assert report.missing[0].startswith(f"{down}: UNREACHABLE: ")
    assert report.nodes == tuple(sorted(set(cluster.nodes) - {down}))
    assert f"<strong>Missing:</strong> {down}: " in page.read_text()
    nothing = load_report(
        spark, endpoints=cluster.endpoints, since=timedelta(hours=1), until=datetime(2020, 1, 1, tzinfo=UTC)
    )
    assert (nothing.rows, nothing.hot, nothing.plan) == (0, (), None)
    with pytest.raises(MinkaError, match="the least is one minute") as refused:
        load_report(spark, endpoints=cluster.endpoints, since=timedelta(seconds=1))
    assert refused.value.code is Code.INVALID_ARGUMENT


def test_the_last_step_is_left_out_until_all_nodes_have_reported_it() -> None:
    def steps(*told: str) -> list[NodeInterval]:
        return [NodeInterval(node, step * MINUTE_MS, MINUTE_MS) for step, nodes in enumerate(told) for node in nodes]

    assert _without_torn_end(steps("abc", "abc", "ab")) == steps("abc", "abc")
    for whole in (["abc", "abc"], ["abc", "ab", "ab"], ["ab", "abc"], ["a"], []):
        assert _without_torn_end(steps(*whole)) == steps(*whole)
