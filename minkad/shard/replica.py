"""One replica of a partition on this node: its row, its log, its data, and how far each is."""

import asyncio
from collections import deque
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.wire import GroupResult, WriteBody, decode_write
from minkad.shard.partition_log import PartitionLog
from minkad.storage.data_database import Applied, DataDatabase
from minkad.storage.log_database import LogDatabase

META_PREFIX: Final = b"m"
META_END: Final = b"n"
DONE: Final = GroupResult(None, None)

_REPLAY_BYTES: Final = 256 * 1024


class Role(Enum):
    """This node's part, as the row says."""

    IDLE = "idle"  # it has a copy and nothing to do: not told yet since the start, or the partition is OFFLINE
    LEADER = "leader"
    FOLLOWER = "follower"
    REMOVED = "removed"


def role_in(row: Partition, node_id: str) -> Role:
    """What the row says that the node is."""
    if node_id not in row.replicas:
        return Role.REMOVED
    if row.leader == node_id:
        return Role.LEADER
    return Role.FOLLOWER if row.leader else Role.IDLE


class ReplicaMeta(msgspec.Struct, array_like=True):
    """What has to survive a restart, besides log and data; in the log database under META_PREFIX and the id."""

    row: bytes
    base: int  # of the log
    base_epoch: int
    complete: bool  # False while a checkpoint takes the place of what was there
    followed_epoch: int  # the leader_epoch at which the content came; 0: none came from another node
    bytes: int  # size at the last flush
    keys: int


encode_meta: Final = msgspec.msgpack.Encoder().encode
decode_meta: Final = msgspec.msgpack.Decoder(ReplicaMeta).decode


def meta_key(partition_id: int) -> bytes:
    """Where a replica's meta is."""
    return META_PREFIX + partition_id.to_bytes(4, "big")


class Ticket:
    """The results of one request's groups; `done` is set when none is missing."""

    __slots__ = ("done", "missing", "results")

    def __init__(self, count: int) -> None:
        self.results: list[GroupResult | None] = [None] * count
        self.missing = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fill(self, index: int, result: GroupResult) -> None:
        """The result of a group; only the first counts."""
        if self.results[index] is not None:
            return
        self.results[index] = result
        self.missing -= 1
        if not self.missing and not self.done.done():
            self.done.set_result(None)

    def fail(self, index: int, error: MinkaError) -> None:
        """The group was refused or failed."""
        self.fill(index, GroupResult(error.to_proto().SerializeToString(), None))


class Pending(NamedTuple):
    """An entry that is appended and not applied. Without a ticket nobody waits for it."""

    offset: int
    leader_epoch: int
    write: WriteBody
    size: int
    ticket: Ticket | None
    position: int  # among the ticket's results


class Replica:
    """All for the loop's thread.

    applied <= high_watermark <= log.end. Visible is what is applied; acknowledged is a write once it is applied.
    """

    __slots__ = (
        "applied",
        "complete",
        "data",
        "durable",
        "fenced",
        "flushed",
        "flushing",
        "followed_epoch",
        "handing_over",
        "high_watermark",
        "id",
        "installing",
        "leader_watermark",
        "lock",
        "log",
        "pending",
        "queued",
        "ready_at",
        "retain",
        "role",
        "row",
        "slice_start",
        "unflushed",
    )

    def __init__(self, row: Partition, log: PartitionLog, data: DataDatabase) -> None:
        self.id = row.id
        self.row = row
        self.role = Role.IDLE
        self.log = log
        self.data = data
        self.complete = True
        self.followed_epoch = 0
        self.durable = self.high_watermark = self.applied = self.flushed = log.base
        self.leader_watermark = 0  # of a follower: the high watermark that its leader told it
        self.ready_at = 0  # a leader serves once this offset is applied
        self.fenced = False  # writes wait
        self.handing_over = False  # reads wait, too
        self.installing = False
        self.queued = False  # for applying
        self.flushing = False
        self.unflushed = 0  # bytes applied since the last flush
        self.retain: dict[str, int] = {}  # node -> it has everything up to this offset, and needs the rest of the log
        self.pending: deque[Pending] = deque()
        self.slice_start = 0  # how many keys of pending[0] are applied
        self.lock = asyncio.Lock()  # installing and deleting

    @property
    def is_ready(self) -> bool:
        """Whether it leads and has applied what it had when it began to lead."""
        return self.role is Role.LEADER and self.applied >= self.ready_at

    def meta(self) -> bytes:
        """As it is stored."""
        size = self.data.size()
        meta = ReplicaMeta(
            self.row.SerializeToString(),
            self.log.base,
            self.log.epoch_at(self.log.base),
            self.complete,
            self.followed_epoch,
            size.bytes,
            size.keys,
        )
        return encode_meta(meta)

    def stage_meta(self, log_db: LogDatabase) -> None:
        """Stage."""
        log_db.put(meta_key(self.id), self.meta())

    def open(self) -> None:
        """Open the data, if there is any, and take over how far it is. Raises CORRUPT_DATA if that does not fit the
        log.
        """
        if self.data.is_open:
            return
        if not self.complete:
            raise MinkaError(Code.CORRUPT_DATA, f"partition {self.id}: the copy was being replaced when the node ended")
        if not self.data.exists():
            if self.log.base == 0:
                return
            raise MinkaError(
                Code.CORRUPT_DATA,
                f"partition {self.id}: {self.data.path} is gone; what was written before offset {self.log.base + 1} "
                "is nowhere else on this node",
            )
        self.data.open()
        applied = self.data.applied.offset
        if not self.log.base <= applied <= self.log.end:
            raise MinkaError(
                Code.CORRUPT_DATA,
                f"partition {self.id}: {self.data.path} is at offset {applied}, its log has {self.log.base + 1} to "
                f"{self.log.end}",
            )
        self.applied = self.flushed = applied

    def apply(self, max_keys: int) -> list[Pending]:
        """Apply some of what is below the high watermark: `max_keys` or a little more. What is now applied whole.

        Raises CORRUPT_DATA, STORAGE_FAILED.
        """
        self._read_ahead()
        if len(self.pending[0].write.keys) > max_keys:
            return self._apply_slice(max_keys)
        taken: list[Pending] = []
        keys = 0
        while self.pending and self.pending[0].offset <= self.high_watermark and keys < max_keys:
            entry = self.pending[0]
            keys += len(entry.write.keys)
            if taken and keys > 2 * max_keys:
                break
            taken.append(self.pending.popleft())
        last = taken[-1]
        self.data.write([entry.write for entry in taken], Applied(last.offset, last.leader_epoch))
        self.applied = last.offset
        return taken

    def _read_ahead(self) -> None:
        """Have the next entry in `pending`: a leader's own is there, any other is read back from the log."""
        assert self.applied < self.high_watermark <= self.durable <= self.log.end
        if self.pending and self.pending[0].offset == self.applied + 1:
            return
        end = min(self.high_watermark, self.pending[0].offset - 1) if self.pending else self.high_watermark
        read = self.log.read(self.applied + 1, end, _REPLAY_BYTES)
        entries = [Pending(offset, epoch, decode_write(body), 0, None, 0) for offset, epoch, body in read]
        self.pending.extendleft(reversed(entries))

    def _apply_slice(self, max_keys: int) -> list[Pending]:
        """A part of a large entry. A crash in between repeats it from its start, which comes to the same."""
        entry = self.pending[0]
        start, end = self.slice_start, self.slice_start + max_keys
        part = WriteBody(entry.write.keys[start:end], entry.write.values[start:end])
        if end < len(entry.write.keys):
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

    def trim(self) -> bool:
        """Stage the removal of the log that nobody needs: flushed, and at all that follow. Whether there was any."""
        base = min([self.flushed, *self.retain.values()])
        if base <= self.log.base:
            return False
        self.log.trim(base)
        return True
