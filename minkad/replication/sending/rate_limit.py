"""The rate limit of checkpoints from this node."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from minka.v1.cluster_pb2 import Operation

_BURST_S: Final = 0.1
_LONGEST_WAIT_S: Final = 1.0  # so that a raised limit takes effect soon
_MIN_PART_BYTES: Final = 1024


class RateLimit:
    """Lets an operation send at most its `rate_limit` bytes a second from this node, for all partitions that it moves
    together. The limit may change at any time.
    """

    def __init__(self, clock: Callable[[], float], operation_moving: Callable[[int], Operation | None]) -> None:
        self._clock = clock
        self.operation_moving = operation_moving
        self._free_at: dict[int, float] = {}  # by operation

    def parts(self, partition_id: int, data: bytes) -> Iterator[bytes]:
        """The data in pieces to send one by one, so that a low limit is kept and progress is visible."""
        start = 0
        while start < len(data):
            operation = self.operation_moving(partition_id)
            limit = operation.rate_limit if operation is not None else 0
            end = start + max(int(limit * _BURST_S), _MIN_PART_BYTES) if limit else len(data)
            yield data[start:end]
            start = end

    async def take(self, partition_id: int, size: int) -> None:
        """Wait until `size` bytes of the partition may be sent."""
        operation = self.operation_moving(partition_id)
        if operation is None or not operation.rate_limit:
            return
        now = self._clock()
        self._free_at = {id_: at for id_, at in self._free_at.items() if at > now - _BURST_S}
        earliest = self._free_at.get(operation.id, now - _BURST_S)
        free_at = self._free_at[operation.id] = min(earliest + size / operation.rate_limit, now + _LONGEST_WAIT_S)
        await asyncio.sleep(min(free_at - self._clock(), _LONGEST_WAIT_S))
