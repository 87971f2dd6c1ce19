"""The simulated disk of the Raft log: a crash loses unsynced writes. A write is atomic, like a batch of RocksDB."""

from collections.abc import Callable
from typing import Any, Final

from minka.v1.raft_pb2 import ConfState, HardState, Snapshot, SnapshotMetadata
from minkad.core.raft import Ready
from tests.vectors.memory_storage import MemoryStorage

BOOTSTRAP_INDEX: Final = 1


class RaftDisk:
    """A node's Raft log: all that the node has written, and the part that is durable. The class has the interface of
    `minkad.storage.raft_log`.
    """

    def __init__(self) -> None:
        self.seen = MemoryStorage()
        self._durable = MemoryStorage()
        self._staged: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def bootstrap(self, conf_state: ConfState) -> None:
        """Begin with this configuration, as if a log entry had set it."""
        snapshot = Snapshot(metadata=SnapshotMetadata(index=BOOTSTRAP_INDEX, term=1, conf_state=conf_state))
        self._write(MemoryStorage.apply_snapshot, snapshot)
        self._write(MemoryStorage.set_hard_state, HardState(term=1, commit=BOOTSTRAP_INDEX))
        self.sync()

    def stage(self, ready: Ready) -> None:
        """Write everything that the Ready asks to persist."""
        if ready.snapshot is not None:
            self._write(MemoryStorage.apply_snapshot, ready.snapshot)
        if ready.entries:
            self._write(MemoryStorage.append, ready.entries)
        if ready.hard_state is not None:
            self._write(MemoryStorage.set_hard_state, ready.hard_state)

    def stage_snapshot(self, index: int, conf_state: ConfState, data: bytes) -> None:
        """Write a snapshot; keep the entries that it covers."""
        self._write(MemoryStorage.create_snapshot, index, conf_state, data)

    def compact(self, index: int) -> None:
        """Drop the entries up to `index`."""
        if index >= self.seen.first_index():
            self._write(MemoryStorage.compact, index)

    def _write(self, operation: Callable[..., object], *arguments: Any) -> None:
        operation(self.seen, *arguments)
        self._staged.append((operation, arguments))

    def sync(self) -> None:
        """Make everything written so far durable."""
        for operation, arguments in self._staged:
            operation(self._durable, *arguments)
        self._staged.clear()

    def has(self, index: int, term: int) -> bool:
        """True if the entry, or a snapshot that covers it, is durable."""
        durable = self._durable
        return index < durable.first_index() or (durable.last_index() >= index and durable.term(index) == term)

    @property
    def durable_state(self) -> HardState:
        """The term, vote and commit index that a crash would leave."""
        return self._durable.initial_state()[0]

    @property
    def durable_last(self) -> int:
        """The last index that a crash would leave."""
        return self._durable.last_index()

    def crash(self) -> None:
        """Lose everything that isn't durable."""
        self._staged.clear()
        self.seen = MemoryStorage()
        self.seen.__dict__.update(self._durable.__dict__)
        self.seen._entries = list(self._durable._entries)
