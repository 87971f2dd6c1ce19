"""Each kind of file in a data directory is damaged in each way. The node gives only right answers, or refuses requests;
and it recovers.
"""

import shutil
from pathlib import Path

import pytest

from minka import Client
from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, NodeState
from minka.v1.raft_pb2 import HardState
from minkad.storage.log_database import LogDatabase
from tests.cluster.cluster import QUICK, eventually, state_of, wait_settled
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
        print(f"{cell}: {became}", flush=True)  # noqa: T201 - pytest -s shows the table
    assert not wrong, "\n".join(wrong)


def refused(cluster: LocalCluster, name: str) -> str:
    """Start a node that has to refuse its start; returns the message with which it ends."""
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

        shutil.copytree(copy, node.data_dir)  # the copy was made while the node's last process ran
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
        shutil.copytree(copy, node.data_dir)  # the copy is older than the last start, of which other nodes know
        for _ in range(3):  # as systemd would start it again and again
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


def log_of(data_dir: Path, scratch: Path) -> tuple[dict[bytes, bytes], int]:
    """Read a stopped node's log database. Returns two things that a refused start of the node must not change: all rows
    without Raft's hard state, and the commit index in the hard state. A refused start may change the hard state's term
    and vote.
    """
    shutil.copytree(data_dir / "log", scratch / "log")
    shutil.copy(data_dir / "log.mark", scratch)
    log = LogDatabase.open(scratch / "log")
    pairs = dict(log.scan(b"", b"\xff" * 9))
    log.close()
    shutil.rmtree(scratch)
    return pairs, HardState.FromString(pairs.pop(b"rh")).commit


def led_by_turns(control: Control, names: list[str]) -> int:
    """Let another of these nodes lead the coordinator. Returns the commit index before this change of the leader."""
    coordinator = control.status().coordinator
    control.transfer_leadership(next(name for name in names if name != coordinator.controller))
    return coordinator.commit_index


def test_a_node_refuses_to_follow_a_majority_that_was_set_back() -> None:
    """Two of three nodes start with backups of their data. The backups lack writes that the third node has
    acknowledged, so the third node refuses to follow the two nodes.
    """
    with LocalCluster(3, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        survivor, *others = cluster.nodes
        control.create_keyspace("flights", 3, MURMUR3)
        wait_settled(control, 3)
        for name in others:
            cluster.terminate(name)
            shutil.copytree(cluster.node(name).data_dir, cluster.directory / f"{name}-backup")
        for name in others:
            cluster.restart(name, ready=False)
        wait_settled(control, 3)
        rows = {b"%d" % i: b"x" for i in range(100)}
        with Client(cluster.endpoints, keyspace="flights") as client:
            client.put_many(rows)
        control.create_keyspace("later", 3, MURMUR3)
        wait_settled(control, 3)
        for name in cluster.nodes:
            cluster.kill(name)
        kept = log_of(cluster.node(survivor).data_dir, cluster.directory / "scratch")

        for name in others:
            data_dir = cluster.node(name).data_dir
            data_dir.rename(cluster.directory / f"{name}-newest")
            shutil.copytree(cluster.directory / f"{name}-backup", data_dir)
            cluster.restart(name, ready=False)
        eventually("their controller", lambda: control.status().from_controller)
        for goes_on in (False, True):
            if goes_on:  # the logs of the others become longer than the survivor's log
                eventually("a longer log", lambda: led_by_turns(control, others) > kept[1] + 5)
            said = refused(cluster, survivor)
            assert said.startswith("QUORUM_ROLLED_BACK: "), said
            assert "don't rebuild the node" in said
            assert log_of(cluster.node(survivor).data_dir, cluster.directory / "scratch") == kept
            eventually("its failure", lambda: state_of(control, survivor) != NodeState.NODE_STATE_LIVE)

        for name in others:
            cluster.kill(name)
            shutil.rmtree(cluster.node(name).data_dir)
            (cluster.directory / f"{name}-newest").rename(cluster.node(name).data_dir)
        for name in cluster.nodes:
            cluster.restart(name, ready=False)
        # `control` may know a later table, from the nodes with the backups. So a new client reads the table.
        with Control(cluster.endpoints) as fresh:
            table = wait_settled(fresh, 3)
        assert {keyspace.name for keyspace in table.keyspaces} == {"flights", "later"}
        with Client(cluster.endpoints, keyspace="flights") as client:
            assert client.get_many(list(rows)) == rows
