"""An event loop for one simulated process. Real asyncio code runs on it, by the process's own clock, without threads,
sockets or real waits. The world decides when the loop runs.
"""

import asyncio
import contextvars
import math
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any, Final, cast

from minka.errors import MinkaError
from minkad.process.tasks import ENDS_NODE

_MAX_TURNS: Final = 10_000  # callbacks in one turn; a turn that needs more counts as an endless loop
_RESOLUTION: Final = 1e-9  # seconds; moments that are closer count as the same


def _as_uvloop(now: float, when: float) -> float:
    """The time at which uvloop would fire a timer for `when`. uvloop counts whole milliseconds, so a timer fires up to
    1 ms early or late.
    """
    if when <= now:
        return when
    return math.floor((now + 2 * _RESOLUTION) * 1000) / 1000 + max(1, round((when - now) * 1000)) / 1000


class DriftingClock:
    """The monotonic clock of one machine. It advances by `rate` seconds in one second of true time."""

    def __init__(self, offset: float, rate: float) -> None:
        self._true = 0.0
        self._local = offset
        self._rate = rate

    def at(self, true: float) -> float:
        """The clock's time at this true time."""
        return self._local + (true - self._true) * self._rate

    def true_at(self, local: float) -> float:
        """The true time at which the clock shows `local`, if its rate doesn't change."""
        return self._true + (local - self._local) / self._rate

    def drift(self, true: float, rate: float) -> None:
        """Let the clock run at this rate from now on."""
        self._local, self._true, self._rate = self.at(true), true, rate


class ProcessLoop:
    """The part of `asyncio.AbstractEventLoop` that tasks, futures, timers and code built on them need.

    `now` returns the time of the process's clock; `wake_at` asks the world to call `turn` when this clock shows a given
    time.
    """

    def __init__(self, now: Callable[[], float], wake_at: Callable[[float], None]) -> None:
        self._self = cast("asyncio.AbstractEventLoop", self)
        self._now = now
        self._wake_at = wake_at
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = 0
        self._running = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.error: Exception | None = None  # the first error in a callback, or in a task that nobody awaits
        self.halted = False  # True if the process died in the middle of a turn

    # The interface that asyncio needs

    def time(self) -> float:
        return self._now()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._self)

    def create_task(self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, **_: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self._self, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._note(error)

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._self, context)
        self._ready.append(handle)
        if not self._running:
            self._wake_at(self._now())
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        when = _as_uvloop(self._now(), when)
        timer = asyncio.TimerHandle(when, callback, args, self._self, context)
        self._numbers += 1
        heappush(self._timers, (when, self._numbers, timer))
        if not self._running:  # if a turn is running, the world asks for `next_due` at its end
            self._wake_at(when)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: `turn` drops the timer when its time comes."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if isinstance(error := context.get("exception"), Exception):
            self._note(error)
        if context.get(ENDS_NODE):
            self.fail(AssertionError(context["message"]))

    def _note(self, error: Exception) -> None:
        if not isinstance(error, MinkaError):  # a MinkaError is an answer to a caller, not a bug
            self.error = self.error or error

    def fail(self, error: Exception) -> None:
        """Let `turn` raise this error, since the process can't continue."""
        self.error = self.error or error

    # The interface that the world needs

    def next_due(self) -> float | None:
        """The time at which the next timer is due, by the process's clock; None without timers."""
        while self._timers and self._timers[0][2].cancelled():
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def turn(self) -> None:
        """Run everything that is due. Raises the first error of a callback, or of a task that nobody awaits."""
        now = self._now()
        while self._timers and self._timers[0][0] <= now + _RESOLUTION:
            timer = heappop(self._timers)[2]
            if not timer.cancelled():
                self._ready.append(timer)
        self._run_ready()
        if self.error is not None:
            raise self.error

    def _run_ready(self) -> None:
        self._running = True
        events._set_running_loop(self._self)
        try:
            for _ in range(_MAX_TURNS):
                if not self._ready or self.halted:
                    return
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(None)
            self._running = False
        raise AssertionError("the process spins")

    def kill(self) -> None:
        """End every task, even one that continues after a cancellation. Call this only when the process can no longer
        have an effect.
        """
        self.halted = False
        for _ in range(10):
            for task in list(self._tasks):
                task.cancel()
            self._run_ready()
            if not self._tasks:
                break
        assert not self._tasks, f"tasks that do not end: {list(self._tasks)}"
        self._timers.clear()
