"""How long a keyspace of many partitions takes from the request to all of them ONLINE. No peer: Redis has its slots
from the start.
"""

import time
from typing import Final

from benchmarks.cluster import create_keyspace
from benchmarks.measure import MINKA, Goal, Report, Sample, main
from minka.control import Control
from minka.v1.cluster_pb2 import NodeState
from minkactl.playground import LocalCluster

NODES: Final = 4
PARTITIONS: Final = 1024
_JOIN_TIMEOUT_S: Final = 30.0


def run(report: Report) -> None:
    """The only figure."""
    case = report.case(f"{PARTITIONS:,} partitions on {NODES} nodes ONLINE", "s", goal=Goal(at_most=5))
    for _ in range(report.options.rounds):
        with LocalCluster(NODES) as cluster:
            _wait_for_all(cluster)
            started = time.monotonic()
            create_keyspace(cluster.endpoints, PARTITIONS)
            report.add(case, MINKA, Sample(time.monotonic() - started))


def _wait_for_all(cluster: LocalCluster) -> None:
    """Until every node is LIVE: otherwise the partitions go to fewer."""
    deadline = time.monotonic() + _JOIN_TIMEOUT_S
    with Control(cluster.endpoints) as control:
        while sum(node.state == NodeState.NODE_STATE_LIVE for node in control.table().nodes) < NODES:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all of {NODES} nodes are LIVE after {_JOIN_TIMEOUT_S:g} s")
            time.sleep(0.05)


if __name__ == "__main__":
    main("keyspace", "How long a keyspace of many partitions takes to be ONLINE.", run)
