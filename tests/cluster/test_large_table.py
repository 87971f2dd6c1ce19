"""A cluster with a large table: each turn of a daemon's loop is short, and each node counts as alive."""

import re
import urllib.request

import pytest

from minka import Client
from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, NodeState, PartitionTable
from tests.cluster.cluster import eventually, settled

KEYS = 20_000
MAX_TURN_S = 0.1  # with 2,000 partitions; with 1,000, half of this is allowed
_LONGEST = re.compile(r"^minka_loop_work_max_seconds (\S+)", re.MULTILINE)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("partitions", [1000, pytest.param(2000, marks=pytest.mark.soak)])
def test_no_turn_is_long(partitions: int) -> None:
    longest = MAX_TURN_S * partitions / 2000
    with LocalCluster(4) as cluster, Control(cluster.endpoints, timeout=30) as control:
        eventually("four nodes", lambda: settled(control.status().table, live=4))
        control.create_keyspace("large", partitions, HashFunction.HASH_FUNCTION_MURMUR3, 3)
        incarnations = {node.id: node.incarnation for node in wait_whole(control, partitions).nodes}
        with Client(cluster.endpoints, keyspace="large", timeout=30.0) as client:
            client.put_many({f"{number}": b"first" for number in range(KEYS)})  # the first writes to all partitions
            assert client.get("17") == b"first"
        assert longest_turn(cluster) < longest
        cluster.kill("ephesus")
        eventually("others lead", lambda: not any(row.leader == "ephesus" for row in control.table().partitions), 30.0)
        cluster.restart("ephesus")
        table = wait_whole(control, partitions)
        assert longest_turn(cluster) < longest
        del incarnations["ephesus"]
        assert incarnations.items() <= {node.id: node.incarnation for node in table.nodes}.items(), "none was FAILED"


def wait_whole(control: Control, partitions: int) -> PartitionTable:
    """Wait until all nodes are LIVE, and all partitions ONLINE and in sync."""

    def probe() -> PartitionTable | None:
        table = control.table()
        is_live = all(node.state == NodeState.NODE_STATE_LIVE for node in table.nodes)
        is_in_sync = all(len(row.isr) == 3 for row in table.partitions)
        is_whole = is_live and is_in_sync and len(table.partitions) == partitions and settled(table, live=4)
        return table if is_whole else None

    return eventually("a whole cluster", probe, 60.0)


def longest_turn(cluster: LocalCluster) -> float:
    """Return the processor time, in seconds, of the longest turn of an event loop in any daemon since its start."""
    return max(_longest_turn(node.http_address) for node in cluster.nodes.values())


def _longest_turn(http_address: str) -> float:
    with urllib.request.urlopen(f"http://{http_address}/metrics", timeout=10) as answer:
        found = _LONGEST.search(answer.read().decode())
    assert found is not None, "/metrics shows how long the loop's turns were"
    return float(found[1])
