"""Records nodes' answers to the rows that the controller sent them. Answers that come while other commands have their
turn, or while earlier answers are being committed, are recorded together.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from minkad.core.controller.row_answers import ReplicaReport

ROWS_AT_ONCE: Final = 1000  # rows in one command, after which other commands have their turn


class Acknowledgements:
    """`record` records some of the answers, in order."""

    def __init__(self, record: Callable[[Sequence[ReplicaReport]], Awaitable[None]]) -> None:
        self._record = record
        self._waiting: deque[ReplicaReport] = deque()
        self._wake = asyncio.Event()

    def add(self, report: ReplicaReport) -> None:
        """A node has answered."""
        self._waiting.append(report)
        self._wake.set()

    async def run(self) -> None:
        """Record until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._record(self._take())

    def _take(self) -> list[ReplicaReport]:
        taken: list[ReplicaReport] = []
        rows = 0
        while self._waiting and rows < ROWS_AT_ONCE:
            taken.append(self._waiting.popleft())
            rows += len(taken[-1].hosted) + len(taken[-1].deleted)
        return taken
