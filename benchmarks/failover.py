"""Measures the time from a fault until every partition takes writes again. The faults are: a node is killed, stopped or
cut off, or its disk hangs. The peers are etcd, and Redis Cluster with the same timeout. The benchmark also counts the
living nodes that were marked FAILED.
"""

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

import minka
from benchmarks.cluster import KEYSPACE
from benchmarks.kv_worker import VALUE, key
from benchmarks.measure import MINKA, Goal, Report, Sample, measure, parse, percentile
from benchmarks.peers import ETCD, REDIS, EtcdCluster, RedisCluster, missing
from minka.admin.control import Control
from minka.cluster.hashing import murmur3
from minka.errors import MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, NodeState, PartitionState, PartitionTable
from minkad.config.schema import Membership
from minkad.storage.log_database import STALLED_S
from tests.cluster.network import CLIENTS, Network, NetworkedCluster
from tests.cluster.undo import NotPermitted, Undo

DESCRIPTION: Final = "Measure how long partitions take no writes after a node dies or is silent, or its disk hangs."
ROUNDS: Final = 10  # rounds of each fault, for each kind of node and each size of the cluster
QUICK_ROUNDS: Final = 2
SIZES: Final = (3, 5)
NAMES: Final = ("athens", "byzantium", "cyrene", "delphi", "ephesus")
PARTITIONS: Final = 24
KILL, STOP, CUT, HANG = "kill", "stop", "cut", "hang the disk of"
CONTROLLER, OTHER = "the active controller", "another node"
MEDIAN_MS: Final = {CONTROLLER: 1200.0, OTHER: 900.0}
WORST_MS: Final = {CONTROLLER: 2000.0, OTHER: 1500.0}
PATIENCE_MS: Final = {HANG: 1000 * STALLED_S}  # a disk that hangs for a shorter time isn't a fault
# A node that is silent for this time counts as failed. Redis's cluster-node-timeout has the same meaning.
FAILURE_TIMEOUT_MS: Final = Membership().failure_timeout_ms

_WELL_TIMEOUT_S: Final = 60.0
_GIVE_UP_S: Final = 30.0
_WARM_UP_S: Final = 1.0
_GAP_S: Final = 0.01  # the time between two writes to the same partition

Address = tuple[str, int]


def run(report: Report, rounds: int | None = None) -> None:
    """Measure all cases, and add them to the report."""
    rounds = rounds or (QUICK_ROUNDS if report.options.quick else ROUNDS)
    report.absent |= {peer: reason for peer in (REDIS, ETCD) if (reason := missing(peer))}
    report.notes.append(
        f"{rounds} faults of each kind, one after the other. {PARTITIONS} partitions of three replicas, two in sync at "
        f"least, minkad's defaults (failure_timeout_ms {FAILURE_TIMEOUT_MS}); each is written to all the time. "
        f"From the fault until every partition has taken a write. Redis: three masters with a replica each, "
        f"cluster-node-timeout {FAILURE_TIMEOUT_MS} ms, the keys of one master, and an answer doesn't wait for "
        f"the replica. etcd: {SIZES[0]} or {SIZES[1]} members, its leader, its defaults."
    )
    for size in SIZES:
        _measure_minka(report, size, rounds)
    if REDIS not in report.absent:
        for fault in (KILL, STOP):
            _add(report, SIZES[0], fault, OTHER, REDIS, _redis(fault, rounds))
    if ETCD not in report.absent:
        for size in SIZES:
            _add(report, size, STOP, CONTROLLER, ETCD, _etcd(size, rounds))


def _add(report: Report, size: int, fault: str, who: str, system: str, took: Sequence[float]) -> None:
    peer = ETCD if who == CONTROLLER else REDIS
    for name, percent, goal in (("median", 50, MEDIAN_MS[who]), ("worst", 100, WORST_MS[who])):
        value = percentile(sorted(took), percent)
        if value is None:
            raise RuntimeError("nothing was measured")
        goal += PATIENCE_MS.get(fault, 0.0)
        case = report.case(f"{size} nodes, {fault} {who}: {name}", "ms", peer, Goal(at_most=goal))
        report.add(case, system, Sample(value * 1000, details={"count": len(took)}))


# Minka


def _measure_minka(report: Report, size: int, rounds: int) -> None:
    with (
        _cluster(size, report) as (cluster, network),
        Control(cluster.endpoints, timeout=10) as control,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        _wait_for_nodes(control, size)
        control.create_keyspace(KEYSPACE, PARTITIONS, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        lab = _Lab(cluster, control, network, runner)
        for who in (CONTROLLER, OTHER):
            for fault in (KILL, STOP, HANG, CUT) if network is not None else (KILL, STOP, HANG):
                took = [lab.round(fault, who, number) for number in range(rounds)]
                _add(report, size, fault, who, MINKA, took)
        for what, count in (
            ("nodes that FAILED though they lived", lab.failed),
            ("partitions OFFLINE though replicas lived", lab.offline),
        ):
            report.add(report.case(f"{size} nodes, {what}", "", goal=Goal(at_most=1)), MINKA, Sample(count))


@contextmanager
def _cluster(size: int, report: Report) -> Iterator[tuple[LocalCluster, Network | None]]:
    """Run a cluster in network namespaces if the machine allows them; without them, no node can be cut off."""
    with Undo() as undo:
        network: Network | None = None
        cluster: LocalCluster
        try:
            network = Network(undo)
            cluster = NetworkedCluster(NAMES[:size], network)
        except NotPermitted as error:
            network, cluster = None, LocalCluster(NAMES[:size])
            report.notes.append(f"No node was cut off: {error}")
        for name, node in cluster.nodes.items():
            node.env = {"MINKA_FAILPOINTS_FILE": str(_failpoints(cluster, name))}
        with cluster:
            yield cluster, network


def _failpoints(cluster: LocalCluster, name: str) -> Path:
    return cluster.nodes[name].directory / "failpoints"


@dataclass
class _Lab:
    """A cluster; `failed` counts its nodes that were marked FAILED although they were healthy, and `offline` its
    partitions that were OFFLINE although a replica could lead.
    """

    cluster: LocalCluster
    control: Control
    network: Network | None
    runner: asyncio.Runner
    failed: int = 0
    offline: int = 0
    _keys: dict[int, bytes] = field(default_factory=dict)

    def round(self, fault: str, who: str, number: int) -> float:
        """Cause one fault, and end it; returns the seconds from the fault until every partition has taken a write."""
        before, controller = _wait_well(self.control)
        victim = controller if who == CONTROLLER else self._other(before, controller, number)
        for i in range(100 * PARTITIONS):
            self._keys.setdefault(murmur3(key(i)) % PARTITIONS, key(i))
        took = self.runner.run(self._seconds(lambda: self._begin(fault, victim)))
        self._count(before, victim)
        self._end(fault, victim)
        after, _ = _wait_well(self.control)
        self.failed += _others(before, victim) != _others(after, victim)  # a node that was FAILED has a new incarnation
        return took

    @staticmethod
    def _other(table: PartitionTable, controller: str, number: int) -> str:
        leaders = sorted({partition.leader for partition in table.partitions} - {controller})
        return leaders[number % len(leaders)]

    def _begin(self, fault: str, victim: str) -> None:
        if fault == KILL:
            self.cluster.kill(victim)
        elif fault == STOP:
            self.cluster.signal(victim, signal.SIGSTOP)
        elif fault == HANG:
            path = _failpoints(self.cluster, victim)
            path.write_text(f"log.sync.before=pause:{path}\n", "utf-8")  # syncs hang as long as this file exists
        else:
            assert self.network is not None, "nothing is cut off without namespaces"
            self.network.part([victim], [CLIENTS, *(name for name in self.cluster.nodes if name != victim)])

    def _end(self, fault: str, victim: str) -> None:
        if fault == KILL:
            self.cluster.restart(victim)
        elif fault == STOP:
            self.cluster.signal(victim, signal.SIGCONT)
        elif fault == HANG:
            _failpoints(self.cluster, victim).unlink()
        elif self.network is not None:
            self.network.heal()

    def _count(self, before: PartitionTable, victim: str) -> None:
        deadline = time.monotonic() + _GIVE_UP_S
        while time.monotonic() < deadline:
            with suppress(MinkaError):
                status = self.control.status()
                if status.from_controller:
                    self.offline += sum(not row.leader for row in status.table.partitions)
                    self.failed += _others(before, victim) != _others(status.table, victim)
                    return
        raise TimeoutError("nobody is the active controller")

    async def _seconds(self, begin: Callable[[], None]) -> float:
        began = float("inf")
        taken: dict[bytes, float] = {}

        async def write(client: minka.AsyncClient, name: bytes) -> None:
            while name not in taken:
                sent = time.monotonic()
                with suppress(MinkaError):
                    await client.put(name, VALUE, timeout=_GIVE_UP_S)
                    if sent > began:
                        taken[name] = time.monotonic()
                await asyncio.sleep(_GAP_S)

        async with minka.AsyncClient(self.cluster.endpoints, keyspace=KEYSPACE) as client:
            writers = [asyncio.create_task(write(client, name)) for name in self._keys.values()]
            await asyncio.sleep(_WARM_UP_S)
            began = time.monotonic()
            begin()
            async with asyncio.timeout(_GIVE_UP_S):
                await asyncio.gather(*writers)
        return max(taken.values()) - began


def _others(table: PartitionTable, victim: str) -> dict[str, str]:
    return {node.id: node.incarnation for node in table.nodes if node.id != victim}


def _wait_for_nodes(control: Control, size: int) -> None:
    deadline = time.monotonic() + _WELL_TIMEOUT_S
    while time.monotonic() < deadline:
        with suppress(MinkaError):
            nodes = control.status().table.nodes
            if sum(node.state == NodeState.NODE_STATE_LIVE for node in nodes) == size:
                return
        time.sleep(_GAP_S)
    raise TimeoutError(f"not {size} nodes after {_WELL_TIMEOUT_S:g} s")


def _wait_well(control: Control) -> tuple[PartitionTable, str]:
    """Wait until all nodes are LIVE and all replicas in sync; returns the table and the active controller."""
    deadline = time.monotonic() + _WELL_TIMEOUT_S
    while time.monotonic() < deadline:
        with suppress(MinkaError):
            status = control.status()
            rows, nodes = status.table.partitions, status.table.nodes
            online = all(p.state == PartitionState.PARTITION_STATE_ONLINE and len(p.isr) == 3 for p in rows)
            live = all(node.state == NodeState.NODE_STATE_LIVE for node in nodes)
            if status.from_controller and online and live and rows:
                return status.table, status.coordinator.controller
        time.sleep(_GAP_S)
    raise TimeoutError(f"not every replica is in sync after {_WELL_TIMEOUT_S:g} s")


# Redis


def _redis(fault: str, rounds: int) -> list[float]:
    took = []
    with RedisCluster(3, replicas=1, node_timeout_ms=FAILURE_TIMEOUT_MS) as redis:
        for number in range(rounds):
            redis.wait_replicated()
            heirs = {master: replica for replica, master in redis.replicas().items()}
            victim = sorted(heirs)[number % len(heirs)]
            name = redis.key_of(victim)
            time.sleep(_WARM_UP_S)
            began = time.monotonic()
            if fault == KILL:
                redis.kill(victim)
            else:
                redis.signal(victim, signal.SIGSTOP)
            took.append(_until_set(heirs[victim], name) - began)
            if fault == KILL:
                redis.restart(victim)
            else:
                redis.signal(victim, signal.SIGCONT)
    return took


def _until_set(heir: Address, name: bytes) -> float:
    """Repeat a write at `heir`, the replica that has to become the master, until the write succeeds; returns the
    time of the success.
    """
    command = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, len(VALUE), VALUE)
    deadline = time.monotonic() + _GIVE_UP_S
    with socket.create_connection(heir, timeout=_GIVE_UP_S) as connection:
        while time.monotonic() < deadline:
            connection.sendall(command)
            if connection.recv(1024).startswith(b"+OK"):
                return time.monotonic()
            time.sleep(_GAP_S)
    raise TimeoutError(f"the replica on port {heir[1]} did not take over within {_GIVE_UP_S:g} s")


# etcd


def _etcd(size: int, rounds: int) -> list[float]:
    """Stop etcd's leader in each round; returns the seconds until another member takes a write."""
    took = []
    with EtcdCluster(size) as etcd:
        for _ in range(rounds):
            leader = etcd.endpoints.index(etcd.leader())
            other = etcd.endpoints[(leader + 1) % size]
            _put_into_etcd(other)
            time.sleep(_WARM_UP_S)
            began = time.monotonic()
            os.kill(etcd.pids[leader], signal.SIGSTOP)
            try:
                took.append(_put_into_etcd(other) - began)
            finally:
                os.kill(etcd.pids[leader], signal.SIGCONT)
            etcd.wait_for_leader()
    return took


def _put_into_etcd(endpoint: str) -> float:
    """Send puts until one is acknowledged; returns the time of the acknowledgement."""
    command = ["etcdctl", "--endpoints", endpoint, "--command-timeout", "100ms", "put", "key", VALUE.hex()[:64]]
    deadline = time.monotonic() + _GIVE_UP_S
    while time.monotonic() < deadline:
        done = subprocess.run(command, capture_output=True, check=False, env=os.environ | {"ETCDCTL_API": "3"})
        if done.returncode == 0:
            return time.monotonic()
    raise TimeoutError(f"etcd takes no write within {_GIVE_UP_S:g} s")


if __name__ == "__main__":
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--rounds", type=int, metavar="N", help="faults of each kind")
    chosen, rest = own.parse_known_args(sys.argv[1:])
    measure(
        "failover",
        parse(DESCRIPTION + " --rounds N: N faults of each kind.", rest),
        partial(run, rounds=chosen.rounds),
    )
