"""The active controller falls silent: it is stopped, cut off, or paused for a moment. No other node is marked FAILED,
and each partition with two healthy replicas takes writes.
"""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from minka import Client
from minka.admin.control import Control
from minka.cluster.hashing import murmur3
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, NodeState, PartitionState, PartitionTable
from tests.cluster.cluster import eventually
from tests.cluster.network import CLIENTS, Network, NetworkedCluster
from tests.cluster.undo import NotPermitted, Undo

# With these times, nodes notice the loss of the controller, and look for a controller, before Raft can elect another
# one. Their calls to the silent controller must not delay them.
CONFIG = {"membership": {"heartbeat_interval_ms": 100, "clearance_ms": 400, "failure_timeout_ms": 1200}}
PARTITIONS = 12
KEYS = {murmur3(key) % PARTITIONS: key for key in (b"key-%d" % number for number in range(500))}


@dataclass
class World:
    """Three nodes, each a voter, with three replicas of each partition."""

    cluster: LocalCluster
    control: Control
    network: Network | None

    def well(self) -> PartitionTable:
        """Wait until all nodes are LIVE and all replicas are in sync; returns the table."""

        def probe() -> PartitionTable | None:
            status = self.control.status()
            nodes = all(node.state == NodeState.NODE_STATE_LIVE for node in status.table.nodes)
            rows = all(
                row.state == PartitionState.PARTITION_STATE_ONLINE and len(row.isr) == 3
                for row in status.table.partitions
            )
            return status.table if status.from_controller and nodes and rows and status.table.partitions else None

        return eventually("three LIVE nodes, with all replicas in sync", probe)

    def write_to_all(self, value: bytes) -> None:
        """Write a key of each partition, and repeat each write until it succeeds."""
        with Client(self.cluster.endpoints, keyspace="flights", timeout=0.5) as client:
            for key in KEYS.values():

                def probe(key: bytes = key) -> bool:
                    client.put(key, value)
                    return True

                eventually(f"a write of {key!r}", probe)
            assert len(KEYS) == PARTITIONS

    def controller(self) -> str:
        return eventually("an active controller", lambda: self.control.status().coordinator.controller or None)


def processes(table: PartitionTable, but: str = "") -> dict[str, str]:
    """Return the incarnations of the nodes except `but`. A node that was marked FAILED gets another incarnation."""
    return {node.id: node.incarnation for node in table.nodes if node.id != but}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with Undo() as undo:
        network = None
        cluster: LocalCluster
        try:
            network = Network(undo)
            cluster = NetworkedCluster(["athens", "byzantium", "cyrene"], network, **CONFIG)
        except NotPermitted:
            network, cluster = None, LocalCluster(3, config=CONFIG)
        with cluster, Control(cluster.endpoints) as control:
            world = World(cluster, control, network)
            eventually("a leader", lambda: control.status().from_controller)
            eventually(
                "three LIVE nodes",
                lambda: all(n.state == NodeState.NODE_STATE_LIVE for n in control.status().table.nodes),
            )
            control.create_keyspace("flights", PARTITIONS, HashFunction.HASH_FUNCTION_MURMUR3, 3)
            yield world


def lose_the_controller(world: World, silence: Callable[[str], None], speak: Callable[[str], None]) -> None:
    """Silence the active controller. Wait until the other nodes have accepted a write to each partition, and the new
    controller has marked the silent node FAILED. Checks that no other node was marked FAILED.
    """
    before = world.well()
    victim = world.controller()
    silence(victim)
    try:
        world.write_to_all(b"without")
        table = eventually(
            "another active controller instead of the silent one",
            lambda: next(
                (
                    status.table
                    for status in [world.control.status()]
                    if status.from_controller and status.coordinator.controller != victim
                ),
                None,
            ),
        )
        states = {node.id: node.state for node in table.nodes}
        assert states.pop(victim) == NodeState.NODE_STATE_FAILED
        assert set(states.values()) == {NodeState.NODE_STATE_LIVE}
        assert processes(table, victim) == processes(before, victim), "no other node was marked FAILED meanwhile"
        assert not [row for row in table.partitions if not row.leader or row.leader == victim]
    finally:
        speak(victim)
    after = world.well()
    assert processes(after, victim) == processes(before, victim)
    world.write_to_all(b"again")


def test_an_active_controller_that_is_stopped(world: World) -> None:
    lose_the_controller(
        world,
        lambda victim: world.cluster.signal(victim, signal.SIGSTOP),
        lambda victim: world.cluster.signal(victim, signal.SIGCONT),
    )


def test_an_active_controller_that_is_cut_off(world: World) -> None:
    network = world.network
    if network is None:
        pytest.skip("network namespaces are not permitted")

    def cut(victim: str) -> None:
        network.part([victim], [*(name for name in world.cluster.nodes if name != victim), CLIENTS])

    lose_the_controller(world, cut, lambda _: network.heal())


def test_an_active_controller_that_was_paused_fails_nobody(world: World) -> None:
    """After a short pause, the controller marks no other node FAILED. During the pause, another node may have become
    the controller, and have marked the paused one FAILED.
    """
    before = world.well()
    paused = world.controller()
    for _ in range(2):
        world.cluster.signal(paused, signal.SIGSTOP)
        time.sleep(0.92)  # for how long the controller is paused
        world.cluster.signal(paused, signal.SIGCONT)
        world.write_to_all(b"after")
    after = world.well()
    assert processes(after, paused) == processes(before, paused)


def test_losing_the_controller_is_a_warning_in_the_logs(world: World) -> None:
    """A node logs a warning when it loses the active controller, and logs a line when it finds an active controller."""
    world.well()
    victim = world.controller()
    other = next(name for name in world.cluster.nodes if name != victim)
    log = world.cluster.log(other)
    begin = len(log.read_text())

    def told(level: str, text: str) -> bool:
        return any(level in line and text in line for line in log.read_text()[begin:].splitlines())

    world.cluster.signal(victim, signal.SIGSTOP)
    try:
        eventually("the warning", lambda: told("WARNING", "lost the active controller"))
        eventually("the good news", lambda: told("INFO", "in touch with the active controller"))
    finally:
        world.cluster.signal(victim, signal.SIGCONT)
