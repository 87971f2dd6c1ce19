"""One node's replicas on disk: the data database of each replica, and the checkpoints that are taken or received."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from minkad.storage import checkpoint
from minkad.storage.checkpoint import Checkpoint, CheckpointFile, Incoming, remove_folder
from minkad.storage.data_database import DataDatabase
from minkad.storage.openings import Openings
from minkad.storage.rocks_data import block_cache
from minkad.storage.row_cache import RowCache
from minkad.storage.size_estimate import Size


class Purpose(Enum):
    """The purpose of a checkpoint. The value is the folder that has the checkpoint until it is moved or removed."""

    SEND = "outgoing"
    SPLIT = "splitting"
    READ = "snapshots"


_PARTITIONS: Final = "partitions"
_INCOMING: Final = "incoming"
_LEFTOVERS: Final = (_INCOMING, *(purpose.value for purpose in Purpose))


class ReplicaStore:
    """For the loop's thread. The simulation has a store of its own, which loses unsynced data in a crash."""

    def __init__(self, data_dir: Path, cache_bytes: int, row_cache: RowCache) -> None:
        """`cache_bytes`: the size of RocksDB's block cache. All data databases share it, and `row_cache`."""
        self._data_dir = data_dir
        self._partitions = str(data_dir / _PARTITIONS)
        self._cache = block_cache(cache_bytes)
        self._openings = Openings()
        self._row_cache = row_cache

    async def remove_leftovers(self) -> None:
        """Remove the checkpoints left over from the node's last run. Raises STORAGE_FAILED."""
        for folder in _LEFTOVERS:
            await remove_folder(self._data_dir / folder, durably=False)

    def data(
        self, partition_id: int, size: Size | None = None, on_damage: Callable[[], None] = lambda: None
    ) -> DataDatabase:
        """The data database of a partition, not open yet; see `DataDatabase`."""
        folder = f"{self._partitions}/{partition_id}"
        return DataDatabase(folder, self._cache, size, on_damage, self._openings, self._row_cache)

    @property
    def open_databases(self) -> int:
        """The number of open data databases."""
        return self._openings.open

    def partition_ids(self) -> list[int]:
        """The partitions that have a folder."""
        path = self._data_dir / _PARTITIONS
        return [int(entry.name) for entry in path.iterdir() if entry.name.isdigit()] if path.exists() else []

    def exists(self, partition_id: int) -> bool:
        """True if the partition has a folder."""
        return self._path(partition_id).exists()

    async def remove(self, partition_id: int) -> None:
        """Remove, durably, the folder of a partition whose data database is closed, and its unfinished data as a
        split's child. Raises STORAGE_FAILED.
        """
        await remove_folder(self._data_dir / Purpose.SPLIT.value / str(partition_id), durably=False)
        await remove_folder(self._path(partition_id))

    async def take(self, data: DataDatabase, purpose: Purpose, name: str) -> Checkpoint:
        """A checkpoint with all entries applied so far, and perhaps later ones. Raises CORRUPT_DATA, STORAGE_FAILED."""
        return await checkpoint.take(data, self._data_dir / purpose.value / name)

    def incoming(self, partition_id: int, files: Sequence[CheckpointFile], kept: Mapping[str, int]) -> Incoming:
        """A checkpoint that is about to be received; see `Incoming`. Raises INVALID_ARGUMENT."""
        return Incoming(self._data_dir / _INCOMING / str(partition_id), files, kept)

    def _path(self, partition_id: int) -> Path:
        return self._data_dir / _PARTITIONS / str(partition_id)
