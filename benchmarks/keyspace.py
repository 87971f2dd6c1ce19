"""Creates keyspaces of many partitions with three replicas, one after the other in one cluster. Measures the time from
the request until all partitions are ONLINE, the number of nodes that were marked FAILED in this time, and the longest
turn of an event loop. There is no peer: Redis has its slots from the start.
"""

import re
import time
import urllib.request
from typing import Final

from benchmarks.measure import MINKA, Goal, Report, Sample, main, say
from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, NodeState, PartitionState

NODES: Final = 4
REPLICAS: Final = 3
CASES: Final = ((2000, 5.0), (6000, 15.0), (12_000, 30.0))  # partitions in the cluster, and the goal in seconds
_JOIN_TIMEOUT_S: Final = 30.0
_ONLINE_TIMEOUT_S: Final = 90.0
_STALL: Final = re.compile(r"^minka_loop_work_max_seconds (\S+)", re.MULTILINE)


def run(report: Report) -> None:
    """Measure a new cluster in each round, and add its figures to the report."""
    for _ in range(report.options.rounds):
        with LocalCluster(NODES) as cluster, Control(cluster.endpoints) as control:
            _wait_for_all(control)
            first_term = control.status().coordinator.term
            before = 0
            for total, seconds in CASES:
                case = report.case(f"{total:,} partitions on {NODES} nodes ONLINE", "s", goal=Goal(at_most=seconds))
                sample = _grow(cluster, control, before, total)
                terms = control.status().coordinator.term - first_term
                report.add(case, MINKA, sample)
                details = {**sample.details, "terms more": terms}
                say(", ".join(f"{name}: {value:g}" for name, value in details.items()))
                before = total


def _grow(cluster: LocalCluster, control: Control, before: int, total: int) -> Sample:
    started = time.monotonic()
    control.create_keyspace(f"to-{total}", total - before, HashFunction.HASH_FUNCTION_MURMUR3, REPLICAS)
    failed: set[str] = set()
    while True:
        table = control.table()
        failed |= {node.id for node in table.nodes if node.state != NodeState.NODE_STATE_LIVE}
        states = [row.state for row in table.partitions]
        if len(states) == total and set(states) == {PartitionState.PARTITION_STATE_ONLINE}:
            break
        if time.monotonic() - started > _ONLINE_TIMEOUT_S:
            raise TimeoutError(f"not all of {total} partitions are ONLINE after {_ONLINE_TIMEOUT_S:g} s")
        time.sleep(0.1)
    seconds = time.monotonic() - started
    stall = max(map(_longest_stall, (node.http_address for node in cluster.nodes.values())))
    return Sample(seconds, details={"nodes failed": len(failed), "longest turn of a loop, ms": round(stall * 1000)})


def _longest_stall(http_address: str) -> float:
    """The processor time, in seconds, of the longest turn of the node's event loop since its start."""
    with urllib.request.urlopen(f"http://{http_address}/metrics", timeout=10) as answer:
        found = _STALL.search(answer.read().decode())
    assert found is not None, "every node has this metric"
    return float(found[1])


def _wait_for_all(control: Control) -> None:
    """Wait until all nodes are LIVE, since partitions that are created earlier are placed on fewer nodes."""
    deadline = time.monotonic() + _JOIN_TIMEOUT_S
    while sum(node.state == NodeState.NODE_STATE_LIVE for node in control.table().nodes) < NODES:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all of {NODES} nodes are LIVE after {_JOIN_TIMEOUT_S:g} s")
        time.sleep(0.05)


if __name__ == "__main__":
    main("keyspace", "Measure how long keyspaces of many partitions take to be ONLINE.", run)
