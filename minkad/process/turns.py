"""The loop's turn between the pieces of long work. However much of it is under way at once (rows to apply, to tell, to
host), one piece runs in a round of the loop, so that what comes and goes over the network waits for one piece at most.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

InThread = Callable[..., Awaitable[Any]]
"""Calls a function with arguments on a thread, as `asyncio.to_thread` does: what takes long, and can't be cut into
pieces.
"""


class _Queue:
    """Those that wait for their turn on one loop. Each round of it lets the first of them go on. The queue keeps no
    reference to the loop, which would never be freed.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self, loop: asyncio.AbstractEventLoop) -> None:
        future = loop.create_future()
        self._waiting.append(future)
        if len(self._waiting) == 1:
            loop.call_soon(self._next)
        await future

    def _next(self) -> None:
        future = self._waiting.popleft()
        if not future.done():  # by a cancellation
            future.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)


_queues: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue]] = WeakKeyDictionary()


async def turn() -> None:
    """Between two pieces of a few milliseconds: wait until it is this work's turn again."""
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = _Queue()
    await queue.turn(loop)
