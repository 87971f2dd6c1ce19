"""The order in which databases are opened. RocksDB holds the GIL for 3 to 5 ms when it opens a database, on any thread.
So the node opens one database at a time, and the loop runs before the next opening.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from minkad.process.turns import turn


class _Waiting(NamedTuple):
    urgency: Callable[[], float]
    future: asyncio.Future[None]


class Openings:
    """One for all databases of a node. For the loop's thread."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []  # those that wait for a slot
        self._is_busy = False  # the slot is taken, or was just given to a caller that hasn't run yet
        self.open = 0  # databases that are open now

    @asynccontextmanager
    async def slot(self, urgency: Callable[[], float]) -> AsyncIterator[None]:
        """Wait until no other database is being opened. The waiting caller whose `urgency` returns the greatest number
        is next.
        """
        if self._is_busy:
            waiting = _Waiting(urgency, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            try:
                await waiting.future
            except asyncio.CancelledError:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
                else:
                    self._next()
                raise
        self._is_busy = True
        try:
            yield
            await turn()
        finally:
            self._next()

    def _next(self) -> None:
        self._is_busy = bool(self._waiting)
        if self._waiting:
            place = max(range(len(self._waiting)), key=lambda place: self._waiting[place].urgency())
            self._waiting.pop(place).future.set_result(None)
