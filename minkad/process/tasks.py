"""Starts tasks. A task that ends unexpectedly is logged, and its owner ends."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from minka.errors import MinkaError

log: Final = logging.getLogger(__name__)

ENDS_NODE: Final = "ends_node"  # key in the context for an event loop's exception handler: the node can't go on
TAKEN_WITHIN_S: Final = 30.0  # an awaited task's error that nobody has taken by then counts as lost

Failed = Callable[[BaseException], object]
T = TypeVar("T")


def start(work: Coroutine[Any, Any, T], name: str, failed: Failed | None = None) -> asyncio.Task[T]:
    """Run `work` beside the caller. If the task fails, or is cancelled although nobody has asked for this, the error is
    logged, and `failed` is called to end the owner: a connection, a session, a controller. Without `failed`, the owner
    is the node, which can't go on.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(lambda ended: _ended(ended, failed))
    return task


def awaited(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Run `work` for a caller that awaits the task, or asks for its result. If the caller has gone, a MinkaError, which
    is an answer of the cluster, may be lost; any other error that nobody takes ends the node.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_to_be_taken)
    return task


def drop(task: asyncio.Task[Any]) -> None:
    """Cancel an awaited task whose outcome nobody needs, since its caller goes."""
    task.cancel()
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def told(_error: BaseException) -> None:
    """A `failed` that ends nothing: the owner does without the task, or starts it again."""


def watch_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Let a thread that ends with an error end the node."""

    def ended(thread: threading.ExceptHookArgs) -> None:
        name = thread.thread.name if thread.thread is not None else "?"
        if thread.exc_value is not None and not loop.is_closed():
            loop.call_soon_threadsafe(_end_node, f"the thread {name}", thread.exc_value)

    threading.excepthook = ended


def _ended(task: asyncio.Task[Any], failed: Failed | None) -> None:
    error = _error_of(task)
    if error is None:
        return
    if failed is None:
        _end_node(f"the task {task.get_name()}", error)
    else:
        log.error("a task failed", exc_info=error, extra={"task": task.get_name()})
        failed(error)


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    if not task.cancelled():
        return task.exception()
    return None if task.cancelling() else asyncio.CancelledError("what it waited for was cancelled")


def _to_be_taken(task: asyncio.Task[Any]) -> None:
    # Looks at asyncio's flag: a call of `exception()` would itself take the error.
    if not task.cancelled() and _is_left(task):
        task.get_loop().call_later(TAKEN_WITHIN_S, _check_taken, task)


def _is_left(task: asyncio.Task[Any]) -> bool:
    return bool(getattr(task, "_log_traceback", False))


def _check_taken(task: asyncio.Task[Any]) -> None:
    if _is_left(task) and (error := task.exception()) is not None and not isinstance(error, MinkaError):
        _end_node(f"the task {task.get_name()}, whose end nobody took", error)


def _end_node(what: str, error: BaseException) -> None:
    log.error("the node can't go on: a part of it has failed", exc_info=error, extra={"failed": what})
    context = {"message": f"{what} failed", "exception": error, ENDS_NODE: True}
    asyncio.get_running_loop().call_exception_handler(context)
