"""The rates that people allow: of the checkpoints of an operation, and of the uploads of a load."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

_BURST_S: Final = 0.1
_LONGEST_WAIT_S: Final = 1.0  # so that a raised limit takes effect soon
_MIN_PART_BYTES: Final = 1024


class RateLimits:
    """Lets all data of one owner (an operation, a load) together pass at most at the owner's limit."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._free_at: dict[int, float] = {}  # by owner: when all of its data so far has passed, at the limit

    async def parts(self, data: bytes, limited: Callable[[], tuple[int, int]]) -> AsyncIterator[bytes]:
        """The data in parts, each as soon as it may pass: small parts keep a low limit, and show progress. `limited`
        returns the owner and its limit in bytes a second (0: no limit), which may change at any time.
        """
        start = 0
        while start < len(data):
            owner, limit = limited()
            end = start + max(int(limit * _BURST_S), _MIN_PART_BYTES) if limit else len(data)
            part = data[start:end]
            start = end
            if limit:
                await self._wait(owner, len(part) / limit)
            yield part

    async def _wait(self, owner: int, seconds: float) -> None:
        now = self._clock()
        self._free_at = {id_: at for id_, at in self._free_at.items() if at > now - _BURST_S}
        earliest = self._free_at.get(owner, now - _BURST_S)
        free_at = self._free_at[owner] = min(earliest + seconds, now + _LONGEST_WAIT_S)
        await asyncio.sleep(free_at - now)
