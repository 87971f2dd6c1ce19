"""The loop's turn between the pieces of long work. However much of such work is under way (rows to apply, to tell, to
host), one piece runs in several rounds of the loop, so that network traffic hardly waits.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

ROUNDS: Final = 8  # one of these has a piece: a heartbeat and its answer need as many rounds, at both ends

InThread = Callable[..., Awaitable[Any]]
"""Calls a function with arguments on a thread, as `asyncio.to_thread` does: for slow work that can't be divided into
pieces.
"""


class _Queue:
    """The work that waits for its turn on one loop. In one of `ROUNDS` rounds the first goes on. The queue keeps no
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
            if not future.done():  # it may be cancelled
                future.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)


_queues: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue]] = WeakKeyDictionary()


async def turn() -> None:
    """Call this between two pieces of a few milliseconds: it waits until this work has its turn again."""
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = _Queue()
    await queue.turn(loop)
