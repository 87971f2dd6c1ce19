"""The network fails while shards run on other hosts than the nodes. A shard that is cut off releases its duties before
other shards get them. If a node is cut off from the other nodes, its shards keep their duties, and open sessions with
other nodes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from minka.admin.control import Control
from minka.duties import Client, ShardState
from minka.testing.local_cluster import LocalCluster
from tests.cluster.cluster import QUICK, eventually
from tests.cluster.network import CLIENTS, Network, NetworkedCluster
from tests.cluster.shards import QUICK_SHARDS, Shards, make_duties, running
from tests.cluster.undo import NotPermitted, Undo

NODES = ["athens", "byzantium", "cyrene"]
HOST = "shards"


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Undo() as undo:
        try:
            yield Network(undo)
        except NotPermitted:
            pytest.skip("network namespaces are not permitted")


@pytest.fixture(scope="module")
def cluster(network: Network) -> Iterator[LocalCluster]:
    with NetworkedCluster(NODES, network, **QUICK, shards=QUICK_SHARDS) as cluster:
        with Control(cluster.endpoints) as control:
            eventually("three LIVE nodes", lambda: len(control.status().table.nodes) == 3)
        network.plug(HOST)
        yield cluster


@pytest.fixture
def shards(cluster: LocalCluster, tmp_path: Path) -> Iterator[Shards]:
    with running(cluster, tmp_path) as shards:
        yield shards


@pytest.fixture
def client(cluster: LocalCluster, network: Network) -> Iterator[Client]:
    with Client(cluster.endpoints, timeout=20.0) as client:
        yield client
    network.heal()


def test_a_shard_that_is_cut_off_releases_before_others_take(network: Network, shards: Shards, client: Client) -> None:
    names = make_duties(client, "cut", 12)
    cut = shards.start("cut-0", "cut", namespace=network.namespace(HOST))
    other = shards.start("cut-1", "cut")
    shards.wait_placed(names, [cut, other])
    had = set(cut.held().items())
    network.part([HOST], [*NODES, CLIENTS])
    eventually("the other has all", lambda: other.held().keys() == names)
    assert had <= {(name, epoch) for name, epoch, _ in cut.calls("detach")}
    assert cut.process.poll() is None
    network.heal()
    eventually("it is there again", lambda: _is_there(client, "cut-0"))
    shards.assert_nothing_was_held_twice()


def test_a_shard_leaves_a_node_that_is_cut_off_from_the_others(
    network: Network, cluster: LocalCluster, shards: Shards, client: Client
) -> None:
    names = make_duties(client, "ghost", 6)
    with Control(cluster.endpoints) as control:
        controller = control.status().coordinator.controller
    ghost = next(name for name in NODES if name != controller)
    one = shards.start("ghost-0", "ghost", endpoints=[cluster.node(ghost).address], namespace=network.namespace(HOST))
    shards.wait_placed(names, [one])
    had = one.held()
    network.part([ghost], [name for name in NODES if name != ghost])
    with Client([cluster.node(name).address for name in NODES if name != ghost], timeout=20.0) as others:
        others.create("ghost", "new", "made afterwards")
        eventually("what is new", lambda: "ghost/new" in one.held())
    assert one.calls("detach") == []
    assert one.held().items() >= had.items()
    shards.assert_nothing_was_held_twice()


def _is_there(client: Client, name: str) -> bool:
    (status,) = client.shards([name]).shards
    return status.state in (ShardState.LIVE, ShardState.QUARANTINED)
