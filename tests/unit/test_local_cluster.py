"""Refusals of `LocalCluster` before it starts any process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    for cluster, seconds in ((LocalCluster(1, tmp_path), 20), (LocalCluster(1, tmp_path, ready_timeout_s=60), 60)):
        with pytest.raises(MinkaError, match=f"was not ready within {seconds} s"):
            cluster.wait_ready()
    with pytest.raises(MinkaError, match="ready_timeout_s=0 isn't a positive time"):
        LocalCluster(1, tmp_path, ready_timeout_s=0)
