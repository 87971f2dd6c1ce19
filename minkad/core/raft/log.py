"""The log: its persisted and its unstable part, and how far it is committed and applied.

Source: etcd/raft, raftLog.
"""

from collections.abc import Iterator
from zlib import crc32

from minka.v1.raft_pb2 import Entry, Snapshot
from minkad.core.raft.storage import Compacted, Storage, Unavailable, limit_size
from minkad.core.raft.types import Log, LogRolledBack
from minkad.core.raft.unstable import Unstable


class RaftLog:
    """The log, by index:

        in the snapshot | entries
        ----------------+----------------------------------------------------------------------> last_index()
                  first_index()    applied       applying       committed
        applied            <-------->|
        the driver applies           <------------->|   (and has everything before)
        a quorum has       <--------------------------------------->|
        the storage has    <------------------------------------------------->|   unstable.offset follows

    applied <= applying <= committed <= last_index(), always. A leader may commit entries that its own storage lacks:
    `unstable.offset` may be before `committed`.
    """

    __slots__ = (
        "_log",
        "_max_committed_bytes",
        "applied",
        "applying",
        "committed",
        "storage",
        "unstable",
    )

    def __init__(self, storage: Storage, max_committed_bytes: int, log: Log) -> None:
        self.storage = storage
        self._log = log
        self._max_committed_bytes = max_committed_bytes
        self.unstable = Unstable(storage.last_index() + 1)
        start = storage.first_index() - 1  # everything before is in the snapshot, so committed and applied
        self.committed = start
        self.applying = start  # handed to the driver to apply
        self.applied = start

    def __str__(self) -> str:
        return (
            f"committed={self.committed}, applied={self.applied}, applying={self.applying}, "
            f"unstable from {self.unstable.offset}, {len(self.unstable.entries)} entries"
        )

    # Reading

    def first_index(self) -> int:
        """The first index after the snapshot."""
        snapshot = self.unstable.snapshot
        return snapshot.metadata.index + 1 if snapshot else self.storage.first_index()

    def last_index(self) -> int:
        """The index of the last entry, or of the snapshot if there are no entries."""
        last = self.unstable.last_index()
        return self.storage.last_index() if last is None else last

    def term(self, index: int) -> int:
        """The term of `index` in [first_index - 1, last_index]. Raises Compacted, Unavailable."""
        term = self.unstable.term(index)
        if term is not None:
            return term
        if index + 1 < self.first_index():
            raise Compacted(f"entry {index} is compacted, the first is {self.first_index()}")
        if index > self.last_index():
            raise Unavailable(f"entry {index} is not there, the last is {self.last_index()}")
        return self.storage.term(index)

    def term_or_zero(self, index: int) -> int:
        """The term of `index`, 0 if it isn't there."""
        try:
            return self.term(index)
        except (Compacted, Unavailable):
            return 0

    def crc_or_zero(self, index: int) -> int:
        """The CRC-32 of the data of the entry at `index`; 0 if it isn't there, or has none."""
        if not self.first_index() <= index <= self.last_index():
            return 0
        return crc32(self.slice(index, index + 1, 0)[0].data)

    def last_entry(self) -> tuple[int, int]:
        """(index, term) of the last entry."""
        last = self.last_index()
        return last, self.term(last)

    def match_term(self, index: int, term: int) -> bool:
        """True if the entry (index, term) is in the log, or is the last one in the snapshot."""
        try:
            return self.term(index) == term
        except (Compacted, Unavailable):
            return False

    def is_up_to_date(self, index: int, term: int) -> bool:
        """True if a log that ends in (index, term) is at least as new as this one, as voters compare them."""
        last, last_term = self.last_entry()
        return (term, index) >= (last_term, last)

    def entries(self, lo: int, max_bytes: int) -> list[Entry]:
        """The entries from `lo` on, as many as fit into `max_bytes` when encoded. Raises Compacted."""
        last = self.last_index()
        return [] if lo > last else self.slice(lo, last + 1, max_bytes)

    def slice(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        """The entries [lo, hi), as many as fit into `max_bytes` when encoded, but at least one. Raises Compacted."""
        if lo < self.first_index():
            raise Compacted(f"entry {lo} is compacted, the first is {self.first_index()}")
        assert lo <= hi <= self.last_index() + 1, f"[{lo}, {hi}) is beyond the end {self.last_index()}"
        offset = self.unstable.offset
        if lo >= offset:
            return limit_size(self.unstable.entries[lo - offset : hi - offset], max_bytes)
        if lo == hi:
            return []
        middle = min(hi, offset)
        found = self.storage.entries(lo, middle, max_bytes)
        if hi <= offset or len(found) < middle - lo:  # the latter if the storage has kept to max_bytes
            return found
        return limit_size(found + self.unstable.entries[: hi - offset], max_bytes)

    def scan(self, lo: int, hi: int, page_bytes: int) -> Iterator[Entry]:
        """The entries [lo, hi), read by pages of `page_bytes`."""
        while lo < hi:
            page = self.slice(lo, hi, page_bytes)
            assert page, "a page has at least one entry"
            yield from page
            lo += len(page)

    def snapshot(self) -> Snapshot:
        """The newest snapshot. Raises SnapshotTemporarilyUnavailable."""
        return self.unstable.snapshot or self.storage.snapshot()

    # Writing

    def append(self, entries: list[Entry]) -> int:
        """Put `entries` at their indexes, and drop all entries that were there or later. Returns the last index."""
        if entries:
            assert entries[0].index > self.committed, (
                f"entry {entries[0].index} is committed ({self.committed}) and cannot be replaced"
            )
            self.unstable.truncate_and_append(entries)
        return self.last_index()

    def maybe_append(self, index: int, term: int, entries: list[Entry], committed: int) -> int | None:
        """Append `entries` after (index, term) and commit up to `committed`. Returns the last index of `entries`. If
        (index, term) is not in the log, does nothing and returns None.
        """
        if not self.match_term(index, term):
            return None
        assert not entries or entries[0].index == index + 1, "entries follow the index after which they were sent"
        fresh = self._first_difference(entries)
        if fresh < len(entries):
            self.append(entries[fresh:])
        last = index + len(entries)
        self.commit_to(min(committed, last))
        return last

    def _first_difference(self, entries: list[Entry]) -> int:
        """The position of the first entry that is not in the log yet."""
        last = self.last_index()
        for position, entry in enumerate(entries):
            index = entry.index
            if index > last:
                return position
            if not self.match_term(index, entry.term):
                self._log("INFO", f"entry {index} of term {self.term_or_zero(index)} gives way to term {entry.term}")
                return position
        return len(entries)

    def find_conflict_by_term(self, index: int, term: int) -> tuple[int, int]:
        """(index, term) of the last entry up to `index` with a term <= `term`. Another log, of which only the entry
        (index, term) is known, can match at most up to there. The returned term is 0 if it isn't known.
        """
        while index > 0:
            try:
                mine = self.term(index)
            except (Compacted, Unavailable):
                return index, 0
            if mine <= term:
                return index, mine
            index -= 1
        return 0, 0

    def restore(self, snapshot: Snapshot) -> None:
        """Replace everything by `snapshot`."""
        self._log("INFO", f"restoring the snapshot at {snapshot.metadata.index}; the log was {self}")
        assert snapshot.metadata.index > self.committed, "a snapshot never takes back what is committed"
        self.committed = snapshot.metadata.index
        self.unstable.restore(snapshot)

    # Committing and applying

    def maybe_commit(self, index: int, term: int) -> bool:
        """Commit up to `index` if its entry is of `term`: entries of older terms commit only together with one of the
        leader's own (Raft, section 5.4.2).
        """
        if index <= self.committed or self.term_or_zero(index) != term:
            return False
        self.commit_to(index)
        return True

    def commit_to(self, index: int) -> None:
        """Commit up to `index`; the commit index never goes back. Raises LogRolledBack if the log ends before it."""
        if index > self.committed:
            last = self.last_index()
            if index > last:
                raise LogRolledBack(f"can't commit {index}, the log ends at {last}: was it truncated, damaged or lost?")
            self.committed = index

    def has_next_committed(self) -> bool:
        """True if there are entries to apply."""
        # A snapshot that is not installed yet goes first.
        return self.unstable.snapshot is None and self.applying < self.committed

    def next_committed(self) -> list[Entry]:
        """The entries to apply next, within the limit of bytes under way to the application."""
        if not self.has_next_committed():
            return []
        return self.slice(self.applying + 1, self.committed + 1, self._max_committed_bytes)

    def accept_applying(self, index: int) -> None:
        """Note that the driver was handed everything up to `index` to apply."""
        assert self.applying < index <= self.committed, f"{index} is not within ({self.applying}, {self.committed}]"
        self.applying = index

    def applied_to(self, index: int) -> None:
        """Note that everything up to `index` is applied."""
        assert self.applied <= index <= self.committed, f"{index} is not within [{self.applied}, {self.committed}]"
        self.applied = index
        self.applying = max(self.applying, index)
