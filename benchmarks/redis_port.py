"""Measures SETs and GETs per second of a data port with Redis's protocol, compared with redis-server. redis-benchmark
sends the requests to both.

In the first cases, Minka has one node and one replica, and is compared with one redis-server: both make a SET durable
before they answer. In the other cases, Minka has three nodes and three replicas, and makes a SET durable on all three
before it answers. They are compared with the same redis-server, which syncs only one copy, and with etcd, which syncs
two of three copies. The systems are measured in turn, so other work of the machine disturbs them equally.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import uvloop

from benchmarks.etcd_client import PUT, Calls, put_request
from benchmarks.measure import MINKA, Case, Goal, Report, Sample, main, sample_of
from benchmarks.peers import ETCD, REDIS, EtcdCluster, missing, redis_sample
from benchmarks.processes import Group, free_ports
from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.testing.loopback_ports import LOOPBACK
from minka.v1.cluster_pb2 import HashFunction, Partition, PartitionState

KEYS: Final = 100_000
VALUE_BYTES: Final = 100
PARTITIONS: Final = 1
_ONLINE_S: Final = 30.0
_FILLING: Final = ("-c", "16", "-P", "64")
REPLICAS: Final = 3
REPLICAS_GOAL: Final = 0.25  # the share of Redis's figure to reach, with three replicas
ETCD_GOAL: Final = 2
_CONNECTIONS: Final = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """A workload: `clients` connections, each with `pipeline` commands under way."""

    clients: int
    pipeline: int
    guess: dict[str, int]  # commands per second; sets their number, since redis-benchmark takes no duration
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
        report.notes.append("Nothing was measured, since redis-benchmark has to send the requests.")
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
    calls = Calls(PUT, lambda number: put_request(b"key:%012d" % (number % KEYS), b"x" * VALUE_BYTES))
    took = uvloop.run(calls.run(etcd.leader(), AGAINST_ETCD.clients, _CONNECTIONS, seconds))
    return sample_of(len(calls.latencies), took, calls.latencies)


def _benchmark(port: int, operation: str, load: tuple[str, ...], requests: int) -> str:
    command = ["redis-benchmark", "-h", LOOPBACK, "-p", str(port), "-t", operation, *load]
    command += ["-n", str(requests), "-r", str(KEYS), "-d", str(VALUE_BYTES), "--csv"]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


@contextmanager
def _redis() -> Iterator[int]:
    """Run a redis-server that syncs each write before it answers; yields its port."""
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
    """Run a cluster; yields the data port of the node that leads the partition of the keyspace `default`."""
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
    main(
        "redis_port",
        "Measure SETs and GETs per second with Redis's protocol, compared with redis-server and etcd.",
        run,
    )
