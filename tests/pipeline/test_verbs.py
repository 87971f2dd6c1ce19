"""The verbs of `minkactl data`, as a person types them: load with --presplit, verify with its exit status, export with
--since, splits.
"""

import json
from pathlib import Path

from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from minka import Client
from minka.admin.control import Control
from minka.spark.exporting import ExportReport
from minka.testing.local_cluster import LocalCluster
from minkactl.cli import cli

LINES = ["id,name,note"] + [f"{number:05},name {number},{'x' * (number % 50)}" for number in range(2000)]


def here(cluster: LocalCluster, *arguments: str) -> Result:
    """Run minkactl in this process, so that it uses the tests' Spark session: a new one takes ten seconds to start."""
    options = ["--quiet", "-o", "json", "--endpoints", ",".join(cluster.endpoints)]
    return CliRunner().invoke(cli, ["data", *arguments, *options], prog_name="minkactl")


def test_minkactl_creates_loads_and_verifies_a_keyspace(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    source = tmp_path / "names.csv"
    source.write_text("\n".join(LINES))
    loaded = here(cluster, "load", str(source), "names", "--key", "id", "--presplit", "4", "--id", "names-1")
    assert loaded.exit_code == 0, loaded.stderr
    report = json.loads(loaded.stdout)
    assert (report["job"], report["rows"], report["partitions"]) == ("load", 2000, 4)
    assert loaded.stderr == ""
    with Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="names") as client:
        assert len(control.table().partitions) == 4
        client.delete("00007")
        different = here(cluster, "verify", str(source), "names", "--key", "id")
        assert different.exit_code == 1, different.stderr
        assert json.loads(different.stdout)["differences"][0]["key"] == "00007"
        repaired = here(cluster, "verify", str(source), "names", "--key", "id", "--repair")
        assert repaired.exit_code == 0, repaired.stderr
        assert client.get("00007") == b'{"name":"name 7","note":"xxxxxxx"}'
    again = here(cluster, "load", str(source), "names", "--key", "id", "--presplit", "4")
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr.startswith("error: KEYSPACE_EXISTS: the keyspace names exists"), again.stderr


def test_mistakes_are_found_before_a_job(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    """Two mistakes are refused before Spark runs anything: `--since` with the report of another keyspace, and `--write`
    with a file that can't be written.
    """
    report = tmp_path / "report.json"
    report.write_text(
        ExportReport(
            keyspace="names",
            started="2026-01-01T00:00:00+00:00",
            seconds=1.0,
            rows=0,
            bytes=0,
            destination="",
            file_format="parquet",
            versions={"1": 5},
        ).to_json()
    )
    other = here(cluster, "export", "others", str(tmp_path / "out"), "--since", str(report))
    assert (other.exit_code, other.stdout) == (2, "")
    assert f"INVALID_ARGUMENT: {report} is the report of an export of names, not of others" in other.stderr
    source, kept = tmp_path / "absent.csv", tmp_path / "points"
    kept.write_text("k5\n")
    asked = ["splits", str(source), "--key", "id", "--ranges", "4", "--write"]
    unwritable = here(cluster, *asked, str(tmp_path / "nowhere" / "points"))
    assert (unwritable.exit_code, unwritable.stdout) == (2, "")
    assert "No such file or directory" in unwritable.stderr
    assert "absent.csv" in here(cluster, *asked, str(tmp_path / "new")).stderr
    assert "absent.csv" in here(cluster, *asked, str(kept)).stderr
    assert not (tmp_path / "new").exists()
    assert kept.read_text() == "k5\n"
