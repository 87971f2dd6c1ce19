"""Counts the processor time of one loop's turns, and of the tasks in them."""

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

    A turn is the work of a loop between two polls of its sockets: the callbacks that are ready when the turn begins.
    """

    seconds: float = 0.0
    turns: int = 0
    longest_s: float = 0.0
    culprit: str = ""  # the task or callback that took most of the longest turn
    by_name: dict[str, float] = field(default_factory=dict)
    aside_s: float = 0.0  # the part of the present callback's time that a daemon would spend on a thread
    began: float | None = None  # the processor's clock when the present callbacks began
    profile: Profile | None = None

    def in_turn_s(self) -> float:
        """The time for which the loop has been running since it last polled its sockets."""
        return 0.0 if self.began is None else time.thread_time() - self.began

    def set_aside(self, seconds: float) -> None:
        """Don't count these seconds as the loop's: a daemon would spend them on a thread."""
        self.aside_s += seconds
        if self.began is not None:
            self.began += seconds

    def reset(self) -> None:
        """Set all figures to zero."""
        self.seconds, self.turns, self.longest_s, self.culprit = 0.0, 0, 0.0, ""
        self.by_name = {}

    def most(self, count: int) -> list[tuple[str, float]]:
        """The `count` tasks and callbacks that took most time, with their seconds."""
        return sorted(self.by_name.items(), key=lambda item: -item[1])[:count]

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Profile the block if `profile` is set."""
        if self.profile is None:
            yield
            return
        self.profile.enable()
        try:
            yield
        finally:
            self.profile.disable()


class MeteredLoop(ProcessLoop):
    """A loop that runs in turns, like a real one. If `takes_time`, each call of `turn` runs one turn; if not, `turn`
    runs turns until no callback is ready.
    """

    def __init__(
        self, now: Callable[[], float], wake_at: Callable[[float], None], meter: Meter, *, takes_time: bool
    ) -> None:
        super().__init__(now, wake_at)
        self._meter = meter
        self._takes_time = takes_time

    @property
    def is_ready(self) -> bool:
        """True if a callback is ready."""
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
    """The kind of a task: its name without the node's name at the end."""
    return name.rpartition(" of ")[0] or name.rpartition(" to ")[0] or name
