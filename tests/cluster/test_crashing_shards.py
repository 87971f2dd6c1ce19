"""Processes that end suddenly: because of a duty, all at once, or together with the active controller."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from minka.admin.control import Control
from minka.duties import Client, ShardState, changes
from minka.testing.local_cluster import LocalCluster
from minkad.core.controller.duties.suspects import KEPT_AWAY_FROM
from tests.cluster.cluster import QUICK, eventually
from tests.cluster.shard_process import POISON
from tests.cluster.shards import QUICK_SHARDS, ShardProcess, Shards, make_duties, running

FLEET = ("a", "b", "c")
FAILURE_TIMEOUT_S = 3.6  # of a shard, by default


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, config={**QUICK, "shards": QUICK_SHARDS}) as cluster:
        yield cluster


@pytest.fixture
def shards(cluster: LocalCluster, tmp_path: Path) -> Iterator[Shards]:
    with running(cluster, tmp_path) as shards:
        yield shards


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.endpoints, timeout=20.0) as client:
        yield client


class Supervisor:
    """Restarts a process under the same name whenever it has ended."""

    def __init__(self, shards: Shards, pallet: str) -> None:
        self._shards = shards
        self._pallet = pallet
        self.running: dict[str, ShardProcess] = {name: self._start(name) for name in FLEET}
        self.deaths = 0

    def _start(self, name: str) -> ShardProcess:
        return self._shards.start(f"{self._pallet}-{name}", self._pallet, delegate="Mortal")

    def look(self) -> None:
        for name, shard in list(self.running.items()):
            if shard.process.poll() is not None:
                self.deaths += 1
                self.running[name] = self._start(name)


def test_a_duty_that_ends_processes_ends_few_and_is_named(shards: Shards, client: Client) -> None:
    names = make_duties(client, "poison", 12)
    fleet = Supervisor(shards, "poison")
    shards.wait_placed(names)
    client.change([changes.create("poison", "bad", POISON)])

    def is_kept_away() -> bool:
        fleet.look()
        [status] = client.get_many([("poison", "bad")])
        return "it is kept away, and tried again alone on one shard in" in status.unplaced

    eventually("the duty is kept away", is_kept_away, deadline=60.0)
    assert fleet.deaths <= KEPT_AWAY_FROM
    assert [status.duty.id for status in client.list("poison", quarantined=True)] == ["bad"]
    assert [one.quarantined for one in client.pallets(["poison"])] == [1]
    shards.wait_placed(names)
    before = fleet.deaths
    client.change([changes.unquarantine("poison", "bad")])

    def is_tried_again() -> bool:
        fleet.look()
        return fleet.deaths == before + 1

    eventually("it is tried at once, alone", is_tried_again)
    client.update("poison", "bad", b"good")
    shards.wait_placed(names | {"poison/bad"})
    assert fleet.deaths == before + 1
    shards.assert_nothing_was_held_twice()


def test_a_fleet_that_is_not_trusted_works_on(shards: Shards, client: Client) -> None:
    """All processes are killed at once, again and again, and restarted."""
    names = make_duties(client, "killed", 12)
    fleet = Supervisor(shards, "killed")

    def are(*states: ShardState) -> bool:
        rows = [one for one in client.shards().shards if one.name.startswith("killed-")]
        return len(rows) == len(FLEET) and all(row.state in states for row in rows)

    registered = (ShardState.LIVE, ShardState.QUARANTINED)
    for _ in range(3):
        eventually("all are registered", lambda: are(*registered))
        for shard in fleet.running.values():
            shard.signal(signal.SIGKILL)
            shard.process.wait()
        eventually("all are taken for dead", lambda: are(ShardState.GONE))
        fleet.look()
    eventually("all are quarantined", lambda: are(ShardState.QUARANTINED))
    shards.wait_placed(names)
    assert not are(ShardState.LIVE), "they did not wait for a better score"
    shards.assert_nothing_was_held_twice()


def test_the_duties_of_a_process_that_dies_with_the_controller_are_soon_elsewhere(tmp_path: Path) -> None:
    """A new controller doesn't wait for a whole timeout after the clearances of the former one have ended."""
    with LocalCluster(3, config=QUICK) as cluster, running(cluster, tmp_path) as shards:
        with Control(cluster.endpoints) as control:
            controller = eventually("a controller", lambda: control.status().coordinator.controller)
        others = [node.address for name, node in cluster.nodes.items() if name != controller]
        with Client(others, timeout=20.0) as client:
            names = make_duties(client, "both", 12)
            one, two = (shards.start(f"both-{n}", "both", endpoints=others) for n in range(2))
            shards.wait_placed(names, [one, two])
            killed_at = time.clock_gettime(time.CLOCK_BOOTTIME)
            cluster.kill(controller)
            one.signal(signal.SIGKILL)
            one.process.wait()
            shards.wait_placed(names, [two])
        attached = [line["before"] for line in two.lines() if line.get("call") == "attach"]
        assert max(attached) - killed_at < 2 * FAILURE_TIMEOUT_S
        shards.assert_nothing_was_held_twice()
