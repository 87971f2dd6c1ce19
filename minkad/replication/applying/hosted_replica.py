"""One replica with its log and data. `minkad.core.replication` decides; this module applies entries."""

import asyncio
from collections import deque
from typing import Final, NamedTuple, cast

import msgspec

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.wire.kv_frames import GroupResult, WriteBody
from minkad.core.replication.entries import Mark, TrimToRange, decode_entry
from minkad.core.replication.replica import Replica
from minkad.core.replication.replica_state import Role
from minkad.core.replication.shared_state import SharedState
from minkad.replication.applying.partition_log import PartitionLog
from minkad.replication.reading.replica_load import Load
from minkad.replication.serving.ticket import Ticket
from minkad.replication.serving.unapplied import Unapplied
from minkad.storage.applied import Applied
from minkad.storage.data_database import DataDatabase
from minkad.storage.log_database import LogDatabase
from minkad.storage.versions import Versions

META_PREFIX: Final = b"m"
META_END: Final = b"n"
DONE: Final = GroupResult(None, None)

_REPLAY_BYTES: Final = 256 * 1024  # read back from the log at once
_NOTHING: Final = Unapplied()  # for all replicas without unapplied entries; never changed


class ReplicaMeta(msgspec.Struct, array_like=True):
    """The state that survives a restart, besides log and data. The log database has it under `meta_key`."""

    row: bytes
    base: int  # of the log
    base_epoch: int
    complete: bool  # False while a checkpoint replaces log and data
    bytes: int  # of keys and values; an estimate, as of the last change of the meta
    keys: int  # an estimate, too
    untrimmed: bool = False  # the data may have keys outside of the range
    attached_to: int = 0  # the parent to whose data this child's data is attached, as of `base`; 0: not attached
    versions: Versions = Versions()  # of an attached child's data: the parent's versions as of `base`


encode_meta: Final = msgspec.msgpack.Encoder().encode
decode_meta: Final = msgspec.msgpack.Decoder(ReplicaMeta).decode


def meta_key(partition_id: int) -> bytes:
    """The key under which a replica's meta is kept."""
    return META_PREFIX + partition_id.to_bytes(4, "big")


class Pending(NamedTuple):
    """An entry that is not applied yet. `ticket` is None if no client waits for it."""

    offset: int
    leader_epoch: int
    write: WriteBody | Mark
    size: int  # of the encoded entry, in bytes
    ticket: Ticket | None
    position: int  # the index of the entry's group in the ticket
    answer: GroupResult = DONE  # the group's result once the entry is applied


class HostedReplica:
    """A replica's state, and what the shell has for the replica. For the loop's thread."""

    __slots__ = (
        "_pending",
        "_unapplied",
        "decidable_at",
        "load",
        "lock",
        "log",
        "not_split",
        "slice_start",
        "state",
        "unflushed",
    )

    def __init__(
        self, shared: SharedState, row: Partition, log: PartitionLog, data: DataDatabase, change_bytes: int = 0
    ) -> None:
        """`change_bytes`: see `Retention`."""
        self.state: Final = Replica(shared, row, log, data, change_bytes)
        self.log: Final = log
        self.load = Load(row.id, shared.used)
        self.unflushed = 0  # the bytes of the entries applied since the last flush began
        self._pending: deque[Pending] | None = None  # see `pending`; an empty deque would take much memory
        self._unapplied: Unapplied | None = None  # see `unapplied_rows`
        # Operations wait until this offset is applied: the effects of entries up to here on rows aren't known earlier.
        self.decidable_at = 0
        self.slice_start = 0  # this many keys of pending[0], a large entry, are applied already
        self.not_split = ""  # why the partition isn't split although it is too large
        self.lock = asyncio.Lock()  # held while the data is replaced, deleted, or changed by a slow mark

    def __repr__(self) -> str:
        return repr(self.state)

    @property
    def id(self) -> int:
        """The partition's id."""
        return self.state.id

    @property
    def data(self) -> DataDatabase:
        """The replica's data. After a wait this may be another object: see `still_has`."""
        return cast("DataDatabase", self.state.data)

    @property
    def pending(self) -> deque[Pending]:
        """Entries that aren't applied yet, by offset. Those that aren't here are read back from the log: see
        `_read_ahead`.
        """
        if self._pending is None:
            self._pending = deque()
        return self._pending

    def add_pending(self, entry: Pending) -> None:
        """A client's write was appended."""
        self.pending.append(entry)
        if self._unapplied is not None:
            self._note(entry)

    def unapplied_rows(self) -> Unapplied:
        """The effects of the unapplied entries on rows. They are known if this replica leads, and has applied
        `decidable_at`.
        """
        if self._unapplied is None and not self._pending:
            return _NOTHING
        if self._unapplied is None:
            self._unapplied = Unapplied()
            for entry in self.pending:
                self._note(entry)
        return self._unapplied

    def _note(self, entry: Pending) -> None:
        if self._unapplied is not None and isinstance(entry.write, WriteBody):
            self._unapplied.appended(entry.offset, entry.write, entry.offset + self.state.version_base(entry.offset))

    def note_applied(self, entries: list[Pending]) -> None:
        """The entries are applied: give out the answers of operations that wait for them."""
        if self._unapplied is None:
            return
        for entry in entries:
            if isinstance(entry.write, WriteBody):
                self._unapplied.applied(entry.offset, entry.write)
        if not self._pending:
            self._unapplied = None

    def recover(self, meta: ReplicaMeta, log_end: int) -> None:
        """Take over the stored meta and the log, whose last entry on disk is `log_end` (0: there is none). Raises
        CORRUPT_DATA, STORAGE_FAILED.
        """
        self.log.recover(log_end)
        self.state.recover(is_complete=meta.complete, has_foreign=meta.untrimmed)

    def stage_meta(self, log_db: LogDatabase) -> None:
        """Stage the replica's meta: see `ReplicaMeta`."""
        size, attachment = self.data.size(), self.data.attachment
        meta = ReplicaMeta(
            self.state.row.SerializeToString(),
            self.log.base,
            self.log.epoch_at(self.log.base),
            self.state.is_complete,
            size.bytes,
            size.keys,
            self.state.trim.has_foreign,
            attachment.parent_id if attachment is not None else 0,
            attachment.versions if attachment is not None else Versions(),
        )
        log_db.put(meta_key(self.id), encode_meta(meta))

    def still_has(self, data: DataDatabase) -> bool:
        """True if, after a wait, `data` is still the replica's: nobody has deleted the replica, and no checkpoint has
        replaced the data or begun to.
        """
        return self.state.role is not Role.REMOVED and self.data is data and self.state.is_complete

    def broke(self, error: BaseException) -> None:
        """A bug made a step on this replica fail. The replica counts as damaged, so that the node goes on with its
        other replicas. (If the node ended, a mark in the log could make each node with a replica end at each start.)
        """
        self.data.condemn(MinkaError(Code.CORRUPT_DATA, f"partition {self.id}: it can't go on: {error!r}"))

    async def log_first(self) -> None:
        """Make the log durable, if it is `async`. Await this before you make the data durable, since the data must not
        be ahead of the log on disk. Raises STORAGE_FAILED.
        """
        if self.state.is_async:
            await self.log.sync()

    async def clear(self, wanted: KeyRange, *, reverse: bool = False) -> KeyRange:
        """See `DataDatabase.clear`."""
        await self.log_first()
        return await self.data.clear(wanted, reverse)

    # Applying

    def next_mark(self) -> Mark | None:
        """The next entry to apply, if it is a mark. Raises CORRUPT_DATA, STORAGE_FAILED."""
        self._read_ahead()
        entry = self.pending[0].write
        return None if isinstance(entry, WriteBody) else entry

    @property
    def is_held_up(self) -> bool:
        """True if the next entry, which must be in `pending`, is a mark that has to wait, because a child and its
        parent share data.
        """
        entry = self.pending[0]
        return not isinstance(entry.write, WriteBody) and self.data.is_shared(entry.offset)

    def passed(self, entry: Pending) -> None:
        """The mark is carried out, and the data's applied offset includes it."""
        if self.pending and self.pending[0].offset == entry.offset:
            self.pending.popleft()

    def apply_trim(self, mark: TrimToRange) -> tuple[Pending, bool]:
        """Remove the keys outside of the mark's range. Returns the mark's entry, and True if there were any such keys.
        Raises CORRUPT_DATA, STORAGE_FAILED.
        """
        entry = self.pending.popleft()
        return entry, self.data.trim_to_range(mark.range, Applied(entry.offset, entry.leader_epoch))

    def apply(self, max_keys: int) -> list[Pending]:
        """Apply about `max_keys` keys of writes: up to the high watermark, and before the next mark. Returns the
        entries that are now wholly applied. Raises CORRUPT_DATA, STORAGE_FAILED.
        """
        pending, high_watermark = self.pending, self.state.high_watermark
        first = pending[0].write
        assert isinstance(first, WriteBody), f"a mark is passed otherwise: {self}"
        if len(first.keys) > max_keys:
            return self._apply_slice(first, max_keys)
        taken: list[Pending] = []
        writes: list[WriteBody] = []
        keys, offset = 0, self.state.applied
        while pending and pending[0].offset == offset + 1 <= high_watermark and keys < max_keys:
            write = pending[0].write
            if not isinstance(write, WriteBody):
                break
            keys += len(write.keys)
            if taken and keys > 2 * max_keys:
                break
            taken.append(pending.popleft())
            writes.append(write)
            offset += 1
        last = taken[-1]
        self.data.write(writes, Applied(last.offset, last.leader_epoch))
        return taken

    def _read_ahead(self) -> None:
        """Make sure that the next entry is in `pending`. Clients' writes are there already; read others back from the
        log:

            applied | read back from the log | pending: clients' writes |
            --------+------------------------+--------------------------+-> log.end
        """
        assert self.state.applied < self.state.high_watermark <= self.state.durable <= self.log.end, self
        pending = self.pending
        if pending and pending[0].offset == self.state.applied + 1:
            return
        end = min(self.state.high_watermark, pending[0].offset - 1) if pending else self.state.high_watermark
        entries = [
            Pending(offset, entry.leader_epoch, decode_entry(entry.body), len(entry.body), None, 0)
            for offset, entry in enumerate(
                self.log.read(self.state.applied + 1, end, _REPLAY_BYTES), self.state.applied + 1
            )
        ]
        pending.extendleft(reversed(entries))

    def _apply_slice(self, write: WriteBody, max_keys: int) -> list[Pending]:
        """Apply a part of a large entry. After a crash, the whole entry is applied again, with the same result."""
        entry = self.pending[0]
        start, end = self.slice_start, self.slice_start + max_keys
        part = msgspec.structs.replace(write, keys=write.keys[start:end], values=write.values[start:end])
        if end < len(write.keys):
            self.data.write([part], self.data.applied, entry.offset)
            self.slice_start = end
            return []
        self.data.write([part], Applied(entry.offset, entry.leader_epoch))
        self.slice_start = 0
        return [self.pending.popleft()]

    def drop_pending(self) -> list[Pending]:
        """Forget the entries in `pending`, and return them. Those that are applied later are read back from the log."""
        dropped = list(self._pending or ())
        if self._unapplied is not None:
            nothing, epoch = WriteBody([], []), self.state.row.leader_epoch
            dropped += [Pending(0, epoch, nothing, 0, *waiting) for waiting in self._unapplied.waiting()]
        self._pending = self._unapplied = None
        self.decidable_at = self.log.end
        self.slice_start = 0
        return dropped
