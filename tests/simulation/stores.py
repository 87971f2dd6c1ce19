"""The simulated store of replicas: their data databases, and checkpoints of these databases."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minkad.storage.checkpoint import CheckpointFile
from minkad.storage.replica_store import Purpose
from minkad.storage.size_estimate import Size
from tests.simulation.checkpoints import SimCheckpoint, SimIncoming
from tests.simulation.data_database import SimDataDatabase
from tests.simulation.data_disk import DataDisk, remove_folder

if TYPE_CHECKING:
    from tests.simulation.process import Process


class SimReplicaStore:
    """The simulated `ReplicaStore`."""

    def __init__(self, process: "Process", disk: DataDisk) -> None:
        self._process = process
        self._disk = disk
        self._incoming: dict[int, dict[str, bytes]] = {}
        self.open: dict[int, SimDataDatabase] = {}  # by partition: its newest data database

    async def remove_leftovers(self) -> None:
        """Remove no checkpoints: in the simulation they are in the process's memory, so a dead process leaves none."""
        await self._process.disk_work()

    def data(
        self, partition_id: int, size: Size | None = None, on_damage: Callable[[], None] = lambda: None
    ) -> "SimDataDatabase":
        """Create the data database of a partition; it isn't open yet."""
        made = self.open[partition_id] = SimDataDatabase(self._process, self._disk, partition_id, size, on_damage)
        return made

    @property
    def open_databases(self) -> int:
        """The number of open data databases."""
        return sum(data.is_database for data in self.open.values())

    def partition_ids(self) -> list[int]:
        """The partitions that have a folder."""
        return list(self._disk.folders)

    def exists(self, partition_id: int) -> bool:
        """True if the partition has a folder."""
        return partition_id in self._disk.folders

    async def remove(self, partition_id: int) -> None:
        """Remove the folder of a partition, durably."""
        await remove_folder(self._process, self._disk, partition_id)

    async def take(self, data: "SimDataDatabase", purpose: Purpose, name: str) -> "SimCheckpoint":
        """Take a checkpoint that has at least everything that is applied now."""
        await self._process.disk_work()  # simulates the removal of an older checkpoint with this name
        await data.open()
        await data.flush()
        return SimCheckpoint(self._process, self._disk, Path(purpose.value) / name, await data.checkpointed())

    def incoming(self, partition_id: int, files: Sequence[CheckpointFile], kept: Mapping[str, int]) -> "SimIncoming":
        """Prepare to receive a checkpoint with these files. Those in `kept` have already arrived."""
        there = self._incoming.setdefault(partition_id, {})
        return SimIncoming(self._process, self._disk, partition_id, files, kept, there)
