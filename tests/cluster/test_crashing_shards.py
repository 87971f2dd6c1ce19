"""A duty kills each process that attaches it. The controller finds this duty, and keeps it away from the shards."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from minka.duties import Client, changes
from minka.testing.local_cluster import LocalCluster
from minkad.core.duties.control.suspects import KEPT_AWAY_FROM
from tests.cluster.cluster import QUICK, eventually
from tests.cluster.shard_process import POISON
from tests.cluster.shards import QUICK_SHARDS, ShardProcess, Shards, make_duties, running

FLEET = ("a", "b", "c")


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
    """Starts each process again, with the same name, when it has ended."""

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
    # If a process was attaching other duties, too, its death doesn't count against the bad duty alone. So there may be
    # more than KEPT_AWAY_FROM deaths.
    assert fleet.deaths < 2 * KEPT_AWAY_FROM
    assert [status.duty.id for status in client.list("poison", quarantined=True)] == ["bad"]
    assert [one.quarantined for one in client.pallets(["poison"])] == [1]
    shards.wait_placed(names)
    before = fleet.deaths
    client.change([changes.unquarantine("poison", "bad")])

    def is_tried_again() -> bool:
        fleet.look()
        return fleet.deaths == before + 1

    eventually("the duty is tried at once, alone", is_tried_again)
    client.update("poison", "bad", b"good")
    shards.wait_placed(names | {"poison/bad"})
    assert fleet.deaths == before + 1
    shards.assert_nothing_was_held_twice()
