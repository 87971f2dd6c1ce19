"""A log of Raft in memory.

Source: etcd/raft, MemoryStorage.
"""

from minka.v1.raft_pb2 import ConfState, Entry, HardState, Snapshot, SnapshotMetadata
from minkad.core.raft import Compacted, SnapOutOfDate, Unavailable
from minkad.core.raft.storage import limit_size


class MemoryStorage:
    """A `Storage` in memory."""

    def __init__(self) -> None:
        self._hard_state = HardState()
        self._snapshot = Snapshot()
        self._offset = 0  # the index before the first entry
        self._offset_term = 0
        self._entries: list[Entry] = []

    def initial_state(self) -> tuple[HardState, ConfState]:
        """See Storage."""
        return self._hard_state, self._snapshot.metadata.conf_state

    def set_hard_state(self, state: HardState) -> None:
        """Keep `state`."""
        self._hard_state = state

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        """See Storage."""
        if lo <= self._offset:
            raise Compacted(f"entry {lo} is compacted, the first is {self._offset + 1}")
        if hi > self.last_index() + 1:
            raise Unavailable(f"entry {hi - 1} is not there, the last is {self.last_index()}")
        start = self._offset + 1
        return limit_size(self._entries[lo - start : hi - start], max_bytes)

    def term(self, index: int) -> int:
        """See Storage."""
        position = index - self._offset
        if position <= 0:
            if position < 0:
                raise Compacted(f"entry {index} is compacted, the first is {self._offset + 1}")
            return self._offset_term
        if position > len(self._entries):
            raise Unavailable(f"entry {index} is not there, the last is {self.last_index()}")
        return self._entries[position - 1].term

    def first_index(self) -> int:
        """See Storage."""
        return self._offset + 1

    def last_index(self) -> int:
        """See Storage."""
        return self._offset + len(self._entries)

    def snapshot(self) -> Snapshot:
        """See Storage."""
        return self._snapshot

    def apply_snapshot(self, snapshot: Snapshot) -> None:
        """Replace everything by `snapshot`. Raises SnapOutOfDate."""
        mine = self._snapshot.metadata.index
        if mine and mine >= snapshot.metadata.index:
            raise SnapOutOfDate(f"the snapshot at {snapshot.metadata.index} is not newer than the one at {mine}")
        self._snapshot = snapshot
        self._offset, self._offset_term = snapshot.metadata.index, snapshot.metadata.term
        self._entries = []

    def create_snapshot(self, index: int, conf_state: ConfState | None, data: bytes) -> Snapshot:
        """Make a snapshot of everything up to `index`. `conf_state` None: as in the snapshot before. Raises
        SnapOutOfDate.

        The entries stay until `compact`.
        """
        if index <= self._snapshot.metadata.index:
            raise SnapOutOfDate(f"there is a snapshot at {self._snapshot.metadata.index} already, {index} is not newer")
        metadata = SnapshotMetadata(
            conf_state=self._snapshot.metadata.conf_state if conf_state is None else conf_state,
            index=index,
            term=self.term(index),
        )
        self._snapshot = Snapshot(data=data, metadata=metadata)
        return self._snapshot

    def compact(self, index: int) -> None:
        """Drop the entries up to `index`, which must be applied. Raises Compacted, Unavailable."""
        if index <= self._offset:
            raise Compacted(f"the log is compacted up to {self._offset} already")
        term = self.term(index)
        self._entries = self._entries[index - self._offset :]
        self._offset, self._offset_term = index, term

    def append(self, entries: list[Entry]) -> None:
        """Write `entries`, in place of the entries from the first one's index on."""
        if not entries:
            return
        position = entries[0].index - self._offset - 1
        assert position <= len(self._entries), f"gap in the log: {self.last_index()} is followed by {entries[0].index}"
        if position < 0:
            entries = entries[-position:]
            position = 0
        if entries:
            self._entries[position:] = entries
