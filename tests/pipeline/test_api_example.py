"""The examples of minka.spark in docs/api.md run unchanged, except that they get the test's endpoints."""

import re
import runpy
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import minka.spark
from minka.admin import Admin
from minka.rows import decode_value, encode_key
from minka.testing import LocalCluster

EXAMPLES = re.findall(r"(?:^ {4}.*\n)+", minka.spark.__doc__ or "", re.MULTILINE)
ROWS = "day,number,dest,delay\n2013-01-01,1545,IAH,2.0\n2013-01-02,1714,IAH,4.0\n"


@pytest.mark.timeout(300)  # the examples run ten jobs of Spark
def test_the_examples_run(
    spark: SparkSession,
    cluster: LocalCluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    source = tmp_path / "flights.csv"
    source.write_text(ROWS)
    with Admin(cluster.endpoints) as admin:
        admin.create_keyspace("flights", split_points=[])
    names: dict[str, Any] = {**vars(minka.spark), "minka": minka, "spark": spark}
    reading, jobs = (textwrap.dedent(one) for one in EXAMPLES)
    for number, example in enumerate((jobs, reading)):  # the jobs come first: they fill the keyspace for `reading`
        text = example.replace("athens:7400,byzantium:7400", ",".join(cluster.endpoints))
        text = text.replace('["athens:7400"]', repr(list(cluster.endpoints))).replace("flights.csv", str(source))
        (tmp_path / f"{number}.py").write_text(text)
        names = runpy.run_path(str(tmp_path / f"{number}.py"), names)
    printed = capfd.readouterr().out
    assert printed.startswith("2\nTrue\n")
    assert "|2013-01-01|  1545| IAH|  2.0|" in printed
    assert "2013-01-02" not in printed
    key, value = next((row.key, row.value) for row in names["pairs"].orderBy("key").collect())
    assert bytes(key) == encode_key([names["rows"].orderBy("day").first().day, 1545])
    assert decode_value(bytes(value)) == {"dest": "IAH", "delay": 2.0}
    assert names["changes"].isStreaming
