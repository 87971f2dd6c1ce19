"""A shard's state machine: its reactions to each event."""

import logging

import pytest

from minka.duties._events import (
    MAX_CALL_DUTIES,
    CallEnded,
    CallOverdue,
    Connected,
    Disconnected,
    MachineSettings,
    Method,
    Received,
    Resized,
    Tick,
)
from minka.v1.duties_pb2 import PalletCapacity
from minka.v1.errors_pb2 import Error
from minka.v1.shards_pb2 import DutiesToAttach, ShardInstruction, ShardWelcome, WeighedDuty
from tests.unit.core.duty_world import DutyWorld
from tests.unit.duties.world import ALL, CLEARANCE, World, held


def test_a_shard_says_hello_and_attaches_only_with_clearance() -> None:
    world = World()
    world.answers = False
    world.connect()
    hello = world.said[0].hello
    assert (hello.shard.name, hello.shard.incarnation, hello.known_index) == ("s", "process 1", 0)
    world.attach(held(1, 11))
    assert world.history == []
    world.grant()
    assert world.history == [("attach", [1])]
    assert world.machine.holds(1, 11, world.now)
    assert not world.machine.holds(1, 10, world.now)


def test_attached_duties_are_reported_and_held(world: World) -> None:
    assert world.reported("attached") == [(1, 11), (2, 12)]
    assert world.machine.holds(1, 11, world.now)
    assert not world.machine.holds(1, 11, world.now + CLEARANCE)


def test_the_release_of_a_later_assignment_ends_an_earlier_one(world: World) -> None:
    """The controller has assigned each duty to this shard again, and takes it back before the shard has heard of the
    later assignment.
    """
    world.attach(held(1, 19))
    assert world.history == [("detach", [1])]
    world.history.clear()
    world.detach((1, 21), (2, 22), (3, 23))
    assert world.history == []
    world.record()
    assert world.reported("released") == [(3, 23)], "the delegate still has duties 1 and 2"
    world.end_calls()
    world.record()
    world.record()
    assert {(1, 21), (2, 22)} <= set(world.reported("released"))
    assert world.history == [("detach", [2])]
    assert not world.holds


def test_a_shards_pallets_and_capacities_may_change(world: World) -> None:
    world.tell(Resized((PalletCapacity(pallet="feeds", capacity=7), PalletCapacity(pallet="post"))))
    hello = world.said[-1].hello
    assert [(one.pallet, one.HasField("capacity"), one.capacity) for one in hello.shard.pallets] == [
        ("feeds", True, 7),
        ("post", False, 0),
    ]
    assert hello.shard.incarnation == "process 1"
    world.attach(held(5, 15, pallet="post"))
    world.end_calls()
    assert world.reported("attached")[-1] == (5, 15)
    world.connected = False
    world.tell(Disconnected("UNREACHABLE", "its node has died"))
    world.tell(Resized((PalletCapacity(pallet="feeds", capacity=8),)))
    assert world.said[-1].hello.shard.pallets != [PalletCapacity(pallet="feeds", capacity=8)]
    world.connect()
    hellos = [message.hello for message in world.said if message.HasField("hello")]
    assert [one.capacity for one in hellos[-1].shard.pallets] == [8]


def test_a_report_says_how_long_each_event_waited(world: World) -> None:
    world.attach(held(3, 13))
    world.pass_time(0.1)
    world.end_call()
    world.attach(held(4, 14))
    world.end_call()
    world.pass_time(0.25)
    world.record()
    first, second = world.reports[-2:]
    assert (first.times[0].duty, first.times[0].waited_ms) == (3, 0)
    assert 99 <= first.times[0].took_ms <= 101
    assert (second.times[0].duty, second.times[0].took_ms) == (4, 0)
    assert 249 <= second.times[0].waited_ms <= 251


def test_a_release_is_reported_after_detach_with_its_time(world: World) -> None:
    world.detach((1, 11))
    assert world.reported("released") == []
    world.pass_time(0.25)
    assert world.machine.holds(1, 11, world.now)
    world.end_call()
    assert world.reported("released") == [(1, 11)]
    assert 249 <= world.reports[-1].times[0].took_ms <= 251
    assert not world.machine.holds(1, 11, world.now)


def test_an_assignment_that_was_given_back_is_not_taken_again(world: World) -> None:
    world.detach((1, 11))
    world.end_calls()
    world.attach(held(1, 11))
    assert world.history == [("detach", [1])]
    world.attach(held(1, 13))
    assert world.history == [("detach", [1]), ("attach", [1])]


def test_a_newer_assignment_waits_until_the_older_one_is_released(world: World) -> None:
    world.attach(held(1, 13))
    assert world.history == [("detach", [1])]
    world.end_call()
    assert world.holds == {1: 13, 2: 12}
    assert world.reported("released") == [(1, 11)]


def test_the_release_of_a_duty_that_is_not_here_is_confirmed(world: World) -> None:
    world.detach((7, 70))
    assert world.reported("released") == [(7, 70)]
    world.attach(held(7, 70))  # a late message: the node sent it before `detach`
    assert world.history == []


def test_an_older_instruction_is_dropped(world: World) -> None:
    world.tell(Received(ShardInstruction(index=1, attach=DutiesToAttach(duties=[held(3, 9)]))))
    assert world.history == []
    assert "lags" in world.notes[-1].text


def test_duties_whose_batch_raises_are_tried_one_by_one_and_then_given_up() -> None:
    world = World([Method.ATTACH, Method.DETACH], MachineSettings(tries=2))
    world.connect()
    world.attach(held(1, 11), held(2, 12))
    world.end_call("KeyError: 'a'")
    assert world.holds == {1: 11}
    world.end_call()
    world.end_call("ValueError: bad")
    assert world.history == [("attach", [1, 2]), ("attach", [1]), ("attach", [2])]
    assert not world.reported("released")
    world.pass_time(0.2)
    assert world.history[-1] == ("attach", [2])
    world.record()
    world.end_call("ValueError: bad")
    (failed,) = world.reports[-1].failed
    assert (failed.holding.duty, failed.holding.epoch, failed.reason) == (2, 12, "attach: ValueError: bad")
    world.attach(held(2, 12))
    assert world.holds == {1: 11}


def test_detach_is_repeated_until_it_does_not_raise(world: World) -> None:
    world.detach((1, 11))
    for tries in range(7):
        world.end_call("OSError")
        assert len(world.history) == tries + 1
        world.pass_time(min(0.1 * 2**tries, 5.0) - 0.01)
        assert len(world.history) == tries + 1
        world.pass_time(0.02)
        assert world.reported("released") == []
    world.end_call()
    assert world.reported("released") == [(1, 11)]
    assert world.history == [("detach", [1])] * 8


def test_a_changed_duty_is_updated_or_attached_again() -> None:
    for methods, calls in (
        ([Method.ATTACH, Method.DETACH, Method.UPDATE], ["attach", "update"]),
        ([Method.ATTACH, Method.DETACH], ["attach", "detach", "attach"]),
    ):
        world = World(methods)
        world.connect()
        world.attach(held(1, 11))
        world.update(held(1, 11, version=2))  # while attach is under way
        world.end_calls()
        assert [name for name, _ in world.history] == calls
        assert world.holds == {1: 11}
        assert world.reported("released") == []
        world.update(held(1, 11, version=2))
        assert [name for name, _ in world.history] == calls


def test_all_duties_are_released_before_the_clearance_ends(silent: World) -> None:
    silent.pass_time(CLEARANCE * 2 / 3 - 0.01)
    assert silent.history == []
    silent.pass_time(0.02)
    assert silent.history == [("detach", [1, 2])]
    silent.end_calls()
    silent.pass_time(2 * CLEARANCE)
    assert silent.ended == []
    silent.connect()
    silent.attach(held(3, 13))
    assert silent.history == [("detach", [1, 2])]
    silent.grant()
    silent.end_calls()
    assert silent.holds == {3: 13}
    assert silent.reported("released") == [(1, 11), (2, 12)]


@pytest.mark.parametrize("hundredths", range(0, 300, 7))
def test_a_tick_at_the_moment_that_the_machine_named_is_enough(hundredths: int) -> None:
    """Beyond 128 s, a float has only half the precision. Rounding must not make the tick come a little before the
    moment.
    """
    world = World([method for method in ALL if method is not Method.REPORT])
    world.now = 125 + hundredths / 100
    world.connect()
    world.attach(held(1, 11))
    world.end_calls()
    world.answers = False
    world.pass_time(CLEARANCE - 0.01)  # fails if the machine does nothing at a moment that it named, and names it again
    assert not world.connected
    assert world.history == [("attach", [1]), ("detach", [1])]


def test_the_process_is_ended_if_the_delegate_does_not_release(silent: World) -> None:
    silent.pass_time(CLEARANCE - 0.01)
    assert silent.ended == []
    silent.pass_time(0.02)
    assert len(silent.ended) == 1
    assert "2 duties" in silent.ended[0].reason


def test_a_process_that_wakes_up_too_late_has_a_margin_to_release(silent: World) -> None:
    silent.now += 10 * CLEARANCE  # as between SIGSTOP and SIGCONT
    assert not silent.machine.holds(1, 11, silent.now)
    silent.tell(Tick())
    assert silent.history == [("detach", [1, 2])]
    assert silent.ended == []
    silent.pass_time(CLEARANCE / 3 + 0.01)
    assert len(silent.ended) == 1


def test_a_heartbeat_counts_from_when_it_was_sent(silent: World) -> None:
    silent.pass_time(0.5)
    sent = silent.now
    silent.now += 1.0
    silent.grant()
    assert silent.machine.until == pytest.approx(sent + CLEARANCE)


def test_an_attach_is_cancelled_and_released_when_the_clearance_gets_short() -> None:
    world = World()
    world.connect()
    world.answers = False
    world.attach(held(1, 11))
    world.pass_time(CLEARANCE * 2 / 3 + 0.01)
    assert world.cancelled
    world.end_call()
    assert world.history[-1] == ("detach", [1])


def test_a_silent_session_is_left_without_losing_reports(silent: World) -> None:
    silent.detach((1, 11))
    silent.end_calls()
    silent.pass_time(1.0)
    assert not silent.connected
    said = len(silent.said)
    silent.connected = True
    silent.tell(Connected())
    hello, beat, report = silent.said[said : said + 3]
    assert [(h.duty, h.epoch, h.version) for h in hello.hello.holdings] == [(2, 12, 1)]
    assert hello.hello.shard.incarnation == "process 1"
    assert hello.hello.known_index == silent.index
    assert beat.heartbeat.sequence or report.heartbeat.sequence
    assert [h.duty for message in (beat, report) for h in message.report.released] == [1]


def test_a_fenced_process_comes_back_under_a_new_incarnation(world: World) -> None:
    world.connected = False
    world.tell(Disconnected("SHARD_FENCED", "it was silent"))
    assert not world.machine.holds(1, 11, world.now)
    may_connect = [world.machine.may_connect]
    world.end_calls()
    assert [*may_connect, world.machine.may_connect] == [False, True]
    world.connect()
    hello = [message.hello for message in world.said if message.HasField("hello")][-1]
    assert (hello.shard.incarnation, list(hello.holdings)) == ("process 2", [])
    world.attach(held(1, 14))
    assert world.holds == {1: 14}


def test_other_duties_go_on_beside_a_call_that_can_not_be_ended(world: World) -> None:
    world.attach(held(3, 13))
    world.attach(held(4, 14), held(5, 15, pallet="mail"))
    assert world.history == [("attach", [3]), ("attach", [5])]
    world.tell(CallOverdue(next(iter(world.calls))))
    assert "can't be ended: the pallet's other duties don't wait for it" in world.notes[-1].text
    assert world.history[-1] == ("attach", [4])
    world.end_calls()
    assert {3, 4, 5} <= set(world.holds)


def test_a_release_that_hangs_repeatedly_does_not_delay_other_duties(world: World) -> None:
    """A release that hangs is cancelled after 30 s, and tried again. Calls for other duties don't wait for it."""
    world.attach(held(3, 13), held(4, 14))
    world.end_calls()
    world.detach((3, 13))
    world.pass_time(30.0)
    world.end_call("it took longer than 30 s")
    world.pass_time(0.2)
    assert world.history[-1] == ("detach", [3])
    world.detach((4, 14))
    assert world.history[-1] == ("detach", [4])
    world.end_calls()
    assert world.holds.keys().isdisjoint({3, 4})


def test_many_duties_are_released_before_the_reports_about_them_are_made() -> None:
    """To make the reports takes time. While the delegate still has duties, the machine only notes the released duties,
    so that all are released in time.
    """
    world = World(methods=(Method.ATTACH, Method.DETACH))
    world.connect()
    count = 3 * MAX_CALL_DUTIES
    world.attach(*(held(number, number) for number in range(1, count + 1)))
    world.end_calls()
    world.record()
    world.answers = False
    world.pass_time(2.0)
    while world.machine.hosting.live > MAX_CALL_DUTIES:
        world.end_call()
        assert len(world.machine.hosting.records) == count, "no record is dropped while the delegate has duties"
    world.end_calls()
    world.pass_time(0.0)
    assert not world.machine.hosting.records
    assert not world.ended


def test_a_detach_that_hangs_while_the_clearance_is_short_does_not_delay_other_duties(world: World) -> None:
    """Once the shard has its clearance again, it reports the other duties as released, and attaches a new duty."""
    world.attach(*(held(number, 10 + number) for number in range(3, 6)))
    world.end_calls()
    world.record()
    world.detach((1, 11))
    (hanging,) = world.calls
    world.pass_time(30.0)
    world.tell(CallOverdue(hanging))
    world.answers = False
    world.pass_time(2.2)
    for number in [number for number in world.calls if number != hanging]:
        world.calls = {number: world.calls.pop(number), **world.calls}
        world.end_call()
    assert world.holds == {1: 11}
    assert not world.reported("released")
    world.answers = True
    world.connect()
    world.pass_time(0.5)
    assert sorted(world.reported("released")) == [(2, 12), (3, 13), (4, 14), (5, 15)]
    world.record()
    world.attach(held(2, 22))
    assert world.history[-1] == ("attach", [2])
    world.end_calls()
    assert world.holds == {2: 22}
    assert not world.ended
    world.record()
    assert (1, 11) in world.reported("released")


def test_the_more_duties_there_are_the_earlier_they_are_released() -> None:
    world = World(methods=(Method.ATTACH, Method.DETACH))
    world.connect()
    world.attach(*(held(number, number) for number in range(1, 25_001)))
    world.end_calls()
    world.record()
    world.answers = False
    world.pass_time(CLEARANCE - 25_000 * 50e-6 - 0.51)
    assert not world.calls
    world.pass_time(0.52)
    assert world.history[-1][0] == "detach"


def test_a_lazy_duty_ends_when_the_delegate_no_longer_reports_it() -> None:
    world = World()
    world.connect()
    lazy = held(1, 11)
    lazy.lazy = True
    world.attach(lazy, held(2, 12))
    world.end_calls()
    world.record()
    world.pass_time(1.0)
    world.end_calls()
    assert world.machine.holds(1, 11, world.now)
    del world.holds[1], world.holds[2]
    world.pass_time(1.0)
    world.end_calls()
    assert [(one.duty, one.epoch) for one in world.reports[-1].finished] == [(1, 11)]
    assert not world.machine.holds(1, 11, world.now)
    assert world.machine.holds(2, 12, world.now)


def test_a_lazy_duty_attached_during_a_report_does_not_count_as_missing() -> None:
    world = World()
    world.connect()
    world.attach(held(1, 11))
    world.end_calls()
    world.pass_time(1.0)
    (report,) = world.calls
    world.attach(held(2, 12, lazy=True))
    world.calls[report] = world.calls.pop(report)
    world.pass_time(0.1)
    world.end_call()
    world.record()
    del world.calls[report]
    world.tell(CallEnded(report, None, {(1, 11): None}))
    assert world.machine.holds(2, 12, world.now)


def report(world: World, weight: int) -> None:
    """Let the delegate report this weight for the duty 1, and let a second pass."""
    for number in list(world.calls):
        del world.calls[number]
        world.tell(CallEnded(number, None, {(1, 11): weight}))
    if not world.machine.reports.is_empty:
        world.record()
    world.pass_time(1.0)


def test_a_weight_is_reported_rarely_and_only_after_a_large_change() -> None:
    world = World()
    world.connect()
    world.attach(held(1, 11, weight=100))
    while any(call.method is not Method.REPORT for call in world.calls.values()):
        world.end_call()
    world.record()

    for weight in (100, 109, 111, 200, 300):
        report(world, weight)
    assert [one.weight for one in weights(world)] == [111]
    for _ in range(12):
        report(world, 300)
    assert [one.weight for one in weights(world)] == [111, 300]


def test_the_controller_accepts_each_weight_that_a_shard_reports() -> None:
    """The shard reports a weight only once. If the controller ignored the report, it would keep a wrong weight for
    ever.
    """
    world, cluster = World(), DutyWorld()
    cluster.pallet("feeds")
    cluster.join("s1")
    cluster.create("feeds", ["a"], weight=10)
    cluster.settle()
    world.connect()
    world.attach(held(1, 11, weight=10))
    while any(call.method is not Method.REPORT for call in world.calls.values()):
        world.end_call()
    world.record()
    told = 0
    for weight in (11, 12, 11, 10, 9, 10, 0, 1, 30, 27, 33):
        for _ in range(12):
            report(world, weight)
        for one in weights(world)[told:]:
            cluster.weigh("s1", "a", one.weight)
            assert cluster.duties.load("s1", "feeds").weight == one.weight
        told = len(weights(world))
    assert [one.weight for one in weights(world)] == [11, 9, 10, 0, 1, 30, 27, 33]


def weights(world: World) -> list[WeighedDuty]:
    return [one for report in world.reports for one in report.weights]


def test_a_shard_prepares_and_then_attaches_at_the_next_epoch() -> None:
    world = World()
    world.connect()
    world.prepare(held(1, 11))
    world.end_calls()
    assert world.reported("prepared") == [(1, 11)]
    assert not world.machine.holds(1, 11, world.now)
    world.attach(held(1, 12))
    assert world.holds == {1: 12}
    assert world.reported("released") == []


def test_an_attach_does_not_wait_for_the_prepare_of_its_duty() -> None:
    world = World([method for method in ALL if method is not Method.REPORT])
    world.connect()
    world.prepare(held(1, 11), held(2, 21), held(3, 31), held(4, 41))
    world.attach(held(7, 70))
    assert not world.cancelled
    world.attach(held(1, 12), held(3, 32))
    assert world.cancelled == list(world.calls), "once"
    world.end_call("one of the duties has to be attached")
    assert world.history == [("prepare", [1, 2, 3, 4]), ("attach", [7, 1, 3])]
    world.end_calls()
    assert world.history[2:] == [("prepare", [2, 4])], "they have not failed"
    assert world.holds == {7: 70, 1: 12, 3: 32}
    world.record()
    assert world.reported("prepared") == [(2, 21), (4, 41)]
    world.attach(held(2, 22))
    world.end_calls()
    assert world.holds == {7: 70, 1: 12, 3: 32, 2: 22}


def test_an_attach_waits_for_a_prepare_that_can_not_be_cancelled() -> None:
    world = World([method for method in ALL if method is not Method.REPORT])
    world.connect()
    world.prepare(held(1, 11), held(2, 21))
    world.attach(held(1, 12))
    world.tell(CallOverdue(next(iter(world.calls))))
    assert "prepare of 2 duties (the first is feeds/d1) has taken" in world.notes[-1].text
    world.end_call()
    world.end_calls()
    assert world.history == [("prepare", [1, 2]), ("attach", [1])]
    assert world.reported("prepared") == [(2, 21)]


def test_the_log_names_a_report_that_can_not_be_ended() -> None:
    world = World()
    world.connect()
    world.attach(held(1, 11))
    world.end_calls()
    world.pass_time(1.5)
    (number,) = (number for number, call in world.calls.items() if call.method is Method.REPORT)
    world.tell(CallOverdue(number))
    assert "report of all duties has taken" in world.notes[-1].text


def test_the_log_names_missing_pallets_once(world: World) -> None:
    for unknown in (["maps"], ["maps"], [], ["maps"], [f"p{number}" for number in range(5)]):
        world.say(welcome=ShardWelcome(heartbeat_interval_ms=500, unknown_pallets=unknown))
    assert [note.level for note in world.notes] == [logging.WARNING] * 3
    text = "no duties come from pallets that don't exist: maps; create them: minkactl pallet create maps, or"
    assert world.notes[0].text.startswith(text)
    assert "p0, p1, p2 and 2 more" in world.notes[2].text


def test_problems_that_take_turns_are_noted_once_in_ten_seconds() -> None:
    """While nodes die, one node says that the name is taken, and the next one doesn't answer."""
    world = World()
    for _ in range(50):
        for code in ("SHARD_NAME_TAKEN", "UNREACHABLE"):
            world.now += 0.15
            world.tell(Disconnected(code, code))
    assert [note.text.split()[-1] for note in world.notes] == ["SHARD_NAME_TAKEN", "UNREACHABLE"] * 2


def test_a_shard_warns_if_another_process_has_its_name() -> None:
    world = World()
    world.connected = True
    world.tell(Connected())
    world.say(refused=Error(code="SHARD_NAME_TAKEN", message="another process has the name s"))
    assert [(note.level, note.text) for note in world.notes] == [
        (logging.WARNING, "no session with the cluster, still trying: another process has the name s")
    ]
    assert not world.stopped
