"""Raft's `Storage` in the log database: reads of the coordinator's log, and staged changes."""

from typing import Final

from minka.errors import MinkaError
from minka.v1.raft_pb2 import ConfState, Entry, HardState, Snapshot, SnapshotMetadata
from minkad.core.raft.storage import Compacted, SnapOutOfDate, Unavailable, entries_size, limit_size
from minkad.core.raft.types import Ready
from minkad.core.replication.epochs import Epochs
from minkad.storage.log_database import LogDatabase

_HARD_STATE: Final = b"rh"
_SNAPSHOT: Final = b"rs"
_COMPACTED: Final = b"rc"
_ENTRY: Final = b"re"
_END: Final = b"rf"

_TAIL_BYTES: Final = 16 * 1024 * 1024


def _key(index: int) -> bytes:
    return _ENTRY + index.to_bytes(8, "big")


class RaftStorage:
    """Raft's log:

        compacted, and in the snapshot | in the log database              | also in memory: the tail
        -------------------------------+----------------------------------+------------------------> _last
                                      _first

    After a restart, the log has all changes that `LogDatabase.sync` had made durable. Staged entries can be read at
    once: they are in the tail. `stage` first shortens the tail to `tail_bytes`, since entries staged earlier are in the
    log database by then. So wait for a `sync` between any two calls of `stage`.
    """

    def __init__(self, db: LogDatabase, tail_bytes: int = _TAIL_BYTES) -> None:
        """Raises CORRUPT_DATA, STORAGE_FAILED."""
        self._db = db
        self._tail_limit = tail_bytes
        self._hard_state = HardState.FromString(db.get(_HARD_STATE) or b"")
        self._snapshot = Snapshot.FromString(db.get(_SNAPSHOT) or b"")
        compacted = SnapshotMetadata.FromString(db.get(_COMPACTED) or b"")
        self._first = compacted.index + 1  # the log begins here; it is empty if `_last` is less
        last = db.scan(_key(0), _END, reverse=True, limit=1)
        self._last = int.from_bytes(last[0][0][2:], "big") if last else compacted.index
        if self._hard_state.commit > self._last:
            raise self._corrupt(f"entries up to {self._hard_state.commit} were committed, the last is {self._last}")
        # Read all entries to find damage now: later, only a follower that lags would need an old entry.
        if db.count(_key(self._first), _END) != self._last - compacted.index:
            raise self._corrupt(f"an entry of {self._first} to {self._last} is missing")
        self._terms = Epochs(compacted.index, compacted.term)  # of the entries from `_first` - 1 to `_last`
        self._terms.find(self._first, self._last, self._stored_term)
        self._tail: list[Entry] = []  # the last entries, up to `_last`; or none
        self._tail_size = 0  # bytes

    # Reads of the core

    def initial_state(self) -> tuple[HardState, ConfState]:
        """See Storage."""
        return self._hard_state, self._snapshot.metadata.conf_state

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        """See Storage. Also raises CORRUPT_DATA, STORAGE_FAILED."""
        if lo < self._first:
            raise Compacted(f"entry {lo} is compacted, the first is {self._first}")
        if hi > self._last + 1:
            raise Unavailable(f"entry {hi - 1} is not there, the last is {self._last}")
        tail_first = self._last - len(self._tail) + 1
        if lo >= tail_first:
            return limit_size(self._tail[lo - tail_first : hi - tail_first], max_bytes)
        end = min(hi, tail_first)
        found = [Entry.FromString(value) for _, value in self._db.scan(_key(lo), _key(end), max_bytes=max_bytes)]
        if not found or found[-1].index - lo + 1 != len(found):
            raise self._corrupt(f"an entry of {lo} to {end - 1} is missing")
        if len(found) == end - lo:
            found += self._tail[: hi - end]
        return limit_size(found, max_bytes)

    def term(self, index: int) -> int:
        """See Storage."""
        if index < self._first - 1:
            raise Compacted(f"entry {index} is compacted, the first is {self._first}")
        if index > self._last:
            raise Unavailable(f"entry {index} is not there, the last is {self._last}")
        return self._terms.at(index)

    def first_index(self) -> int:
        """See Storage."""
        return self._first

    def last_index(self) -> int:
        """See Storage."""
        return self._last

    def snapshot(self) -> Snapshot:
        """See Storage."""
        return self._snapshot

    # Writes of the driver

    def is_empty(self) -> bool:
        """True if nothing was ever persisted: neither `bootstrap` nor `stage`."""
        return not self._last and self._hard_state == HardState()

    def bootstrap(self, conf_state: ConfState) -> None:
        """Stage the first state of a new group, as if entry 1, of term 1, had made this configuration."""
        assert self.is_empty(), "the log is not empty"
        self._install(Snapshot(metadata=SnapshotMetadata(conf_state=conf_state, index=1, term=1)))
        self._stage_hard_state(HardState(term=1, commit=1))

    def stage(self, ready: Ready) -> None:
        """Stage hard state, entries (from the first on, they replace the log) and snapshot (replaces the log)."""
        self._drop_old_tail()
        if ready.snapshot is not None:
            self._install(ready.snapshot)
        if ready.entries:
            self._append(ready.entries)
        if ready.hard_state is not None:
            self._stage_hard_state(ready.hard_state)

    def stage_snapshot(self, index: int, term: int, conf_state: ConfState, data: bytes) -> Snapshot:
        """Stage a snapshot of the state after `index`, which is applied. The entries stay until `compact`.

        Raises SnapOutOfDate.
        """
        mine = self._snapshot.metadata.index
        if index <= mine:
            raise SnapOutOfDate(f"there is a snapshot at {mine} already, {index} is not newer")
        assert self.term(index) == term, f"entry {index} is of term {self.term(index)}, not {term}"
        metadata = SnapshotMetadata(conf_state=conf_state, index=index, term=term)
        self._stage_snapshot(Snapshot(data=data, metadata=metadata))
        return self._snapshot

    def compact(self, index: int) -> None:
        """Stage the removal of the entries up to `index`, which a snapshot covers. Raises Compacted, Unavailable."""
        if index < self._first:
            raise Compacted(f"the log is compacted up to {self._first - 1} already")
        term = self.term(index)
        assert index <= self._snapshot.metadata.index, f"no snapshot covers entry {index}"
        self._db.delete_range(_key(self._first), _key(index + 1))
        self._stage_compacted(index, term)
        self._terms.compact(index)
        self._cut_tail(max(0, len(self._tail) - (self._last - index)))

    def _stage_hard_state(self, state: HardState) -> None:
        self._hard_state = state
        self._db.put(_HARD_STATE, state.SerializeToString())

    def _stage_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._db.put(_SNAPSHOT, snapshot.SerializeToString())

    def _stage_compacted(self, index: int, term: int) -> None:
        self._first = index + 1
        self._db.put(_COMPACTED, SnapshotMetadata(index=index, term=term).SerializeToString())

    def _install(self, snapshot: Snapshot) -> None:
        index, term = snapshot.metadata.index, snapshot.metadata.term
        self._db.delete_range(_key(0), _END)
        self._stage_snapshot(snapshot)
        self._stage_compacted(index, term)
        self._last = index
        self._terms = Epochs(index, term)
        self._tail, self._tail_size = [], 0

    def _append(self, entries: list[Entry]) -> None:
        first = entries[0].index
        assert self._first <= first <= self._last + 1, f"entry {first} does not fit to {self._first}..{self._last}"
        if first <= self._last:
            self._truncate(first)
        for entry in entries:
            assert entry.index == self._last + 1, f"entry {entry.index} follows {self._last}"
            value = entry.SerializeToString()
            self._db.put(_key(entry.index), value)
            self._last = entry.index
            self._tail.append(entry)
            self._tail_size += len(value)
            self._terms.append(entry.index, entry.term)

    def _truncate(self, first: int) -> None:
        self._db.delete_range(_key(first), _END)
        kept = max(0, len(self._tail) - (self._last - first + 1))
        self._tail_size -= entries_size(self._tail[kept:])
        del self._tail[kept:]
        self._last = first - 1
        self._terms.truncate(first)

    def _drop_old_tail(self) -> None:
        count, size = 0, self._tail_size
        while size > self._tail_limit:
            size -= self._tail[count].ByteSize()
            count += 1
        self._cut_tail(count)

    def _cut_tail(self, count: int) -> None:
        self._tail_size -= entries_size(self._tail[:count])
        del self._tail[:count]

    def _stored_term(self, index: int) -> int:
        value = self._db.get(_key(index))
        if value is None:
            raise self._corrupt(f"entry {index} is missing")
        return Entry.FromString(value).term

    def _corrupt(self, what: str) -> MinkaError:
        return self._db.damaged(f"of Raft's log {what}")
