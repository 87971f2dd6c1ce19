"""Calls to the user's delegate, on real threads and loops."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from minka.duties import Delegate, Duty
from minka.duties._events import CallDelegate, CallEnded, CallOverdue, Event, Method
from minka.duties._user_calls import Calls, methods_of
from minka.v1.shards_pb2 import HeldDuty

DEADLINE = 10.0


class Recording(Delegate):
    """A delegate that notes the thread and the arguments of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str], str]] = []
        self.go_on = threading.Event()
        self.weights: dict[Duty, Any] = {duty(7): 12, duty(8): None}

    def note(self, method: str, duties: Sequence[Duty]) -> None:
        self.calls.append((method, [duty.id for duty in duties], threading.current_thread().name))


class Plain(Recording):
    def attach(self, duties: Sequence[Duty]) -> None:
        self.note("attach", duties)
        if duties[0].id == "bad":
            raise ValueError("no such feed")

    def detach(self, duties: Sequence[Duty]) -> None:
        self.go_on.wait(DEADLINE)

    def report(self) -> dict[Duty, int | None]:
        return self.weights


class Asynchronous(Recording):
    async def attach(self, duties: Sequence[Duty]) -> None:
        self.note("attach", duties)

    async def detach(self, duties: Sequence[Duty]) -> None:
        await asyncio.sleep(DEADLINE)

    async def update(self, duties: Sequence[Duty]) -> None:
        while True:  # this coroutine ignores its cancellation
            try:
                await asyncio.sleep(DEADLINE)
            except asyncio.CancelledError:
                if self.go_on.is_set():
                    raise

    def report(self) -> list[Duty]:
        self.note("report", [])
        return [duty(7)]


def duty(number: int) -> Duty:
    return Duty(number=number, epoch=number + 10, pallet="feeds", id=f"d{number}")


class Harness:
    """Calls a delegate, and collects the events that result. The user's event loop runs on a separate thread."""

    def __init__(self, delegate: Delegate) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.user_loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.user_loop.run_forever, name="user loop")
        self.thread.start()
        self.calls = Calls(methods_of(delegate), self.user_loop, self.events.put_nowait, lambda *_: True)
        self.last = 0

    def begin(self, method: Method, *ids: str, timeout: float = DEADLINE) -> int:
        self.last += 1
        duties = tuple(HeldDuty(duty=n, epoch=n, pallet="feeds", id=id_) for n, id_ in enumerate(ids, 1))
        self.calls.begin(CallDelegate(self.last, method, "feeds" if ids else "", duties, timeout))
        return self.last

    async def event(self) -> Event:
        return await asyncio.wait_for(self.events.get(), DEADLINE)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self.user_loop).result(DEADLINE)
        self.user_loop.call_soon_threadsafe(self.user_loop.stop)
        self.thread.join()
        self.user_loop.close()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def calling(delegate: Recording) -> Iterator[Harness]:
    harness = Harness(delegate)
    try:
        yield harness
    finally:
        delegate.go_on.set()
        harness.close()


async def test_functions_run_on_threads_and_their_errors_are_reported() -> None:
    delegate = Plain()
    with calling(delegate) as harness:
        harness.begin(Method.ATTACH, "a", "b")
        assert await harness.event() == CallEnded(1)
        assert delegate.calls == [("attach", ["a", "b"], "minka attach feeds")]
        harness.begin(Method.ATTACH, "bad")
        assert await harness.event() == CallEnded(2, "ValueError: no such feed")
        harness.begin(Method.REPORT)
        assert await harness.event() == CallEnded(3, None, {(7, 17): 12, (8, 18): None})


class NumpyInteger:
    """Like an integer of numpy, this isn't an int, but it can be converted to one."""

    def __index__(self) -> int:
        return 3


async def test_reported_weights_are_whole_numbers_which_numpy_may_have_made() -> None:
    delegate = Plain()
    with calling(delegate) as harness:
        delegate.weights = {duty(7): NumpyInteger()}
        harness.begin(Method.REPORT)
        assert await harness.event() == CallEnded(1, None, {(7, 17): 3})
        for wrong in (True, 1.5, -1, "3"):
            delegate.weights = {duty(7): wrong}
            harness.begin(Method.REPORT)
            ended = await harness.event()
            assert isinstance(ended, CallEnded)
            assert "isn't a whole number from 0 to" in str(ended.error)


async def test_coroutines_and_their_report_run_on_the_users_loop() -> None:
    delegate = Asynchronous()
    with calling(delegate) as harness:
        harness.begin(Method.ATTACH, "a")
        assert await harness.event() == CallEnded(1)
        harness.begin(Method.REPORT)
        assert await harness.event() == CallEnded(2, None, {(7, 17): None})
        assert [thread for _, _, thread in delegate.calls] == ["user loop"] * 2


async def test_a_coroutine_that_takes_too_long_is_cancelled() -> None:
    with calling(Asynchronous()) as harness:
        harness.begin(Method.DETACH, "a", timeout=0.05)
        assert await harness.event() == CallEnded(1, "it took longer than 0.05 s")
        harness.begin(Method.DETACH, "a")
        harness.calls.cancel(2, "the duties have to be released")
        assert await harness.event() == CallEnded(2, "the duties have to be released")


async def test_an_overdue_call_is_reported_and_ends_when_it_returns() -> None:
    delegate = Plain()
    with calling(delegate) as harness:
        harness.begin(Method.DETACH, "a", timeout=0.05)
        assert await harness.event() == CallOverdue(1)
        delegate.go_on.set()
        assert await harness.event() == CallEnded(1)
    stubborn = Asynchronous()
    with calling(stubborn) as harness:
        harness.begin(Method.UPDATE, "a", timeout=0.05)
        assert await harness.event() == CallOverdue(1)
        stubborn.go_on.set()
        harness.calls.cancel(1, "why not")
        assert await harness.event() == CallEnded(1, "it took longer than 0.05 s")


async def test_a_blocked_users_loop_makes_its_calls_overdue() -> None:
    with calling(Asynchronous()) as harness:
        blocked = threading.Event()
        harness.user_loop.call_soon_threadsafe(blocked.wait, DEADLINE)
        began = time.monotonic()
        harness.begin(Method.ATTACH, "a", timeout=0.05)
        assert await harness.event() == CallOverdue(1)
        assert time.monotonic() - began < DEADLINE / 2
        blocked.set()
        assert isinstance(await harness.event(), CallEnded)


async def test_a_loop_that_is_closed_is_a_failed_call() -> None:
    closed = asyncio.new_event_loop()
    closed.close()
    with calling(Asynchronous()) as harness:
        harness.calls = Calls(methods_of(Asynchronous()), closed, harness.events.put_nowait, lambda *_: True)
        harness.begin(Method.ATTACH, "a")
        event = await harness.event()
        assert isinstance(event, CallEnded)
        assert event.error == "RuntimeError: Event loop is closed"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Unspeakable(), "Unspeakable, whose text can't be read"),
        (ValueError("no feed \udcff"), "ValueError: no feed ?"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
async def test_every_error_has_a_text_that_can_be_sent(error: BaseException, text: str) -> None:
    class Failing(Plain):
        def attach(self, duties: Sequence[Duty]) -> None:
            raise error

    with calling(Failing()) as harness:
        harness.begin(Method.ATTACH, "a")
        assert await harness.event() == CallEnded(1, text)


class Changing(Asynchronous):
    """A delegate whose dict of duties changes while its report is read."""

    def report(self) -> Any:
        duties = {duty(7): None}
        for one in duties:
            yield one
            duties[duty(8)] = None


class ChangingOnThread(Plain):
    """Like `Changing`, but its methods are plain functions, which run on threads."""

    report = Changing.report


@pytest.mark.parametrize("kind", [Changing, ChangingOnThread])
async def test_a_report_that_changes_while_it_is_read_fails(kind: type[Recording]) -> None:
    with calling(kind()) as harness:
        for number in (1, 2):
            harness.begin(Method.REPORT)
            assert await harness.event() == CallEnded(number, "RuntimeError: dictionary changed size during iteration")


async def test_a_thread_that_can_not_be_started_is_a_failed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with calling(Plain()) as harness:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            harness.begin(Method.ATTACH, "a")
        assert await harness.event() == CallEnded(1, "RuntimeError: can't start new thread")
        harness.begin(Method.ATTACH, "a")
        assert await harness.event() == CallEnded(2)


async def test_a_task_that_can_not_be_made_is_a_failed_call() -> None:
    def refuse(loop: object, coroutine: Any, **_: object) -> Any:
        coroutine.close()
        raise ValueError("no task")

    with calling(Asynchronous()) as harness:
        harness.user_loop.call_soon_threadsafe(harness.user_loop.set_task_factory, refuse)
        harness.begin(Method.ATTACH, "a")
        assert await harness.event() == CallEnded(1, "ValueError: no task")
        harness.user_loop.call_soon_threadsafe(harness.user_loop.set_task_factory, None)


@pytest.mark.parametrize("answer", [None, 3, ["bbc"], {duty(7): "heavy"}])
async def test_a_malformed_report_is_a_failed_call(answer: object) -> None:
    class Odd(Plain):
        def report(self) -> Any:
            return answer

    with calling(Odd()) as harness:
        harness.begin(Method.REPORT)
        event = await harness.event()
        assert isinstance(event, CallEnded)
        assert event.error is not None
