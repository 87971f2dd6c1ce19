"""Tasks that run beside the serving of clients for as long as the node does."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from minka.errors import Code, MinkaError

log: Final = logging.getLogger(__name__)


class BackgroundTask:
    """Works from `start` to `close`. If the work ends by an error, the node can't go on, and `fail` is called with
    it.
    """

    def __init__(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]], fail: Callable[[MinkaError], None]
    ) -> None:
        self._name = name
        self._work = work
        self._fail = fail
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._work(), name=self._name)
        self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the node ended", exc_info=error, extra={"task": self._name})
            self._fail(MinkaError(Code.INTERNAL, f"{self._name}: {error!r}"))
