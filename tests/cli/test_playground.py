"""`minkactl playground` as a person runs it, with real daemons, and with commands in other shells. After the end of the
playground, no process or file is left.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster, configuration_of, merged
from minka.testing.loopback_ports import PORTS
from minkactl.exits import Exit
from tests.cli.conftest import Run, until


def gone(pid: int) -> bool:
    """True if the process has ended, even if its parent hasn't read its exit status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


class Foreground:
    """A process that runs `minkactl playground`, and its output so far."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "minkactl", "playground", *arguments],
                stdout=out, stderr=err, env=os.environ | {"TMPDIR": str(folder)}, start_new_session=True,
            )  # fmt: skip
        until(lambda: self.ended() or "Ctrl-C stops it" in self.err.read_text(), "the playground is up", 30)
        assert not self.ended(), self.err.read_text()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def rows(self, run: Run) -> dict[str, dict[str, str]]:
        return {row["name"]: row for row in json.loads(run("playground", "list", "-o", "json").stdout)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder for the playground's temporary files."""
    path = tmp_path / "t"
    path.mkdir()
    return path


@pytest.fixture
def foreground(folder: Path) -> Iterator[Callable[..., Foreground]]:
    """A function that starts a playground; the playground ends with the test."""
    started: list[Foreground] = []

    def start(*arguments: str) -> Foreground:
        started.append(Foreground(folder, *arguments))
        return started[-1]

    yield start
    for one in started:
        if not one.ended():
            one.process.kill()
        one.process.wait()


def test_a_playground(run: Run, foreground: Callable[..., Foreground], folder: Path) -> None:
    playground = foreground("--nodes", "3")
    lines = playground.out.read_text().splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["athens", "byzantium", "cyrene"]
    endpoints = lines[3].removeprefix("export MINKA_ENDPOINTS=").split(",")
    assert endpoints == [line.split()[1] for line in lines[:3]]

    assert run("status", "-o", "json").exit_code == 0
    assert run("keyspace", "create", "flights", "--partitions", "6").exit_code == 0
    assert run("kv", "put", "flights", "a", "1").exit_code == 0

    assert run("playground", "add").exit_code == 0
    assert run("nodes", "-o", "name").stdout.split() == ["athens", "byzantium", "cyrene", "ephesus"]

    assert run("playground", "kill", "cyrene").exit_code == 0
    assert playground.rows(run)["cyrene"]["state"] == "stopped"
    assert run("playground", "kill", "cyrene").exit_code == Exit.FAILED
    until(lambda: run("status").exit_code == Exit.UNHEALTHY, "cyrene is missed")
    assert run("playground", "restart", "cyrene").exit_code == 0
    until(lambda: run("status").exit_code == 0, "cyrene is back")
    assert run("kv", "get", "flights", "a").stdout == "1"

    assert "UNKNOWN_NODE" in run("playground", "kill", "corinth").stderr
    second = run("playground", "--nodes", "1")
    assert second.exit_code == Exit.FAILED
    assert "one is running already" in second.stderr

    pids = [int(row["pid"]) for row in playground.rows(run).values()]
    playground.process.send_signal(signal.SIGINT)
    assert playground.process.wait(20) == 0
    assert all(gone(pid) for pid in pids)
    assert {path.name for path in folder.iterdir()} == {"out", "err"}
    assert run("playground", "list").exit_code == Exit.FAILED
    assert "NO_PLAYGROUND" in run("playground", "list").stderr


def test_a_killed_playground_leaves_nothing(run: Run, foreground: Callable[..., Foreground], folder: Path) -> None:
    playground = foreground("--nodes", "1")
    pids = [int(row["pid"]) for row in playground.rows(run).values()]
    playground.process.kill()
    until(lambda: all(gone(pid) for pid in pids), "the nodes are gone")
    until(lambda: {path.name for path in folder.iterdir()} == {"out", "err"}, "its folder is gone")
    until(lambda: not list(Path(os.environ["XDG_RUNTIME_DIR"]).iterdir()), "the pointer is gone")


def test_data_is_kept_where_it_was_asked_for(run: Run, foreground: Callable[..., Foreground], tmp_path: Path) -> None:
    data = str(tmp_path / ("a-long-name" * 12) / "data")  # too long for the address of a Unix socket
    first = foreground("--nodes", "1", "--data", data)
    assert run("keyspace", "create", "flights", "--partitions", "2").exit_code == 0
    assert run("kv", "put", "flights", "a", "1").exit_code == 0
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(20) == 0
    foreground("--data", data)
    assert run("nodes", "-o", "name").stdout.split() == ["athens"]
    assert run("kv", "get", "flights", "a").stdout == "1"


def test_a_node_that_cannot_start_says_why(tmp_path: Path) -> None:
    cluster = LocalCluster(1, tmp_path / "c", config={"membership": {"clearance_ms": "soon"}})
    try:
        with pytest.raises(MinkaError) as caught:
            cluster.start()
    finally:
        cluster.stop()
    assert caught.value.code is Code.PLAYGROUND_FAILED
    assert "athens ended with status 2" in caught.value.message
    assert "membership.clearance_ms: must be" in caught.value.message


def test_the_parts_of_a_local_cluster() -> None:
    cluster = LocalCluster(5, config={"membership": {"clearance_ms": 500}}, env={"A": "1"})
    try:
        assert list(cluster.nodes) == ["athens", "byzantium", "cyrene", "ephesus", "delphi"]
        ports = [int(address.rpartition(":")[2]) for address in cluster.endpoints]
        assert len(set(ports)) == 5
        assert all(port in PORTS for port in ports)
        founder, late = (configuration_of(cluster, cluster.node(name)) for name in ("athens", "ephesus"))
        assert [voter["id"] for voter in founder["cluster"]["bootstrap"]] == ["athens", "byzantium", "cyrene"]
        assert "join" not in founder["cluster"]
        assert late["cluster"]["join"] == list(cluster.endpoints[:3])
        assert late["membership"] == {"clearance_ms": 500}
        with pytest.raises(MinkaError, match="UNKNOWN_NODE"):
            cluster.log("troy")
        with pytest.raises(MinkaError, match="athens exists already"):
            cluster.add("athens")
        with pytest.raises(MinkaError, match="athens is not running"):
            cluster.kill("athens")
    finally:
        directory = cluster.directory
        cluster.stop()
    assert not directory.exists()


def test_merging() -> None:
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": [1]}
    assert merged(base, {"a": {"c": {"d": 3}}, "e": []}) == {"a": {"b": 1, "c": {"d": 3}}, "e": []}
    assert base == {"a": {"b": 1, "c": {"d": 2}}, "e": [1]}
