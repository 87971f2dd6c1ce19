"""Unix time that never goes back, and that is corrected towards the time of most nodes."""

from minka.cluster.clocks import of_most
from minkad.process.clock import ClusterClock, SteadyClock

_MS = 1_000_000
_HOUR_NS = 3_600_000 * _MS


class Machine:
    """The clocks of a machine in nanoseconds. A test sets and moves them."""

    def __init__(self) -> None:
        self.wall = 50 * _HOUR_NS
        self.boot = _HOUR_NS
        self.clock: SteadyClock | ClusterClock = SteadyClock(lambda: self.wall, lambda: self.boot)

    def go_on(self, nanoseconds: int) -> int:
        """Let time pass; returns the milliseconds by which the clock under test has advanced."""
        before = self.clock.ms()
        self.wall += nanoseconds
        self.boot += nanoseconds
        return self.clock.ms() - before


def test_the_clock_shows_the_machines_time() -> None:
    machine = Machine()
    assert machine.go_on(500 * _MS) == 500
    assert machine.clock.ms() == machine.wall // _MS


def test_the_clock_jumps_when_the_machines_clock_is_set_forward() -> None:
    machine = Machine()
    machine.wall += _HOUR_NS
    assert machine.clock.ms() == machine.wall // _MS
    assert machine.go_on(500 * _MS) == 500


def test_the_clock_is_slow_for_a_while_when_the_machines_clock_is_set_back() -> None:
    machine = Machine()
    before = machine.clock.ms()
    machine.wall -= _HOUR_NS
    assert machine.clock.ms() == before
    assert machine.go_on(500 * _MS) == 250
    for _ in range(3 * 3600):
        assert 500 <= machine.go_on(1000 * _MS) <= 1000
    assert machine.clock.ms() == machine.wall // _MS
    assert machine.go_on(1000 * _MS) == 1000


class Member(Machine):
    """A machine in a cluster. Answers to its heartbeats state how far its clock is ahead of the other nodes' clocks."""

    def __init__(self, ahead_ns: int = 0) -> None:
        super().__init__()
        self.right = self.wall
        self.wall += ahead_ns
        self.cluster = self.clock = ClusterClock(lambda: self.wall, lambda: self.boot)

    def go_on(self, nanoseconds: int) -> int:
        self.right += nanoseconds
        return super().go_on(nanoseconds)

    def heartbeat(self, takes: int = _MS) -> None:
        sent, ahead = self.cluster.read(), self.wall - self.right
        self.go_on(takes)
        self.cluster.told(ahead // _MS, sent)

    def error(self) -> int:
        """Return the milliseconds by which the node's clock is ahead of the right time."""
        return self.clock.ms() - self.right // _MS


def test_a_clock_that_was_off_at_the_start_is_corrected() -> None:
    for ahead in (_HOUR_NS, -_HOUR_NS):
        machine = Member(ahead)
        assert machine.error() == ahead // _MS
        machine.heartbeat()
        if ahead < 0:
            assert machine.error() == ahead // _MS, "a jump ahead would let keys expire, so one answer isn't enough"
            machine.go_on(1000 * _MS)
            machine.heartbeat()
        assert machine.error() == 0
        assert machine.go_on(500 * _MS) == 500


def test_a_clock_that_is_less_than_a_second_off_is_followed() -> None:
    machine = Member(900 * _MS)
    machine.heartbeat()
    assert machine.error() == 900


def test_a_jump_ahead_of_the_machines_clock_counts_only_once_confirmed() -> None:
    machine = Member()
    machine.heartbeat()
    machine.wall += _HOUR_NS
    machine.go_on(150 * _MS)
    assert machine.error() == 0, "nothing expires before its time"
    machine.heartbeat()
    machine.go_on(150 * _MS)
    assert machine.error() == 0
    machine.wall -= _HOUR_NS
    machine.go_on(150 * _MS)
    machine.heartbeat()
    assert abs(machine.error()) <= 200, "the machine's clock is right again, and the time has never jumped"
    machine.wall += _HOUR_NS
    machine.right += _HOUR_NS
    machine.heartbeat()
    assert machine.error() == 0, "all clocks have been set"


def test_an_answer_to_a_heartbeat_from_before_the_jump_confirms_nothing() -> None:
    machine = Member()
    machine.heartbeat()
    sent = machine.cluster.read()
    machine.wall += _HOUR_NS
    machine.cluster.told(0, sent)
    assert machine.error() == 0


def test_a_jump_counts_after_a_while_if_the_controller_does_not_know_better() -> None:
    machine = Member()
    machine.heartbeat()
    machine.wall += _HOUR_NS
    machine.cluster.told(None, machine.cluster.read())
    assert machine.error() == 0, "a new controller doesn't know yet"
    machine.go_on(6000 * _MS)
    machine.cluster.told(None, machine.cluster.read())
    assert machine.error() == _HOUR_NS // _MS


def test_a_correction_ahead_needs_two_answers_that_agree() -> None:
    machine = Member()
    for ahead in (-_HOUR_NS, -2 * _HOUR_NS, -_HOUR_NS):
        machine.cluster.told(ahead // _MS, machine.cluster.read())
        machine.go_on(600 * _MS)
        assert machine.error() == 0
    machine.heartbeat()
    machine.go_on(1000 * _MS)
    machine.cluster.told(-_HOUR_NS // _MS, machine.cluster.read())
    assert machine.error() == 0, "the answer between these two did not agree"
    machine.heartbeat()
    assert machine.error() == 0


def test_a_clock_set_right_without_the_controllers_knowledge_is_no_longer_corrected() -> None:
    for ahead in (_HOUR_NS, -_HOUR_NS):
        machine = Member(ahead)
        for _ in range(2):
            machine.heartbeat()
            machine.go_on(1000 * _MS)
        for set_by in (0, -ahead):
            machine.wall += set_by
            machine.go_on(6000 * _MS)
            machine.cluster.told(None, machine.cluster.read())
        assert machine.error() == 0
        machine.heartbeat()
        assert machine.error() == 0


def test_the_time_is_checked_once_it_was_compared_or_can_not_be() -> None:
    machine = Member(-_HOUR_NS)
    machine.go_on(60_000 * _MS)
    assert not machine.cluster.is_checked(), "nobody was asked"
    machine.heartbeat()
    machine.go_on(1000 * _MS)
    assert not machine.cluster.is_checked(), "one answer isn't enough to correct the clock"
    machine.heartbeat()
    assert machine.cluster.is_checked()
    machine = Member()
    machine.cluster.told(None, machine.cluster.read())
    machine.go_on(4900 * _MS)
    assert not machine.cluster.is_checked()
    machine.go_on(200 * _MS)
    assert machine.cluster.is_checked()


def test_the_right_clock_is_that_of_most_nodes() -> None:
    assert of_most([0, 5, 3_600_000], 3) == 5
    assert of_most([3_600_000, 3_600_400, 0], 3) == 3_600_000
    assert of_most([0, 3_600_000], 2) is None, "of two, nobody can say"
    assert of_most([0, 60_000, 3_600_000], 3) is None
    assert of_most([0, 0, 60_000, 60_000], 4) is None


def test_the_majority_is_of_all_live_nodes_not_of_those_heard_so_far() -> None:
    assert of_most([3_600_000, 3_600_400, 0], 5) is None
    assert of_most([3_600_000, 3_600_400, 0, 0, 0], 5) == 0
    assert of_most([0, 0, 0], 5) == 0
