"""The virtual time of the world of scale, and the processes whose loops run by it."""

from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from tests.simulation.scale.meter import Meter, MeteredLoop

FIRST_UNIX_MS: Final = 1_700_000_000_000
_DELAY_S: Final = 0.0005  # the mean time of a message, one way


class Timeline:
    """Runs events one after the other, in the order of their times."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.rng = Random(seed)
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._scheduled = 0

    def at(self, when: float, function: Callable[..., object], *arguments: Any) -> None:
        """Call `function` at the time `when`, or now if `when` has passed."""
        self._scheduled += 1
        heappush(self._events, (max(when, self.now), self._scheduled, function, arguments))

    def after(self, delay: float, function: Callable[..., object], *arguments: Any) -> None:
        """Call `function` in `delay` seconds."""
        self.at(self.now + delay, function, *arguments)

    def delay(self) -> float:
        """Draw the seconds that a message takes."""
        return _DELAY_S * (0.5 + self.rng.random())

    def unix_ms(self) -> int:
        """The time of the wall clock. It matters only for displayed times."""
        return FIRST_UNIX_MS + int(self.now * 1000)

    def run_until(self, end: float) -> None:
        """Run all events that are due before the time `end`."""
        events = self._events
        while events and events[0][0] < end:
            self.now, _, function, arguments = heappop(events)
            function(*arguments)
        self.now = end


class Host:
    """A process with a loop of its own. `meter` counts the cost of the loop's turns.

    If `charged`, the process's clock advances by the processor time that the process uses, and messages wait while the
    process works, as on a real machine; so each run is different. If not, the process's work takes no virtual time.
    """

    def __init__(self, timeline: Timeline, *, charged: bool) -> None:
        self.timeline = timeline
        self.meter = Meter()
        self.loop = MeteredLoop(self.now, self._wake, self.meter, takes_time=charged)
        self._charged = charged
        self._woken: float | None = None
        self._busy_until = 0.0

    def now(self) -> float:
        """The time on the process's clock, in seconds."""
        return self.timeline.now + (self.meter.in_turn_s() if self._charged else 0.0)

    def arrive(self, act: Callable[..., object], *arguments: Any) -> None:
        """Let a message arrive: call `act` on this process's loop."""
        self.loop.call_soon(act, *arguments)

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        """Run the coroutine as a task of this process."""
        self.loop.create_task(coroutine, name=name)

    def _wake(self, when: float) -> None:
        when = max(when, self.timeline.now)
        if self._woken is None or when < self._woken:
            self._woken = when
            self.timeline.at(when, self._turn, when)

    def _turn(self, when: float) -> None:
        if self._woken != when:
            return
        self._woken = None
        if when < self._busy_until:
            self._wake(self._busy_until)
            return
        before = self.meter.seconds
        self.loop.turn()
        if self._charged:
            self._busy_until = self.timeline.now + self.meter.seconds - before
        due = self.timeline.now if self.loop.is_ready else self.loop.next_due()
        if due is not None:
            self._wake(max(due, self._busy_until))
