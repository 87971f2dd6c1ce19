"""The interface of a replica to its log and its data (etcd/raft: Storage). No method waits for a disk: the methods
stage changes, and the shell says when these changes are durable.
"""

from collections.abc import Sequence
from typing import Protocol

from minka.errors import MinkaError
from minkad.core.replication.peer_messages import Entry


class DeletedAheadError(Exception):
    """An iterator had to pass more deleted keys and older versions than it was allowed to."""


class Position(Protocol):
    """The last entry that the data has."""

    @property
    def offset(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...


class ReplicaLog(Protocol):
    """Offsets begin with 1 and have no gaps. The log has the entries `base` + 1 to `end`; the data has the earlier ones
    durably.
    """

    base: int
    end: int
    truncations: int  # the number of calls that have moved `end` back
    keeps_tail: bool  # the last entries stay in memory: see `keep_tail`

    def append(self, leader_epoch: int, body: bytes) -> int:
        """Stage an entry, and return its offset."""

    def read(self, start: int, end: int, max_bytes: int) -> list[Entry]:
        """The entries start..end, at most `max_bytes` but at least one entry. Raises CORRUPT_DATA, STORAGE_FAILED."""

    def readable(self, start: int, stored: int) -> int:
        """The offset up to which entries from `start` on can be read, if the disk has those up to `stored`."""

    def truncate(self, end: int) -> None:
        """Stage the removal of the entries after `end`."""

    def trim(self, base: int) -> None:
        """Stage the removal of the entries up to `base`."""

    def reset(self, base: int, base_epoch: int) -> None:
        """Stage the removal of all entries. The next entry gets the offset `base` + 1."""

    def epoch_at(self, offset: int) -> int:
        """The leader_epoch of the entry at base <= offset <= end."""

    def lineage(self) -> list[tuple[int, int]]:
        """(first offset, leader_epoch) of the leaderships along the log."""

    def common_end(self, theirs: Sequence[tuple[int, int]], their_end: int) -> int | None:
        """See `Epochs.common`."""

    def keep_tail(self, keep: bool) -> None:
        """`keep`: from now on the last entries stay in memory, where they are sent or applied from."""

    def drop_tail(self, offset: int) -> None:
        """From now on, entries up to `offset` need not be in memory."""

    def bound_tail(self, stored: int) -> None:
        """Keep at most the limit in memory: forget first entries, but none after `stored`, which the disk lacks."""


class ReplicaData(Protocol):
    """The data of a replica. Every method may raise CORRUPT_DATA once damage was found."""

    @property
    def is_open(self) -> bool:
        """True if the data is in memory or in an open database."""

    @property
    def is_known(self) -> bool:
        """True if `applied` is known: the data is open, or was open since the node's start."""

    @property
    def applied(self) -> Position: ...
    @property
    def damage(self) -> MinkaError | None: ...

    @property
    def is_closed(self) -> bool:
        """True if the data is on disk, and the shell has to open it before its use: see `OpenData`."""

    @property
    def is_attached(self) -> bool:
        """True if, after a crash, this child of a split would have no data without its parent's data."""

    def exists(self) -> bool:
        """True if the data has a folder on disk, or is attached to its parent's."""

    def condemn(self, error: MinkaError) -> None:
        """Mark the data as damaged: from now on each use raises this CORRUPT_DATA."""

    def stored_page(
        self, start: bytes, end: bytes, reverse: bool, max_rows: int, max_bytes: int, max_passed: int
    ) -> tuple[list[bytes], list[bytes], bool]:
        """Keys, and values in their stored form (`stored_values`), from `start` on and before `end`; and True if these
        are all in the range. Raises DeletedAheadError.
        """

    @property
    def version_base(self) -> int:
        """The version base, if `is_known`: offset + base is the version of an entry's rows."""

    @property
    def loaded_version(self) -> int:
        """The version of loaded rows, if `is_known`."""

    def describe(self) -> str:
        """The path, for messages."""
