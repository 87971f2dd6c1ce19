"""One replica of a partition with its data: `minkad.core.replication` decides, here entries are applied."""

import asyncio
from collections import deque
from typing import Final, NamedTuple

import msgspec

from minka.v1.cluster_pb2 import Partition
from minka.wire import GroupResult, WriteBody
from minkad.core.replication.entries import Mark, SlowMark, TrimToRange, decode_entry
from minkad.core.replication.node import Node
from minkad.core.replication.replica import Replica as ReplicaCore
from minkad.core.replication.state import Applying, Copy, Role
from minkad.replication.load import Load
from minkad.replication.partition_log import PartitionLog
from minkad.replication.ticket import Ticket
from minkad.storage.data_database import Applied, DataDatabase
from minkad.storage.log_database import LogDatabase

META_PREFIX: Final = b"m"
META_END: Final = b"n"
DONE: Final = GroupResult(None, None)

_REPLAY_BYTES: Final = 256 * 1024


class ReplicaMeta(msgspec.Struct, array_like=True):
    """What has to survive a restart, besides log and data; in the log database under META_PREFIX and the id."""

    row: bytes
    base: int  # of the log
    base_epoch: int
    complete: bool  # False while a checkpoint takes the place of what was there
    bytes: int  # size at the last flush
    keys: int
    untrimmed: bool = False  # the data may have keys that are another partition's since a split


encode_meta: Final = msgspec.msgpack.Encoder().encode
decode_meta: Final = msgspec.msgpack.Decoder(ReplicaMeta).decode


def meta_key(partition_id: int) -> bytes:
    """Where a replica's meta is."""
    return META_PREFIX + partition_id.to_bytes(4, "big")


class Pending(NamedTuple):
    """An entry that is not applied. Without a ticket nobody waits for it."""

    offset: int
    leader_epoch: int
    write: WriteBody | Mark
    size: int
    ticket: Ticket | None
    position: int  # among the ticket's results


class Replica(ReplicaCore):
    """For the loop's thread."""

    __slots__ = ("load", "lock", "pending", "slice_start", "unflushed")

    log: PartitionLog
    data: DataDatabase

    def __init__(
        self, node: Node, row: Partition, log: PartitionLog, data: DataDatabase, change_bytes: int = 0
    ) -> None:
        """`change_bytes`: see `Retention`."""
        super().__init__(node, row, log, data, change_bytes)
        self.load = Load()
        self.unflushed = 0  # bytes applied since the last flush
        # In the order of their offsets. What isn't here, of what is to be applied, is read back from the log.
        self.pending: deque[Pending] = deque()
        self.slice_start = 0  # how many keys of pending[0] are applied
        self.lock = asyncio.Lock()  # installing and deleting

    def recover(self, meta: ReplicaMeta) -> None:
        """Take over what was stored. Raises CORRUPT_DATA, STORAGE_FAILED."""
        self.copy = Copy.WHOLE if meta.complete else Copy.INCOMPLETE
        if meta.untrimmed:
            self.trim.suspect(self.row.partition_epoch)
        self.led_before = self.row.leader_epoch if self.row.leader == self.node.id else 0
        self.log.recover()
        self.recovered_to(self.log.end)

    def stage_meta(self, log_db: LogDatabase) -> None:
        """Stage what has to survive a restart."""
        size = self.data.size()
        meta = ReplicaMeta(
            self.row.SerializeToString(),
            self.log.base,
            self.log.epoch_at(self.log.base),
            self.is_complete,
            size.bytes,
            size.keys,
            self.trim.has_foreign,
        )
        log_db.put(meta_key(self.id), encode_meta(meta))

    def still_has(self, data: DataDatabase) -> bool:
        """Whether this is its data, after a wait: it was neither deleted nor replaced by a checkpoint."""
        return self.role is not Role.REMOVED and self.data is data

    async def log_first(self) -> None:
        """To be awaited before anything of the data is made durable: the data must not be durable before the log.
        Raises STORAGE_FAILED.
        """
        if self.is_async:
            await self.log.sync()

    def replace_data(self, data: DataDatabase) -> None:
        """Empty data takes the place of what was damaged."""
        self.data = data
        self.slice_start = 0
        self.begin_again()

    # Applying

    def next_slow_mark(self) -> SlowMark | None:
        """The next entry to apply, if it is one that is done beside the loop. Raises CORRUPT_DATA, STORAGE_FAILED."""
        self._read_ahead()
        entry = self.pending[0].write
        return entry if isinstance(entry, SlowMark) else None

    def begin_mark(self) -> Pending:
        """Apply nothing until `end_mark`; the mark."""
        assert self.applying is not Applying.AT_MARK, f"partition {self.id} is at a mark already"
        self.applying = Applying.AT_MARK
        return self.pending[0]

    def passed(self, entry: Pending) -> None:
        """What the mark asks for is done."""
        if self.pending and self.pending[0].offset == entry.offset:
            self.pending.popleft()
        self.applied = entry.offset

    def end_mark(self) -> None:
        """Applying goes on, after the mark if it was passed."""
        self.applying = Applying.IDLE

    def apply(self, max_keys: int) -> list[Pending]:
        """Apply some of what is below the high watermark and before a slow mark: `max_keys` or a little more. What is
        now applied whole. Raises CORRUPT_DATA, STORAGE_FAILED.
        """
        self._read_ahead()
        first = self.pending[0].write
        if isinstance(first, TrimToRange):
            return [self._trim(first)]
        assert isinstance(first, WriteBody), f"a slow mark is passed otherwise: {self}"
        if len(first.keys) > max_keys:
            return self._apply_slice(first, max_keys)
        taken: list[Pending] = []
        writes: list[WriteBody] = []
        keys, offset = 0, self.applied
        while self.pending and self.pending[0].offset == offset + 1 <= self.high_watermark and keys < max_keys:
            write = self.pending[0].write
            if not isinstance(write, WriteBody):
                break
            keys += len(write.keys)
            if taken and keys > 2 * max_keys:
                break
            taken.append(self.pending.popleft())
            writes.append(write)
            offset += 1
        last = taken[-1]
        self.data.write(writes, Applied(last.offset, last.leader_epoch))
        self.applied = last.offset
        return taken

    def _trim(self, mark: TrimToRange) -> Pending:
        entry = self.pending.popleft()
        removed = self.data.keep(mark.range, Applied(entry.offset, entry.leader_epoch))
        self.applied = entry.offset
        self.trimmed(mark, removed_any=removed)
        return entry

    def _read_ahead(self) -> None:
        """Have the next entry in `pending`: a client's write is there, any other is read back from the log."""
        assert self.applied < self.high_watermark <= self.durable <= self.log.end, self
        if self.pending and self.pending[0].offset == self.applied + 1:
            return
        end = min(self.high_watermark, self.pending[0].offset - 1) if self.pending else self.high_watermark
        entries = [
            Pending(offset, entry.leader_epoch, decode_entry(entry.body), len(entry.body), None, 0)
            for offset, entry in enumerate(self.log.read(self.applied + 1, end, _REPLAY_BYTES), self.applied + 1)
        ]
        self.pending.extendleft(reversed(entries))

    def _apply_slice(self, write: WriteBody, max_keys: int) -> list[Pending]:
        """A part of a large entry. A crash in between repeats it from its start, which comes to the same."""
        entry = self.pending[0]
        start, end = self.slice_start, self.slice_start + max_keys
        part = WriteBody(write.keys[start:end], write.values[start:end])
        if end < len(write.keys):
            self.data.write([part], self.data.applied)
            self.slice_start = end
            return []
        self.data.write([part], Applied(entry.offset, entry.leader_epoch))
        self.applied, self.slice_start = entry.offset, 0
        return [self.pending.popleft()]

    def drop_pending(self) -> list[Pending]:
        """Forget what is not applied: it is read back from the log if it is to be applied after all."""
        dropped = list(self.pending)
        self.pending.clear()
        self.slice_start = 0
        return dropped
