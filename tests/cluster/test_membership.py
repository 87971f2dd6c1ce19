"""Nodes join, leave, fail and return, as real processes."""

import subprocess
import sys
from functools import partial

import pytest
import yaml

from minka import Client
from minka.admin.control import Control
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster, configuration_of
from minka.v1.cluster_pb2 import HashFunction, NodeState, PartitionState, PartitionTable
from tests.cluster.cluster import QUICK, create_keyspace, eventually, state_of, wait_settled


def test_a_killed_node_fails_and_returns_with_its_data() -> None:
    with LocalCluster(3, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        create_keyspace(control, "flights", 9, live=3)
        rows = {b"key-%d" % i: b"value-%d" % i for i in range(300)}
        with Client(cluster.endpoints, keyspace="flights", timeout=5.0) as client:
            client.put_many(rows)
            cluster.kill("cyrene")
            eventually("cyrene is FAILED, and its partitions are OFFLINE", lambda: has_failed(control, "cyrene", 3))
            cluster.restart("cyrene")
            wait_settled(control, live=3)
            assert client.get_many(list(rows)) == rows


def has_failed(control: Control, name: str, offline: int) -> bool:
    """True if the node is FAILED, and this number of partitions is OFFLINE."""
    table = control.status().table
    states = [one.state for one in table.partitions]
    is_failed = any(one.id == name and one.state == NodeState.NODE_STATE_FAILED for one in table.nodes)
    return is_failed and states.count(PartitionState.PARTITION_STATE_OFFLINE) == offline


def test_every_node_killed_at_once_loses_nothing_acknowledged() -> None:
    with LocalCluster(3, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        create_keyspace(control, "flights", 9, live=3)
        rows = {b"key-%d" % i: b"value-%d" % i for i in range(300)}
        with Client(cluster.endpoints, keyspace="flights", timeout=5.0) as client:
            client.put_many(rows)
        for name in cluster.nodes:
            cluster.kill(name)
        cluster.start()
        wait_settled(control, live=3)
        with Client(cluster.endpoints, keyspace="flights", timeout=5.0) as client:
            assert client.get_many(list(rows)) == rows


def test_a_stopped_node_leaves_at_once_and_its_leadership_moves() -> None:
    with LocalCluster(3, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        wait_settled(control, live=3)
        leader = control.status().coordinator.controller
        cluster.terminate(leader)
        eventually(
            "another controller, for which the old one has LEFT",
            lambda: (
                control.status().coordinator.controller not in ("", leader)
                and state_of(control, leader) == NodeState.NODE_STATE_LEFT
            ),
        )


def same_table(control: Control, table: PartitionTable) -> bool:
    return control.table() == table


def test_every_node_has_the_table_and_answers_for_it() -> None:
    with LocalCluster(3, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        cluster.add("ephesus")
        table = create_keyspace(control, "flights", 9, live=4)
        for name in cluster.nodes:
            with Control([cluster.node(name).address]) as one:
                eventually(f"{name} has the table", partial(same_table, one, table))


def test_no_keyspace_before_the_minimum_size() -> None:
    with (
        LocalCluster(3, config=QUICK | {"cluster": {"min_nodes": 4}}) as cluster,
        Control(cluster.endpoints) as control,
    ):
        eventually("a controller", lambda: control.status().from_controller)
        with pytest.raises(MinkaError) as refusal:
            control.create_keyspace("flights", 9, HashFunction.HASH_FUNCTION_MURMUR3)
        assert refusal.value.code is Code.NOT_ENOUGH_NODES


def test_a_second_process_with_a_live_nodes_id_is_refused() -> None:
    with LocalCluster(3, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        cluster.add("ephesus")
        wait_settled(control, live=4)
        # A second process uses the node's id, with another directory and other ports.
        other = LocalCluster(["ephesus"], cluster.directory / "impostor")
        node = other.node("ephesus")
        node.bootstrap = False
        config = configuration_of(cluster, cluster.node("ephesus"))
        config["data_dir"] = str(node.data_dir)
        config["listen"] = {"grpc": node.address, "http": node.http_address}
        node.config_path.write_text(yaml.safe_dump(config))
        run = subprocess.run(
            [sys.executable, "-m", "minkad", "--config", str(node.config_path)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert run.returncode == 1
        assert "NODE_ID_TAKEN" in run.stderr
        assert "ephesus" in run.stderr
        assert state_of(control, "ephesus") == NodeState.NODE_STATE_LIVE
