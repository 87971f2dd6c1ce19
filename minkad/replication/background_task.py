"""Tasks that run in the background as long as the node runs."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from minka.errors import Code, MinkaError
from minkad.process import tasks


class BackgroundTask:
    """Runs `work` from `start` to `close`. If the work ends with an error, the node can't go on, so this class calls
    `fail` with the error.
    """

    def __init__(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]], fail: Callable[[MinkaError], None]
    ) -> None:
        self._name = name
        self._work = work
        self._fail = fail
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = tasks.start(self._work(), self._name, self._failed)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _failed(self, error: BaseException) -> None:
        self._fail(MinkaError(Code.INTERNAL, f"{self._name}: {error!r}"))
