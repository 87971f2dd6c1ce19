"""Refusals of `LocalCluster` before it starts any process."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster, LocalNode


@pytest.mark.parametrize("nodes", ["athens", b"athens", 1.5, None])
def test_one_text_is_refused_where_names_of_nodes_are_expected(tmp_path: Path, nodes: Any) -> None:
    with pytest.raises(MinkaError, match="a number of nodes, or their names, are wanted, not") as refusal:
        LocalCluster(nodes, tmp_path)
    assert refusal.value.code is Code.INVALID_ARGUMENT
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (True, "nodes=True isn't a number of nodes, or their names"),
        (0, "a local cluster has 1 to 100 nodes, not 0"),
        (21, "nodes=21 isn't from 1 to 20; for up to 100 nodes, give their names"),
        ([f"n{number}" for number in range(101)], "a local cluster has 1 to 100 nodes, not 101"),
        (["athens", "cyrene", "athens"], "two nodes have the same name: athens"),
    ],
)
def test_a_wrong_number_of_nodes_is_refused(tmp_path: Path, nodes: Any, why: str) -> None:
    with pytest.raises(MinkaError) as refusal:
        LocalCluster(nodes, tmp_path)
    assert (refusal.value.code, refusal.value.message) == (Code.INVALID_ARGUMENT, why)
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_does_not_run_names_its_log(tmp_path: Path) -> None:
    cluster = LocalCluster(1, tmp_path)
    with pytest.raises(MinkaError, match="athens is not running: it was not started; its log is") as refusal:
        cluster.kill("athens")
    assert refusal.value.code is Code.PLAYGROUND_FAILED
    assert str(cluster.log("athens")) in refusal.value.message
    cluster.stop()


def refusal_of(call: Callable[[], object]) -> MinkaError:
    with pytest.raises(MinkaError) as refusal:
        call()
    return refusal.value


@pytest.mark.parametrize("name", ["../x", "", ".", "a/b", "A B", "athens ", "n" * 64])
def test_the_name_of_a_node_is_an_id_for_minkad(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "cluster"
    error = refusal_of(lambda: LocalCluster([name], folder))
    rule = "must have 1 to 63 characters of a-z, 0-9, dot and dash, beginning with a letter or digit"
    assert (error.code, error.message) == (Code.INVALID_ARGUMENT, f"a node's name {rule}: {name!r}")
    assert list(tmp_path.iterdir()) == []
    cluster = LocalCluster(1, folder)
    if name:
        assert refusal_of(lambda: cluster.add(name)).message == error.message
    assert list(cluster.nodes) == ["athens"]
    assert list(tmp_path.iterdir()) == [folder]


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"config": 5}, "config is int, not a mapping such as {'storage': {'max_sync_s': 2}}"),
    ({"env": 5}, "env is int, not a mapping such as {'MINKAD_LOG_LEVEL': 'debug'}"),
    ({"env": {"A": 5}}, "env['A'] is int, not str"),
    ({"env": {5: "A"}}, "the name of a variable in env is int, not str"),
    ({"env": {"A=B": "C"}}, "the name of a variable in env must be a text without = and NUL: 'A=B'"),
    ({"env": {"A": "\0"}}, "env['A'] has a NUL: '\\x00'"),
]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        *OPTIONS,
        ({"directory": "text"}, "directory='text' isn't a pathlib.Path"),
        ({"directory": 5}, "directory=5 isn't a pathlib.Path"),
        ({"nodes": [5]}, "a node's name is int, not str"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused(tmp_path: Path, arguments: dict[str, Any], why: str) -> None:
    all_arguments: dict[str, Any] = {"nodes": 1, "directory": tmp_path} | arguments
    error = refusal_of(lambda: LocalCluster(**all_arguments))
    assert (error.code, error.message) == (Code.INVALID_ARGUMENT, why)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("arguments", "why"), [*OPTIONS, ({"name": 5}, "a node's name is int, not str")])
def test_a_node_is_not_added_with_an_argument_of_a_wrong_type(
    tmp_path: Path, arguments: dict[str, Any], why: str
) -> None:
    cluster = LocalCluster(1, tmp_path)
    calls: list[Callable[[], object]] = [lambda: cluster.add(**arguments)]
    if "name" not in arguments:
        calls.append(lambda: cluster.restart("athens", **arguments))
    for call in calls:
        error = refusal_of(call)
        assert (error.code, error.message) == (Code.INVALID_ARGUMENT, why)
    assert list(cluster.nodes) == ["athens"]
    assert (cluster.node("athens").config, cluster.node("athens").env) == ({}, {})


def test_a_configuration_that_is_not_yaml_is_refused(tmp_path: Path) -> None:
    error = refusal_of(LocalCluster(1, tmp_path, config={"storage": object()}).start)
    assert error.code is Code.INVALID_ARGUMENT
    assert error.message.startswith("the configuration of athens can't be written as YAML: ")


@pytest.mark.parametrize("path", ["/dev/null", "/dev/null/x", "/proc/x", "/a\0b"])
def test_a_directory_that_can_not_be_used_is_named(path: str) -> None:
    error = refusal_of(lambda: LocalCluster(1, Path(path)))
    assert error.code is Code.PLAYGROUND_FAILED
    assert error.message.startswith(f"a local cluster can't use {path}: ")


@pytest.mark.parametrize("content", ["", "5", "[1]", '{"athens": 5}', "\udc80"])
def test_a_damaged_list_of_nodes_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content, "utf-8", "surrogateescape")
    error = refusal_of(lambda: LocalCluster(1, tmp_path))
    assert error.code is Code.PLAYGROUND_FAILED
    assert error.message.startswith(f"a local cluster can't use {tmp_path}/cluster.json: ")


def test_a_directory_has_one_cluster_at_a_time(tmp_path: Path) -> None:
    first = LocalCluster(1, tmp_path)
    error = refusal_of(lambda: LocalCluster(1, tmp_path))
    assert error.code is Code.PLAYGROUND_FAILED
    assert error.message.startswith(f"another local cluster uses {tmp_path}: ")
    first.stop()
    first.stop()
    second = LocalCluster(1, tmp_path)
    assert second.endpoints == first.endpoints
    del second
    LocalCluster(1, tmp_path).stop()  # the directory is free: `second` was dropped, and it had started no nodes


def test_a_directory_is_free_when_the_process_of_its_cluster_has_ended(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from minka.testing import LocalCluster;"
        "cluster = LocalCluster(1, Path(sys.argv[1])); print(1, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n"
        assert "another local cluster uses" in refusal_of(lambda: LocalCluster(1, tmp_path)).message
        other.kill()
    LocalCluster(1, tmp_path).stop()


@pytest.mark.parametrize("temporary", [True, False])
def test_a_stopped_cluster_starts_no_node(tmp_path: Path, temporary: bool) -> None:
    cluster = LocalCluster(1, None if temporary else tmp_path)
    cluster.stop()
    starts: list[Callable[[], object]] = [cluster.start, cluster.add, lambda: cluster.restart("athens")]
    for start in starts:
        with pytest.raises(MinkaError, match="can't be started: the cluster was stopped") as refusal:
            start()
        assert refusal.value.code is Code.PLAYGROUND_FAILED
    assert list(cluster.nodes) == ["athens"]


def test_on_a_slow_machine_nodes_get_more_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr("minka.testing.local_cluster.is_ready", lambda address: False)
    monkeypatch.setattr("minka.testing.local_cluster.time.monotonic", lambda: float(next(now)))
    monkeypatch.setattr("minka.testing.local_cluster.time.sleep", lambda seconds: None)
    monkeypatch.setattr(LocalNode, "running", property(lambda node: True))
    for cluster, seconds in (
        (LocalCluster(1, tmp_path / "a"), 20),
        (LocalCluster(1, tmp_path / "b", ready_timeout_s=60), 60),
    ):
        with pytest.raises(MinkaError, match=f"was not ready within {seconds} s"):
            cluster.wait_ready()
    with pytest.raises(MinkaError, match="ready_timeout_s=0 isn't a positive time"):
        LocalCluster(1, tmp_path, ready_timeout_s=0)


@pytest.mark.parametrize("name", ["cluster.json", "cluster.lock"])
def test_a_node_is_not_named_like_a_file_of_the_cluster(tmp_path: Path, name: str) -> None:
    error = refusal_of(lambda: LocalCluster([name], tmp_path))
    assert (error.code, error.message) == (
        Code.INVALID_ARGUMENT, f"a node's name can't be the name of a file of the cluster: {name!r}",
    )  # fmt: skip


def test_wrong_names_and_signals_are_refused(tmp_path: Path) -> None:
    cluster, wrong = LocalCluster(1, tmp_path), cast(Any, 999)
    assert refusal_of(lambda: cluster.wait_ready("athens")).message == "the names of nodes are wanted, not str"
    assert refusal_of(lambda: cluster.signal("athens", wrong)).message == "number=999 isn't one of signal.Signals"
    cluster.stop()


def test_a_machine_without_a_temporary_directory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    error = refusal_of(lambda: LocalCluster(1))
    assert error.code is Code.PLAYGROUND_FAILED
    assert error.message.startswith("there is no temporary directory for a cluster: ")


def test_a_failure_on_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalCluster, "_launch", lambda *_: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    error = refusal_of(LocalCluster(1, tmp_path).start)
    assert f"athens was not started; the disk of {tmp_path} has only 4096 bytes free; " in error.message


def test_a_cluster_that_can_not_be_made_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("5")
    error = refusal_of(lambda: LocalCluster(1, tmp_path))  # the error keeps the frames of the constructor
    (tmp_path / "cluster.json").unlink()
    LocalCluster(1, tmp_path).stop()
    assert error.code is Code.PLAYGROUND_FAILED


def test_a_cluster_that_was_stopped_is_not_ready() -> None:
    cluster = LocalCluster(1)
    cluster.stop()
    assert refusal_of(cluster.wait_ready).message.startswith("athens was not started; ")
