"""A node has no connection to itself: what it asks of itself, as the active controller or as the leader of a partition,
doesn't go over the network.
"""

import os
from pathlib import Path

import pytest

from minka.admin.control import Control
from minka.duties import Client
from minka.testing.local_cluster import LocalCluster, LocalNode
from minka.v1.cluster_pb2 import HashFunction
from tests.cluster.cluster import QUICK, create_keyspace, eventually, wait_ended, wait_settled
from tests.cluster.shards import QUICK_SHARDS, make_duties, running

_ESTABLISHED = "01"


def own_connections(node: LocalNode) -> set[tuple[str, str]]:
    """The connections of the node's process to its own ports: each port, and the number of the socket. All nodes share
    a loopback address.
    """
    sockets = set()
    for descriptor in Path(f"/proc/{node.pid}/fd").iterdir():
        try:
            sockets.add(os.readlink(descriptor))
        except FileNotFoundError:  # it was closed meanwhile
            continue
    ports = {int(address.rpartition(":")[2]): address for address in (node.address, node.data_address)}
    found = set()
    for table in ("tcp", "tcp6"):  # gRPC's sockets are in the second one
        for line in Path(f"/proc/{node.pid}/net/{table}").read_text().splitlines()[1:]:
            _, _, remote, state, *_, inode = line.split()[:10]
            port = int(remote.rpartition(":")[2], 16)
            if port in ports and state == _ESTABLISHED and f"socket:[{inode}]" in sockets:
                found.add((ports[port], inode))
    return found


def assert_no_node_calls_itself(cluster: LocalCluster) -> None:
    """Each node watches its own data port, on a new connection every second. Any other connection stays."""
    before = {name: own_connections(node) for name, node in cluster.nodes.items()}

    def kept() -> dict[str, set[tuple[str, str]]]:
        return {name: same for name, node in cluster.nodes.items() if (same := before[name] & own_connections(node))}

    eventually("the end of each node's connections to itself", lambda: not kept(), deadline=15.0, every=0.2)


def flights_isr(control: Control) -> set[str]:
    """The nodes that are in the in-sync set of a partition with three replicas."""
    return {node for row in control.status().table.partitions if len(row.replicas) == 3 for node in row.isr}


def host_duties(cluster: LocalCluster, path: Path) -> None:
    """Create duties with payloads, read them at each node, and let a shard of each node have some of them."""
    with Client(cluster.endpoints, timeout=20.0) as client, running(cluster, path) as shards:
        names = make_duties(client, "feeds", 12)
        for node in cluster.nodes.values():
            shards.start(f"at-{node.name}", "feeds", endpoints=[node.address])
            with Client([node.address], timeout=20.0) as one:
                assert one.get("feeds", "d3").duty.payload == b"payload 3"
        shards.wait_placed(names)
        client.update("feeds", "d3", "another")  # its first payload is deleted later
        eventually("the sessions' shards", lambda: len(client.shards().shards) == len(cluster.nodes))


def test_a_cluster_of_one_node(tmp_path: Path) -> None:
    with LocalCluster(1, config={**QUICK, "shards": QUICK_SHARDS}) as cluster, Control(cluster.endpoints) as control:
        create_keyspace(control, "flights", 4, live=1)
        host_duties(cluster, tmp_path)
        assert_no_node_calls_itself(cluster)


@pytest.mark.timeout(120)
def test_the_active_controller_of_three_nodes(tmp_path: Path) -> None:
    """The controller's node leads partitions, hands one over, and takes a follower back into its in-sync sets."""
    with LocalCluster(3, config={**QUICK, "shards": QUICK_SHARDS}) as cluster, Control(cluster.endpoints) as control:
        wait_settled(control, live=3)
        control.create_keyspace("flights", 6, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        control.create_keyspace("fares", 6, HashFunction.HASH_FUNCTION_MURMUR3, replicas=1)
        table = wait_settled(control, live=3)
        controller = control.status().coordinator.controller
        other, third = (name for name in cluster.nodes if name != controller)
        moved = next(row.id for row in table.partitions if list(row.replicas) == [controller])
        plan = control.plan_reassign(partitions={moved: [other]})
        assert wait_ended(control, control.apply_plan(plan, "test").id).outcome == "1 of 1 partitions moved"
        cluster.kill(third)
        eventually("in-sync sets without it", lambda: len(flights_isr(control)) == 2)
        cluster.restart(third)
        table = wait_settled(control, live=3)
        assert any(row.leader == controller and len(row.isr) == 3 for row in table.partitions)
        host_duties(cluster, tmp_path)
        assert control.status().coordinator.controller == controller, "the test means one controller"
        assert_no_node_calls_itself(cluster)
