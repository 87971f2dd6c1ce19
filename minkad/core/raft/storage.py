"""The interface by which the core reads what its driver has persisted, and an implementation in memory.

Source: etcd/raft, interface Storage and MemoryStorage.
"""

from typing import Protocol

from minka.v1.raft_pb2 import ConfState, Entry, HardState, Snapshot, SnapshotMetadata
from minkad.core.raft.types import NO_LIMIT, RaftError


class Compacted(RaftError):
    """The index is covered by a snapshot and no longer in the log."""


class Unavailable(RaftError):
    """The index is beyond the end of the log."""


class SnapOutOfDate(RaftError):
    """The storage has a newer snapshot."""


class SnapshotTemporarilyUnavailable(RaftError):
    """The snapshot is being made; ask again later."""


class Storage(Protocol):
    """The persisted log. Reads see every write that the driver has finished; entries and snapshots are never changed.

    Any other exception of a method stops the node: it goes through the core to the driver.
    """

    def initial_state(self) -> tuple[HardState, ConfState]:
        """The state that was persisted before the start; empty messages at the first start."""

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        """The entries [lo, hi), as many as fit into `max_bytes` when encoded, but at least one. The caller owns the
        list.

        Raises Compacted, Unavailable.
        """

    def term(self, index: int) -> int:
        """The term of entry `index` in [first_index - 1, last_index]. Raises Compacted, Unavailable.

        When logs differ, it is called for many neighbouring indexes, so it should not read the disk for each.
        """

    def first_index(self) -> int:
        """The first index after the snapshot."""

    def last_index(self) -> int:
        """The last index; first_index - 1 if there are no entries."""

    def snapshot(self) -> Snapshot:
        """The newest snapshot. Raises SnapshotTemporarilyUnavailable."""


def entries_size(entries: list[Entry]) -> int:
    """The encoded size in bytes."""
    return sum(map(Entry.ByteSize, entries))


def payloads_size(entries: list[Entry]) -> int:
    """The size of the data alone in bytes: the empty entries that Raft itself proposes count as 0."""
    return sum([len(entry.data) for entry in entries])


def limit_size(entries: list[Entry], max_bytes: int) -> list[Entry]:
    """The longest prefix that fits into `max_bytes` when encoded, but at least one entry."""
    if len(entries) <= 1 or max_bytes >= NO_LIMIT or entries_size(entries) <= max_bytes:
        return entries
    total = entries[0].ByteSize()
    for count in range(1, len(entries)):
        total += entries[count].ByteSize()
        if total > max_bytes:
            return entries[:count]
    return entries


class MemoryStorage:
    """A Storage in memory, for tests and for the simulation of crashes."""

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
