"""Overloads a whole cluster: every node stands still for a while at a random moment, other processes take the
processors, and a keyspace with many partitions is created. Then the overload ends, and the cluster has to recover.
"""

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from minka import Client
from minka.admin.control import Control
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.admin_pb2 import GetStatusResponse
from minka.v1.cluster_pb2 import HashFunction
from tests.cluster.cluster import eventually, settled

LARGE = "large"


@dataclass(frozen=True, slots=True)
class Cause:
    """The causes of an overload. Times are in seconds."""

    partitions: int
    replicas: int
    stop: float  # the time for which each node stands still
    within: float  # all nodes are stopped within this time
    busy: int  # number of other processes that take the processors


def strike(cluster: LocalCluster, cause: Cause, rng: random.Random) -> float:
    """Overload the cluster. Returns the seconds from the end of the overload until LARGE was created, or its creator
    gave up.
    """
    create = threading.Thread(target=_create, args=(cluster, cause))
    moments = sorted((rng.uniform(0, cause.within), name) for name in cluster.nodes)
    with _busy(cause.busy):
        create.start()
        stops = [threading.Thread(target=_stand_still, args=(cluster, cause.stop, *moment)) for moment in moments]
        for thread in stops:
            thread.start()
        for thread in stops:
            thread.join()
    ended = time.monotonic()
    create.join()
    return time.monotonic() - ended


def _stand_still(cluster: LocalCluster, seconds: float, at: float, name: str) -> None:
    time.sleep(at)
    cluster.signal(name, signal.SIGSTOP)
    time.sleep(seconds)
    cluster.signal(name, signal.SIGCONT)


def _create(cluster: LocalCluster, cause: Cause) -> None:
    """Create LARGE as a person would: after an error, try again until the keyspace exists."""

    def asked() -> bool:
        try:
            with Control(cluster.endpoints) as control:
                control.create_keyspace(
                    LARGE, cause.partitions, HashFunction.HASH_FUNCTION_MURMUR3, replicas=cause.replicas
                )
        except MinkaError as error:
            if error.code is Code.KEYSPACE_EXISTS:
                return True
            raise
        return True

    eventually("the keyspace", asked, 60.0)


@contextmanager
def _busy(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_healthy(cluster: LocalCluster, keyspaces: dict[str, int], deadline: float) -> GetStatusResponse:
    """Wait until all nodes are LIVE, all partitions are ONLINE, all nodes know the same leaders, and a write to each
    keyspace has succeeded. `keyspaces` has the number of partitions by keyspace. Raises AssertionError after `deadline`
    seconds.
    """
    total = sum(keyspaces.values())

    def probe() -> GetStatusResponse | None:
        with Control(cluster.endpoints) as control:
            status: GetStatusResponse = control.status()
        ok = status.from_controller and settled(status.table, len(cluster.nodes))
        if not ok or len(status.table.partitions) != total:
            return None
        for keyspace in keyspaces:
            with Client(cluster.endpoints, keyspace=keyspace, timeout=10.0) as client:
                client.put_many({f"{number}": b"afterwards" for number in range(100)})
        return status

    return eventually("a healthy cluster", probe, deadline)
