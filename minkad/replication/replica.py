"""One replica of a partition on this node: its row, its log, its data, and how far each is."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

import msgspec

from minka import wire
from minka.errors import Code, MinkaError
from minka.ranges import KeyRange
from minka.v1.cluster_pb2 import Partition
from minka.wire import GroupResult, WriteBody
from minkad.process.memory import Share
from minkad.replication.entries import Keep, Mark, SlowMark, SplitMarker, decode_entry
from minkad.replication.load import Load
from minkad.replication.partition_log import PartitionLog
from minkad.storage.data_database import Applied, DataDatabase
from minkad.storage.log_database import LogDatabase

META_PREFIX: Final = b"m"
META_END: Final = b"n"
DONE: Final = GroupResult(None, None)

NEVER: Final = float("-inf")
UNKNOWN: Final = 2**63  # greater than any offset

_REPLAY_BYTES: Final = 256 * 1024
_FLUSHES_KEPT: Final = 4


class Role(Enum):
    """This node's part, as the row says."""

    IDLE = "idle"  # it has a copy and nothing to do: not told yet since the start, or the partition is OFFLINE
    LEADER = "leader"
    FOLLOWER = "follower"
    REMOVED = "removed"


def role_in(row: Partition, node_id: str) -> Role:
    """What the row says that the node is."""
    if node_id not in row.replicas or node_id in row.removing_replicas:
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
    bytes: int  # size at the last flush
    keys: int
    untrimmed: bool = False  # the data may have keys that are another partition's since a split


encode_meta: Final = msgspec.msgpack.Encoder().encode
decode_meta: Final = msgspec.msgpack.Decoder(ReplicaMeta).decode


def meta_key(partition_id: int) -> bytes:
    """Where a replica's meta is."""
    return META_PREFIX + partition_id.to_bytes(4, "big")


class Ticket:
    """The results of one request's groups; `done` is set when none is missing."""

    __slots__ = ("began", "done", "missing", "results", "share", "size")

    def __init__(self, count: int, share: Share, began: float) -> None:
        """The bodies of answers are taken from `share`. `began`: when the request came, by the node's clock."""
        self.share = share
        self.began = began
        self.size = 0  # of them, in bytes
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

    def answer(self, index: int, body: bytes) -> None:
        """What was read for a group. Raises TOO_LARGE when that is too much for one answer."""
        if self.results[index] is not None:
            return
        if self.size + len(body) > wire.MAX_ANSWER_BYTES:
            raise too_large()
        self.size += len(body)
        self.share.take(len(body))
        self.fill(index, GroupResult(None, body))

    def fail(self, index: int, error: MinkaError) -> None:
        """The group was refused or failed."""
        self.fill(index, GroupResult(error.to_proto().SerializeToString(), None))


def too_large() -> MinkaError:
    """More is asked for than one answer may have."""
    return MinkaError(Code.TOO_LARGE, f"an answer of more than {wire.MAX_ANSWER_BYTES >> 20} MiB")


class Pending(NamedTuple):
    """An entry that is appended and not applied. Without a ticket nobody waits for it."""

    offset: int
    leader_epoch: int
    write: WriteBody | Mark
    size: int
    ticket: Ticket | None
    position: int  # among the ticket's results


class Following(Protocol):
    """Another node's replica, as the leader sees it."""

    matched: int  # what it has, as durably as the keyspace asks
    sending: bool  # it is known where it stands

    def look(self) -> None:
        """There may be more to send."""

    def watermark_moved(self) -> None:
        """More is committed."""


class Replica:
    """All for the loop's thread.

    applied <= high_watermark <= durable <= log.end. Visible is what is applied; acknowledged is a write once it is
    applied. Committed is what is up to the high watermark: the whole in-sync set has it (KIP-101).
    """

    __slots__ = (
        "applied",
        "applied_bytes",
        "barrier",
        "complete",
        "counted",
        "data",
        "durable",
        "epoch_start",
        "fenced",
        "flushed",
        "flushed_bytes",
        "flushes",
        "flushing",
        "followers",
        "fresh_at",
        "frozen",
        "handing_over",
        "high_watermark",
        "id",
        "installing",
        "is_async",
        "keeping",
        "kept",
        "leader_watermark",
        "led_before",
        "load",
        "lock",
        "log",
        "lost",
        "making",
        "mark",
        "mark_at",
        "mending",
        "min_insync",
        "not_split",
        "pending",
        "queued",
        "ready_at",
        "retain",
        "retain_bytes",
        "role",
        "row",
        "ships_unsynced",
        "slice_start",
        "unflushed",
        "untrimmed",
    )

    def __init__(self, row: Partition, log: PartitionLog, data: DataDatabase) -> None:
        self.id = row.id
        self.row = row
        self.role = Role.IDLE
        self.log = log
        self.data = data
        self.complete = True
        self.min_insync = 1
        self.is_async = False  # then "durable" means: handed to the operating system
        self.barrier: asyncio.Future[None] | None = None  # the last entry that has to be on the disk
        self.led_before = 0  # the leader_epoch at which it may have led before the node's start: it must not go on
        self.durable = self.high_watermark = self.applied = self.flushed = log.base
        # Of a leader: all other replicas, those whose offsets bound the high watermark, and whether they may be sent
        # what is not synced here. It may once it is durable here that this leader_epoch was this node's.
        self.followers: Mapping[str, Following] = {}
        self.counted: Sequence[Following] = ()
        self.ships_unsynced = False
        # Of a follower: the high watermark that its leader told it, and where that one's epoch starts, before which all
        # may have been acknowledged; when its data was certainly the newest, by this node's clock; and what it has to
        # have applied for that to have been at `mark_at`.
        self.leader_watermark = 0
        self.epoch_start = UNKNOWN
        self.fresh_at = NEVER
        self.mark = UNKNOWN
        self.mark_at = NEVER
        self.ready_at = 0  # a leader serves once this offset is applied
        self.fenced = False  # writes wait
        self.handing_over = False  # reads wait, too
        self.frozen = False  # writes wait, since it is about to be part of another partition
        self.installing = False
        self.mending = False  # its data was damaged, and is being made of its log
        self.queued = False  # for applying
        self.making = False  # it applies nothing until what a mark in its log asks for is done
        self.flushing = False
        self.untrimmed = False  # there may be keys outside of the range
        self.keeping = False  # the log will say soon which keys stay
        self.kept: KeyRange | None = None  # the log has said so, and what was removed still takes room
        self.not_split = ""  # why it is not split although it is too large
        self.load = Load()
        self.unflushed = 0  # bytes applied since the last flush
        self.applied_bytes = 0  # since the node's start
        self.retain_bytes = 0  # of the log's newest entries, for who follows changes
        self.flushed_bytes: deque[tuple[int, int]] = deque()  # how far flushes were, and `applied_bytes` then
        self.retain: dict[str, int] = {}  # node -> it has everything up to this offset, and needs the rest of the log
        self.lost: set[str] = set()  # of those, whom the log does not wait for any longer than a few flushes
        self.flushes: deque[int] = deque(maxlen=_FLUSHES_KEPT)  # how far the last of them were
        self.pending: deque[Pending] = deque()
        self.slice_start = 0  # how many keys of pending[0] are applied
        self.lock = asyncio.Lock()  # installing and deleting

    def __repr__(self) -> str:
        offsets = f"{self.log.base} <= {self.applied} <= {self.high_watermark} <= {self.durable} <= {self.log.end}"
        return f"<{self.role.value} of partition {self.id}: {offsets}>"

    @property
    def is_ready(self) -> bool:
        """Whether it leads and has applied what it had when it began to lead, and its data is whole."""
        return self.role is Role.LEADER and self.applied >= self.ready_at and self.damage is None

    @property
    def damage(self) -> MinkaError | None:
        """Why nothing of its data is used any more; None while it is whole, as far as is known."""
        return self.data.damage

    @property
    def is_in_log(self) -> bool:
        """Whether its log has all that was ever written to it, so that its data can be made of the log."""
        return self.log.base == 0 and self.complete

    @property
    def is_made(self) -> bool:
        """Whether this replica of a child has what the split gave it, or a copy of that from its leader."""
        return self.log.base > 0

    @property
    def awaits_split(self) -> bool:
        """Whether it is yet to be made of its parent's data."""
        return self.row.splitting and not self.row.split_to and not self.is_made

    def meta(self) -> bytes:
        """As it is stored."""
        size = self.data.size()
        meta = ReplicaMeta(
            self.row.SerializeToString(),
            self.log.base,
            self.log.epoch_at(self.log.base),
            self.complete,
            size.bytes,
            size.keys,
            self.untrimmed,
        )
        return encode_meta(meta)

    def still_has(self, data: DataDatabase) -> bool:
        """Whether this is its data, after a wait: it was neither deleted nor replaced by a checkpoint."""
        return self.role is not Role.REMOVED and self.data is data

    def stage_meta(self, log_db: LogDatabase) -> None:
        """Stage."""
        log_db.put(meta_key(self.id), self.meta())

    def open(self) -> None:
        """Open the data, if there is any, and take over how far it is. Raises CORRUPT_DATA if it is damaged or does not
        fit the log, from then on each time.
        """
        if self.damage is not None:
            raise self.damage
        if self.data.is_open:
            return
        try:
            self._open()
        except MinkaError as error:
            if error.code is Code.CORRUPT_DATA:
                self.data.condemn(error)
            raise

    def _open(self) -> None:
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
        if self.is_async and applied > self.log.end:
            # A power cut took the end of the log, and the data had been written a moment before.
            self.log.reset(applied, self.data.applied.leader_epoch)
            self.durable = applied
        if not self.log.base <= applied <= self.log.end:
            raise MinkaError(
                Code.CORRUPT_DATA,
                f"partition {self.id}: {self.data.path} is at offset {applied}, its log has {self.log.base + 1} to "
                f"{self.log.end}",
            )
        self.applied = self.flushed = applied - self._is_marker(applied)
        self.high_watermark = max(self.high_watermark, applied)

    def begin_again(self, data: DataDatabase) -> None:
        """Empty data takes the place of what was damaged: all is to be applied again, and nothing served before."""
        assert self.is_in_log, self
        self.data = data
        self.applied = self.flushed = self.slice_start = 0
        self.flushes.clear()
        self.ready_at = max(self.ready_at, self.high_watermark)
        self.fresh_at, self.mark = NEVER, UNKNOWN

    def _is_marker(self, applied: int) -> bool:
        """Whether the last entry in the data is a marker: what it asks for may not be done, so it is seen again."""
        if applied <= self.log.base:
            return False
        return isinstance(decode_entry(self.log.read(applied, applied, 1)[0].body), SplitMarker)

    def next_slow_mark(self) -> SlowMark | None:
        """The next entry to apply, if it is one that is done beside the loop. Raises CORRUPT_DATA, STORAGE_FAILED."""
        self._read_ahead()
        entry = self.pending[0].write
        return entry if isinstance(entry, SlowMark) else None

    def passed(self, entry: Pending) -> None:
        """What the mark asks for is done."""
        if self.pending and self.pending[0].offset == entry.offset:
            self.pending.popleft()
        self.applied = entry.offset

    def apply(self, max_keys: int) -> list[Pending]:
        """Apply some of what is below the high watermark and before a slow mark: `max_keys` or a little more. What is
        now applied whole. Raises CORRUPT_DATA, STORAGE_FAILED.
        """
        self._read_ahead()
        first = self.pending[0].write
        if isinstance(first, Keep):
            return [self._keep(first)]
        assert isinstance(first, WriteBody), f"a slow mark is passed otherwise: {self}"
        if len(first.keys) > max_keys:
            return self._apply_slice(first, max_keys)
        taken: list[Pending] = []
        writes: list[WriteBody] = []
        keys = 0
        while self.pending and self.pending[0].offset <= self.high_watermark and keys < max_keys:
            write = self.pending[0].write
            if not isinstance(write, WriteBody):
                break
            keys += len(write.keys)
            if taken and keys > 2 * max_keys:
                break
            taken.append(self.pending.popleft())
            writes.append(write)
        last = taken[-1]
        self.data.write(writes, Applied(last.offset, last.leader_epoch))
        self.applied = last.offset
        return taken

    def _keep(self, mark: Keep) -> Pending:
        entry = self.pending.popleft()
        removed = self.data.keep(mark.range, Applied(entry.offset, entry.leader_epoch))
        self.applied, self.keeping = entry.offset, False
        if removed or self.untrimmed:
            self.kept = mark.range
        return entry

    def _read_ahead(self) -> None:
        """Have the next entry in `pending`: a leader's own is there, any other is read back from the log."""
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

    def in_sync_end(self) -> int:
        """The end of what the whole in-sync set has, as the leader knows it.

        With fewer than `min_insync` in it, no more becomes committed than a former leader may have acknowledged.
        """
        end = self.durable
        for follower in self.counted:
            if follower.matched < end:
                end = follower.matched
        if end > self.ready_at and len(self.row.isr) < self.min_insync:
            end = self.ready_at
        return max(end, self.high_watermark)

    def truncate(self, end: int) -> None:
        """Stage the end of the log at `end`: what is behind is not the leader's."""
        assert end >= self.high_watermark, f"partition {self.id}: cut at {end}, committed is {self.high_watermark}"
        self.log.truncate(end)
        self.durable = min(self.durable, end)

    def trim(self) -> bool:
        """Stage the removal of the log that nobody needs; whether there was any.

        That is what is flushed here, and is at all that follow. Replicas keep the log of a few flushes more: whoever
        leads next has to have what the others lack, or must send them a checkpoint.
        """
        if not self.flushes or self.flushes[-1] < self.flushed:
            self.flushes.append(self.flushed)
        base = self.flushed
        if len(self.row.replicas) > 1:
            base = self.flushes[-2] if len(self.flushes) > 1 else 0
        for node in self.lost:
            if len(self.flushes) == _FLUSHES_KEPT and self.retain.get(node, base) < self.flushes[0]:
                del self.retain[node]
        base = min([base, *self.retain.values(), self._retained_base()])
        if base <= self.log.base:
            return False
        self.log.trim(base)
        return True

    def _retained_base(self) -> int:
        """The last flush after which as much was applied as is to be kept; 0: none that is known."""
        if not self.retain_bytes:
            return self.flushed
        if not self.flushed_bytes or self.flushed_bytes[-1][0] < self.flushed:
            self.flushed_bytes.append((self.flushed, self.applied_bytes))
        found = self.log.base
        while self.flushed_bytes and self.applied_bytes - self.flushed_bytes[0][1] >= self.retain_bytes:
            found, _ = self.flushed_bytes.popleft()
        return found
