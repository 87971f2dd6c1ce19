"""Counts the processor time of one loop's turns, and finds the tasks that took it."""

import asyncio
import functools
import time
from asyncio import events
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from cProfile import Profile
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.loop import ProcessLoop


@dataclass(slots=True)
class Meter:
    """The cost of the turns since the last reset. Times are seconds of processor time.

    A turn is a loop's work between two looks at its sockets: the callbacks that were ready when it began.
    """

    seconds: float = 0.0
    turns: int = 0
    longest_s: float = 0.0
    culprit: str = ""  # the task or callback that took most of the longest turn
    by_name: dict[str, float] = field(default_factory=dict)
    aside_s: float = 0.0  # the present callback's time for work that a daemon does on a thread
    began: float | None = None  # the time, by the processor's clock, at which the present callbacks began
    profile: Profile | None = None

    def in_turn_s(self) -> float:
        """The time for which the loop has been running without a look at its sockets."""
        return 0.0 if self.began is None else time.thread_time() - self.began

    def set_aside(self, seconds: float) -> None:
        """A daemon spends these seconds on a thread: they don't count as the loop's."""
        self.aside_s += seconds
        if self.began is not None:
            self.began += seconds

    def reset(self) -> None:
        """Start again at zero."""
        self.seconds, self.turns, self.longest_s, self.culprit = 0.0, 0, 0.0, ""
        self.by_name = {}

    def most(self, count: int) -> list[tuple[str, float]]:
        """The tasks and callbacks that took most, with their seconds."""
        return sorted(self.by_name.items(), key=lambda item: -item[1])[:count]

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Profile the block, if a profile is wanted."""
        if self.profile is None:
            yield
            return
        self.profile.enable()
        try:
            yield
        finally:
            self.profile.disable()


class MeteredLoop(ProcessLoop):
    """A loop that is divided into turns, like a real one. With `takes_time`, `turn` runs one turn; without it, all
    turns of this moment.
    """

    def __init__(
        self, now: Callable[[], float], wake_at: Callable[[float], None], meter: Meter, *, takes_time: bool
    ) -> None:
        super().__init__(now, wake_at)
        self._meter = meter
        self._takes_time = takes_time

    @property
    def is_ready(self) -> bool:
        """True if there is something to do at once."""
        return bool(self._ready)

    def _run_ready(self) -> None:
        self._running = True
        self._meter.began = time.thread_time()
        events._set_running_loop(self._self)
        try:
            with self._meter.counting():
                self._run_turn()
                while self._ready and not self._takes_time:
                    self._run_turn()
        finally:
            events._set_running_loop(None)
            self._running, self._meter.began = False, None

    def _run_turn(self) -> None:
        meter, clock = self._meter, time.thread_time
        total, worst, culprit = 0.0, 0.0, None
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if handle.cancelled():
                continue
            name = _name_of(handle)
            began, meter.aside_s = clock(), 0.0
            handle._run()
            took = clock() - began - meter.aside_s
            total += took
            meter.by_name[name] = meter.by_name.get(name, 0.0) + took
            if took > worst:
                worst, culprit = took, name
        meter.seconds += total
        meter.turns += 1
        if total > meter.longest_s:
            meter.longest_s, meter.culprit = total, f"{culprit} ({worst / total:.0%} of it)"


def _name_of(handle: asyncio.Handle) -> str:
    """The name of the task that the handle resumes, or of the function that it calls."""
    callback: Any = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        name = task.get_name()
        coroutine: Any = task.get_coro()
        return str(coroutine.__qualname__) if name.startswith("Task-") else _kind(name)
    while isinstance(callback, functools.partial):
        callback = callback.func
    return str(getattr(callback, "__qualname__", callback))


def _kind(name: str) -> str:
    """A task's name without its node."""
    return name.rpartition(" of ")[0] or name.rpartition(" to ")[0] or name
