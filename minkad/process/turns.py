"""Divides the loop's time between long work and the rest. However much long work is under way (rows to apply, to tell,
to host), at most one piece of it runs in 8 rounds of the loop, so network traffic hardly waits.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

_WORK_SECONDS: Final = 0.003
ROUNDS: Final = 8  # with one piece; a heartbeat and its answer need about 8 rounds at both ends

InThread = Callable[..., Awaitable[Any]]
"""Calls a function with arguments on a thread, as `asyncio.to_thread` does: for slow work that can't be divided into
pieces.
"""


class _Queue:
    """The work that waits for its turn on one loop. Once in `ROUNDS` rounds, the first work goes on. The queue keeps no
    reference to the loop: with a reference, the loop would never be freed.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._round = 0  # 0 to ROUNDS - 1; in round 0, work goes on

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


class Turns:
    """Lets other tasks run after every _WORK_SECONDS of work that has many small pieces."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock() + _WORK_SECONDS

    async def turn(self) -> None:
        """Let other tasks run, if it is time. Call this between two pieces."""
        if self._clock() >= self._until:
            await turn()
            self._until = self._clock() + _WORK_SECONDS
