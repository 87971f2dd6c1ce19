"""The end of the log that the driver has not persisted yet.

Source: etcd/raft, unstable.
"""

from minka.v1.raft_pb2 import Entry, Snapshot


class Unstable:
    """Entries from `offset` on, and a snapshot before them, until they are persisted.

    `offset` may lie within the persisted log: then the next write to the storage truncates that log.
    """

    __slots__ = ("entries", "offset", "offset_in_progress", "snapshot", "snapshot_in_progress")

    def __init__(self, offset: int) -> None:
        self.snapshot: Snapshot | None = None  # replaces the persisted log
        self.snapshot_in_progress = False  # the driver was handed the snapshot
        self.entries: list[Entry] = []  # entries[i] has the index offset + i
        self.offset = offset
        self.offset_in_progress = offset  # the driver was handed the entries before this index

    def last_index(self) -> int | None:
        """The last index, None if all is persisted."""
        if self.entries:
            return self.offset + len(self.entries) - 1
        return self.snapshot.metadata.index if self.snapshot else None

    def term(self, index: int) -> int | None:
        """The term of an index that is here, else None."""
        position = index - self.offset
        if position >= 0:
            return self.entries[position].term if position < len(self.entries) else None
        if self.snapshot and self.snapshot.metadata.index == index:
            return self.snapshot.metadata.term
        return None

    def next_entries(self) -> list[Entry]:
        """The entries that the driver has not been handed yet."""
        return self.entries[self.offset_in_progress - self.offset :]

    def has_next_entries(self) -> bool:
        """True if `next_entries` has any."""
        return len(self.entries) > self.offset_in_progress - self.offset

    def next_snapshot(self) -> Snapshot | None:
        """The snapshot, if the driver has not been handed it yet."""
        return None if self.snapshot_in_progress else self.snapshot

    def accept_in_progress(self) -> None:
        """Note that the driver was handed everything that is here."""
        self.offset_in_progress = self.offset + len(self.entries)
        self.snapshot_in_progress = self.snapshot is not None

    def stable_to(self, index: int, term: int) -> None:
        """Note that everything up to the entry (index, term) is persisted; no effect if another entry is there."""
        position = index - self.offset
        if position < 0 or self.term(index) != term:
            return
        del self.entries[: position + 1]
        self.offset = index + 1
        self.offset_in_progress = max(self.offset_in_progress, self.offset)

    def stable_snapshot_to(self, index: int) -> None:
        """Note that the snapshot at `index` is persisted."""
        if self.snapshot and self.snapshot.metadata.index == index:
            self.snapshot = None
            self.snapshot_in_progress = False

    def restore(self, snapshot: Snapshot) -> None:
        """Start again from `snapshot`."""
        self.offset = self.offset_in_progress = snapshot.metadata.index + 1
        self.entries = []
        self.snapshot = snapshot
        self.snapshot_in_progress = False

    def truncate_and_append(self, entries: list[Entry]) -> None:
        """Put `entries` at their indexes, in place of all entries from there on."""
        start = entries[0].index
        assert entries[-1].index == start + len(entries) - 1, "indexes are consecutive"
        assert start <= self.offset + len(self.entries), "no gap in the log"
        if start <= self.offset:
            self.entries = list(entries)
            self.offset = self.offset_in_progress = start
            return
        self.entries[start - self.offset :] = entries
        self.offset_in_progress = min(self.offset_in_progress, start)
