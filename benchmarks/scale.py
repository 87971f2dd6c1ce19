"""Measures a cluster with a large table: the time to create the partitions, the processor time of an idle daemon, the
time until other nodes lead the partitions of a killed node, the time until a restarted node's replicas are in sync, and
the latencies of commands and clients. There is no peer; the goals are Minka's own.
"""

import os
import re
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

import grpc

from benchmarks.measure import MINKA, Goal, Report, Sample, main
from minka import Client
from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.admin_pb2 import GetTableRequest
from minka.v1.admin_pb2_grpc import MetadataStub
from minka.v1.cluster_pb2 import HashFunction, Keyspace, Node, NodeState, Partition, PartitionState
from minkad.core.state import State

NODES: Final = 4
KEYSPACE: Final = "large"
VICTIM: Final = "ephesus"  # not a voter, hence not the active controller
_MIB: Final = 1024 * 1024
_IDLE_S: Final = 20.0
_GIVE_UP_S: Final = 300.0
_POLL_S: Final = 0.1
_STATUSES: Final = 5
_LONGEST: Final = re.compile(r"^minka_loop_work_max_seconds (\S+)", re.MULTILINE)
T = TypeVar("T")
_RSS: Final = re.compile(r"^VmRSS:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a cluster, and its goals. Goals are in seconds, except `idle`, which is in percent of a core."""

    partitions: int
    replicas: int
    created: float
    idle: float = 5.0
    moved: float = 3.0
    in_sync: float = 10.0
    status: float = 0.4
    first_put: float = 0.5
    planned: float = 1.0

    def twice(self) -> "Size":
        """Return the same size with all goals doubled, except the goal of the creation."""
        times = (2 * value for value in (self.moved, self.in_sync, self.status, self.first_put, self.planned))
        return Size(self.partitions, self.replicas, self.created, 2 * self.idle, *times)


SIZES: Final = (Size(20_000, 3, created=10.0), Size(100_000, 1, created=30.0).twice())
QUICK: Final = (Size(2_000, 3, created=2.0),)


def run(report: Report) -> None:
    """Measure one cluster of each size, in a single round, since a round takes minutes."""
    _measure_table(report)
    for size in QUICK if report.options.quick else SIZES:
        with LocalCluster(NODES) as cluster, Control(cluster.endpoints, timeout=60) as control:
            _Lab(report, size, cluster, control).measure()


def _measure_table(report: Report) -> None:
    """Measure only the table, with 100,000 partitions on 1,000 nodes, in this process."""
    before = _resident(os.getpid())
    state = _a_table(100_000, 3, 1000)
    memory = (_resident(os.getpid()) - before) / 1024 / len(state.partitions)
    report.add(report.case("a table: memory", "KiB a partition", goal=Goal(at_most=1)), MINKA, Sample(memory))
    captured, capture = _timed(state.capture)
    encoded, encode = _timed(lambda: zlib.compress(captured.encode(), 1))
    _, decode = _timed(lambda: State.from_snapshot(zlib.decompress(encoded)))
    _, copy = _timed(state.copy)
    for name, seconds, at_most in (
        ("captured for a snapshot, on the loop", capture, 0.02),
        ("encoded, on a thread", encode, 1.0),
        ("decoded, on a thread", decode, 2.0),
        ("copied by a new controller, on the loop", copy, 0.02),
    ):
        case = report.case(f"a table: {name}", "ms", goal=Goal(at_most=1000 * at_most))
        report.add(case, MINKA, Sample(1000 * seconds))


def _a_table(partitions: int, replicas: int, nodes: int) -> State:
    """Build a table as records would: create each row, then change it once."""
    state = State()
    names = [f"node-{number:04}" for number in range(nodes)]
    state.nodes = {name: Node(id=name, raft_id=1 + i, state=NodeState.NODE_STATE_LIVE) for i, name in enumerate(names)}
    state.keyspaces[1] = Keyspace(id=1, name=KEYSPACE, partition_count=partitions, replicas=replicas)
    for slot in range(partitions):
        on = [names[(slot + place) % nodes] for place in range(replicas)]
        row = Partition(id=slot + 1, keyspace_id=1, slot=slot, replicas=on, isr=on, leader=on[0], generation=1)
        for epoch, now in ((1, PartitionState.PARTITION_STATE_ASSIGNED), (2, PartitionState.PARTITION_STATE_ONLINE)):
            row.state, row.leader_epoch, row.partition_epoch = now, 1, epoch
            state.partitions.put(row)
    return state


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.thread_time()
    return work(), time.thread_time() - began


@dataclass
class _Table:
    """A copy of one node's table. `refresh` brings it up to date."""

    address: str
    version: int = 0
    cluster: str = ""
    nodes: dict[str, Node] = field(default_factory=dict)
    rows: dict[int, Partition] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)  # nodes that have been FAILED at any time

    def __post_init__(self) -> None:
        options = [("grpc.max_receive_message_length", 128 * _MIB)]
        self._stub = MetadataStub(grpc.insecure_channel(self.address, options))

    def refresh(self) -> None:
        """Get the changes of the table from the node, and apply them."""
        answer = self._stub.GetTable(
            GetTableRequest(known_version=self.version, known_cluster=self.cluster), timeout=30
        )
        if answer.HasField("table"):
            self.rows.clear()
            self.cluster = answer.table.cluster.id
        for part in (answer.table, answer.changes):
            self.version = part.version or self.version
            self.rows.update((row.id, row) for row in part.partitions)
            self.nodes.update((node.id, node) for node in part.nodes)
        self.failed |= {node.id for node in self.nodes.values() if node.state == NodeState.NODE_STATE_FAILED}

    def until(self, what: str, is_so: Callable[[Partition], bool], count: int) -> float:
        """Wait until there are `count` rows, and `is_so` is true of all; returns the seconds of the wait."""
        began = time.monotonic()
        while True:
            self.refresh()
            if len(self.rows) == count and all(map(is_so, self.rows.values())):
                return time.monotonic() - began
            if time.monotonic() - began > _GIVE_UP_S:
                raise TimeoutError(f"{what}: not after {_GIVE_UP_S:g} s")
            time.sleep(_POLL_S)


@dataclass
class _Lab:
    report: Report
    size: Size
    cluster: LocalCluster
    control: Control

    def measure(self) -> None:
        """Measure all events, one after the other."""
        size = self.size
        self.table = _Table(self.cluster.nodes[next(iter(self.cluster.nodes))].address)
        self._wait_for_nodes()
        self.empty = min(_resident(node.pid) for node in self.cluster.nodes.values())
        self._add("created", "s", size.created, self._create())
        for name, percent in self._idle():
            self._add(f"idle, {name}", "% of a core", size.idle, percent)
        self._add("memory beside an empty daemon's", "KiB a replica", None, self._memory())
        self._add("minkactl status", "s", size.status, self._status())
        self._add("a new client's first put", "s", size.first_put, self._first_put())
        self._add("a plan that empties a node", "s", size.planned, self._plan())
        stall = self._stall()
        self._kill()
        self._add("restarted: in sync", "s", size.in_sync, self._restart())
        self._add("longest turn of a loop", "ms", 100, 1000 * max(stall, self._stall()))
        self._add("nodes FAILED that lived", "", 1, len(self.table.failed - {VICTIM}))

    def _add(self, name: str, unit: str, at_most: float | None, value: float) -> None:
        goal = None if at_most is None else Goal(at_most=at_most)
        case = self.report.case(f"{self.size.partitions:,} x {self.size.replicas}: {name}", unit, goal=goal)
        self.report.add(case, MINKA, Sample(value))

    def _wait_for_nodes(self) -> None:
        deadline = time.monotonic() + _GIVE_UP_S
        while sum(node.state == NodeState.NODE_STATE_LIVE for node in self.table.nodes.values()) < NODES:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not {NODES} nodes after {_GIVE_UP_S:g} s")
            time.sleep(_POLL_S)
            self.table.refresh()

    def _create(self) -> float:
        size, began = self.size, time.monotonic()
        self.control.create_keyspace(KEYSPACE, size.partitions, HashFunction.HASH_FUNCTION_MURMUR3, size.replicas)
        self.table.until("are all ONLINE", _is_online, size.partitions)
        return time.monotonic() - began

    def _idle(self) -> Iterator[tuple[str, float]]:
        time.sleep(_IDLE_S / 4)  # lets the last work of the creation end
        before = {name: _processor_seconds(node.pid) for name, node in self.cluster.nodes.items()}
        time.sleep(_IDLE_S)
        for name, node in self.cluster.nodes.items():
            yield name, 100 * (_processor_seconds(node.pid) - before[name]) / _IDLE_S

    def _memory(self) -> float:
        most = max(_resident(node.pid) for node in self.cluster.nodes.values())
        return (most - self.empty) / 1024 / (self.size.partitions * self.size.replicas / NODES)

    def _status(self) -> float:
        command = [sys.executable, "-m", "minkactl", "status", "--endpoints", ",".join(self.cluster.endpoints)]
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        took = []
        for _ in range(_STATUSES):
            began = time.monotonic()
            subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True, timeout=_GIVE_UP_S)
            took.append(time.monotonic() - began)
        return sorted(took)[len(took) // 2]

    def _first_put(self) -> float:
        took = []
        for number in range(_STATUSES):
            began = time.monotonic()
            with Client(self.cluster.endpoints, keyspace=KEYSPACE, timeout=30) as client:
                client.put(b"first-%d" % number, b"value")
                took.append(time.monotonic() - began)
        return sorted(took)[len(took) // 2]

    def _plan(self) -> float:
        began = time.monotonic()
        if self.size.replicas < NODES:
            self.control.plan_reassign(drain=[VICTIM])
        return time.monotonic() - began

    def _kill(self) -> None:
        """Kill the victim, and measure the time until no partition has it as leader. Partitions whose only replica was
        on the victim are OFFLINE from then on.
        """
        count, began = self.size.partitions, time.monotonic()
        self.cluster.kill(VICTIM)
        self.table.until("are all led elsewhere or OFFLINE", lambda row: row.leader != VICTIM, count)
        self._add("killed: leaderships elsewhere", "s", self.size.moved, time.monotonic() - began)
        if self.size.replicas > 1:
            self.table.until("are all ONLINE", lambda row: row.leader != VICTIM and _is_online(row), count)
            self._add("killed: all ONLINE elsewhere", "s", None, time.monotonic() - began)

    def _restart(self) -> float:
        began = time.monotonic()
        self.cluster.restart(VICTIM)
        self.table.until(
            "are all in sync",
            lambda row: _is_online(row) and len(row.isr) == self.size.replicas,
            self.size.partitions,
        )
        return time.monotonic() - began

    def _stall(self) -> float:
        """The processor time, in seconds, of the longest turn of any node's event loop."""
        return max(_longest_turn(node.http_address) for node in self.cluster.nodes.values())


def _is_online(row: Partition) -> bool:
    return row.state == PartitionState.PARTITION_STATE_ONLINE


def _processor_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        found = _RSS.search(file.read())
    assert found is not None, "Linux says VmRSS"
    return int(found[1]) * 1024


def _longest_turn(http_address: str) -> float:
    with urllib.request.urlopen(f"http://{http_address}/metrics", timeout=30) as answer:
        found = _LONGEST.search(answer.read().decode())
    if found is None:
        raise RuntimeError(f"http://{http_address}/metrics doesn't have minka_loop_work_max_seconds")
    return float(found[1])


if __name__ == "__main__":
    main("scale", "Measure clusters with a large table: 20,000 partitions of three replicas, and 100,000 of one.", run)
