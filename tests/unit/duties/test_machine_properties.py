"""The guarantees of a shard's state machine, in any order of events."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minka.duties._events import Disconnected, GiveUp, Method
from minka.v1.shards_pb2 import ShardRecorded
from tests.unit.duties.world import ALL, World, held

DUTIES = st.integers(1, 4)
SECONDS = st.sampled_from([0.0, 0.05, 0.3, 0.9, 1.1, 2.5, 4.0])


def is_lazy(duty: int) -> bool:
    return duty % 2 == 1


class AnyCourse(RuleBasedStateMachine):
    """A node assigns duties and takes them back, as a controller may. Sessions break, calls fail, and the process
    pauses.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = World(ALL)
        self.world.answers = False
        self.epoch = 0
        self.assigned: dict[int, int] = {}  # each duty's epoch in the cluster's rows
        self.versions: dict[int, int] = {}
        self.given_back: set[tuple[int, int]] = set()  # assignments that the delegate has given back, for any reason
        self.given: set[tuple[int, int]] = set()
        self.seen = 0
        self.incarnation = ""

    # The cluster

    @precondition(lambda self: not self.world.connected and self.world.machine.may_connect)
    @rule()
    def connect(self) -> None:
        self.world.connect()
        self.seen_new_process()

    def seen_new_process(self) -> None:
        incarnation = self.world.machine.shard.incarnation
        if incarnation != self.incarnation:
            assert not self.world.holds, "the new process has duties of the former one"
            self.incarnation = incarnation
            self.assigned.clear()
            self.given_back.clear()

    @precondition(lambda self: self.world.connected)
    @rule(code=st.sampled_from(["UNREACHABLE", "NO_CLEARANCE", "SHARD_FENCED"]))
    def break_off(self, code: str) -> None:
        self.world.connected = False
        self.world.tell(Disconnected(code, "it breaks"))

    @precondition(lambda self: self.world.connected)
    @rule(duties=st.sets(DUTIES, min_size=1))
    def assign(self, duties: set[int]) -> None:
        some = []
        for duty in sorted(duties - set(self.assigned)):
            self.epoch += 1
            self.assigned[duty] = self.epoch
            some.append(held(duty, self.epoch, version=self.versions.setdefault(duty, 1), lazy=is_lazy(duty)))
        self.world.attach(*some)

    @precondition(lambda self: self.world.connected)
    @rule(duty=DUTIES)
    def say_again(self, duty: int) -> None:
        """Repeat an assignment. The shard may have given it back, and the node may not know that yet."""
        if duty in self.assigned:
            self.world.attach(held(duty, self.assigned[duty], version=self.versions[duty], lazy=is_lazy(duty)))

    @precondition(lambda self: self.world.connected)
    @rule(duty=DUTIES)
    def take_back(self, duty: int) -> None:
        if duty in self.assigned:
            self.world.detach((duty, self.assigned[duty]))

    @precondition(lambda self: self.world.connected)
    @rule(duty=DUTIES)
    def change(self, duty: int) -> None:
        if duty in self.assigned:
            self.versions[duty] += 1
            self.world.update(held(duty, self.assigned[duty], version=self.versions[duty], lazy=is_lazy(duty)))

    @precondition(lambda self: self.world.connected)
    @rule(duty=DUTIES)
    def let_prepare(self, duty: int) -> None:
        if duty not in self.assigned:
            self.epoch += 1
            self.world.prepare(held(duty, self.epoch))

    @precondition(lambda self: self.world.connected)
    @rule()
    def record(self) -> None:
        """Update the rows with the reported changes, and confirm the report."""
        if not self.world.reports:
            return
        report = self.world.reports[-1]
        given_back = [*report.released, *report.finished, *(failed.holding for failed in report.failed)]
        for one in given_back:
            if self.assigned.get(one.duty) == one.epoch:
                del self.assigned[one.duty]
        self.world.say(recorded=ShardRecorded(sequence=report.sequence))

    @precondition(lambda self: self.world.connected and any(m.HasField("heartbeat") for m in self.world.said))
    @rule()
    def renew(self) -> None:
        self.world.grant()

    # The process

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(seconds=SECONDS)
    def pause(self, seconds: float) -> None:
        """Pause the process for this time."""
        self.world.now += seconds

    @precondition(lambda self: self.world.calls)
    @rule(fails=st.booleans(), place=st.integers(0, 1))
    def end_call(self, fails: bool, place: int) -> None:
        if place and len(self.world.calls) > 1:  # end the second call instead of the first
            first = next(iter(self.world.calls))
            self.world.calls[first] = self.world.calls.pop(first)
        self.world.end_call("it raises" if fails else None)

    @rule(duty=DUTIES)
    def finish(self, duty: int) -> None:
        """Let a lazy duty end, so that the delegate no longer reports it."""
        if is_lazy(duty) and not any(one.duty == duty for call in self.world.calls.values() for one in call.duties):
            self.world.holds.pop(duty, None)

    # Invariants

    @invariant()
    def no_duty_is_held_without_clearance_or_after_it_was_given_back(self) -> None:
        world, machine = self.world, self.world.machine
        for duty, epoch in world.holds.items():
            if machine.holds(duty, epoch, world.now):
                assert world.now < machine.until
        for duty, epoch in world.holds.items():
            assert (duty, epoch) not in self.given_back, "the delegate has a duty that it has given back"
        for message in world.said[self.seen :]:
            report = message.report
            for one in [*report.released, *report.finished, *(failed.holding for failed in report.failed)]:
                assert world.holds.get(one.duty) != one.epoch, f"{one} is reported as given back, but still held"
                self.given_back.add((one.duty, one.epoch))
        self.seen = len(world.said)

    @invariant()
    def nothing_is_held_when_the_clearance_has_long_ended(self) -> None:
        world = self.world
        if world.holds and world.now > world.machine.until and not world.ended:
            detaching = {
                duty.duty for call in world.calls.values() if call.method is Method.DETACH for duty in call.duties
            }
            begun = {duty.duty for call in world.calls.values() for duty in call.duties}
            waiting = set(world.holds) - detaching - begun
            retried = {number for _, number, _ in world.machine.hosting._retries}
            queued = {n for lane in world.machine.hosting._lanes.values() for n in lane.queues[Method.DETACH]}
            overslept = not world.machine._releasing
            assert overslept or waiting <= retried | queued, waiting

    def teardown(self) -> None:
        """If the delegate does everything that it is told, in the end no duty is left and everything is reported."""
        world = self.world
        if world.ended or world.stopped:
            return
        world.answers = True
        while world.calls:
            world.end_call()
        if not world.connected and world.machine.may_connect:
            world.connect()
            self.seen_new_process()
        world.tell(GiveUp())
        for _ in range(30):
            if world.ended or world.stopped:
                break
            while world.calls:
                world.end_call()
            if world.connected and world.reports and not world.machine.reports.is_empty:
                world.say(recorded=ShardRecorded(sequence=world.reports[-1].sequence))
            world.pass_time(0.2)
        assert world.stopped or world.ended, "it doesn't end"
        if world.stopped:
            assert not world.holds


AnyCourse.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestAnyCourse = AnyCourse.TestCase
