"""Blocking work on threads."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def on_thread(work: Callable[..., T], *args: object) -> T:
    """Run blocking work on a thread of the loop's executor: see `end_of`."""
    return await end_of(asyncio.get_running_loop().run_in_executor(None, work, *args))


async def end_of(running: asyncio.Future[T]) -> T:
    """The result of the work. A caller that is cancelled still waits for the work's end, so no work goes on without its
    caller.
    """
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
