"""One partition's log in the log database: every write, in order, until the data database has it durably."""

from typing import Final, NamedTuple

from minka.errors import Code, MinkaError
from minkad.storage.epochs import Epochs
from minkad.storage.log_database import LogDatabase

_PREFIX: Final = b"p"
_EPOCH_BYTES: Final = 4
_LAST: Final = 2**64 - 1


class LogEntry(NamedTuple):
    """An entry as it is read back."""

    offset: int
    leader_epoch: int
    body: bytes


class PartitionLog:
    """Offsets begin with 1 and have no gaps. The entries up to `base` are gone: the data database has them.

    Changes are staged; `LogDatabase.sync` makes them durable, and only then are they readable.
    """

    __slots__ = ("_db", "_epochs", "_prefix", "base", "end")

    def __init__(self, db: LogDatabase, partition_id: int, base: int = 0, base_epoch: int = 0) -> None:
        """Recovers what is on disk above `base`. Raises CORRUPT_DATA, STORAGE_FAILED."""
        self._db = db
        self._prefix = _PREFIX + partition_id.to_bytes(4, "big")
        self.base = self.end = base
        self._epochs = Epochs(base, base_epoch)

    def recover(self) -> None:
        """Find the end of what is on disk. Raises CORRUPT_DATA, STORAGE_FAILED."""
        last = self._db.scan(self._key(self.base + 1), self._key(_LAST), reverse=True, limit=1)
        if last:
            self.end = int.from_bytes(last[0][0][5:], "big")
            self._epochs.find(self.base + 1, self.end, self._stored_epoch)

    @property
    def last_epoch(self) -> int:
        """The leader_epoch of the last entry."""
        return self._epochs.last

    def epoch_at(self, offset: int) -> int:
        """The leader_epoch of the entry at base <= offset <= end."""
        return self._epochs.at(offset)

    def append(self, leader_epoch: int, body: bytes) -> int:
        """Stage; the entry's offset."""
        self.end += 1
        self._epochs.append(self.end, leader_epoch)
        self._db.put(self._key(self.end), leader_epoch.to_bytes(_EPOCH_BYTES, "big") + body)
        return self.end

    def read(self, start: int, end: int, max_bytes: int) -> list[LogEntry]:
        """The entries start..end, of which up to `max_bytes`, but at least one. Raises CORRUPT_DATA, STORAGE_FAILED."""
        assert self.base < start <= end <= self.end, f"{start} to {end} of {self.base + 1} to {self.end}"
        found = self._db.scan(self._key(start), self._key(end + 1), max_bytes=max_bytes)
        entries = [
            LogEntry(int.from_bytes(key[5:], "big"), int.from_bytes(value[:_EPOCH_BYTES], "big"), value[_EPOCH_BYTES:])
            for key, value in found
        ]
        if not entries or entries[0].offset != start or entries[-1].offset != start + len(entries) - 1:
            raise self._corrupt(f"an entry of {start} to {end} is missing")
        return entries

    def truncate(self, end: int) -> None:
        """Stage the removal of the entries behind `end`."""
        assert self.base <= end <= self.end, f"{end} of {self.base} to {self.end}"
        if end < self.end:
            self._db.delete_range(self._key(end + 1), self._key(_LAST))
            self._epochs.truncate(end + 1)
            self.end = end

    def trim(self, base: int) -> None:
        """Stage the removal of the entries up to `base`."""
        assert self.base <= base <= self.end, f"{base} of {self.base} to {self.end}"
        if base > self.base:
            self._db.delete_range(self._key(self.base + 1), self._key(base + 1))
            self._epochs.compact(base)
            self.base = base

    def reset(self, base: int, base_epoch: int) -> None:
        """Stage the removal of all entries; the next is `base` + 1."""
        self._db.delete_range(self._key(0), self._key(_LAST))
        self.base = self.end = base
        self._epochs = Epochs(base, base_epoch)

    def _key(self, offset: int) -> bytes:
        return self._prefix + offset.to_bytes(8, "big")

    def _stored_epoch(self, offset: int) -> int:
        value = self._db.get(self._key(offset))
        if value is None:
            raise self._corrupt(f"entry {offset} is missing")
        return int.from_bytes(value[:_EPOCH_BYTES], "big")

    def _corrupt(self, what: str) -> MinkaError:
        number = int.from_bytes(self._prefix[1:], "big")
        return MinkaError(Code.CORRUPT_DATA, f"partition {number}: its log in {self._db.path} is damaged: {what}")
