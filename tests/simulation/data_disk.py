"""The simulated disk of data databases, and the time that its work takes."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from minkad.storage.applied import Applied
from minkad.storage.taken_loads import TakenLoads
from minkad.storage.threads import end_of
from minkad.storage.versions import Versions

if TYPE_CHECKING:
    from tests.simulation.process import Process

_AT_ONCE: Final = 0.5  # the share of the threads' disk work that takes almost no time
_MEAN_S: Final = 0.004  # mean seconds of the other disk work, on a fast disk


@dataclass(slots=True)
class Image:
    """The content of a data database on the disk."""

    rows: dict[bytes, bytes] = field(default_factory=dict)
    applied: Applied = field(default_factory=Applied)
    loads: TakenLoads = field(default_factory=TakenLoads)
    versions: Versions = field(default_factory=Versions)

    def copy(self) -> "Image":
        """Return an independent copy."""
        return Image(dict(self.rows), self.applied, self.loads, self.versions)


@dataclass(slots=True)
class DataDisk:
    """The folders of partitions. They outlive a process."""

    folders: dict[int, Image] = field(default_factory=dict)


async def remove_folder(process: "Process", disk: DataDisk, partition_id: int) -> None:
    """Remove the partition's folder, durably."""
    await process.disk_work()
    if process.alive:
        disk.folders.pop(partition_id, None)
    process.point()


async def disk_work(process: "Process") -> None:
    """Wait as long as a thread's work with the disk takes: see `minkad.storage.threads.on_thread`."""
    if process.rng.random() < _AT_ONCE:
        await asyncio.sleep(0)
        return
    seconds = process.rng.expovariate(1 / _MEAN_S) + process.sync_time()
    future = process.loop.create_future()
    process.loop.call_later(seconds, lambda: None if future.done() else future.set_result(None))
    await end_of(future)
