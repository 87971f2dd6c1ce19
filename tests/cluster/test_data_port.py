"""A node's data port is dead, although the node still sends heartbeats. `minkactl` names the node, and other nodes lead
its partitions until the port answers again.
"""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from minka import Client
from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, Node, NodeState
from minkactl.problems import problems
from minkactl.survey import survey
from tests.cluster.cluster import QUICK, eventually, state_of, wait_ended, wait_settled
from tests.cluster.proxies import Proxy, proxied

NODES = 4
pytestmark = pytest.mark.timeout(180)
KEYS = [b"key-%d" % number for number in range(48)]
FAILED, LIVE = NodeState.NODE_STATE_FAILED, NodeState.NODE_STATE_LIVE


@dataclass(frozen=True, slots=True)
class Running:
    cluster: LocalCluster
    control: Control
    proxies: dict[str, Proxy]

    @property
    def controller(self) -> str:
        return self.control.status().coordinator.controller

    def follower(self) -> str:
        """Return a voter that isn't the active controller."""
        return next(name for name in self.control.status().coordinator.voters if name != self.controller)

    def row(self, name: str) -> Node:
        return next(node for node in self.control.status().table.nodes if node.id == name)

    def leads(self, name: str) -> int:
        return sum(row.leader == name for row in self.control.status().table.partitions)

    def write_everywhere(self) -> None:
        """Write all keys, and try again after errors: a node that is cut off may have given the client an outdated
        table.
        """

        def write() -> bool:
            client.put_many(dict.fromkeys(KEYS, b"v"))
            return True

        with Client(self.cluster.endpoints, keyspace="k", timeout=8.0) as client:
            eventually("all keys are written", write)

    def said(self, name: str) -> str:
        """Join the errors that `minkactl status` shows about a node."""
        rows = problems(survey(self.control))
        return "; ".join(row["problem"] for row in rows if name in row["nodes"] and row["severity"] == "error")


@contextmanager
def running() -> Iterator[Running]:
    cluster = LocalCluster(NODES, config=QUICK)
    with proxied(cluster) as proxies, cluster, Control(cluster.endpoints) as control:
        wait_settled(control, live=NODES)
        control.create_keyspace("k", 8, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        wait_settled(control, live=NODES)
        yield Running(cluster, control, proxies)


def is_replaced(run: Running, name: str) -> Callable[[], bool]:
    return lambda: state_of(run.control, name) == FAILED and run.leads(name) == 0


def test_a_node_whose_data_port_is_dead_is_replaced_named_and_comes_back() -> None:
    with running() as run:
        for fault, reason in ((Proxy.hang, "no answer"), (Proxy.refuse, "connection refused")):
            run.write_everywhere()
            victim = next(one.leader for one in run.control.table().partitions if one.leader != run.controller)
            fault(run.proxies[victim])
            eventually(f"another node leads what {victim} led", is_replaced(run, victim))
            run.write_everywhere()
            row = run.row(victim)
            assert f"its data port {row.data_address} does not answer" in row.state_reason
            assert reason in row.state_reason
            said = run.said(victim)
            assert row.state_reason in said
            assert "It comes back once its data port answers" in said
            run.proxies[victim].mend()
            wait_settled(run.control, live=NODES)
            eventually("nothing is said of it", lambda victim=victim: not run.said(victim))  # type: ignore[misc]


def test_a_controller_whose_data_port_hangs_is_replaced() -> None:
    with running() as run:
        run.write_everywhere()
        victim = run.controller
        run.proxies[victim].hang()
        eventually("another controller", lambda: run.controller not in ("", victim))
        eventually(f"another node leads what {victim} led", is_replaced(run, victim))
        run.write_everywhere()
        run.proxies[victim].mend()
        wait_settled(run.control, live=NODES)


def test_a_node_whose_data_port_hangs_stops_gracefully() -> None:
    """The node stops before other nodes have noticed that its data port hangs. Other nodes lead its partitions, even if
    it can't hand them over.
    """
    with running() as run:
        run.write_everywhere()
        victim = run.follower()
        run.proxies[victim].hang()
        run.cluster.terminate(victim)
        eventually("the node leads nothing", lambda: run.leads(victim) == 0)
        run.write_everywhere()


def test_a_drain_of_a_node_whose_data_port_hangs_ends() -> None:
    with running() as run:
        victim = run.follower()
        run.proxies[victim].hang()
        operation = run.control.drain(victim, requested_by="test")
        eventually(f"another node leads what {victim} led", lambda: run.leads(victim) == 0)
        wait_ended(run.control, operation.id)
        run.write_everywhere()


def test_a_node_without_file_descriptors_is_replaced_and_comes_back() -> None:
    with LocalCluster(NODES, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        wait_settled(control, live=NODES)
        control.create_keyspace("k", 8, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        wait_settled(control, live=NODES)
        run = Running(cluster, control, {})
        run.write_everywhere()
        victim = run.follower()
        pid = cluster.node(victim).pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        assert soft == hard, "the daemon has raised its limit at the start"
        # The daemon has used all descriptors below the new limit since its start, and keeps them. So it can open no
        # others.
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (32, hard))
        eventually(f"another node leads what {victim} led", is_replaced(run, victim))
        run.write_everywhere()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        wait_settled(control, live=NODES)
