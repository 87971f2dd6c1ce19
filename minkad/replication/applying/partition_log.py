"""One partition's log in the log database: it keeps each entry at least until the data database has it durably."""

from collections.abc import Iterator, Sequence
from typing import Final

from minka.errors import MinkaError
from minkad.core.replication.epochs import Epochs
from minkad.core.replication.peer_messages import Entry
from minkad.storage.log_database import LogDatabase

_PREFIX: Final = b"p"
_PREFIX_BYTES: Final = 5  # with the partition's id
_EPOCH_BYTES: Final = 4
_LAST: Final = 2**64 - 1
_TAIL_BYTES: Final = 4 * 1024 * 1024
_MAX_LINEAGE: Final = 1000


def ends_of_logs(db: LogDatabase) -> Iterator[tuple[int, int]]:
    """(partition id, offset of the last entry) of each partition whose log has entries on disk. Raises CORRUPT_DATA,
    STORAGE_FAILED.
    """
    after = bytes([_PREFIX[0] + 1])
    for key in db.last_keys(_PREFIX, after, _PREFIX_BYTES):
        yield int.from_bytes(key[1:_PREFIX_BYTES], "big"), int.from_bytes(key[_PREFIX_BYTES:], "big")


class PartitionLog:
    """Offsets begin at 1 and have no gaps:

        trimmed: the data has it   | in the log database, or staged for it   | also in memory: the tail
        ---------------------------+-----------------------------------------+-------------------------> end
                                base                                          _tail_start

    `LogDatabase.sync` makes staged changes durable; they can't be read from the database earlier. With `keeps_tail`,
    the last entries are also in memory, and can be read at once.
    """

    __slots__ = (
        "_db",
        "_epochs",
        "_prefix",
        "_tail",
        "_tail_bytes",
        "_tail_start",
        "base",
        "end",
        "keeps_tail",
        "truncations",
    )

    def __init__(self, db: LogDatabase, partition_id: int, base: int = 0, base_epoch: int = 0) -> None:
        """The log is empty after `base` until `recover` is called."""
        self._db = db
        self._prefix = _PREFIX + partition_id.to_bytes(4, "big")  # of the keys in the database; the offset follows
        self.base = self.end = base  # the log has the entries `base` + 1 to `end`, staged ones included
        self.truncations = 0  # the number of times that `end` has gone back, or all entries were replaced
        self.keeps_tail = False
        self._epochs = Epochs(base, base_epoch)
        self._tail: dict[int, Entry] = {}  # the entries `_tail_start` to `end`, or none
        self._tail_start = 0
        self._tail_bytes = 0  # of the bodies in `_tail`

    def recover(self, end: int) -> None:
        """Take over the entries on disk, up to `end` (of `ends_of_logs`). Raises CORRUPT_DATA, STORAGE_FAILED."""
        if end > self.base:
            self.end = end
            self._epochs.find(self.base + 1, self.end, self._stored_epoch)

    def epoch_at(self, offset: int) -> int:
        """The leader_epoch of the entry at base <= offset <= end."""
        return self._epochs.at(offset)

    def lineage(self) -> list[tuple[int, int]]:
        """(first offset, leader_epoch) of the last thousand leaderships along the log."""
        return self._epochs.lineage()[-_MAX_LINEAGE:]

    def common_end(self, theirs: Sequence[tuple[int, int]], their_end: int) -> int | None:
        """See `Epochs.common`."""
        return self._epochs.common(self.end, theirs, their_end)

    def keep_tail(self, keep: bool) -> None:
        """`keep`: from now on the last entries stay in memory, where they are sent or applied from."""
        self.keeps_tail = keep
        if not keep:
            self._drop_tail()

    def append(self, leader_epoch: int, body: bytes) -> int:
        """Stage an entry, and return its offset."""
        self.end += 1
        self._epochs.append(self.end, leader_epoch)
        self._db.put(self._key(self.end), leader_epoch.to_bytes(_EPOCH_BYTES, "big") + body)
        if self.keeps_tail:
            if not self._tail:
                self._tail_start = self.end
            self._tail[self.end] = Entry(leader_epoch, body)
            self._tail_bytes += len(body)
        return self.end

    def read(self, start: int, end: int, max_bytes: int) -> list[Entry]:
        """The entries start..end, at most `max_bytes` but at least one entry. Raises CORRUPT_DATA, STORAGE_FAILED."""
        assert self.base < start <= end <= self.end, f"{start} to {end} of {self.base + 1} to {self.end}"
        if start in self._tail:
            return self._read_tail(start, end, max_bytes)
        found = self._db.scan(self._key(start), self._key(end + 1), max_bytes=max_bytes)
        if not found or self._offset(found[0][0]) != start or self._offset(found[-1][0]) != start + len(found) - 1:
            raise self._corrupt(f"an entry of {start} to {end} is missing")
        return [Entry(int.from_bytes(value[:_EPOCH_BYTES], "big"), value[_EPOCH_BYTES:]) for _, value in found]

    def readable(self, start: int, stored: int) -> int:
        """The offset up to which entries from `start` on can be read, if the database has those up to `stored`."""
        return self.end if start in self._tail else min(stored, self.end)

    def drop_tail(self, offset: int) -> None:
        """Entries up to `offset` no longer need to be in memory."""
        while self._tail and self._tail_start <= offset:
            self._drop_first()

    def bound_tail(self, stored: int) -> None:
        """Drop first entries of the tail while it is larger than `_TAIL_BYTES`, but none after `stored`: the database
        lacks those.
        """
        while self._tail_bytes > _TAIL_BYTES and self._tail_start <= stored:
            self._drop_first()

    def truncate(self, end: int) -> None:
        """Stage the removal of the entries after `end`."""
        assert self.base <= end <= self.end, f"{end} of {self.base} to {self.end}"
        if end < self.end:
            self._db.delete_range(self._key(end + 1), self._key(_LAST))
            self._epochs.truncate(end + 1)
            self._end_at(end)

    def trim(self, base: int) -> None:
        """Stage the removal of the entries up to `base`."""
        assert self.base <= base <= self.end, f"{base} of {self.base} to {self.end}"
        if base > self.base:
            self._db.delete_range(self._key(self.base + 1), self._key(base + 1))
            self._epochs.compact(base)
            self.base = base
            self.drop_tail(base)

    def reset(self, base: int, base_epoch: int) -> None:
        """Stage the removal of all entries. The next entry gets the offset `base` + 1."""
        self._db.delete_range(self._key(0), self._key(_LAST))
        self.base = base
        self._epochs = Epochs(base, base_epoch)
        self._end_at(base)

    async def sync(self) -> None:
        """Wait until everything staged is durable. Raises STORAGE_FAILED."""
        await self._db.sync()

    def _end_at(self, end: int) -> None:
        self.end = end
        self.truncations += 1
        self._drop_tail()

    def _read_tail(self, start: int, end: int, max_bytes: int) -> list[Entry]:
        taken: list[Entry] = []
        size = 0
        for offset in range(start, end + 1):
            entry = self._tail[offset]
            size += len(entry.body)
            if taken and size > max_bytes:
                break
            taken.append(entry)
        return taken

    def _drop_tail(self) -> None:
        self._tail.clear()
        self._tail_bytes = 0

    def _drop_first(self) -> None:
        self._tail_bytes -= len(self._tail.pop(self._tail_start).body)
        self._tail_start += 1

    def _key(self, offset: int) -> bytes:
        return self._prefix + offset.to_bytes(8, "big")

    @staticmethod
    def _offset(key: bytes) -> int:
        return int.from_bytes(key[5:], "big")

    def _stored_epoch(self, offset: int) -> int:
        value = self._db.get(self._key(offset))
        if value is None:
            raise self._corrupt(f"entry {offset} is missing")
        return int.from_bytes(value[:_EPOCH_BYTES], "big")

    def _corrupt(self, what: str) -> MinkaError:
        number = int.from_bytes(self._prefix[1:], "big")
        return self._db.damaged(f"of partition {number} {what}")
