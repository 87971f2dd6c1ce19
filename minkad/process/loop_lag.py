"""The duration of a turn of the event loop: nothing on it may hold up heartbeats for longer than 20 ms."""

import asyncio
import gc
import logging
import signal
import time
from types import FrameType
from typing import Final

from minkad.process.telemetry import Telemetry

log: Final = logging.getLogger(__name__)

INTERVAL_S: Final = 0.04  # half of this would cost a tenth of an idle daemon's time
LONG_S: Final = 0.05  # a turn with more processor time is logged, with the functions that ran
_LOG_EVERY_S: Final = 1.0
_MOST_FRAMES: Final = 6
_PACKAGES: Final = ("/minkad/", "/minka/")


class LoopLag:
    """Asks the loop for a call every 40 ms, and counts how late the call is. `work` is the processor time of the loop's
    thread since it asked, at most the delay: on a busy machine, the process also waits for a processor.

    When the call is late, a timer's signal looks at what the loop is doing. A thread can't do this: CPython 3.11 can
    die or hang when one thread reads another's frames (issues 111363 and 106883 of python/cpython), and no thread sees
    a call into C that keeps the GIL.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self._due = time.monotonic()  # when the next call is due
        self._worked = 0.0  # the thread's processor time when the call was asked for
        self._seen = ""  # what ran while the call was late
        self._logged_at = float("-inf")

    async def run(self) -> None:
        """Measure until cancelled, on the main thread."""
        before = signal.signal(signal.SIGALRM, self._look)
        signal.siginterrupt(signal.SIGALRM, False)
        gc.callbacks.append(self._collected)
        self._ask()
        try:
            await asyncio.Future()
        finally:
            self._next.cancel()
            gc.callbacks.remove(self._collected)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _ask(self) -> None:
        self._worked, self._due = time.thread_time(), time.monotonic() + INTERVAL_S
        self._next = self._loop.call_later(INTERVAL_S, self._called)
        signal.setitimer(signal.ITIMER_REAL, INTERVAL_S + LONG_S / 2)

    def _called(self) -> None:
        late = max(0.0, time.monotonic() - self._due)
        work = min(late, time.thread_time() - self._worked)
        self._telemetry.loop_late.observe(late)
        self._telemetry.loop_work.observe(work)
        if work >= LONG_S and time.monotonic() - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = time.monotonic()
            log.warning("a turn of the event loop took long", extra={"ms": round(work * 1e3), "in": self._seen})
        self._seen = ""
        self._ask()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            self._seen = "garbage collection"

    def _look(self, _signal: int, frame: FrameType | None) -> None:
        if self._seen:
            return  # a garbage collection, which has just ended
        own: list[str] = []
        while frame is not None and len(own) < _MOST_FRAMES:
            if any(package in frame.f_code.co_filename for package in _PACKAGES):
                own.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            frame = frame.f_back
        self._seen = " < ".join(own)
