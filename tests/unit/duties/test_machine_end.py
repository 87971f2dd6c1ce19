"""The ways in which a shard's state machine ends: it says goodbye, gives up, loses its event loop, or is refused for
good.
"""

import pytest

from minka.duties._events import GiveUp, Leave, LoopClosed, Stopped
from minka.v1.errors_pb2 import Error
from tests.unit.duties.world import CLEARANCE, World


def test_a_leaving_shard_ends_when_all_its_duties_are_elsewhere(world: World) -> None:
    world.tell(Leave())
    assert world.said[-1].HasField("leave")
    world.detach((1, 11), (2, 12))
    world.end_calls()
    assert world.stopped == []
    world.record()
    world.goodbye()
    assert world.stopped == [Stopped()]


def test_a_leaving_shard_may_get_the_goodbye_before_its_last_report_is_recorded(world: World) -> None:
    world.tell(Leave())
    world.detach((1, 11), (2, 12))
    world.end_calls()
    before = len(world.notes)
    world.goodbye()
    assert world.stopped == [Stopped()]
    assert world.notes[before:] == []


def test_after_the_goodbye_a_shard_waits_for_its_delegate_without_busy_ticks(world: World) -> None:
    world.goodbye()
    assert world.timely()
    world.pass_time(0.5)  # fails if the machine asks for tick after tick at the same moment
    assert world.stopped == []
    world.end_calls()
    world.record()
    assert world.stopped == [Stopped()]


def test_a_shard_that_gives_up_ends_without_an_answer_of_the_cluster(world: World) -> None:
    world.tell(GiveUp())
    world.end_calls()
    assert world.stopped == []  # the shard waits a moment for the answer to its report
    world.pass_time(1.1)
    assert world.stopped == [Stopped()]


CLOSED = ("INVALID_ARGUMENT", "the event loop was closed before the shard had ended")


def test_a_closed_loop_ends_the_shard_when_all_duties_are_released(world: World) -> None:
    """The delegate's methods are plain functions, so they can still run and release the duties."""
    world.tell(LoopClosed())
    assert not world.machine.holds(1, 11, world.now)
    assert world.history == [("detach", [1, 2])]
    world.end_calls()
    assert world.stopped == [Stopped(CLOSED)]
    assert world.reported("released") == [(1, 11), (2, 12)]


@pytest.mark.parametrize("ends_process", [True, False])
def test_a_closed_loop_ends_the_shard_although_no_duty_can_be_released(world: World, ends_process: bool) -> None:
    world.machine.ends_process = ends_process
    world.tell(LoopClosed())
    world.end_call("RuntimeError: Event loop is closed")
    world.tell(LoopClosed())  # the session repeats the event each time it finds the loop closed
    assert (world.ended, world.stopped) == ([], [])
    world.pass_time(CLEARANCE / 3 + 0.01)
    assert len(world.ended) == ends_process
    assert world.stopped == ([] if ends_process else [Stopped(CLOSED)])


def test_a_shard_that_is_refused_for_good_releases_everything_and_ends(world: World) -> None:
    world.say(refused=Error(code="UNREACHABLE", message="not yet"))
    world.connect()
    assert not world.history
    for _ in range(2):  # the shard connects again while it releases its duties
        world.say(refused=Error(code="INVALID_ARGUMENT", message="Shard.pallets[1]: must have no slash"))
        world.connect()
    assert world.history == [("detach", [1, 2])]
    assert not world.stopped
    assert len([note for note in world.notes if note.text.startswith("the cluster refuses the shard")]) == 1
    world.end_calls()
    world.record()
    assert world.stopped == [Stopped(("INVALID_ARGUMENT", "Shard.pallets[1]: must have no slash"))]
