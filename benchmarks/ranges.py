"""Measures keyspaces by ranges: the speed of a scan, the time for which a split delays the partition's clients, and the
sizes of partitions that are split automatically. There is no peer: Redis Cluster has slots, and etcd has one key space.
"""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from benchmarks.measure import MINKA, Goal, Report, Sample, main, percentile
from minka.admin.control import Control
from minka.async_client import AsyncClient
from minka.cluster.key_ranges import KeyRange
from minka.errors import MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction, Operation, Partition, PartitionState

KEYSPACE: Final = "bench"
MAX_BYTES: Final = 4 * 1024 * 1024
_BATCH: Final = 5_000
_USERS: Final = 8  # users that put, and as many that get
_SCANNERS: Final = 2
_SCANNED: Final = 1000
_GAP_S: Final = 0.005
_LOOK_S: Final = 0.5
_AROUND_S: Final = 0.5  # the time before and after a split for which calls are measured
_SETTLED_S: Final = 120.0


class _Longest(defaultdict[tuple[str, str], list[float]]):
    """The longest call during each split or merge, in seconds, by the kind of call and by the half with its key."""

    def __init__(self) -> None:
        super().__init__(list)


class Call(NamedTuple):
    """One call of a user: its kind, its key (for a scan, the first key), its start, its seconds, and its error
    or "".
    """

    kind: str
    key: bytes
    at: float
    took: float
    error: str = ""


class Moment(NamedTuple):
    """The partitions at a time: the seconds since the beginning, their number, and their sizes in ascending order."""

    at: float
    partitions: int
    bytes: list[int]


def run(report: Report) -> None:
    """Measure all cases, and add them to the report."""
    rows = 100_000 if report.options.quick else 1_000_000
    with _nodes() as cluster, Control(cluster.endpoints, timeout=30) as control:
        _create(control, 3, 0)
        asyncio.run(_split_under_load(report, control, cluster.endpoints, rows // 5))
    with _nodes() as cluster, Control(cluster.endpoints, timeout=30) as control:
        _create(control, 1, MAX_BYTES)
        asyncio.run(_grow(report, control, cluster.endpoints, rows))


def _nodes() -> LocalCluster:
    """Make a cluster of three nodes in one session, so that compactions give way to the work of all nodes. If each node
    had its own session, Linux would let a compaction of one node keep another node from a processor for 100 ms.
    """
    return LocalCluster(3, shares_session=True)


def _create(control: Control, replicas: int, max_bytes: int) -> None:
    nothing = HashFunction.HASH_FUNCTION_UNSPECIFIED
    control.create_keyspace(KEYSPACE, 0, nothing, replicas, split_points=[], max_bytes=max_bytes)
    _wait(lambda: all(row.state == PartitionState.PARTITION_STATE_ONLINE for row in control.table().partitions))


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SETTLED_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not settled after {_SETTLED_S:g} s")
        time.sleep(0.05)


def _keys(count: int) -> list[bytes]:
    rng = Random(1)
    return [b"%016x" % rng.getrandbits(64) for _ in range(count)]


async def _load(client: AsyncClient, keys: list[bytes]) -> None:
    for start in range(0, len(keys), _BATCH):
        await client.put_many({key: os.urandom(50) + bytes(50) for key in keys[start : start + _BATCH]})


# Scans and requested splits


async def _split_under_load(report: Report, control: Control, endpoints: Sequence[str], count: int) -> None:
    keys = _keys(count)
    async with AsyncClient(endpoints, keyspace=KEYSPACE, timeout=30) as client:
        await _load(client, keys)
        await _scan(report, client, count)
        calls: list[Call] = []
        users = [
            asyncio.create_task(_use(client, kind, keys, number, calls))
            for number in range(_USERS)
            for kind in ("put", "get")
        ]
        await asyncio.sleep(2 * _AROUND_S)
        quiet = list(calls)
        bounds = [b"%016x" % int(n * 0.618034 % 1 * 2**64) for n in range(1, 5 if report.options.quick else 31)]
        splits, merges = _Longest(), _Longest()
        for key in bounds:
            await _change(control, control.split, key, calls, splits)
        for key in bounds:
            await _change(control, control.merge, key, calls, merges)
        for user in users:
            user.cancel()
        await asyncio.gather(*users, return_exceptions=True)
    for kind in ("put", "get"):
        report.add(
            report.case(f"{kind}, no split, p99", "ms"), MINKA, _p99([call.took for call in quiet if call.kind == kind])
        )
        for half in ("lower", "upper"):
            case = report.case(f"longest {kind} to the {half} half during its split, p99", "ms")
            report.add(case, MINKA, _p99(splits[kind, half]))
        for half in ("lower", "upper"):
            case = report.case(f"longest {kind} to the {half} one during a merge, p99", "ms")
            report.add(case, MINKA, _p99(merges[kind, half]))


async def _scan(report: Report, client: AsyncClient, count: int) -> None:
    case = report.case("scan, 116-byte rows, one client", "rows/s")
    for _ in range(report.options.rounds):
        began, found = time.monotonic(), 0
        async for page in client.scan_pages():
            found += len(page)
        assert found == count, f"{found} of {count} rows"
        report.add(case, MINKA, Sample(found / (time.monotonic() - began)))


async def _use(client: AsyncClient, kind: str, keys: list[bytes], number: int, calls: list[Call]) -> None:
    """Make one call after the other until cancelled. The caller may add keys to `keys`."""
    rng = Random(number)
    while True:
        key, began, error = rng.choice(keys), time.monotonic(), ""
        try:
            if kind == "put":
                await client.put(key, bytes(100))
            elif kind == "get":
                assert await client.get(key) is not None, f"{key!r} is lost"
            else:
                await _scan_some(client, key)
        except (MinkaError, AssertionError) as failure:
            error = str(failure) or repr(failure)
        calls.append(Call(kind, key, began, time.monotonic() - began, error))
        await asyncio.sleep(_GAP_S)


async def _scan_some(client: AsyncClient, start: bytes) -> None:
    found = [key async for key, _ in client.scan(start, limit=_SCANNED)]
    assert found[0] == start, f"{start!r} is lost"
    assert found == sorted(set(found)), f"a scan from {start!r} has keys twice or in disorder"


async def _change(
    control: Control,
    ask: Callable[[str, Sequence[bytes], str], Operation | None],
    key: bytes,
    calls: list[Call],
    longest: "_Longest",
) -> None:
    """Split or merge at the key; note the longest call of each kind, for keys below it and for the others."""
    before = await asyncio.to_thread(_bounds_around, control, key)
    calls.clear()
    operation = await asyncio.to_thread(ask, KEYSPACE, [key], "benchmark")
    assert operation is not None, f"a partition begins at {key!r} already"
    await asyncio.to_thread(_wait, lambda: control.operations([operation.id]).operations[0].finished_ms > 0)
    await asyncio.sleep(_AROUND_S)
    after = await asyncio.to_thread(_bounds_around, control, key)
    whole = before if before.covers(after) else after
    for kind in ("put", "get"):
        for half, part in (("lower", KeyRange(whole.start, key)), ("upper", KeyRange(key, whole.end))):
            took = [call.took for call in calls if call.kind == kind and part.contains(call.key)]
            if took:
                longest[kind, half].append(max(took))


def _bounds_around(control: Control, key: bytes) -> KeyRange:
    rows = control.table().partitions
    return next(r for row in rows if (r := KeyRange(row.start_key, row.end_key)).contains(key))


def _p99(seconds: list[float]) -> Sample:
    ordered = sorted(seconds)
    p50, p99 = percentile(ordered, 50), percentile(ordered, 99)
    if p50 is None or p99 is None:
        raise RuntimeError("nothing was measured")
    return Sample(p99 * 1000, p50, p99, ordered[-1], {"p50": round(p50 * 1000, 1), "count": len(ordered)})


# Splits by size


async def _grow(report: Report, control: Control, endpoints: Sequence[str], count: int) -> None:
    """Write all keys, and wait until no partition is too large. At the same time, users read, write and scan the keys
    that are written already.
    """
    keys = _keys(count)
    calls: list[Call] = []
    moments: list[Moment] = []
    async with AsyncClient(endpoints, keyspace=KEYSPACE, timeout=30) as client:
        began = time.monotonic()
        present = keys[:_BATCH]
        await _load(client, present)
        kinds = ["put", "get"] * _USERS + ["scan"] * _SCANNERS
        users = [asyncio.create_task(_use(client, kind, present, number, calls)) for number, kind in enumerate(kinds)]
        looking = asyncio.create_task(_look(control, began, moments))
        for start in range(_BATCH, count, _BATCH):
            await _load(client, keys[start : start + _BATCH])
            present += keys[start : start + _BATCH]
        loaded = time.monotonic() - began
        await asyncio.to_thread(_wait, lambda: _is_settled(control))
        settled = time.monotonic() - began
        for task in (*users, looking):
            task.cancel()
        await asyncio.gather(*users, looking, return_exceptions=True)
        found = 0
        async for page in client.scan_pages():
            found += len(page)
    assert found == count, f"{found} of {count} rows"
    sizes = sorted(control.status().replicas, key=lambda stats: stats.bytes)
    name = f"{count:,} rows in random order, partitions of at most {MAX_BYTES >> 20} MiB"
    details = {"partitions": len(sizes), "settled after s": round(settled, 1)}
    report.add(report.case(f"{name}: load", "rows/s"), MINKA, Sample(count / loaded, details=details))
    largest = report.case(f"{name}: largest / maximum", "", goal=Goal(at_most=1.0))
    report.add(largest, MINKA, Sample(sizes[-1].bytes / MAX_BYTES))
    even = report.case(f"{name}: largest / smallest", "", goal=Goal(at_most=4.0))
    report.add(even, MINKA, Sample(sizes[-1].bytes / max(1, sizes[0].bytes)))
    _add_users(report, name, calls)
    _add_moments(report, name, moments)


def _add_users(report: Report, name: str, calls: list[Call]) -> None:
    errors = [call.error for call in calls if call.error]
    case = report.case(f"{name}: errors of users meanwhile", "", goal=Goal(at_most=1))
    report.add(case, MINKA, Sample(len(errors), details={"calls": len(calls)}))
    report.notes += [f"an error of a user: {error}" for error in dict.fromkeys(errors)]
    for kind in ("put", "get", "scan"):
        case = report.case(f"{name}: {kind} meanwhile, p99", "ms")
        report.add(case, MINKA, _p99([call.took for call in calls if call.kind == kind]))


async def _look(control: Control, began: float, moments: list[Moment]) -> None:
    """Note the partitions' sizes every half second, until cancelled."""
    while True:
        status = await asyncio.to_thread(control.status)
        sizes = sorted(stats.bytes for stats in status.replicas)
        moments.append(Moment(time.monotonic() - began, len(status.table.partitions), sizes))
        await asyncio.sleep(_LOOK_S)


def _add_moments(report: Report, name: str, moments: list[Moment]) -> None:
    """Add the unevenness of the partitions over time: the size of the largest one divided by the mean size."""
    uneven = [
        (moment, moment.bytes[-1] * len(moment.bytes) / sum(moment.bytes)) for moment in moments if any(moment.bytes)
    ]
    ordered = sorted(share for _, share in uneven)
    case = report.case(f"{name}: largest / mean on the way, at most", "")
    report.add(case, MINKA, Sample(ordered[-1], details={"median": round(ordered[len(ordered) // 2], 2)}))
    every = max(1, len(uneven) // 8)
    steps = [f"{moment.at:.0f} s {moment.partitions} ({share:.2f})" for moment, share in uneven[::every]]
    report.notes.append("partitions, and largest / mean, over time: " + ", ".join(steps))


def _is_settled(control: Control) -> bool:
    """True if no partition is too large or splitting, and all sizes are known."""
    status = control.status()
    rows: list[Partition] = list(status.table.partitions)
    known = {stats.partition_id: stats.bytes for stats in status.replicas}
    return all(not row.splitting and 0 < known.get(row.id, 0) <= MAX_BYTES for row in rows)


if __name__ == "__main__":
    main("ranges", "Measure keyspaces by ranges: scans, requested splits, and splits by size.", run)
