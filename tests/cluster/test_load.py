"""Uneven load on a real cluster: busy partitions are split and spread over the nodes, and no client gets an error."""

import random
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import pytest

from minka import Client
from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.admin_pb2 import GetStatusResponse
from minka.v1.cluster_pb2 import HashFunction, Partition, PartitionTable
from tests.cluster.cluster import QUICK, eventually, wait_settled

MAX_OPS = 300
KEYS = [b"m-%04d" % i for i in range(1000)]
PATIENCE_S = 120.0


def zipf(rng: random.Random, keys: Sequence[bytes]) -> Callable[[], bytes]:
    """Return a function that draws keys: it draws the n-th key 1/n times as often as the first key."""
    cumulative = list(accumulate(1 / (rank + 1) for rank in range(len(keys))))
    return lambda: keys[bisect_right(cumulative, rng.random() * cumulative[-1])]


class Users:
    """Threads that get and put keys, and sometimes scan, at a bounded rate. `stop` raises their errors."""

    def __init__(self, cluster: LocalCluster, keys: Sequence[bytes]) -> None:
        self._keys = keys
        self._errors: list[BaseException] = []
        self._stop = threading.Event()
        self._client = Client(cluster.endpoints, keyspace="authors", timeout=20.0)
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(3)]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads. Raises the errors that they met."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        self._client.close()
        for error in self._errors:
            raise error

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)
        draw = zipf(rng, self._keys)
        try:
            while not self._stop.wait(0.01):
                keys = [draw() for _ in range(10)]
                self._client.get_many(keys)
                self._client.put_many({key: b"%d" % rng.getrandbits(64) for key in keys[:3]})
                if rng.random() < 0.05:
                    start = draw()
                    expected = sorted(key for key in self._keys if key >= start)[:5]
                    assert [key for key, _ in self._client.scan(start, limit=5)] == expected
        except BaseException as error:  # noqa: BLE001  # raised again in the test's own thread
            self._errors.append(error)


@contextmanager
def users(cluster: LocalCluster, keys: Sequence[bytes]) -> Iterator[Users]:
    them = Users(cluster, keys)
    them.start()
    try:
        yield them
    finally:
        them.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, config=QUICK) as cluster:
        yield cluster


@pytest.mark.timeout(300)
def test_a_zipf_load_on_one_range_is_split_and_spread(cluster: LocalCluster) -> None:
    with Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="authors", timeout=20.0) as client:
        control.create_keyspace(
            "authors", 0, HashFunction.HASH_FUNCTION_UNSPECIFIED, 3, split_points=[b"g", b"m", b"s"], max_ops=MAX_OPS
        )
        wait_settled(control, live=3)
        client.put_many(dict.fromkeys(KEYS, b"0"))

        def hot(table: PartitionTable) -> list[Partition]:
            return [row for row in table.partitions if b"m" <= row.start_key < b"s"]

        def share(status: GetStatusResponse) -> float:
            """Return the busiest node's share of all operations at present, from 0 to 1."""
            leaders = {row.id: row.leader for row in status.table.partitions}
            served = Counter[str]()
            for stats in status.replicas:
                served[leaders[stats.partition_id]] += stats.ops
            return max(served.values(), default=0) / max(1, sum(served.values()))

        def loaded() -> GetStatusResponse | None:
            status = control.status()
            return status if sum(stats.ops for stats in status.replicas) > MAX_OPS else None

        def is_shared() -> bool:
            status = control.status()
            return len({row.leader for row in hot(status.table)}) == 3 and share(status) < 0.6

        with users(cluster, KEYS):
            assert share(eventually("the load is seen", loaded)) > 0.95, "all requests go to one node"
            eventually("it is split", lambda: len(hot(control.status().table)) >= 3, PATIENCE_S)
            eventually("the nodes share it", is_shared, PATIENCE_S)
        operations = control.operations(limit=40).operations
        assert operations
        assert all(operation.automatic for operation in operations)
        table = wait_settled(control, live=3)
        assert {row.start_key for row in table.partitions} >= {b"", b"g", b"m", b"s"}
        assert len(table.partitions) - 3 == len(hot(table)), "the other partitions are unchanged"
        assert {key for key, _ in client.scan()} == set(KEYS)
