"""Every kind of file in a data directory is damaged in every way: answers are right or refused, and the node
recovers.
"""

import shutil
from pathlib import Path

import pytest

from minka import Client
from minka.control import Control
from minka.v1.cluster_pb2 import HashFunction
from minkactl.playground import LocalCluster
from tests.cluster.cluster import QUICK, eventually, wait_settled
from tests.cluster.damage import Template, cells, copied, outcome

MURMUR3 = HashFunction.HASH_FUNCTION_MURMUR3


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("running", [False, True], ids=["stopped", "running"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_the_whole_matrix(tmp_path: Path, replicas: int, running: bool) -> None:
    template = Template(tmp_path / "template", replicas)
    wrong: list[str] = []
    for number, cell in enumerate(cells(replicas, running)):
        try:
            became = outcome(cell, template, tmp_path / str(number))
        except AssertionError as error:
            became = f"WRONG: {error}"
            wrong.append(f"{cell}: {error}")
        print(f"{cell}: {became}", flush=True)  # noqa: T201 - the table, with -s
    assert not wrong, "\n".join(wrong)


def refused(cluster: LocalCluster, name: str) -> str:
    """The message of a node that must end at its start."""
    node = cluster.node(name)
    node.log.unlink()
    cluster.restart(name, ready=False)
    eventually(f"the end of {name}", lambda: not node.running)
    said = node.log.read_text()
    assert "Traceback" not in said
    return said.partition("minkad: ")[2]


def test_an_older_copy_of_a_data_directory_and_one_of_another_cluster() -> None:
    with LocalCluster(3, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        control.create_keyspace("flights", 3, MURMUR3)
        wait_settled(control, 3)
        name = next(node for node in cluster.nodes if node != control.status().coordinator.controller)
        node, copy = cluster.node(name), cluster.directory / "copy"
        copied(node.data_dir, copy)
        with Client(cluster.endpoints, keyspace="flights") as client:
            client.put_many({b"%d" % i: b"x" for i in range(100)})
        control.create_keyspace("trains", 3, MURMUR3)
        wait_settled(control, 3)
        cluster.kill(name)
        newest = node.data_dir.rename(cluster.directory / "newest")

        shutil.copytree(copy, node.data_dir)  # that of the process that has just ended
        said = refused(cluster, name)
        assert said.startswith(
            "DATA_DIRECTORY_ROLLED_BACK: the leader of the coordinator knows that this node had more"
        )

        shutil.rmtree(node.data_dir)
        newest.rename(node.data_dir)
        cluster.restart(name)
        wait_settled(control, 3)
        cluster.kill(name)
        newest = node.data_dir.rename(newest)
        shutil.copytree(copy, node.data_dir)  # that of the process before, so the others have heard of more starts
        for _ in range(3):  # three starts, as systemd would make
            said = refused(cluster, name)
            assert said.startswith("DATA_DIRECTORY_ROLLED_BACK: this is start 2 of the data directory")
        assert "minkactl node rebuild NODE" in said

        node.config = {"cluster": {"name": "another"}}
        assert refused(cluster, name).startswith("CLUSTER_MISMATCH: ")
        node.config = {}
        shutil.rmtree(node.data_dir)
        newest.rename(node.data_dir)
        cluster.restart(name)
        wait_settled(control, 3)
