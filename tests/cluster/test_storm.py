"""After a storm of faults, the cluster recovers automatically. Overloaded nodes drop only messages that their senders
repeat anyway, so the drops cause no additional load.
"""

import random
import time

import pytest

from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from tests.cluster.cluster import eventually, wait_settled
from tests.cluster.storm import LARGE, Cause, strike, wait_healthy

BEFORE = "before"


def weather(seed: int, before: int, cause: Cause, patience: float) -> None:
    """Overload a cluster with a keyspace of `before` partitions. Then wait at most `patience` seconds until the cluster
    is healthy.
    """
    with LocalCluster(4) as cluster:
        with Control(cluster.endpoints) as control:
            eventually("all nodes", lambda: len(control.status().table.nodes) == 4)
            wait_settled(control, 4)
            control.create_keyspace(BEFORE, before, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
            term = wait_healthy(cluster, {BEFORE: before}, patience).coordinator.term
        strike(cluster, cause, random.Random(seed))
        ended = time.monotonic()
        status = wait_healthy(cluster, {BEFORE: before, LARGE: cause.partitions}, patience)
        seconds = time.monotonic() - ended
        terms = status.coordinator.term - term
        print(f"seed {seed}: healthy {seconds:.1f} s and {terms} terms after the end of the overload")  # noqa: T201 - for people

        def lasts() -> bool:
            one, next_ = (wait_healthy(cluster, {BEFORE: before, LARGE: cause.partitions}, patience) for _ in range(2))
            return one.coordinator.term == next_.coordinator.term

        # Other processes on this machine may cause an election, too, but not one election after another.
        eventually(f"seed {seed}: a term that lasts", lasts, deadline=patience)


@pytest.mark.timeout(180)
def test_a_small_storm() -> None:
    """A small storm has no busy processes, since other tests need the processors at the same time."""
    weather(0, 50, Cause(partitions=300, replicas=3, stop=1.5, within=1.0, busy=0), 60.0)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(20))
def test_a_storm(seed: int) -> None:
    """A large storm creates partitions with one replica each: with more replicas, the cluster would refuse 20,000 of
    them.
    """
    weather(seed, 1000, Cause(partitions=20_000, replicas=1, stop=3.0, within=3.0, busy=8), 10.0)
