"""SETs and GETs a second of a node's data port with Redis's protocol, beside redis-server; redis-benchmark asks both.

One node and one replica, as one redis-server; an answered SET is durable in both. They are measured in turn, so that
what else the machine does disturbs both alike.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.measure import MINKA, Case, Goal, Report, main
from benchmarks.peers import REDIS, missing, redis_sample
from benchmarks.processes import LOOPBACK, Group, free_ports
from minka.control import Control
from minka.v1.cluster_pb2 import HashFunction, PartitionState
from minkactl.playground import LocalCluster

KEYS: Final = 100_000
VALUE_BYTES: Final = 100
PARTITIONS: Final = 1
_ONLINE_S: Final = 30.0
_FILLING: Final = ("-c", "16", "-P", "64")


@dataclass(frozen=True, slots=True)
class Shape:
    """A load: so many connections, each with so many commands under way."""

    clients: int
    pipeline: int
    guess: dict[str, int]  # commands a second; sets how many are done, since redis-benchmark counts them
    goals: dict[str, float | None]  # of Redis's figure

    def __str__(self) -> str:
        return f"{self.clients} clients" + (f" x {self.pipeline}" if self.pipeline > 1 else "")


SHAPES: Final = (
    Shape(1, 1, {"set": 2_000, "get": 12_000}, {"set": 0.5, "get": 0.6}),
    Shape(16, 1, {"set": 8_000, "get": 25_000}, {"set": 0.5, "get": 0.6}),
    Shape(128, 1, {"set": 15_000, "get": 30_000}, {"set": 0.5, "get": 0.6}),
    Shape(16, 16, {"set": 40_000, "get": 100_000}, {"set": 0.5, "get": 0.25}),
)


def run(report: Report) -> None:
    """Measure all cases, and add them to the report."""
    if reason := missing(REDIS):
        report.absent |= {REDIS: reason}
        report.notes.append("The load comes from redis-benchmark, so nothing was measured.")
        return
    report.notes.append(
        f"Keys of 16 bytes, {KEYS:,} of them, values of {VALUE_BYTES} bytes. Minka: one node, {PARTITIONS} partitions, "
        "durability sync. Redis: one redis-server, appendonly yes, appendfsync always."
    )
    with _redis() as redis, _minka() as minka:
        for port in (redis, minka):
            _benchmark(port, "set", _FILLING, 3 * KEYS)
        for _ in range(report.options.rounds):
            for operation in ("set", "get"):
                for shape in SHAPES:
                    case = _case(report, operation, shape)
                    for system, port in ((REDIS, redis), (MINKA, minka)):
                        load = ("-c", str(shape.clients), "-P", str(shape.pipeline))
                        requests = int(shape.guess[operation] * report.options.seconds)
                        report.add(case, system, redis_sample(_benchmark(port, operation, load, requests)))


def _case(report: Report, operation: str, shape: Shape) -> Case:
    return report.case(f"{operation}, {shape}", "1/s", REDIS, Goal(ratio=shape.goals[operation]))


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
def _minka() -> Iterator[int]:
    """The data port of a node with the keyspace `default`."""
    with LocalCluster(1) as cluster, Control(cluster.endpoints) as control:
        control.create_keyspace("default", PARTITIONS, HashFunction.HASH_FUNCTION_CRC16, replicas=1)
        deadline = time.monotonic() + _ONLINE_S
        while {row.state for row in control.table().partitions} != {PartitionState.PARTITION_STATE_ONLINE}:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all of {PARTITIONS} partitions are ONLINE after {_ONLINE_S:g} s")
            time.sleep(0.05)
        yield int(next(iter(cluster.nodes.values())).data_address.rpartition(":")[2])


if __name__ == "__main__":
    main("redis_port", "SETs and GETs a second with Redis's protocol, beside redis-server.", run)
