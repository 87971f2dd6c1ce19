"""A node that was away catches up with a snapshot while the cluster takes writes. Catching up delays no write."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minka.admin.control import Control
from minka.errors import MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from tests.cluster.cluster import QUICK, eventually, own_status, wait_settled

ENTRIES = 100  # between two snapshots
CONFIG = QUICK | {"coordinator": {"snapshot_entries": ENTRIES, "snapshot_mib_per_s": 1}}


class Keyspaces(threading.Thread):
    """Creates one keyspace after another, so that the coordinator's log grows. Sends no requests to the node `away`."""

    def __init__(self, cluster: LocalCluster, prefix: str, away: str) -> None:
        super().__init__(name="keyspaces")
        self.prefix = prefix
        self.names: list[str] = []
        self.error: MinkaError | None = None
        self._endpoints = [node.address for name, node in cluster.nodes.items() if name != away]
        self._stop_now = threading.Event()

    def run(self) -> None:
        try:
            with Control(self._endpoints, timeout=10.0) as control:
                while not self._stop_now.is_set():
                    name = f"{self.prefix}-{len(self.names)}"
                    control.create_keyspace(name, 4, HashFunction.HASH_FUNCTION_MURMUR3, replicas=1)
                    self.names.append(name)
        except MinkaError as error:
            self.error = error

    def check(self) -> None:
        """Check that no creation of a keyspace has failed."""
        if self.error is not None:
            raise AssertionError(f"no keyspace {len(self.names)}") from self.error

    def stop(self) -> None:
        self._stop_now.set()
        self.join(20)
        self.check()


@contextmanager
def keyspaces_created(cluster: LocalCluster, prefix: str, away: str) -> Iterator[Keyspaces]:
    keyspaces = Keyspaces(cluster, prefix, away)
    keyspaces.start()
    try:
        yield keyspaces
    finally:
        keyspaces.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, config=CONFIG) as cluster:
        cluster.add("ephesus")
        yield cluster


def memory_mib(cluster: LocalCluster, name: str) -> float:
    lines = Path(f"/proc/{cluster.node(name).pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def test_a_node_that_was_away_takes_a_snapshot_while_writes_go_on(cluster: LocalCluster) -> None:
    with Control(cluster.endpoints) as control:
        wait_settled(control, live=4)
        coordinator = control.status().coordinator
        away = next(voter for voter in coordinator.voters if voter != coordinator.controller)
        with keyspaces_created(cluster, "away", away) as keyspaces:
            cluster.kill(away)
            wait_compacted_beyond(control, keyspaces, control.status().coordinator.commit_index)
            cluster.log(away).write_text("")
            cluster.restart(away)
            eventually("a snapshot came", lambda: "restored the state from a snapshot" in cluster.log(away).read_text())
            check_it_keeps_up(cluster, control, away)
        check_equal(cluster, control, away, keyspaces)


def test_a_node_that_stands_still_holds_up_nobody(cluster: LocalCluster) -> None:
    with Control(cluster.endpoints) as control:
        wait_settled(control, live=4)
        leader = control.status().coordinator.controller
        used = memory_mib(cluster, leader)
        with keyspaces_created(cluster, "still", "ephesus") as keyspaces:
            cluster.signal("ephesus", signal.SIGSTOP)
            try:
                wait_compacted_beyond(control, keyspaces, control.status().coordinator.commit_index)
            finally:
                cluster.signal("ephesus", signal.SIGCONT)
            check_it_keeps_up(cluster, control, "ephesus")
            assert memory_mib(cluster, leader) - used < 64
        check_equal(cluster, control, "ephesus", keyspaces)


def wait_compacted_beyond(control: Control, keyspaces: Keyspaces, index: int) -> None:
    """Wait until the leader has compacted its log up to a place well after `index`."""

    def probe() -> bool:
        keyspaces.check()
        return control.status().coordinator.snapshot_index > index + 2 * ENTRIES

    eventually("the log is compacted", probe)


def check_it_keeps_up(cluster: LocalCluster, control: Control, name: str) -> None:
    target = control.status().coordinator.commit_index
    eventually(f"{name} keeps up", lambda: own_status(cluster, name).coordinator.applied_index >= target)


def check_equal(cluster: LocalCluster, control: Control, name: str, keyspaces: Keyspaces) -> None:
    table = wait_settled(control, live=4)
    assert {keyspace.name for keyspace in table.keyspaces} >= set(keyspaces.names)
    eventually("all tables are equal", lambda: own_status(cluster, name).table == control.status().table)
