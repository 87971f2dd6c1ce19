"""Records the load of a node's partitions, once an interval, and returns the history on request."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import islice
from typing import Final, Protocol

from minka.v1.history_pb2 import HistoryBlock
from minka.wire.history_rows import FORMAT, MAX_ROWS, PartitionInterval, pack
from minkad.history.store import HistoryStore
from minkad.storage.disk_space import DiskWatch
from minkad.storage.threads import on_thread

log: Final = logging.getLogger(__name__)

_BLOCKS_AT_ONCE: Final = 8  # blocks that are read at once for a caller, and then sent
_END_OF_TIME_MS: Final = 2**63


class TakeIntervals(Protocol):
    """Returns the traffic of the node's replicas since the last call; if `whole`, also the replicas without traffic
    that have data.
    """

    def __call__(self, *, whole: bool) -> Awaitable[list[PartitionInterval]]: ...


class HistoryRecorder:
    """For the loop's thread; other threads write and read the files. If the disk fails, the history lacks an interval,
    and the node goes on.
    """

    def __init__(
        self,
        store: HistoryStore,
        take: TakeIntervals,
        disk: DiskWatch,
        capacity_bytes: int,
        interval: float,
        clock: Callable[[], float],
        unix_ms: Callable[[], int],
        cpu_time: Callable[[], float] = time.process_time,
    ) -> None:
        """`interval` in seconds; `cpu_time` returns the processor seconds that the process has used."""
        self._store = store
        self._take = take
        self._disk = disk
        self._capacity_bytes = capacity_bytes
        self._interval = interval
        self._clock = clock
        self._unix_ms = unix_ms
        self._cpu_time = cpu_time
        self._began, self._began_ms, self._cpu_at = clock(), unix_ms(), cpu_time()  # at the interval's start

    async def run(self) -> None:
        """Record until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            await self.record()

    async def record(self) -> None:
        """End the interval: append the traffic since the last call. An OSError is only logged."""
        now_ms = self._unix_ms()
        whole = await on_thread(self._store.begins_segment, now_ms)
        rows = await self._take(whole=whole)
        space, now, cpu = self._disk.space, self._clock(), self._cpu_time()
        node = HistoryBlock(
            start_ms=self._began_ms,
            interval_ms=min(max(round((now - self._began) * 1000), 1), 2**32 - 1),
            free_bytes=space.free_bytes,
            total_bytes=space.total_bytes,
            capacity_bytes=self._capacity_bytes,
            cpu_ms=round((cpu - self._cpu_at) * 1000),
            layout=FORMAT,
        )
        self._began, self._began_ms, self._cpu_at = now, now_ms, cpu
        try:
            await on_thread(lambda: self._store.append(list(_blocks(node, rows)), now_ms))
        except OSError as error:
            log.warning("an interval of the history can't be written", extra={"reason": str(error)})

    async def read(self, from_ms: int, to_ms: int) -> AsyncIterator[bytes]:
        """Serialized blocks: see `HistoryStore.read`. `to_ms` 0: to the end."""
        blocks = self._store.read(from_ms, to_ms or _END_OF_TIME_MS)
        while some := await on_thread(lambda: list(islice(blocks, _BLOCKS_AT_ONCE))):
            for block in some:
                yield block


def _blocks(node: HistoryBlock, rows: list[PartitionInterval]) -> Iterator[HistoryBlock]:
    """The blocks of an interval, each with at most MAX_ROWS rows, and with the node's figures. Without rows, there is
    one block.
    """
    for part, first in enumerate(range(0, len(rows) or 1, MAX_ROWS)):
        some = rows[first : first + MAX_ROWS]
        block = HistoryBlock(part=part, rows=len(some), packed=pack(some))
        block.MergeFrom(node)
        yield block
