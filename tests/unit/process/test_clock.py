"""Unix time that never goes back."""

from minkad.process.clock import SteadyClock

_MS = 1_000_000
_HOUR_NS = 3_600_000 * _MS


class Machine:
    """The clocks of a machine, which a test sets and moves; in nanoseconds."""

    def __init__(self) -> None:
        self.wall = 50 * _HOUR_NS
        self.boot = _HOUR_NS
        self.clock = SteadyClock(lambda: self.wall, lambda: self.boot)

    def go_on(self, nanoseconds: int) -> int:
        """Let time pass. Returns how many milliseconds have passed by the steady clock."""
        before = self.clock.ms()
        self.wall += nanoseconds
        self.boot += nanoseconds
        return self.clock.ms() - before


def test_it_is_the_machine_s_clock() -> None:
    machine = Machine()
    assert machine.go_on(500 * _MS) == 500
    assert machine.clock.ms() == machine.wall // _MS


def test_a_clock_that_is_set_forward_is_followed() -> None:
    machine = Machine()
    machine.wall += _HOUR_NS
    assert machine.clock.ms() == machine.wall // _MS
    assert machine.go_on(500 * _MS) == 500


def test_a_clock_that_is_set_back_makes_time_slower_until_it_has_caught_up() -> None:
    machine = Machine()
    before = machine.clock.ms()
    machine.wall -= _HOUR_NS
    assert machine.clock.ms() == before
    assert machine.go_on(500 * _MS) == 250
    for _ in range(3 * 3600):
        assert 500 <= machine.go_on(1000 * _MS) <= 1000
    assert machine.clock.ms() == machine.wall // _MS
    assert machine.go_on(1000 * _MS) == 1000
