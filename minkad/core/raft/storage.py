"""The interface by which the core reads what its driver has persisted.

Source: etcd/raft, interface Storage.
"""

from typing import Protocol

from minka.v1.raft_pb2 import ConfState, Entry, HardState, Snapshot
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

        When logs differ, the core asks for many neighbouring indexes. So this should not read the disk for each.
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
