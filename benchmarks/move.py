"""Moves a partition of 1 GB to another node. Compares the MB/s with `redis-cli --cluster reshard` of one slot with such
keys, and with a plain copy of the same files over loopback. Also measures the effects of a move on clients.
"""

import binascii
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from benchmarks.cluster import KEYSPACE, Clients, create_keyspace, put_all
from benchmarks.kv_worker import Done, Work, key
from benchmarks.measure import MINKA, Goal, Report, Sample, main, percentile
from benchmarks.peers import REDIS, RedisCluster, missing
from benchmarks.plain_copy import copy
from benchmarks.reassign import finish, metrics, pauses
from minka.admin.control import Control
from minka.testing.leftovers import Leftovers
from minka.testing.local_cluster import LocalCluster

VALUE_BYTES: Final = 1008  # with the key, 1 KiB
KEYS: Final = 1_000_000
REDIS_KEYS: Final = 125_000
QUICK_KEYS: Final = 50_000
COPY: Final = "plain copy"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of the table: the peer with which the move is compared."""

    peer: str
    name: str
    goal: Goal | None
    pipeline: int = 0  # keys that Redis moves with one MIGRATE


RESHARDS: Final = (
    Comparison(REDIS, "a partition moves, beside reshard", Goal(ratio=15), 10),  # redis-cli's default
    Comparison(REDIS, "… with --cluster-pipeline 1000", None, 1000),
)
PLAIN: Final = Comparison(COPY, "a partition moves, beside a plain copy", Goal(ratio=0.5))

_CLIENTS: Final = 4  # clients that put, and as many that get
_GAP_S: Final = 0.01  # the time between two calls of a client
_WRITTEN_KEYS: Final = 20_000
_AROUND_S: Final = 5.0  # the time for which calls are measured before the move, and after it
_LONGEST_S: Final = 300.0
_SETTLED_S: Final = 2.0  # the files are settled if none is created or removed in this time
_SETTLE_TIMEOUT_S: Final = 120.0


def run(report: Report) -> None:
    """Measure all cases, and add them to the report."""
    report.absent |= {REDIS: reason} if (reason := missing(REDIS)) else {}
    count = QUICK_KEYS if report.options.quick else KEYS
    redis_count = min(count, REDIS_KEYS)
    report.notes.append(
        f"One partition with one replica, {count:,} keys of {len(key(0))} bytes with {VALUE_BYTES} random bytes each, "
        f"from one of three nodes to another, no rate limit (the default). MB/s: bytes of keys and values by the time "
        f"from the request to the operation's end, when the old copy is deleted. Redis: one slot with {redis_count:,} "
        f"such keys, every write synced. {COPY}: the same files, read, sent through one "
        f"TCP connection, written and synced by another process. With clients: {_CLIENTS} put and {_CLIENTS} get, each "
        f"{_GAP_S * 1000:g} ms after its last call."
    )
    if REDIS not in report.absent:
        _move_redis(report, redis_count)
    with LocalCluster(3) as cluster:
        create_keyspace(cluster.endpoints, 1)
        values = random.Random(0)
        put_all(cluster.endpoints, count, lambda: values.randbytes(VALUE_BYTES))
        with Control(cluster.endpoints, timeout=60) as control:
            for _ in range(report.options.rounds):
                _settle(cluster)
                address, seconds = _move(control)
                size = _moved(control, address, count)
                for comparison in (*RESHARDS, PLAIN):
                    _add_speed(report, comparison, MINKA, size, seconds)
                _settle(cluster)
                _copy(report, cluster)
                _move_with_clients(report, cluster, control, count)


def _add_speed(report: Report, comparison: Comparison, system: str, size: int, seconds: float) -> None:
    case = report.case(comparison.name, "MB/s", comparison.peer, comparison.goal)
    report.add(case, system, Sample(size / seconds / 1e6, details={"MB": size // 10**6, "seconds": round(seconds, 3)}))


# Redis


def _move_redis(report: Report, count: int) -> None:
    values = random.Random(0)
    with RedisCluster() as redis:
        redis.load((_in_slot_0(key(number)), values.randbytes(VALUE_BYTES)) for number in range(count))
        size = count * (len(_in_slot_0(key(0))) + VALUE_BYTES)
        for number, comparison in enumerate(RESHARDS * report.options.rounds):
            source, target = (redis.addresses[(number + i) % len(redis.addresses)] for i in (0, 1))
            started = time.monotonic()
            _reshard(source, target, comparison.pipeline)
            seconds = time.monotonic() - started
            if redis.key_count(target) != count:
                raise RuntimeError(f"{redis.key_count(target)} of {count} keys came to the other Redis")
            _add_speed(report, comparison, REDIS, size, seconds)


def _in_slot_0(name: bytes) -> bytes:
    """Make a key in slot 0: the CRC of bytes that end with their own CRC is 0, and so is the slot."""
    return name + binascii.crc_hqx(name, 0).to_bytes(2, "big")


def _reshard(source: tuple[str, int], target: tuple[str, int], pipeline: int) -> None:
    """Move slot 0 from `source` to `target`: redis-cli takes the lowest slot."""
    ids = [
        subprocess.run(["redis-cli", "-p", str(port), "CLUSTER", "MYID"], capture_output=True, check=True, text=True)
        for _, port in (source, target)
    ]
    start, end = (done.stdout.strip() for done in ids)
    command = ["redis-cli", "--cluster", "reshard", f"{source[0]}:{source[1]}", "--cluster-from", start]
    command += ["--cluster-to", end, "--cluster-slots", "1", "--cluster-pipeline", str(pipeline), "--cluster-yes"]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"redis-cli --cluster reshard: {done.stdout[-500:]}{done.stderr[-500:]}")


# Minka


def _move(control: Control) -> tuple[str, float]:
    """Move the partition to the next node; returns this node's address, and the seconds of the move."""
    table = control.table()
    addresses = {node.id: node.address for node in table.nodes}
    (partition,) = table.partitions
    names = sorted(addresses)
    target = names[(names.index(partition.leader) + 1) % len(names)]
    plan = control.plan_reassign(partitions={partition.id: [target]})
    started = time.monotonic()
    finish(control, control.apply_plan(plan, "benchmark"))
    return addresses[target], time.monotonic() - started


def _moved(control: Control, address: str, count: int) -> int:
    """The bytes of the keys and values that the node has now. Raises RuntimeError if it lacks keys."""
    (moved,) = control.count_keys(address)
    if not moved.leader or moved.keys != count:
        raise RuntimeError(f"{moved.keys} of {count} keys are at {address}")
    return moved.bytes


def _files(cluster: LocalCluster) -> list[Path]:
    """The files of the partition's tables, on the node that has them."""
    return sorted(cluster.directory.glob("*/data/partitions/*/*.sst"))


def _settle(cluster: LocalCluster) -> None:
    """Wait until RocksDB has ended its compactions, so that they don't disturb the measurement."""
    deadline = time.monotonic() + _SETTLE_TIMEOUT_S
    files, since = _files(cluster), time.monotonic()
    while time.monotonic() - since < _SETTLED_S:
        if time.monotonic() > deadline:
            raise TimeoutError(f"tables still come and go after {_SETTLE_TIMEOUT_S:g} s")
        time.sleep(0.1)
        if (now := _files(cluster)) != files:
            files, since = now, time.monotonic()


def _copy(report: Report, cluster: LocalCluster) -> None:
    directory = Path(tempfile.mkdtemp(prefix="minka-bench-links-"))
    leftovers = Leftovers([directory])
    try:
        for file in _files(cluster):
            (directory / file.name).hardlink_to(file)  # keeps the file even if RocksDB removes it
        files = sorted(directory.iterdir())
        size = sum(file.stat().st_size for file in files)
        _add_speed(report, PLAIN, COPY, size, copy(files))
    finally:
        leftovers.remove()


# Clients


def _move_with_clients(report: Report, cluster: LocalCluster, control: Control, count: int) -> None:
    put, get = (
        Clients([Work(list(cluster.endpoints), KEYSPACE, what, _CLIENTS, 0, _LONGEST_S, _WRITTEN_KEYS, gap_s=_GAP_S)])
        for what in ("put", "get")
    )
    with put, get:
        for clients in (put, get):
            clients.begin()
        time.sleep(_AROUND_S)
        paused = _pauses(cluster)
        began = time.monotonic()
        address, seconds = _move(control)
        ended = began + seconds
        time.sleep(_AROUND_S)
        for clients in (put, get):
            clients.stop()
        outcomes = {"put": put.end(), "get": get.end()}
    size = _moved(control, address, count)
    case = report.case("a partition moves, with clients", "MB/s")
    report.add(case, MINKA, Sample(size / seconds / 1e6, details={"seconds": round(seconds, 3)}))
    _add_pause(report, paused, _pauses(cluster))
    for what, done in outcomes.items():
        _add_latencies(report, what, done, began, ended)


def _add_latencies(report: Report, what: str, done: Done, began: float, ended: float) -> None:
    spans = {"before": (-inf, began), "during": (began, ended), "after": (ended, inf)}
    for name, (start, end) in spans.items():
        took = sorted(_within(done, start, end))
        p50, p99 = percentile(took, 50), percentile(took, 99)
        if p99 is None:
            raise RuntimeError(f"no {what} was measured {name} the move")
        details = {"max": round(took[-1] * 1000, 2), "count": len(took)}
        case = report.case(f"{what} {name} the move, p99", "ms")
        report.add(case, MINKA, Sample(p99 * 1000, p50, p99, took[-1], details))


def _within(done: Done, start: float, end: float) -> Iterator[float]:
    """Yield the seconds of the calls between `start` and `end`. A call that was under way at the beginning or the end
    of the move counts as during the move.
    """
    during = start > -inf and end < inf
    for _, at, took in done.calls:
        if (at < end and at + took >= start) if during else (at >= start and at + took < end):
            yield took


def _pauses(cluster: LocalCluster) -> Counter[float]:
    """For each bound in seconds: the number of hand-overs, on all nodes, that held writes for at most this time."""
    total = Counter[float]()
    for node in cluster.nodes.values():
        total.update(pauses(metrics(node.http_address)))
    return total


def _add_pause(report: Report, before: Counter[float], after: Counter[float]) -> None:
    longest = min(bound for bound in after if after[bound] - before[bound] == after[inf] - before[inf])
    report.add(report.case("write pause of that move, at most", "ms"), MINKA, Sample(longest * 1000))


if __name__ == "__main__":
    main("move", "Measure the move of a partition of 1 GB to another node: its speed, and the effects on clients.", run)
