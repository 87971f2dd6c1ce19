"""The commands of docs/operations.md for an export, and for the load of the exported files, each typed twice."""

import shlex
from pathlib import Path

from click.testing import CliRunner
from pyspark.sql import SparkSession

from minka import Client
from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from minkactl.cli import cli
from tests.cluster.cluster import CALM, wait_settled
from tests.cluster.runbooks import block

ROWS = {b"key-%03d" % number: b"%d" % number for number in range(200)}


def test_a_second_export_and_a_load_of_existing_keys_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    export, load = block("minkactl data export flights").replace("/backup", str(tmp_path)).splitlines()
    with LocalCluster(1, config=CALM) as cluster:
        with Control(cluster.endpoints) as control:
            control.create_keyspace("flights", 2, HashFunction.HASH_FUNCTION_MURMUR3)
            wait_settled(control, live=1)
        with Client(cluster.endpoints, keyspace="flights") as client:
            client.put_many(ROWS)

            def typed(line: str) -> tuple[int, str]:
                arguments = shlex.split(line)[1:]
                ended = CliRunner().invoke(cli, [*arguments, "--quiet", "--endpoints", ",".join(cluster.endpoints)])
                return ended.exit_code, ended.stderr

            assert typed(export) == (0, "")
            files = {path: path.read_bytes() for path in tmp_path.glob("flights/*")}
            client.put_many({b"later": b"1"})
            status, said = typed(export)
            assert (status != 0, "INVALID_ARGUMENT" in said) == (True, True), said
            assert {path: path.read_bytes() for path in tmp_path.glob("flights/*")} == files
            for _ in range(2):
                status, said = typed(load)
                assert (status, said.startswith("error: KEY_EXISTS: ")) == (1, True), said
                assert client.get_many([*ROWS, b"later"]) == ROWS | {b"later": b"1"}
