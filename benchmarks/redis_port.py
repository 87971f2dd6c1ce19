"""SETs and GETs a second of a node's data port with Redis's protocol, beside redis-server; redis-benchmark asks both.

The first cases have one node and one replica, beside one redis-server: both make a SET durable before they answer. The
other cases have three nodes and three replicas: a SET is durable on all three before it is answered. Beside them stand
the same redis-server, which makes no such promise, and etcd, which syncs on two of three. All systems are measured in
turn, so that other work of the machine disturbs them alike.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import uvloop

from benchmarks.etcd_client import PUT, Load, put_request
from benchmarks.measure import MINKA, Case, Goal, Report, Sample, main, sample_of
from benchmarks.peers import ETCD, REDIS, EtcdCluster, missing, redis_sample
from benchmarks.processes import LOOPBACK, Group, free_ports
from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, Partition, PartitionState

KEYS: Final = 100_000
VALUE_BYTES: Final = 100
PARTITIONS: Final = 1
_ONLINE_S: Final = 30.0
_FILLING: Final = ("-c", "16", "-P", "64")
REPLICAS: Final = 3
REPLICAS_GOAL: Final = 0.25  # of Redis's figure with one
ETCD_GOAL: Final = 2
_CONNECTIONS: Final = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """A load: `clients` connections, each with `pipeline` commands under way."""

    clients: int
    pipeline: int
    guess: dict[str, int]  # commands a second; sets the number of commands, since redis-benchmark takes no duration
    goals: dict[str, float]  # the share of Redis's figure to reach, with one replica

    def __str__(self) -> str:
        return f"{self.clients} clients" + (f" x {self.pipeline}" if self.pipeline > 1 else "")


SHAPES: Final = (
    Shape(1, 1, {"set": 2_000, "get": 12_000}, {"set": 0.5, "get": 0.6}),
    Shape(16, 1, {"set": 8_000, "get": 25_000}, {"set": 0.5, "get": 0.6}),
    Shape(128, 1, {"set": 15_000, "get": 30_000}, {"set": 0.5, "get": 0.6}),
    Shape(16, 16, {"set": 40_000, "get": 100_000}, {"set": 0.5, "get": 0.25}),
)
AGAINST_ETCD: Final = SHAPES[2]


def run(report: Report) -> None:
    """Measure all cases, and add them to the report."""
    if reason := missing(REDIS):
        report.absent |= {REDIS: reason}
        report.notes.append("The load comes from redis-benchmark, so nothing was measured.")
        return
    report.absent |= {ETCD: reason} if (reason := missing(ETCD)) else {}
    report.notes.append(
        f"Keys of 16 bytes, {KEYS:,} of them, values of {VALUE_BYTES} bytes. Minka: {PARTITIONS} partition, durability "
        "sync. Redis: one redis-server, appendonly yes, appendfsync always. etcd: three members, puts to the leader on "
        f"{_CONNECTIONS} connections by the client in benchmarks/etcd_client.py."
    )
    with _redis() as redis:
        for replicas in (1, REPLICAS):
            with _minka(replicas) as minka:
                for port in (redis, minka):
                    _benchmark(port, "set", _FILLING, 3 * KEYS)
                for _ in range(report.options.rounds):
                    _measure(report, replicas, redis, minka)


def _measure(report: Report, replicas: int, redis: int, minka: int) -> None:
    for operation in ("set", "get"):
        for shape in SHAPES:
            case = _case(report, operation, shape, replicas)
            for system, port in ((REDIS, redis), (MINKA, minka)):
                report.add(case, system, _sample(report, port, operation, shape))
    if replicas > 1 and ETCD not in report.absent:
        name = f"set, {AGAINST_ETCD}, {replicas} replicas; etcd: {AGAINST_ETCD.clients} puts under way"
        case = report.case(name, "1/s", ETCD, Goal(ratio=ETCD_GOAL))
        with EtcdCluster(replicas) as etcd:
            report.add(case, ETCD, _puts_of_etcd(etcd, report.options.seconds))
        report.add(case, MINKA, _sample(report, minka, "set", AGAINST_ETCD))


def _case(report: Report, operation: str, shape: Shape, replicas: int) -> Case:
    if replicas > 1:
        return report.case(f"{operation}, {shape}, {replicas} replicas", "1/s", REDIS, Goal(ratio=REPLICAS_GOAL))
    return report.case(f"{operation}, {shape}", "1/s", REDIS, Goal(ratio=shape.goals[operation]))


def _sample(report: Report, port: int, operation: str, shape: Shape) -> Sample:
    load = ("-c", str(shape.clients), "-P", str(shape.pipeline))
    return redis_sample(_benchmark(port, operation, load, int(shape.guess[operation] * report.options.seconds)))


def _puts_of_etcd(etcd: EtcdCluster, seconds: float) -> Sample:
    load = Load(PUT, lambda number: put_request(b"key:%012d" % (number % KEYS), b"x" * VALUE_BYTES))
    took = uvloop.run(load.run(etcd.leader(), AGAINST_ETCD.clients, _CONNECTIONS, seconds))
    return sample_of(len(load.latencies), took, load.latencies)


def _benchmark(port: int, operation: str, load: tuple[str, ...], requests: int) -> str:
    command = ["redis-benchmark", "-h", LOOPBACK, "-p", str(port), "-t", operation, *load]
    command += ["-n", str(requests), "-r", str(KEYS), "-d", str(VALUE_BYTES), "--csv"]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


@contextmanager
def _redis() -> Iterator[int]:
    """The port of a redis-server that syncs each write before it answers."""
    with Group(REDIS) as group:
        (port,) = free_ports(1)
        command = ["redis-server", "--bind", LOOPBACK, "--port", str(port), "--dir", str(group.directory)]
        command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        group.start(REDIS, [*command, "--auto-aof-rewrite-percentage", "0"])
        ping = ["redis-cli", "-p", str(port), "PING"]
        group.wait_until(
            "redis answers", lambda: b"PONG" in subprocess.run(ping, capture_output=True, check=False).stdout
        )
        yield port


@contextmanager
def _minka(replicas: int) -> Iterator[int]:
    """The data port of the node that leads the keyspace `default`."""
    with LocalCluster(replicas) as cluster, Control(cluster.endpoints) as control:
        control.create_keyspace("default", PARTITIONS, HashFunction.HASH_FUNCTION_CRC16, replicas=replicas)
        deadline = time.monotonic() + _ONLINE_S
        while not all(_is_whole(row, replicas) for row in control.table().partitions):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all partitions have {replicas} replicas after {_ONLINE_S:g} s")
            time.sleep(0.05)
        (row,) = control.table().partitions
        yield int(cluster.node(row.leader).data_address.rpartition(":")[2])


def _is_whole(row: Partition, replicas: int) -> bool:
    return row.state == PartitionState.PARTITION_STATE_ONLINE and len(row.isr) == replicas


if __name__ == "__main__":
    main("redis_port", "SETs and GETs a second with Redis's protocol, beside redis-server and etcd.", run)
