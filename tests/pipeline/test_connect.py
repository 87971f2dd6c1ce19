"""A job runs on a real Spark Connect server, and on executors in other processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from minka.bulk.row_digest import Digest
from minka.spark.java import find_java
from minka.testing.loopback_ports import free_addresses
from tests.cluster.cluster import eventually

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

SPARK_HOME = Path(pyspark.__file__).parent
PAIRS = [(f"key-{number}", f"value-{number}") for number in range(5000)]


def environment(**added: str | None) -> dict[str, str]:
    given = os.environ | find_java().environment() | {"SPARK_HOME": str(SPARK_HOME)} | added
    return {name: value for name, value in given.items() if value is not None}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a Spark Connect server whose tasks run on this Python; gives the server's address."""
    (address,) = free_addresses(1)
    host, _, port = address.rpartition(":")
    conf = {"spark.connect.grpc.binding.address": host, "spark.connect.grpc.binding.port": port}
    conf |= {"spark.ui.enabled": "false", "spark.driver.host": host, "spark.driver.bindAddress": host}
    settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command = [str(SPARK_HOME / "sbin" / "start-connect-server.sh"), "--wait", "--master", "local[2]", *settings]
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as output:
        given = environment(PYSPARK_PYTHON=sys.executable)
        process = subprocess.Popen(command, env=given, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        eventually("a started server", lambda: "Spark Connect server started" in log.read_text() or None, 120)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # the script wouldn't pass the signal on, so the server gets it, too
        process.wait()
        eventually("the server has ended", lambda: not is_group(process.pid))


def is_group(number: int) -> bool:
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


def digest(folder: Path, *options: str, **added: str) -> subprocess.CompletedProcess[str]:
    source = folder / "pairs.csv"
    source.write_text("k,v\n" + "".join(f"{key},{value}\n" for key, value in PAIRS))
    asked = [sys.executable, "-m", "minkactl", "data", "digest", str(source), "--key", "k", "--value", "v", *options]
    return subprocess.run(asked, env=environment(**added), capture_output=True, text=True, check=False, cwd=folder)


def assert_is_right(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    expected = Digest.of((key.encode(), value.encode()) for key, value in PAIRS)
    found = Digest(report["rows"], report["bytes"], int(report["xor"], 16), int(report["sum"], 16))
    assert found == expected
    assert all(line.startswith("1/1 read: ") for line in done.stderr.splitlines()[1:]), done.stderr


def test_a_job_on_a_connect_server(server: str, tmp_path: Path) -> None:
    assert_is_right(digest(tmp_path, "--remote", f"sc://{server}", "-o", "json"))


def test_an_error_on_a_connect_server_is_reported_like_any_other(server: str, tmp_path: Path) -> None:
    done = digest(tmp_path, "--remote", f"sc://{server}", "--key", "other")
    assert done.returncode == 2
    assert "the source has no column 'other'" in done.stderr


def test_a_job_on_executors_of_a_cluster(tmp_path: Path) -> None:
    done = digest(tmp_path, "--master", "local-cluster[1,1,1024]", "-o", "json", PYSPARK_PYTHON=sys.executable)
    assert_is_right(done)


def test_executors_without_minka_are_refused_before_the_job(tmp_path: Path) -> None:
    """The tasks run on a Python that can't import minka, as on a cluster whose Python has only PySpark."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['minka'] = None")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = digest(tmp_path, "--master", "local-cluster[1,1,1024]", PYSPARK_PYTHON=str(python))
    assert done.returncode == 1
    assert "error: SPARK_FAILED: the tasks of local-cluster[1,1,1024] can't run minka" in done.stderr
    assert "ModuleNotFoundError: " in done.stderr
