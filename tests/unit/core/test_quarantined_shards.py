"""A quarantined shard gets only duties that no other shard can take. Late heartbeats of a shard's process don't count
against its next process.
"""

import pytest

from minka.v1.duties_pb2 import Shard, ShardState
from minkad.core.duties.control.shard_lives import FailShards, NoteFlap
from minkad.core.duties.control.trust import HALF_LIFE_MS
from tests.unit.core.duty_world import DutyWorld

TEN = [f"d{number}" for number in range(10)]
TWO = ("s1", "s2")
QUARANTINED = ShardState.SHARD_STATE_QUARANTINED


@pytest.fixture
def world() -> DutyWorld:
    """Two shards with ten duties."""
    found = DutyWorld()
    found.pallet("feeds")
    for name in TWO:
        found.join(name)
    found.create("feeds", TEN)
    found.settle()
    return found


def crash(world: DutyWorld, *names: str, times: int = 1) -> None:
    """End the processes of these shards, and start new ones under the same names: all of this `times` times."""
    for _ in range(times):
        for name in names:
            world.kill(name)
        for name in names:
            world.join(name)
    world.settle()


def flap(world: DutyWorld, *names: str) -> None:
    """Send heartbeats late until the shards are quarantined."""
    for name in names:
        while shard(world, name).state != QUARANTINED:
            world.do(NoteFlap(name, world.processes[name].incarnation))


def shard(world: DutyWorld, name: str) -> Shard:
    """The shard's row."""
    return world.duties.shards[name]


def test_a_shard_restarted_once_is_not_quarantined(world: DutyWorld) -> None:
    crash(world, *TWO)
    assert world.counts() == {"s1": 5, "s2": 5}
    assert all(shard(world, name).state == ShardState.SHARD_STATE_LIVE for name in TWO)


def test_if_all_shards_are_quarantined_they_keep_the_duties(world: DutyWorld) -> None:
    crash(world, *TWO, times=3)
    assert all(shard(world, name).state == QUARANTINED for name in TWO)
    assert shard(world, "s1").state_reason == "it fell silent again and again"
    assert world.counts() == {"s1": 5, "s2": 5}
    before = {name: world.where(name) for name in TEN}
    world.wait(500)
    assert {name: world.where(name) for name in TEN} == before, "they don't empty each other"


def test_a_synthetic_duty_goes_to_quarantined_shards_if_there_are_no_others(world: DutyWorld) -> None:
    crash(world, *TWO, times=3)
    world.create("feeds", ["everywhere"], synthetic=True)
    world.wait(1000)
    assert len(world.duties.assignments(world.row("everywhere").number)) == 2


def test_the_duties_of_quarantined_shards_go_to_a_new_shard(world: DutyWorld) -> None:
    crash(world, *TWO, times=3)
    world.join("s3")
    world.wait(1000)
    assert world.counts() == {"s1": 0, "s2": 0, "s3": 10}


def test_duties_that_fit_on_no_other_shard_go_to_a_quarantined_one() -> None:
    world = DutyWorld()
    world.pallet("feeds")
    world.join("s2")
    crash(world, "s2", times=3)
    world.kill("s2")
    world.join("s1", capacity=6)
    world.join("s2", capacity=3)
    assert shard(world, "s2").state == QUARANTINED
    world.create("feeds", TEN)
    world.settle()
    world.wait(1000)
    assert world.counts() == {"s1": 6, "s2": 3}
    assert "s1 and s2 have no room for weight 1" in world.why_unplaced(next(n for n in TEN if not world.where(n)))


def test_flaps_do_not_count_for_the_next_process(world: DutyWorld) -> None:
    flap(world, "s1")
    crash(world, "s1")
    assert shard(world, "s1").state == ShardState.SHARD_STATE_LIVE
    world.leave("s1")
    world.settle()
    world.join("s1")
    assert shard(world, "s1").penalty == 0, "it has stopped gracefully"


def test_the_end_of_a_leaving_process_is_not_a_crash(world: DutyWorld) -> None:
    for _ in range(4):
        world.do(FailShards({}))
        world.leave("s1")
        world.kill("s1")
        world.join("s1")
    assert shard(world, "s1").state == ShardState.SHARD_STATE_LIVE


def test_the_failure_of_a_shard_that_a_new_controller_never_heard_is_not_a_crash(world: DutyWorld) -> None:
    """The shard may be well: perhaps only its connection to a node broke while the controller changed."""
    for number in range(3):
        world.create("feeds", [f"new{number}"])
        world.follow()
        world.do(FailShards(dict.fromkeys(TWO, "no heartbeat"), unheard=TWO))
        for name in TWO:
            assert shard(world, name).penalty > 0
            world.processes.pop(name)
            world.join(name)
    world.settle()
    assert all(shard(world, name).state == ShardState.SHARD_STATE_LIVE for name in TWO)
    assert not world.duties.suspected, "duties that these shards were attaching are not suspects"


def test_crashes_are_forgotten_in_time(world: DutyWorld) -> None:
    crash(world, "s1")
    world.wait(3 * HALF_LIFE_MS)
    crash(world, "s1")
    assert shard(world, "s1").state == ShardState.SHARD_STATE_LIVE


def test_the_reason_names_the_state_of_each_shard(world: DutyWorld) -> None:
    world.releases = False
    for name in TWO:
        world.leave(name)
    world.create("feeds", ["late"])
    world.wait(1000)
    assert world.why_unplaced("late") == (
        "no shard can take it: s1 is LEAVING: is about to stop and s2 is LEAVING: is about to stop"
    )
