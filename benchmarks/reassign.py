"""Adds a fourth node to three, and moves a quarter of the keys to it. Measures the speed, compared with
`redis-cli --cluster rebalance` of the same keys, and the pauses of writes during the move.
"""

import time
import urllib.request
from collections.abc import Iterable, Sequence
from math import isinf
from typing import Final

from benchmarks.cluster import KEYSPACE, Clients, create_keyspace, put_all
from benchmarks.kv_worker import VALUE, Done, Work, key
from benchmarks.measure import MINKA, Goal, Report, Sample, main, percentile
from benchmarks.peers import REDIS, RedisCluster, missing
from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.admin_pb2 import Plan
from minka.v1.cluster_pb2 import Operation, OperationState

KEYS: Final = 1_000_000
QUICK_KEYS: Final = 100_000
PARTITIONS: Final = 64
PAUSE_PARTITIONS: Final = 256  # a quarter of them moves, each with a pause
WRITTEN_KEYS: Final = 20_000  # keys that clients overwrite during the move

_GAP_S: Final = 0.1  # the time between two puts to the same partition while pauses are measured
_AROUND_S: Final = 3.0  # the time for which puts are measured before the move, and after it
_OPERATION_TIMEOUT_S: Final = 300.0
_POLL_S: Final = 0.02
_PAUSE: Final = "minka_migration_write_pause_seconds_bucket"

Buckets = dict[float, int]  # by upper bound: the number of values up to this bound


def run(report: Report) -> None:
    """Measure all cases, and add them to the report."""
    report.absent |= {REDIS: reason} if (reason := missing(REDIS)) else {}
    count = QUICK_KEYS if report.options.quick else KEYS
    report.notes.append(
        f"{count:,} keys of {len(key(0))} bytes with values of {len(VALUE)}. keys/s: from the request until the last "
        f"partition has moved, with {PARTITIONS} partitions and no clients. Pauses and latencies: "
        f"{PAUSE_PARTITIONS} partitions, a put every {_GAP_S * 1000:g} ms to each partition that moves."
    )
    for _ in range(report.options.rounds):
        if REDIS not in report.absent:
            _rebalance_redis(report, count)
        _reassign(report, count)
        _reassign_under_load(report, count)


def _rebalance_redis(report: Report, count: int) -> None:
    with RedisCluster() as redis:
        redis.load((key(number), VALUE) for number in range(count))
        new = redis.add()
        started = time.monotonic()
        redis.rebalance()
        seconds = time.monotonic() - started
        _add_speed(report, REDIS, redis.key_count(new), seconds)


def _reassign(report: Report, count: int) -> None:
    with LocalCluster(3) as cluster:
        create_keyspace(cluster.endpoints, PARTITIONS)
        put_all(cluster.endpoints, count)
        new = cluster.add()
        with Control(cluster.endpoints, timeout=30) as control:
            started = time.monotonic()
            finish(control, control.apply_plan(control.plan_reassign(), "benchmark"))
            seconds = time.monotonic() - started
            moved = [one for one in control.count_keys(new.address) if one.leader]
        _add_speed(report, MINKA, sum(one.keys for one in moved), seconds)


def _add_speed(report: Report, system: str, keys: int, seconds: float) -> None:
    speed = report.case("reassign", "keys/s", REDIS, Goal(ratio=10))
    report.add(speed, system, Sample(keys / seconds, details={"keys": keys, "seconds": round(seconds, 3)}))
    size = len(key(0)) + len(VALUE)
    report.add(report.case("reassign", "MB/s", REDIS), system, Sample(keys * size / seconds / 1e6))


def finish(control: Control, operation: Operation) -> None:
    """Wait for the end of an operation. Raises RuntimeError if it fails, TimeoutError after five minutes."""
    deadline = time.monotonic() + _OPERATION_TIMEOUT_S
    while operation.state == OperationState.OPERATION_STATE_RUNNING:
        if time.monotonic() > deadline:
            raise TimeoutError(f"operation {operation.id} runs for more than {_OPERATION_TIMEOUT_S:g} s")
        time.sleep(_POLL_S)
        operation = control.operations([operation.id]).operations[0]
    if operation.state != OperationState.OPERATION_STATE_SUCCEEDED:
        raise RuntimeError(f"the reassign failed: {operation.outcome}")


# Pauses


def _reassign_under_load(report: Report, count: int) -> None:
    with LocalCluster(3) as cluster:
        create_keyspace(cluster.endpoints, PAUSE_PARTITIONS)
        put_all(cluster.endpoints, count)
        cluster.add()
        with Control(cluster.endpoints, timeout=30) as control:
            plan = control.plan_reassign()
            with Clients([_writers(control, plan, cluster.endpoints)]) as clients:
                clients.begin()
                time.sleep(_AROUND_S)
                began = time.monotonic()
                finish(control, control.apply_plan(plan, "benchmark"))
                ended = time.monotonic()
                time.sleep(_AROUND_S)
                clients.stop()
                done = clients.end()
        buckets = _added(pauses(metrics(node.http_address)) for node in cluster.nodes.values())
    _add_latencies(report, done, began, ended)
    _add_pauses(report, buckets)


def _writers(control: Control, plan: Plan, endpoints: Sequence[str]) -> Work:
    """Describe clients that write: one for each partition that the plan moves."""
    slot_of = {partition.id: partition.slot for partition in control.table().partitions}
    slots = [slot_of[move.partition_id] for move in plan.moves]
    return Work(
        list(endpoints), KEYSPACE, "put", len(slots), 0, _OPERATION_TIMEOUT_S, WRITTEN_KEYS,
        gap_s=_GAP_S, slots=slots, partitions=PAUSE_PARTITIONS,
    )  # fmt: skip


def _add_latencies(report: Report, done: Done, began: float, ended: float) -> None:
    before = [took for _, at, took in done.calls if at + took < began]
    during = [(writer, took) for writer, at, took in done.calls if at + took >= began and at < ended]
    after = [took for _, at, took in done.calls if at >= ended]
    longest: dict[int, float] = {}
    for writer, took in during:
        longest[writer] = max(took, longest.get(writer, 0.0))
    for name, latencies in (("before", before), ("during", [took for _, took in during]), ("after", after)):
        report.add(report.case(f"put {name} the reassign, p99", "ms"), MINKA, _p99(latencies))
    report.add(report.case("longest put to a partition that moved, p99", "ms"), MINKA, _p99(list(longest.values())))


def _p99(latencies: Sequence[float]) -> Sample:
    ordered = sorted(latencies)
    p50, p99 = percentile(ordered, 50), percentile(ordered, 99)
    if p99 is None:
        raise RuntimeError("nothing was measured")
    return Sample(p99 * 1000, p50, p99, ordered[-1], {"max": round(ordered[-1] * 1000, 2), "count": len(ordered)})


def _add_pauses(report: Report, buckets: Buckets) -> None:
    p50, p99 = quantile(buckets, 0.5), quantile(buckets, 0.99)
    highest = min(bound for bound, below in buckets.items() if below == max(buckets.values()))
    details = {"max at most": highest * 1000, "count": max(buckets.values())}
    pause = report.case("write pause of a migration, p99", "ms", goal=Goal(at_most=20))
    report.add(pause, MINKA, Sample(p99 * 1000, p50, p99, highest, details))


def metrics(http_address: str) -> str:
    """A node's metrics in Prometheus's text format."""
    with urllib.request.urlopen(f"http://{http_address}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
        return text


def pauses(text: str) -> Buckets:
    """The times for which hand-overs held writes, in seconds, according to a node's metrics."""
    return buckets_of(text, _PAUSE)


def buckets_of(metrics: str, name: str) -> Buckets:
    """Parse the buckets of a histogram without labels from Prometheus's text format."""
    found = (line.split('"') for line in metrics.splitlines() if line.startswith(f'{name}{{le="'))
    return {float(bound): int(float(count.removeprefix("}"))) for _, bound, count in found}


def _added(many: Iterable[Buckets]) -> Buckets:
    total: Buckets = {}
    for buckets in many:
        total = {bound: total.get(bound, 0) + count for bound, count in buckets.items()}
    return total


def quantile(buckets: Buckets, share: float) -> float:
    """The value that this share of the values doesn't exceed, computed like Prometheus's histogram_quantile: by linear
    interpolation between the bounds of its bucket; in the last bucket, the last finite bound. Raises RuntimeError if
    there are no values.
    """
    rank = share * max(buckets.values(), default=0)
    if rank == 0:
        raise RuntimeError("nothing was measured")
    below, lower = 0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= rank:
            return lower if isinf(bound) else lower + (bound - lower) * (rank - below) / (count - below)
        below, lower = count, bound
    raise AssertionError("the last bucket has all")


if __name__ == "__main__":
    main("reassign", "Move a quarter of the keys to a fourth node: measure the speed, and the pauses of writes.", run)
