"""A node that comes back with another address gets all messages of the other nodes."""

from collections.abc import Iterator

import pytest

from minka import Client
from minka.admin.control import Control
from minka.errors import MinkaError
from minka.testing.local_cluster import LocalCluster, configuration_of
from minka.testing.loopback_ports import free_addresses
from minka.v1.cluster_pb2 import HashFunction
from tests.cluster.cluster import QUICK, eventually, own_status, wait_settled


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(4, config=QUICK) as started, Control(started.endpoints) as control:
        control.create_keyspace("flights", 8, HashFunction.HASH_FUNCTION_MURMUR3, replicas=4)
        wait_settled(control, live=4)
        yield started


def move(cluster: LocalCluster, name: str, port: str) -> None:
    """Stop the node, and start it again with another address for gRPC or for its data port. In all configurations, the
    founders of the cluster still have their old addresses.
    """
    node = cluster.node(name)
    known = configuration_of(cluster, node)["cluster"]
    cluster.terminate(name)
    setattr(node, port, free_addresses(1)[0])
    node.config = {"cluster": known, "advertise": {"grpc": node.address}}
    cluster.restart(name)


def keyspaces(cluster: LocalCluster, name: str) -> list[str]:
    """Return the names of the keyspaces in the node's own copy of the table."""
    return [keyspace.name for keyspace in own_status(cluster, name).table.keyspaces]


def has_all(control: Control) -> bool:
    """True if all replicas of all partitions are in sync."""
    partitions = control.table().partitions
    return all(set(p.isr) == set(p.replicas) for p in partitions)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("who", "port"), [("voter", "data_address"), ("controller", "address")])
def test_a_voter_that_moved_gets_the_log_and_votes(cluster: LocalCluster, who: str, port: str) -> None:
    keyspace = f"{who}-{port.replace('_', '-')}"
    with Control(cluster.endpoints) as control:
        coordinator = control.status().coordinator
        controller = coordinator.controller
        name = controller if who == "controller" else next(v for v in coordinator.voters if v != controller)
    move(cluster, name, port)
    with Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="flights") as client:
        control.create_keyspace(keyspace, 1, HashFunction.HASH_FUNCTION_MURMUR3, replicas=1)
        eventually("its table is the controller's", lambda: keyspace in keyspaces(cluster, name))
        client.put_many({b"%d" % i: b"" for i in range(100)})
        eventually("it has all that is written", lambda: has_all(control))
        assert set(cluster.endpoints) == {node.address for node in control.table().nodes}


@pytest.mark.timeout(120)
def test_a_learner_that_moved_gets_the_logs(cluster: LocalCluster) -> None:
    keyspace = "learner"
    with Control(cluster.endpoints) as control:
        (name,) = control.status().coordinator.learners
    move(cluster, name, "address")
    with Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="flights") as client:
        control.create_keyspace(keyspace, 1, HashFunction.HASH_FUNCTION_MURMUR3, replicas=1)
        eventually("its table is the controller's", lambda: keyspace in keyspaces(cluster, name))
        client.put_many({b"%d" % i: b"" for i in range(100)})
        eventually("it has all that is written", lambda: has_all(control))
        assert set(cluster.endpoints) == {node.address for node in control.table().nodes}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("names", ["join", "bootstrap"])
def test_all_voters_that_moved_at_once_find_each_other_by_their_configurations(names: str) -> None:
    with LocalCluster(3, config=QUICK) as cluster:
        with Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="flights") as client:
            control.create_keyspace("flights", 4, HashFunction.HASH_FUNCTION_MURMUR3)
            wait_settled(control, live=3)
            client.put(b"a", b"1")
        known = configuration_of(cluster, next(iter(cluster.nodes.values())))["cluster"]
        for node in cluster.nodes.values():
            cluster.kill(node.name)
            node.address, node.data_address, node.http_address = free_addresses(3)
        if names == "join":
            known["join"] = cluster.endpoints
        else:
            known["bootstrap"] = [{"id": node.name, "address": node.address} for node in cluster.nodes.values()]
        for node in cluster.nodes.values():
            node.config = {"cluster": known, "advertise": {"grpc": node.address}}
            cluster.restart(node.name, ready=False)
        with Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="flights") as client:
            eventually("the table has the new addresses", lambda: moved(control, cluster))
            wait_settled(control, live=3)
            assert client.get(b"a") == b"1"


def moved(control: Control, cluster: LocalCluster) -> bool:
    try:
        return {node.address for node in control.table().nodes} == set(cluster.endpoints)
    except MinkaError:
        return False
