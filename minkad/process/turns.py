"""The loop's turn between the pieces of long work. However much of it is under way at once (rows to apply, to tell, to
host), one piece runs in several rounds of the loop, so that what comes and goes over the network hardly waits.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

ROUNDS: Final = 8  # of which one has a piece: a heartbeat and its answer need as many, at both ends

InThread = Callable[..., Awaitable[Any]]
"""Calls a function with arguments on a thread, as `asyncio.to_thread` does: what takes long, and can't be cut into
pieces.
"""


class _Queue:
    """Those that wait for their turn on one loop. In one of `ROUNDS` rounds the first goes on. The queue keeps no
    reference to the loop, which would never be freed.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._round = 0

    async def turn(self, loop: asyncio.AbstractEventLoop) -> None:
        future = loop.create_future()
        self._waiting.append(future)
        if len(self._waiting) == 1:
            loop.call_soon(self._next)
        await future

    def _next(self) -> None:
        self._round = (self._round + 1) % ROUNDS
        if self._round == 0:
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
