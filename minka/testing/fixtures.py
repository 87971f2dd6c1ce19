"""Fixtures for pytest: a cluster for all tests of a session, and a fresh keyspace for each test.

# conftest.py
pytest_plugins = ["minka.testing.fixtures"]

# test_orders.py
def test_an_order_is_kept(minka_keyspace):
    minka_keyspace.put("order-1", b"two apples")
    assert minka_keyspace.get("order-1") == b"two apples"

def test_orders_survive_a_node(minka_cluster, minka_keyspace):
    minka_keyspace.put("order-1", b"two apples")
    minka_cluster.kill("athens")
    assert minka_keyspace.get("order-1", timeout=20) == b"two apples"

Your own `minka_nodes` gives them another cluster, say on a slow machine:

@pytest.fixture(scope="session")
def minka_nodes():
    with LocalCluster(3, ready_timeout_s=60) as cluster:
        yield cluster
"""

from collections.abc import Iterator
from itertools import count
from typing import Final

import pytest

from minka.admin.control import Control
from minka.client import Client, Keyspace
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction

_NODES: Final = 3
_PARTITIONS: Final = 4
_numbers: Final = count(1)


@pytest.fixture(scope="session")
def minka_nodes() -> Iterator[LocalCluster]:
    """The cluster of the session, of three nodes, as the tests before have left it. Most tests want `minka_cluster`."""
    with LocalCluster(_NODES) as cluster:
        yield cluster


@pytest.fixture
def minka_cluster(minka_nodes: LocalCluster) -> LocalCluster:
    """The cluster of the session, all of whose nodes run and are ready. A test may kill, pause and restart them."""
    for node in minka_nodes.nodes.values():
        if node.running:
            minka_nodes.resume(node.name)
    return minka_nodes.start()


@pytest.fixture
def minka_client(minka_cluster: LocalCluster) -> Iterator[Client]:
    """A client of the cluster, without a keyspace of its own."""
    with Client(minka_cluster.endpoints) as client:
        yield client


@pytest.fixture
def minka_keyspace(minka_cluster: LocalCluster, minka_client: Client) -> Keyspace:
    """An empty keyspace that no other test has, with three replicas of each partition."""
    name = f"test-{next(_numbers)}"
    with Control(minka_cluster.endpoints) as control:
        control.create_keyspace(name, _PARTITIONS, HashFunction.HASH_FUNCTION_MURMUR3)
    return minka_client.keyspace(name)
