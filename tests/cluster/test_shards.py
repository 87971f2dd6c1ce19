"""Real shards with real nodes: only one process has a duty at a time, even if processes or nodes die or stand still."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from minka.admin.control import Control
from minka.duties import Client
from minka.testing.local_cluster import LocalCluster
from tests.cluster.cluster import QUICK, eventually, wait_settled
from tests.cluster.shard_process import BLOCKED_S
from tests.cluster.shards import QUICK_SHARDS, Shards, make_duties, running


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, config={**QUICK, "shards": QUICK_SHARDS}) as cluster:
        with Control(cluster.endpoints) as control:
            eventually("three LIVE nodes", lambda: len(control.status().table.nodes) == 3)
        yield cluster


@pytest.fixture
def shards(cluster: LocalCluster, tmp_path: Path) -> Iterator[Shards]:
    with running(cluster, tmp_path) as shards:
        yield shards


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.endpoints, timeout=20.0) as client:
        yield client


def test_duties_are_attached_updated_deleted_and_released_by_a_process_that_stops(
    shards: Shards, client: Client
) -> None:
    names = make_duties(client, "crud", 20)
    one, two = (shards.start(f"crud-{n}", "crud") for n in range(2))
    shards.wait_placed(names)
    payloads = {name: payload for shard in (one, two) for name, _, payload in shard.calls("attach")}
    assert payloads == {f"crud/d{n}": f"payload {n}" for n in range(20)}
    holder = next(shard for shard in (one, two) if "crud/d3" in shard.held())
    client.update("crud", "d3", "another")
    eventually("the update", lambda: [duty[0::2] for duty in holder.calls("update")] == [["crud/d3", "another"]])
    client.delete("crud", "d3")
    eventually("the release", lambda: "crud/d3" in {duty[0] for duty in holder.calls("detach")})
    eventually("all but the deleted one", lambda: shards.places().keys() == names - {"crud/d3"})
    # All duties may be on `two` if `one` hasn't registered yet.
    eventually("both shards", lambda: len(client.shards(["crud-0", "crud-1"]).shards) == 2)
    had = set(one.held())
    one.signal(signal.SIGTERM)
    assert one.process.wait(30) == 0
    assert {duty[0] for duty in one.calls("detach")} >= had
    shards.wait_placed(names - {"crud/d3"}, [two])
    shards.assert_nothing_was_held_twice()


def test_a_paused_process_holds_nothing_when_it_goes_on(shards: Shards, client: Client) -> None:
    names = make_duties(client, "paused", 12)
    one, two = (shards.start(f"paused-{n}", "paused") for n in range(2))
    shards.wait_placed(names, [one, two])
    had = set(one.held().items())
    one.signal(signal.SIGSTOP)
    eventually("the other has all", lambda: two.held().keys() == names)
    one.signal(signal.SIGCONT)
    eventually("it releases", lambda: had <= {(name, epoch) for name, epoch, _ in one.calls("detach")})
    assert one.process.poll() is None
    client.update("paused", "d1", "still there")
    eventually("the other goes on", lambda: bool(two.calls("update")))
    shards.assert_nothing_was_held_twice()


def test_nothing_happens_to_duties_when_the_node_of_the_session_dies(
    cluster: LocalCluster, shards: Shards, client: Client
) -> None:
    names = make_duties(client, "node", 6)
    with Control(cluster.endpoints) as control:
        controller = control.status().coordinator.controller
    victim = next(name for name in cluster.nodes if name != controller)
    # The shard gets only the victim's address. The victim tells the shard the addresses of the other nodes.
    one = shards.start("node-0", "node", endpoints=[cluster.node(victim).address])
    shards.wait_placed(names, [one])
    had = one.held()
    cluster.kill(victim)
    with Client([node.address for name, node in cluster.nodes.items() if name != victim], timeout=20.0) as others:
        others.create("node", "new", "made afterwards")
    eventually("what is new", lambda: "node/new" in one.held())
    assert one.calls("detach") == []
    assert one.held().items() >= had.items()
    cluster.restart(victim)
    with Control(cluster.endpoints) as control:
        wait_settled(control, 3)


def test_a_process_that_does_not_release_in_time_ends(shards: Shards, client: Client) -> None:
    names = make_duties(client, "stuck", 2)
    one = shards.start("stuck-0", "stuck", delegate="Stuck")
    shards.wait_placed(names, [one])
    two = shards.start("stuck-1", "stuck")
    one.signal(signal.SIGSTOP)
    eventually("the other has all", lambda: two.held().keys() == names)
    one.signal(signal.SIGCONT)
    assert one.process.wait(30) == 70
    assert "the clearance has ended" in one.path.with_suffix(".log").read_text()
    shards.assert_nothing_was_held_twice()


def test_a_delegate_that_blocks_its_loop_keeps_its_clearance(shards: Shards, client: Client) -> None:
    assert QUICK_SHARDS["failure_timeout_ms"] < 1000 * BLOCKED_S
    names = make_duties(client, "blocked", 2)
    one = shards.start("blocked-0", "blocked", delegate="Blocking")
    shards.wait_placed(names, [one])
    assert sorted(epoch for _, epoch, _ in one.calls("attach")) == sorted(one.held().values())
    assert one.calls("detach") == []
    assert shards.assert_nothing_was_held_twice() == len(names)


def test_a_process_that_comes_back_within_its_grace_has_its_duties_again(shards: Shards, client: Client) -> None:
    names = make_duties(client, "grace", 6)
    one, two = (shards.start(f"grace-{n}", "grace", grace=20.0) for n in range(2))
    shards.wait_placed(names, [one, two])
    had, released = one.held(), two.calls("detach")  # the duties that `two` released when `one` came
    one.signal(signal.SIGTERM)
    assert one.process.wait(30) == 0
    again = shards.start("grace-0", "grace", grace=20.0)
    eventually("its duties", lambda: again.held().keys() == had.keys())
    assert all(again.held()[name] > epoch for name, epoch in had.items())
    assert two.calls("detach") == released
    shards.assert_nothing_was_held_twice()
