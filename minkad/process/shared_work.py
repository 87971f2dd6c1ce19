"""Work that several callers wait for together."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

from minkad.process import tasks


class SharedWork:
    """Does work once for all callers that ask for it by the same key while it is under way. The work goes on when its
    callers are cancelled. For the loop's thread.
    """

    def __init__(self) -> None:
        self._under_way: dict[Hashable, asyncio.Task[None]] = {}

    async def wait_for(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Return after the work with this key, and begin the work unless it is under way. `name` is for logs. Raises
        the errors of the work.
        """
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = tasks.awaited(work(), name)
            task.add_done_callback(lambda _: self._under_way.pop(key))
        await asyncio.shield(task)

    async def close(self) -> None:
        """Give up the work under way."""
        under_way = list(self._under_way.values())
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
