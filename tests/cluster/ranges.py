"""Helpers for tests of splits and merges: data that never changes, clients that read it, and checks of all rows."""

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from minka import Client
from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import Partition
from tests.cluster.cluster import eventually
from tests.cluster.workload import Workload

NODES = ("athens", "byzantium", "cyrene")
BALLAST = {b"ballast-%05d" % i: i.to_bytes(4, "big") * 50 for i in range(6_000)}
SORTED = sorted(BALLAST)


class Readers:
    """Threads that get keys, and scan forwards and backwards, until `stop`. Their data never changes."""

    def __init__(self, endpoints: Sequence[str], keyspace: str) -> None:
        self.rounds = [0, 0, 0]
        self.errors: list[BaseException] = []
        self._client = Client(endpoints, keyspace=keyspace, timeout=10.0)
        self._stop = threading.Event()
        work = (self._read, partial(self._scan, reverse=False), partial(self._scan, reverse=True))
        self._threads = [threading.Thread(target=self._run, args=(i, one)) for i, one in enumerate(work)]

    def __enter__(self) -> "Readers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        self._client.close()

    def stop(self) -> None:
        """Stop the threads. If a thread met an error, raises this error."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a reader hangs"
        for error in self.errors:
            raise error

    def _run(self, number: int, work: Callable[[], None]) -> None:
        try:
            while not self._stop.is_set():
                work()
                self.rounds[number] += 1
        except BaseException as error:  # noqa: BLE001  # raised again in the test's own thread
            self.errors.append(error)

    def _read(self) -> None:
        keys = random.sample(SORTED, 50)
        assert self._client.get_many(keys) == {key: BALLAST[key] for key in keys}

    def _scan(self, *, reverse: bool) -> None:
        found = [key for key, _ in self._client.scan("ballast", "ballasu", reverse=reverse)]
        assert found == (SORTED[::-1] if reverse else SORTED)


def load_ballast(cluster: LocalCluster) -> None:
    with Client(cluster.endpoints, keyspace="authors", timeout=30.0) as client:
        eventually("the ballast is written", lambda: written(client))


def written(client: Client) -> bool:
    client.put_many(BALLAST)
    return True


def rows_of(control: Control) -> list[Partition]:
    """Check that each key is in exactly one partition. Returns the partitions in the order of their ranges."""
    rows = sorted(control.status().table.partitions, key=lambda row: row.start_key)
    assert rows[0].start_key == b"" == rows[-1].end_key
    assert all(before.end_key == after.start_key for before, after in pairwise(rows))
    return rows


def check(cluster: LocalCluster, load: Workload) -> None:
    """Check that a scan finds exactly BALLAST and the rows of the workload, in order."""
    written = load.check()
    with Client(cluster.endpoints, keyspace="authors", timeout=30.0) as client:
        found = dict(client.scan())
        keys = [key for key, _ in client.scan()]
    assert keys == sorted(found), "the scan returns keys in order, each key once"
    assert {key: value for key, value in found.items() if key in BALLAST} == BALLAST
    assert len(found) == len(BALLAST) + written
