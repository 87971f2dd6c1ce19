"""The ends of a shard's state machine: it leaves, gives up, loses its event loop, or is refused for good."""

import pytest

from minka.duties._events import GiveUp, Leave, LoopClosed, Stopped
from minka.v1.errors_pb2 import Error
from tests.unit.duties.world import CLEARANCE, World


def test_it_leaves_when_everything_is_elsewhere(world: World) -> None:
    world.tell(Leave())
    assert world.said[-1].HasField("leave")
    world.detach((1, 11), (2, 12))
    world.end_calls()
    assert world.stopped == []
    world.record()
    world.goodbye()
    assert world.stopped == [Stopped()]


def test_it_ends_without_a_warning_when_its_last_report_is_answered_by_the_goodbye(world: World) -> None:
    world.tell(Leave())
    world.detach((1, 11), (2, 12))
    world.end_calls()
    before = len(world.notes)
    world.goodbye()
    assert world.stopped == [Stopped()]
    assert world.notes[before:] == []


def test_it_waits_calmly_for_a_delegate_that_has_not_released_all_at_the_goodbye(world: World) -> None:
    world.goodbye()
    assert world.timely()
    world.pass_time(0.5)  # fails if the machine asks for one tick after the other
    assert world.stopped == []
    world.end_calls()
    world.record()
    assert world.stopped == [Stopped()]


def test_it_gives_up_without_the_cluster(world: World) -> None:
    world.tell(GiveUp())
    world.end_calls()
    assert world.stopped == []  # the report is on its way
    world.pass_time(1.1)
    assert world.stopped == [Stopped()]


CLOSED = ("INVALID_ARGUMENT", "the event loop was closed before the shard had ended")


def test_a_closed_loop_ends_the_shard_when_everything_is_released(world: World) -> None:
    """Plain functions still run."""
    world.tell(LoopClosed())
    assert not world.machine.holds(1, 11, world.now)
    assert world.history == [("detach", [1, 2])]
    world.end_calls()
    assert world.stopped == [Stopped(CLOSED)]
    assert world.reported("released") == [(1, 11), (2, 12)]


@pytest.mark.parametrize("ends_process", [True, False])
def test_a_closed_loop_ends_the_shard_though_nothing_can_be_released(world: World, ends_process: bool) -> None:
    world.machine.ends_process = ends_process
    world.tell(LoopClosed())
    world.end_call("RuntimeError: Event loop is closed")
    world.tell(LoopClosed())  # at each look
    assert (world.ended, world.stopped) == ([], [])
    world.pass_time(CLEARANCE / 3 + 0.01)
    assert len(world.ended) == ends_process
    assert world.stopped == ([] if ends_process else [Stopped(CLOSED)])


def test_a_shard_that_is_refused_for_good_releases_everything_and_ends(world: World) -> None:
    world.say(refused=Error(code="UNREACHABLE", message="not yet"))
    world.connect()
    assert not world.history
    for _ in range(2):  # it connects again while it releases
        world.say(refused=Error(code="INVALID_ARGUMENT", message="Shard.pallets[1]: must have no slash"))
        world.connect()
    assert world.history == [("detach", [1, 2])]
    assert not world.stopped
    assert len([note for note in world.notes if note.text.startswith("the cluster refuses the shard")]) == 1
    world.end_calls()
    world.record()
    assert world.stopped == [Stopped(("INVALID_ARGUMENT", "Shard.pallets[1]: must have no slash"))]
