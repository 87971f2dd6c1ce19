"""Measures keyspaces by ranges with uneven traffic: all requests are for one of four ranges, and follow Zipf's law. The
figures are the load of the busiest node divided by the mean of all nodes: at the beginning, over time, and at the end,
when the range has been split and its parts have moved. There is no peer: Redis Cluster moves no slot automatically, and
etcd has one key space.
"""

import asyncio
import os
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from benchmarks.measure import MINKA, Goal, Report, Sample, main, percentile, say
from minka.admin.control import Control
from minka.async_client import AsyncClient
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, PartitionState

KEYSPACE: Final = "bench"
MAX_OPS: Final = 200
KEYS: Final = 100_000
EXPONENT: Final = 0.99  # the same as in YCSB
_USERS: Final = 16
_GAP_S: Final = 0.01  # the time between two calls of a user: all users ask for up to 1,600 keys per second
_SHARE_OF_PUTS: Final = 0.1
_BEFORE_S: Final = (2.0, 5.0)  # in this time, the rates are known, and no partition is split yet
_SHOWN_S: Final = (5, 10, 15, 20, 30, 45, 60, 90, 120)
_SMOOTHED: Final = 5  # seconds
_BATCH: Final = 5_000
_TICKS: Final = os.sysconf("SC_CLK_TCK")
EVEN: Final = 1.35  # 10 % above the skew that the controller accepts


@dataclass(slots=True)
class Second:
    """The state of the cluster, `at` seconds after the traffic began. `ops` has the keys per second that the leaders
    report, by node; `cpu` has the processor seconds used so far, by node.
    """

    at: float
    ops: dict[str, int]
    cpu: dict[str, float]
    partitions: int
    asked: int  # the number of keys that all users have asked for

    @property
    def skew(self) -> float:
        """The load of the busiest node divided by the mean."""
        return _skew(self.ops.values())


class Call(NamedTuple):
    """One call of a user: its start and its seconds."""

    at: float
    took: float


def _skew(loads: Collection[float]) -> float:
    return max(loads) * len(loads) / max(1e-9, sum(loads))


def run(report: Report) -> None:
    """Measure all cases, and add them to the report."""
    seconds = 60.0 if report.options.quick else 120.0
    for name, in_order in (("hot keys side by side", True), ("hot keys scattered", False)):
        for replicas in (3,) if report.options.quick or not in_order else (3, 1):
            with LocalCluster(3) as cluster, Control(cluster.endpoints, timeout=30) as control:
                keys = [b"m%06d" % i for i in range(KEYS)]
                _create(control, replicas)
                seen, calls = asyncio.run(_watch(control, cluster, keys, in_order, seconds))
                moves = len(control.operations(limit=100).operations)
            _report(report, f"{name}, {replicas} replica{'s' if replicas > 1 else ''}", seen, calls, moves)


def _create(control: Control, replicas: int) -> None:
    nothing = HashFunction.HASH_FUNCTION_UNSPECIFIED
    points = [b"g", b"m", b"s"]
    control.create_keyspace(KEYSPACE, 0, nothing, replicas, split_points=points, max_ops=MAX_OPS)
    deadline = time.monotonic() + 60
    while not all(row.state == PartitionState.PARTITION_STATE_ONLINE for row in control.table().partitions):
        if time.monotonic() > deadline:
            raise TimeoutError("the partitions are not online")
        time.sleep(0.05)


async def _watch(
    control: Control, cluster: LocalCluster, keys: list[bytes], in_order: bool, seconds: float
) -> tuple[list[Second], list[Call]]:
    async with AsyncClient(cluster.endpoints, keyspace=KEYSPACE, timeout=30) as client:
        for start in range(0, len(keys), _BATCH):
            await client.put_many(dict.fromkeys(keys[start : start + _BATCH], bytes(100)))
        await asyncio.to_thread(_until_idle, control)
        ranked = keys if in_order else Random(1).sample(keys, len(keys))
        cumulative = list(accumulate((rank + 1) ** -EXPONENT for rank in range(len(ranked))))
        calls: list[Call] = []
        began = time.monotonic()

        def draw(rng: Random) -> bytes:
            return ranked[bisect_right(cumulative, rng.random() * cumulative[-1])]

        users = [asyncio.create_task(_use(client, draw, number, began, calls)) for number in range(_USERS)]
        seen: list[Second] = []
        while time.monotonic() - began < seconds:
            await asyncio.sleep(1)
            seen.append(await asyncio.to_thread(_look, control, cluster, began, calls))
            for user in users:
                if user.done():
                    user.result()  # raises the user's error
        for user in users:
            user.cancel()
        await asyncio.gather(*users, return_exceptions=True)
    return seen, calls


def _until_idle(control: Control) -> None:
    deadline = time.monotonic() + 60
    while sum(stats.ops for stats in control.status().replicas):
        if time.monotonic() > deadline:
            raise TimeoutError("the load of the filling is not forgotten")
        time.sleep(0.2)


async def _use(
    client: AsyncClient, draw: Callable[[Random], bytes], number: int, began: float, calls: list[Call]
) -> None:
    rng = Random(number)
    while True:
        key, at = draw(rng), time.monotonic()
        if rng.random() < _SHARE_OF_PUTS:
            await client.put(key, bytes(100))
        else:
            await client.get(key)
        done = time.monotonic()
        calls.append(Call(at - began, done - at))
        await asyncio.sleep(max(0.0, at + _GAP_S - done))


def _look(control: Control, cluster: LocalCluster, began: float, calls: list[Call]) -> Second:
    status = control.status()
    leaders = {row.id: row.leader for row in status.table.partitions}
    ops = Counter(dict.fromkeys(cluster.nodes, 0))
    for stats in status.replicas:
        ops[leaders[stats.partition_id]] += stats.ops
    cpu = {name: _cpu_seconds(node.pid) for name, node in cluster.nodes.items()}
    return Second(time.monotonic() - began, dict(ops), cpu, len(leaders), len(calls))


def _cpu_seconds(pid: int) -> float:
    """The processor seconds of a process: utime and stime of proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _smoothed(seen: Sequence[Second]) -> Iterator[tuple[Second, float]]:
    """Yield each second with the skew over the last five seconds."""
    for end in range(_SMOOTHED, len(seen) + 1):
        last = seen[end - _SMOOTHED : end]
        yield last[-1], _skew([sum(second.ops[node] for second in last) for node in last[0].ops])


def _report(report: Report, name: str, seen: list[Second], calls: list[Call], moves: int) -> None:
    end = seen[-1].at
    windows = {"before": _BEFORE_S, "after": (end - 15.0, end)}
    for when, (start, stop) in windows.items():
        inside = [second for second in seen if start <= second.at <= stop]
        first, last = inside[0], inside[-1]
        ops = {node: sum(second.ops[node] for second in inside) for node in first.ops}
        cpu = {node: last.cpu[node] - first.cpu[node] for node in first.cpu}
        goal = Goal(at_most=EVEN) if when == "after" else None
        details: dict[str, float] = {"partitions": last.partitions}
        if when == "after":
            details |= {"moves": moves, "splits": last.partitions - 4}
        case = report.case(f"{name}: busiest / mean node, keys a second, {when}", "", goal=goal)
        report.add(case, MINKA, Sample(_skew(ops.values()), details=details))
        report.add(report.case(f"{name}: the same of processor time, {when}", ""), MINKA, Sample(_skew(cpu.values())))
        took = sorted(call.took for call in calls if start <= call.at <= stop)
        rate = (last.asked - first.asked) / (last.at - first.at)
        sample = Sample(rate, percentile(took, 50), percentile(took, 99), took[-1])
        report.add(report.case(f"{name}: gets and puts, {when}", "keys/s"), MINKA, sample)
    uneven = [last.at for last, skew in _smoothed(seen) if skew > EVEN]
    over_time = {f"at {at} s": next(s.skew for s in seen if s.at >= at) for at in _SHOWN_S if at <= end}
    case = report.case(f"{name}: until the busiest / mean stays below {EVEN}", "s")
    report.add(case, MINKA, Sample(uneven[-1] if uneven else 0.0, details=over_time))
    longest = max(call.took for call in calls)
    report.add(report.case(f"{name}: longest call of all", "ms"), MINKA, Sample(longest * 1000))
    say(f"{name}: " + "  ".join(f"{second.at:.0f}s {second.skew:.2f}/{second.partitions}" for second in seen[::3]))


if __name__ == "__main__":
    main("ranges_load", "Measure keyspaces by ranges: a range with Zipf traffic is split, and its parts move.", run)
