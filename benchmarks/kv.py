"""Measures puts and gets per second of three nodes, compared with a Redis cluster of three masters. All acknowledged
puts are durable.
"""

from dataclasses import dataclass, replace
from typing import Final

from benchmarks.cluster import KEYSPACE, Clients, create_keyspace, put_all
from benchmarks.kv_worker import VALUE, Work
from benchmarks.measure import MINKA, Case, Goal, Report, Sample, main, sample_of
from benchmarks.peers import REDIS, RedisCluster, missing
from minka.testing.local_cluster import LocalCluster

KEYS: Final = 100_000
PARTITIONS: Final = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """A workload: `clients` clients in `processes` processes, with batches of `batch` keys (0: one key in each
    call).
    """

    clients: int
    batch: int
    processes: int
    redis_guess: int  # operations per second; sets their number, since redis-benchmark takes no duration

    def __str__(self) -> str:
        return f"{self.clients} clients x {self.batch}" if self.batch else f"{self.clients} under way"


SHAPES: Final = (
    Shape(1, 0, 1, 5_000),
    Shape(16, 0, 1, 30_000),
    Shape(128, 0, 2, 70_000),
    Shape(16, 16, 2, 160_000),
    Shape(16, 1000, 2, 400_000),
)
LIKE_FOR_LIKE: Final = SHAPES[3]
# Minka needs less time for a key in a larger batch. So puts in this shape are compared twice: with Redis in the same
# shape, and with Redis in the shape LIKE_FOR_LIKE.
LARGE_BATCHES: Final = SHAPES[4]


def run(report: Report) -> None:
    """Measure all cases, and add them to the report."""
    report.absent |= {REDIS: reason} if (reason := missing(REDIS)) else {}
    report.notes.append(
        f"Keys of 16 bytes, {KEYS:,} of them, values of {len(VALUE)}; {PARTITIONS} partitions. Minka's load comes from "
        "minka.AsyncClient, in as many processes as `processes` says; Redis's from redis-benchmark, a thread a master."
    )
    for _ in range(report.options.rounds):
        if REDIS not in report.absent:
            with RedisCluster() as redis:
                _measure_redis(report, redis)
        with LocalCluster(3) as cluster:
            create_keyspace(cluster.endpoints, PARTITIONS)
            put_all(cluster.endpoints, KEYS)
            for operation in ("put", "get"):
                for shape in SHAPES:
                    sample = _load(report, cluster, operation, shape)
                    report.add(_case(report, operation, shape), MINKA, sample)
                    if (operation, shape) == ("put", LARGE_BATCHES):
                        report.add(_batched(report), MINKA, sample)


def _case(report: Report, operation: str, shape: Shape) -> Case:
    goal = Goal(ratio=1) if (operation, shape) == ("put", LIKE_FOR_LIKE) else None
    return report.case(f"{operation}, {shape}", "keys/s", REDIS, goal)


def _batched(report: Report) -> Case:
    name = f"put, {LARGE_BATCHES}; redis: {LIKE_FOR_LIKE}"
    return report.case(name, "keys/s", REDIS, Goal(ratio=1))


def _measure_redis(report: Report, redis: RedisCluster) -> None:
    redis.benchmark("set", 16, 100, 5 * KEYS, KEYS, len(VALUE))  # writes nearly all keys
    for operation, test in (("put", "set"), ("get", "get")):
        for shape in SHAPES:
            # A get takes less time than a set, sometimes only a quarter: more gets are needed for the same duration.
            requests = int(shape.redis_guess * report.options.seconds * (1 if operation == "put" else 3))
            sample = redis.benchmark(test, shape.clients, shape.batch or 1, requests, KEYS, len(VALUE))
            report.add(_case(report, operation, shape), REDIS, sample)
            if (operation, shape) == ("put", LIKE_FOR_LIKE):
                report.add(_batched(report), REDIS, sample)


def _load(report: Report, cluster: LocalCluster, operation: str, shape: Shape) -> Sample:
    seconds = report.options.seconds
    each = Work(
        list(cluster.endpoints), KEYSPACE, operation, shape.clients // shape.processes, shape.batch, seconds, KEYS
    )
    with Clients([replace(each, seed=seed) for seed in range(shape.processes)]) as clients:
        clients.begin()
        done = clients.end()
    return sample_of(done.keys, done.seconds, [took for _, _, took in done.calls], processes=shape.processes)


if __name__ == "__main__":
    main("kv", "Measure puts and gets per second of three nodes, compared with Redis.", run)
