"""Calls to the user's delegate, each with a time limit: coroutines on the user's event loop, functions on threads."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from minka.duties._events import CallDelegate, CallEnded, CallOverdue, Event, Method
from minka.duties.delegate import Delegate, Duty, duty_of
from minka.duties.limits import MAX_WEIGHT

_CANCEL_S: Final = 1.0  # after which a coroutine that was cancelled counts as one that can't be ended


class Calls:
    """Begins calls and tells how they ended. It is used on the session's thread, where no user code runs."""

    def __init__(
        self,
        delegate: Delegate,
        user_loop: asyncio.AbstractEventLoop,
        on_event: Callable[[Event], None],
        holds: Callable[[int, int], bool],
    ) -> None:
        self._delegate = delegate
        self._user_loop = user_loop
        self._on_event = on_event
        self._holds = holds
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, _Running] = {}

    def begin(self, call: CallDelegate) -> None:
        """Call the delegate."""
        arguments = () if call.method is Method.REPORT else ([duty_of(duty, self._holds) for duty in call.duties],)
        method: Any = getattr(self._delegate, call.method.value)
        running = self._running[call.call] = _Running(call, method, arguments, self._user_loop, self._ended)
        running.limit = self._loop.call_later(call.timeout, self._cut, call.call)
        running.begin(_runs_on_loop(self._delegate, call.method))

    def cancel(self, number: int) -> None:
        """Cancel the call if it is a coroutine; it ends when the coroutine does."""
        if (running := self._running.get(number)) is not None:
            running.cancel("the duties have to be released")

    def _cut(self, number: int) -> None:
        """Cancel a call that has taken longer than it may, or say that it can't be ended."""
        running = self._running[number]
        if running.cancel(f"it took longer than {running.call.timeout:g} s"):
            running.limit = self._loop.call_later(_CANCEL_S, self._overdue, number)
        else:
            self._overdue(number)

    def _overdue(self, number: int) -> None:
        self._on_event(CallOverdue(number))

    def _ended(self, number: int, result: Any, error: BaseException | None) -> None:
        """Called on any thread."""
        reported = None
        try:
            if error is None and self._running[number].call.method is Method.REPORT:
                reported = _reported(result)
        except (TypeError, AttributeError, ValueError) as problem:
            error = problem
        self._loop.call_soon_threadsafe(self._tell, number, error, reported)

    def _tell(
        self, number: int, error: BaseException | None, reported: Mapping[tuple[int, int], int | None] | None
    ) -> None:
        running = self._running.pop(number)
        if running.limit is not None:
            running.limit.cancel()
        text = None
        if error is not None:
            text = running.cut or f"{type(error).__name__}: {error}"
        self._on_event(CallEnded(number, text, reported))


class _Running:
    """One call."""

    def __init__(
        self,
        call: CallDelegate,
        method: Callable[..., Any],
        arguments: tuple[list[Duty], ...] | tuple[()],
        user_loop: asyncio.AbstractEventLoop,
        on_end: Callable[[int, Any, BaseException | None], None],
    ) -> None:
        self.call = call
        self.limit: asyncio.TimerHandle | None = None
        self.cut = ""  # why it was cancelled
        self._method = method
        self._arguments = arguments
        self._user_loop = user_loop
        self._on_end = on_end
        self._task: asyncio.Task[Any] | None = None
        self._on_loop = False

    def begin(self, on_loop: bool) -> None:
        self._on_loop = on_loop
        if not on_loop:
            name = f"minka {self.call.method.value} {self.call.pallet}"
            # It is not a thread of an executor, since the interpreter waits for those when it ends.
            threading.Thread(target=self._on_thread, name=name, daemon=True).start()
            return
        try:
            self._user_loop.call_soon_threadsafe(self._start_task)
        except RuntimeError as error:  # the user's loop is closed
            self._on_end(self.call.call, None, error)

    def cancel(self, why: str) -> bool:
        """Cancel the call; return False if it runs on a thread, and so can't be cancelled."""
        if not self._on_loop:
            return False
        self.cut = self.cut or why
        try:
            self._user_loop.call_soon_threadsafe(self._cancel_task)
        except RuntimeError:  # closed: the task is gone, and nobody will say so
            self._on_end(self.call.call, None, asyncio.CancelledError())
        return True

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel(self.cut)

    def _start_task(self) -> None:
        self._task = self._user_loop.create_task(self._run(), name=f"minka {self.call.method.value}")
        self._task.add_done_callback(self._task_done)

    async def _run(self) -> Any:
        answer = self._method(*self._arguments)
        return await answer if inspect.isawaitable(answer) else answer

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._on_end(self.call.call, None, asyncio.CancelledError())
        else:
            error = task.exception()
            self._on_end(self.call.call, None if error is not None else task.result(), error)

    def _on_thread(self) -> None:
        try:
            answer = self._method(*self._arguments)
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises, it has failed
            self._on_end(self.call.call, None, error)
            return
        if not inspect.isawaitable(answer):
            self._on_end(self.call.call, answer, None)
            return
        self._method, self._arguments = _returning(answer), ()
        self.begin(on_loop=True)


def _returning(answer: Awaitable[Any]) -> Callable[[], Awaitable[Any]]:
    return lambda: answer


def _runs_on_loop(delegate: Delegate, method: Method) -> bool:
    """Whether the method runs on the user's loop. A plain `report` beside an asynchronous `attach` does, too, since it
    reads what tasks of the loop change.
    """
    decisive = Method.ATTACH if method is Method.REPORT else method
    return any(inspect.iscoroutinefunction(getattr(delegate, one.value)) for one in (method, decisive))


def _reported(result: Any) -> dict[tuple[int, int], int | None]:
    """The weights by number and epoch; None where the delegate states none."""
    if isinstance(result, Mapping):
        pairs: Iterable[tuple[Duty, int | None]] = result.items()
    else:
        pairs = ((duty, None) for duty in result)
    return {(duty.number, duty.epoch): _checked_weight(weight) for duty, weight in pairs}


def _checked_weight(weight: int | None) -> int | None:
    if weight is not None and (type(weight) is not int or not 0 <= weight <= MAX_WEIGHT):
        raise ValueError(f"a weight of {weight!r}")
    return weight
