"""The interface of a replica to its log and its data, like the Storage of etcd's raft. Nothing here waits for a disk:
changes are staged, and the shell says when they are durable.
"""

from collections.abc import Sequence
from typing import Protocol

from minka.errors import MinkaError
from minkad.core.replication.peer_messages import Entry


class DeletedAheadError(Exception):
    """More deleted keys and older versions lie between two keys than an iterator was allowed to pass."""


class Position(Protocol):
    """The last entry that the data has."""

    @property
    def offset(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...


class ReplicaLog(Protocol):
    """Offsets begin with 1 and have no gaps. The entries up to `base` are gone, since the data has them durably."""

    base: int
    end: int
    truncations: int  # the number of times that the end went back
    keeps_tail: bool

    def append(self, leader_epoch: int, body: bytes) -> int:
        """Stage an entry, and return its offset."""

    def read(self, start: int, end: int, max_bytes: int) -> list[Entry]:
        """The entries start..end, up to `max_bytes`, but at least one. Raises CORRUPT_DATA, STORAGE_FAILED."""

    def readable(self, start: int, stored: int) -> int:
        """The offset up to which entries from `start` on can be read, if those up to `stored` are on disk."""

    def truncate(self, end: int) -> None:
        """Stage the removal of the entries after `end`."""

    def trim(self, base: int) -> None:
        """Stage the removal of the entries up to `base`."""

    def reset(self, base: int, base_epoch: int) -> None:
        """Stage the removal of all entries; the next is `base` + 1."""

    def epoch_at(self, offset: int) -> int:
        """The leader_epoch of the entry at base <= offset <= end."""

    def lineage(self) -> list[tuple[int, int]]:
        """(first offset, leader_epoch) of the leaderships along the log."""

    def common_end(self, theirs: Sequence[tuple[int, int]], their_end: int) -> int | None:
        """The offset up to which another log equals this one; None if there is none in the part that both have."""

    def keep_tail(self, keep: bool) -> None:
        """`keep`: the last entries stay in memory, to be sent or applied."""

    def drop_tail(self, offset: int) -> None:
        """Entries up to `offset` need not be in memory from now on."""

    def bound_tail(self, stored: int) -> None:
        """Keep at most the limit in memory: entries up to `stored`, which are on disk, may go."""


class ReplicaData(Protocol):
    """The data of a replica. Every method may raise CORRUPT_DATA once damage was found."""

    @property
    def is_open(self) -> bool:
        """True if the data is in memory or in an open database."""

    @property
    def is_known(self) -> bool:
        """True if `applied` is known: the data is open, or was since the node's start."""

    @property
    def applied(self) -> Position: ...
    @property
    def damage(self) -> MinkaError | None: ...

    @property
    def is_closed(self) -> bool:
        """True if the data is on disk and has to be opened before it is used: see `OpenData`."""

    @property
    def is_attached(self) -> bool:
        """True if this child of a split would have nothing, after a crash, without its parent's data."""

    def exists(self) -> bool:
        """True if the data has a folder on disk, or is attached to its parent's."""

    def condemn(self, error: MinkaError) -> None:
        """Mark the data as damaged, by this CORRUPT_DATA: it is no longer used."""

    def stored_page(
        self, start: bytes, end: bytes, reverse: bool, max_rows: int, max_bytes: int, max_passed: int
    ) -> tuple[list[bytes], list[bytes], bool]:
        """Keys and values, in their stored form (`stored_values`), from `start` on, before `end`; and True if these are
        all. Raises DeletedAheadError.
        """

    @property
    def version_base(self) -> int:
        """An entry's offset plus this is the version of its rows, if `is_known`."""

    @property
    def loaded_version(self) -> int:
        """The version of loaded rows, if `is_known`."""

    def describe(self) -> str:
        """Its path, for messages."""
