"""Calls to the user's delegate, each with a time limit: coroutines on the user's event loop, functions on threads."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from minka.duties._events import CallDelegate, CallEnded, CallOverdue, Event, Method
from minka.duties.delegate import Delegate, Duty
from minka.duties.limits import MAX_WEIGHT
from minka.duties.messages import held_duty
from minka.engine.arguments import invalid, whole_number

_CANCEL_S: Final = 1.0  # a cancelled coroutine that goes on for this long counts as one that can't be ended

Weights = Mapping[tuple[int, int], int | None]
"""A delegate's report: the weight of each duty, by number and epoch; None if the report doesn't state the weight."""


@dataclass(frozen=True, slots=True)
class UserMethod:
    """A method of the delegate. `on_loop` is true if it runs on the user's event loop, not on a thread."""

    function: Callable[..., Any]
    on_loop: bool


def methods_of(delegate: Delegate) -> dict[Method, UserMethod]:
    """The methods that the delegate defines. They are looked up before the delegate hosts anything, since the look-up
    may run the user's code. Raises MinkaError(INVALID_ARGUMENT) if the object isn't a delegate.
    """
    kind = type(delegate).__name__
    if isinstance(delegate, type):
        raise invalid(f"the delegate is the class {delegate.__name__}: an instance is wanted")
    own: dict[Method, Any] = {}
    for method in Method:
        function = getattr(delegate, method.value, None)
        if function is not None and getattr(function, "__func__", function) is not getattr(Delegate, method.value):
            own[method] = function
            if not callable(function):
                raise invalid(f"the delegate is {kind}, whose {method.value} can't be called")
    for needed in (Method.ATTACH, Method.DETACH):
        if needed not in own:
            raise invalid(f"the delegate is {kind}, which has no {needed.value}: attach and detach are needed")
    return {method: UserMethod(function, _runs_on_loop(own, method)) for method, function in own.items()}


def _runs_on_loop(own: Mapping[Method, Any], method: Method) -> bool:
    """True if the method runs on the user's loop. If `attach` is a coroutine, a plain `report` also runs there, since
    tasks of the loop change the data that `report` reads.
    """
    decisive = Method.ATTACH if method is Method.REPORT else method
    return any(inspect.iscoroutinefunction(own.get(one)) for one in (method, decisive))


class Calls:
    """Begins calls, and passes on their results. It is used on the session's thread, where no user code runs."""

    def __init__(
        self,
        methods: Mapping[Method, UserMethod],
        user_loop: asyncio.AbstractEventLoop,
        on_event: Callable[[Event], None],
        holds: Callable[[int, int], bool],
    ) -> None:
        self._methods = methods
        self._user_loop = user_loop
        self._on_event = on_event
        self._holds = holds
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, _Running] = {}

    def begin(self, call: CallDelegate) -> None:
        """Call the delegate."""
        arguments = () if call.method is Method.REPORT else ([held_duty(duty, self._holds) for duty in call.duties],)
        running = _Running(call, self._methods[call.method], arguments, self._user_loop, self._ended)
        self._running[call.call] = running
        running.limit = self._loop.call_later(call.timeout, self._cut, call.call)
        running.begin()

    def cancel(self, number: int, why: str) -> None:
        """Cancel the call if it is a coroutine. The call ends when the coroutine has ended."""
        if (running := self._running.get(number)) is not None:
            running.cancel(why)

    def _cut(self, number: int) -> None:
        """Cancel a call that has taken longer than its limit, or say that it can't be ended."""
        running = self._running[number]
        if running.cancel(f"it took longer than {running.call.timeout:g} s"):
            running.limit = self._loop.call_later(_CANCEL_S, self._overdue, number)
        else:
            self._overdue(number)

    def _overdue(self, number: int) -> None:
        self._on_event(CallOverdue(number))

    def _ended(self, number: int, error: str | None, reported: Weights | None) -> None:
        """Pass the end of a call on to the session's thread. Any thread may call this."""
        self._loop.call_soon_threadsafe(self._tell, number, error, reported)

    def _tell(self, number: int, error: str | None, reported: Weights | None) -> None:
        running = self._running.pop(number, None)
        if running is None:
            return  # the end was passed on before: two methods have noticed that the loop is closed
        if running.limit is not None:
            running.limit.cancel()
        self._on_event(CallEnded(number, None if error is None else running.cut or error, reported))


class _Running:
    """One call. It fails if the user's code raises anything, or can't be run."""

    def __init__(
        self,
        call: CallDelegate,
        method: UserMethod,
        arguments: tuple[list[Duty], ...] | tuple[()],
        user_loop: asyncio.AbstractEventLoop,
        on_end: Callable[[int, str | None, Weights | None], None],
    ) -> None:
        self.call = call
        self.limit: asyncio.TimerHandle | None = None
        self.cut = ""  # why the call was cancelled
        self._function = method.function
        self._arguments = arguments
        self._user_loop = user_loop
        self._on_end = on_end
        self._task: asyncio.Task[Weights | None] | None = None
        self._on_loop = method.on_loop

    def begin(self) -> None:
        try:
            if self._on_loop:
                self._user_loop.call_soon_threadsafe(self._start_task)
                return
            name = f"minka {self.call.method.value} {self.call.pallet}"
            # This isn't a thread of an executor: when the interpreter ends, it would wait for such a thread.
            threading.Thread(target=self._on_thread, name=name, daemon=True).start()
        except RuntimeError as error:  # the user's loop is closed, or there are too many threads
            self._end(error)

    def cancel(self, why: str) -> bool:
        """Cancel the call; return False if the call can't be cancelled because it runs on a thread."""
        if not self._on_loop:
            return False
        self.cut = self.cut or why
        try:
            self._user_loop.call_soon_threadsafe(self._cancel_task)
        except RuntimeError:  # the loop is closed: the task is gone, and its callback won't run
            self._end(asyncio.CancelledError())
        return True

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel(self.cut)

    def _start_task(self) -> None:
        try:
            self._task = self._user_loop.create_task(self._run(), name=f"minka {self.call.method.value}")
        except Exception as error:  # noqa: BLE001 - a task factory that the user has set may raise
            self._end(error)
        else:
            self._task.add_done_callback(self._task_done)

    async def _run(self) -> Weights | None:
        answer = self._function(*self._arguments)
        return self._result(await answer if inspect.isawaitable(answer) else answer)

    def _task_done(self, task: "asyncio.Task[Weights | None]") -> None:
        if task.cancelled():
            self._end(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._end(error)
        else:
            self._end(None, task.result())

    def _on_thread(self) -> None:
        try:
            answer = self._function(*self._arguments)
            if inspect.isawaitable(answer):
                self._function, self._arguments, self._on_loop = (lambda: answer), (), True
                self.begin()
                return
            result = self._result(answer)
        except BaseException as error:  # noqa: BLE001 - the call has failed, whatever the user's code raises
            self._end(error)
        else:
            self._end(None, result)

    def _result(self, answer: Any) -> Weights | None:
        return _reported(answer) if self.call.method is Method.REPORT else None

    def _end(self, error: BaseException | None, result: Weights | None = None) -> None:
        self._on_end(self.call.call, None if error is None else _described(error), result)


def _described(error: BaseException) -> str:
    """The error as text that can be sent, for any class and message."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - the user's `__str__` may raise
        text = f"{type(error).__name__}, whose text can't be read"
    return text.encode(errors="replace").decode()


def _reported(result: Any) -> dict[tuple[int, int], int | None]:
    if isinstance(result, Mapping):
        pairs: Iterable[tuple[Duty, int | None]] = result.items()
    else:
        pairs = ((duty, None) for duty in result)
    return {(duty.number, duty.epoch): _checked_weight(weight) for duty, weight in pairs}


def _checked_weight(weight: Any) -> int | None:
    if weight is None:
        return None
    number = whole_number(weight)
    if number is None or not 0 <= number <= MAX_WEIGHT:
        raise ValueError(f"the weight {weight!r} isn't a whole number from 0 to {MAX_WEIGHT:,}")
    return number
