"""Helpers for tests with a real cluster: wait until it is settled, and find out which data is on which node."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
from click.testing import CliRunner, Result

from minka.admin.control import Control
from minka.errors import MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.admin_pb2 import GetStatusRequest, GetStatusResponse, PartitionCount
from minka.v1.admin_pb2_grpc import AdminStub
from minka.v1.cluster_pb2 import (
    HashFunction,
    NodeState,
    Operation,
    OperationState,
    PartitionState,
    PartitionTable,
)
from minkactl.cli import cli

T = TypeVar("T")
DEADLINE = 30.0  # seconds; a healthy cluster needs far less

# The fastest failure detection that gives no false alarms on a busy machine with two cores.
QUICK = {"membership": {"heartbeat_interval_ms": 100, "clearance_ms": 800, "failure_timeout_ms": 1200}}
# For tests that don't kill or stop nodes. With CALM, an idle cluster takes a third less processor time than with QUICK.
CALM = {"membership": {"heartbeat_interval_ms": 1000, "clearance_ms": 4000, "failure_timeout_ms": 6000}}


def eventually(what: str, probe: Callable[[], T | None], deadline: float = DEADLINE, every: float = 0.02) -> T:
    """Call `probe` every `every` seconds until it returns something other than None or False, and return this value.
    Raises AssertionError after `deadline` seconds.
    """
    end = time.monotonic() + deadline
    last: object = None
    while time.monotonic() < end:
        try:
            answer = last = probe()
        except MinkaError as error:
            answer, last = None, error
        if answer is not None and answer is not False:
            return answer
        time.sleep(every)
    raise AssertionError(f"{what} did not come true within {deadline:g} s; the last answer was: {last}")


def settled(table: PartitionTable, live: int) -> bool:
    """True if `live` nodes are LIVE, all partitions are ONLINE, no replica is left to move or delete, and all replicas
    on LIVE nodes are in sync.
    """
    nodes = {n.id for n in table.nodes if n.state == NodeState.NODE_STATE_LIVE}
    return len(nodes) == live and all(
        p.state == PartitionState.PARTITION_STATE_ONLINE
        and not p.adding_replicas
        and not p.removing_replicas
        and nodes.intersection(p.replicas) <= set(p.isr)
        for p in table.partitions
    )


def wait_settled(control: Control, live: int) -> PartitionTable:
    """Wait for the active controller's table to be settled, and return it."""

    def probe() -> PartitionTable | None:
        status: GetStatusResponse = control.status()
        return status.table if status.from_controller and settled(status.table, live) else None

    return eventually(f"a settled table with {live} LIVE nodes", probe)


def own_status(cluster: LocalCluster, name: str) -> GetStatusResponse:
    """Ask this node for the status of the cluster as the node itself sees it."""
    with grpc.insecure_channel(cluster.node(name).address) as channel:
        return AdminStub(channel).GetStatus(GetStatusRequest(), timeout=5)


def minkactl(cluster: LocalCluster, *arguments: str) -> Result:
    """Run minkactl within this process, for the cluster."""
    return CliRunner().invoke(cli, [*arguments, "--endpoints", ",".join(cluster.endpoints)], prog_name="minkactl")


def spec_file(cluster: LocalCluster, name: str) -> Path:
    """Return the file from which the node reads its failpoints, if `with_failpoints` made the cluster."""
    return cluster.node(name).directory / "failpoints"


def with_failpoints(nodes: Sequence[str], config: Mapping[str, Any] = QUICK) -> LocalCluster:
    """Make a cluster, without starting it, whose nodes read their failpoints from their `spec_file`."""
    cluster = LocalCluster(nodes, config=config)
    for name in nodes:
        cluster.node(name).env = {"MINKA_FAILPOINTS_FILE": str(spec_file(cluster, name))}
    return cluster


def state_of(control: Control, name: str) -> int:
    """The NodeState of a node."""
    return next(n.state for n in control.status().table.nodes if n.id == name)


def create_keyspace(control: Control, name: str, partitions: int, live: int) -> PartitionTable:
    """Create a keyspace with one replica, and wait until its partitions are ONLINE."""
    control.create_keyspace(name, partitions, HashFunction.HASH_FUNCTION_MURMUR3, replicas=1)
    return wait_settled(control, live)


def wait_ended(control: Control, operation_id: int) -> Operation:
    """Wait until the operation has ended, and return it."""

    def probe() -> Operation | None:
        operation = control.operations([operation_id]).operations[0]
        return operation if operation.state != OperationState.OPERATION_STATE_RUNNING else None

    return eventually(f"the end of operation {operation_id}", probe, 2 * DEADLINE)


def on_disk(cluster: LocalCluster, control: Control) -> dict[str, list[PartitionCount]]:
    """Let each node read all keys on its disk. Returns, by node, the number of keys of each partition."""
    return {name: control.count_keys(node.address) for name, node in cluster.nodes.items()}


def assert_nobody_holds_what_it_does_not_own(cluster: LocalCluster, control: Control, table: PartitionTable) -> int:
    """Check that each partition has a copy on its owner's disk, and on no other. Returns the number of keys."""
    owner = {p.id: p.leader for p in table.partitions}
    found: list[tuple[int, str]] = []
    keys = 0
    for name, counts in on_disk(cluster, control).items():
        found += [(c.partition_id, name) for c in counts]
        keys += sum(c.keys for c in counts)
    strays = [(partition, name) for partition, name in found if owner.get(partition) != name]
    assert not strays, f"partitions on nodes that don't own them: {strays}"
    assert len({partition for partition, _ in found}) == len(found), f"a node has a partition twice: {found}"
    return keys


def leaders(table: PartitionTable, nodes: Iterable[str]) -> list[int]:
    """The numbers of partitions that the nodes lead, the smallest first."""
    return sorted(sum(p.leader == node for p in table.partitions) for node in nodes)
