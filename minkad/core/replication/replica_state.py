"""The state of a replica on this node: its row, its role, its offsets."""

from collections.abc import Callable
from enum import Enum
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Partition
from minkad.core.replication.entries import SplitMarker, decode_entry
from minkad.core.replication.freshness import Freshness
from minkad.core.replication.gate import Gate, WriteGate
from minkad.core.replication.range_trim import RangeTrim
from minkad.core.replication.replica_storage import ReplicaData, ReplicaLog
from minkad.core.replication.retention import Retention
from minkad.core.replication.story import Story

UNKNOWN_MIN_INSYNC: Final = 0


class Role(Enum):
    """The role that the partition's row gives this node."""

    IDLE = "idle"  # the node only keeps its copy, for example while the partition has no leader
    LEADER = "leader"
    FOLLOWER = "follower"
    REMOVED = "removed"


def role_in(row: Partition, node_id: str) -> Role:
    """The node's role by the row."""
    if node_id not in row.replicas or node_id in row.removing_replicas:
        return Role.REMOVED
    if row.leader == node_id:
        return Role.LEADER
    return Role.FOLLOWER if row.leader else Role.IDLE


class Copy(Enum):
    """The state of this node's copy: its log and its data. `ReplicaState.damage` tells of damage to the data."""

    WHOLE = "whole"
    MAKING = "making"  # a split has made the data, and the log's beginning isn't durable yet
    RECEIVING = "receiving"  # whole, while the node receives a checkpoint that is to replace the copy
    REPLACING = "replacing"  # a checkpoint is replacing the copy
    INCOMPLETE = "incomplete"  # unusable: a replacement broke off, or the copy was attached to data that is lost
    REBUILDING = "rebuilding"  # the data was damaged, and the node makes it again from the log


class Applying(Enum):
    """The state of applying the committed entries."""

    IDLE = "idle"
    QUEUED = "queued"  # the shell has, or will get, the instruction to apply them
    AT_MARK = "at a mark"  # the shell carries the mark out, and applies nothing meanwhile


class ReplicaState:
    """The replica's offsets, in their order along its log:

        trimmed: the data has it   | in the log, by offset
        ---------------------------+------------------------------------------------------------------> log.end
                            log.base       flushed       applied     high_watermark       durable
        the data on disk has      <--------->|
        clients can see           <------------------------>|
        the whole in-sync set has <---------------------------------------->|  (committed)
        the disk here has         <----------------------------------------------------------->|

    So log.base <= flushed <= applied <= high_watermark <= durable <= log.end; `violated` has the exceptions. The leader
    acknowledges a write once the leader has applied it.

    Only `Node`, and the classes of this package that `Node` calls, change a state; the shell reads it.
    """

    __slots__ = (
        "_barrier",
        "_raised",
        "_synced",
        "_taken_over",
        "_written",
        "allows_unclean",
        "applied",
        "applying",
        "awaits_data",
        "copy",
        "data",
        "durable",
        "durable_epoch",
        "flushed",
        "freshness",
        "gate",
        "high_watermark",
        "id",
        "is_async",
        "led_before",
        "log",
        "min_insync",
        "ready_at",
        "retention",
        "role",
        "row",
        "story",
        "trim",
    )

    def __init__(self, row: Partition, log: ReplicaLog, data: ReplicaData, change_bytes: int = 0) -> None:
        """`change_bytes`: see `Retention`."""
        self.id = row.id  # of the partition
        # The newest row of the partition that this node has got. The row's partition_epoch never falls.
        self.row = row
        # The role by the row, or IDLE while this node can't take that role.
        self.role = Role.IDLE
        self.log = log
        # A checkpoint, a split or a rebuilding (with empty data) replaces this object as a whole.
        self.data = data
        # The data whose applied offset is in `applied`: each data's offset is taken over once.
        self._taken_over: ReplicaData | None = None
        # By the row this replica leads, but it waits until its data is open: the data may be ahead of an `async` log.
        self.awaits_data = False
        # In REPLACING and INCOMPLETE, log and data don't fit together.
        self.copy = Copy.WHOLE
        # By its keyspace: writes need this many replicas in sync; UNKNOWN_MIN_INSYNC until the keyspace is known here.
        self.min_insync = 1
        # By its keyspace: a replica that isn't in sync may lead if no other can.
        self.allows_unclean = False
        # By its keyspace: an entry counts as durable as soon as the operating system has it.
        self.is_async = False
        # Entries up to here survive a crash of the machine (in an `async` keyspace: of the process), so a follower
        # acknowledges them. Falls only when the log is truncated or replaced.
        self.durable = log.base
        # Entries up to here are committed. Never falls, and no truncation removes a committed entry; only a checkpoint
        # replaces the whole log.
        self.high_watermark = log.base
        # The data, in memory or on disk, has the entries up to here. Falls only when other data replaces the data.
        self.applied = log.base
        # The data on disk has the entries up to here, so the log may be trimmed up to here.
        self.flushed = log.base
        # The operating system has the entries up to `_written`, the disk those up to `_synced`.
        self._written = self._synced = log.base
        # Until this entry is on the disk, only entries on the disk count as durable: see `barrier`.
        self._barrier = 0
        self._raised: tuple[tuple[int, int], ...] = ()  # (offset, version base after it): see `raise_versions`
        self.applying = Applying.IDLE
        # This node leads only at a greater leader_epoch. It may have led at this one before its start, and lost writes
        # since; or the controller has counted the process as dead, so that another node may lead by now.
        self.led_before = 0
        # The newest leader_epoch at which this node led, as far as its disk says. Only at this epoch does the node send
        # followers entries before its own sync of them.
        self.durable_epoch = 0
        # The log end when this leadership began. The leader serves once `applied` is here: a former leader may have
        # acknowledged any entry up to here.
        self.ready_at = 0
        self.gate = WriteGate()  # closed only while this replica leads
        self.retention = Retention(change_bytes)  # how far the log may be trimmed
        self.freshness = Freshness()  # the age of the data, for stale reads
        self.trim = RangeTrim()  # the removal of keys outside of the range
        self.story = Story()  # the last events, for a report of a bug

    def __repr__(self) -> str:
        offsets = f"{self.log.base} <= {self.applied} <= {self.high_watermark} <= {self.durable} <= {self.log.end}"
        return f"<{self.role.value} of partition {self.id}: {offsets}>"

    # The versions of appended rows

    def raise_versions(self, offset: int, floor: int) -> None:
        """The entry that this leader has appended at `offset` gives later entries versions above `floor`. Example: with
        `offset` 100 and `floor` 500, the version base becomes 400, so entry 101 gets version 501.
        """
        unapplied = [one for one in self._raised if one[0] > self.applied]
        self._raised = (*unapplied, (offset, floor - offset))

    def forget_raised(self) -> None:
        """Another leadership begins. It serves once the whole log is applied; then the data has the version base."""
        self._raised = ()

    def version_base(self, offset: int) -> int:
        """Return the version base of the unapplied entry at `offset`: the version of its rows is base + offset."""
        raised = [base for at, base in self._raised if self.applied < at < offset]
        return max([self.data.version_base, *raised])

    # Its use

    @property
    def is_ready(self) -> bool:
        """True if this replica leads, has applied the log with which it began, and knows of no damage."""
        is_leading = self.role is Role.LEADER and not self.awaits_data
        return is_leading and self.applied >= self.ready_at and self.damage is None

    @property
    def serves_reads(self) -> bool:
        """True if this replica answers reads as the leader, provided that its node has clearance."""
        return self.is_ready and self.gate.state is not Gate.CLOSED_TO_READS

    def note_led(self, cleared_at: float) -> None:
        """Note, if this replica serves reads, that its data was up to date at `cleared_at`, when its node last had
        clearance: no other node can have led before then. Call this before the replica stops serving.
        """
        if self.serves_reads:
            self.freshness.newest_at(cleared_at)

    @property
    def damage(self) -> MinkaError | None:
        """The damage because of which nobody uses the data from then on; None if no damage is known."""
        return self.data.damage

    @property
    def is_usable(self) -> bool:
        """True if this replica can append to its log, and its data is whole or will soon be."""
        return self.copy in (Copy.WHOLE, Copy.REBUILDING) and (self.damage is None or self.copy is Copy.REBUILDING)

    @property
    def is_complete(self) -> bool:
        """True if log and data fit together: no checkpoint has begun to replace them."""
        return self.copy not in (Copy.REPLACING, Copy.INCOMPLETE)

    @property
    def is_receiving(self) -> bool:
        """True if a checkpoint is about to replace the copy here."""
        return self.copy in (Copy.RECEIVING, Copy.REPLACING)

    # Its copy

    def begin_receiving(self) -> None:
        """From now on the node receives a checkpoint."""
        self.copy = Copy.RECEIVING if self.is_complete else Copy.REPLACING

    def clear(self) -> None:
        """The whole checkpoint has come, and replaces log and data: stage the removal of the whole log."""
        assert self.is_receiving, self
        self.copy = Copy.REPLACING
        self.log.reset(0, 0)

    def put_data(self, data: ReplicaData) -> None:
        """`data` replaces the data here. A mark that is carried out on the former data is over."""
        self.data = data
        if self.applying is Applying.AT_MARK:
            self.applying = Applying.IDLE

    def begin_with_checkpoint(self) -> None:
        """The data is the checkpoint: stage a log that begins after it."""
        applied = self.data.applied
        self._begin_at(applied.offset, applied.leader_epoch)
        self.copy = Copy.RECEIVING  # whole again; `end_receiving` follows once this is durable
        if self.row.start_key or self.row.end_key:
            self.trim.suspect()  # the sender's data may have keys outside of the range

    def end_receiving(self) -> None:
        """The transfer of the checkpoint broke off, or the checkpoint has replaced the copy here."""
        if self.is_receiving:
            self.copy = Copy.WHOLE if self.is_complete else Copy.INCOMPLETE

    def lose_data(self) -> None:
        """The data is lost: no one can use it from now on, even after a restart."""
        self.copy = Copy.REPLACING if self.is_receiving else Copy.INCOMPLETE

    def begin_child(self, offset: int, leader_epoch: int) -> None:
        """A split has made this child's data, as of the entry of its parent at `offset`: stage a log that begins after
        `offset`. Until this beginning is durable, a repeated row gives the child no role.
        """
        self.copy = Copy.MAKING
        self._begin_at(offset, leader_epoch)
        self.trim.suspect()

    def end_child(self) -> None:
        """The child's beginning is durable."""
        if self.copy is Copy.MAKING:
            self.copy = Copy.WHOLE

    def begin_rebuilding(self) -> bool:
        """The data is damaged. Returns True if the node can make it again from the log; then the copy is REBUILDING."""
        if not self.is_in_log or self.copy is not Copy.WHOLE:
            return False
        self.copy = Copy.REBUILDING
        return True

    def put_empty_data(self, data: ReplicaData) -> None:
        """Empty data replaces damaged data: the replica applies the whole log again before it serves anything."""
        assert self.is_in_log, self
        self.put_data(data)
        self.applied = self.flushed = 0
        self.retention.begin_again()
        self.ready_at = max(self.ready_at, self.high_watermark)
        self.freshness.begin_again()

    def end_rebuilding(self) -> None:
        """Empty data has replaced the damaged data, or couldn't."""
        if self.copy is Copy.REBUILDING:
            self.copy = Copy.WHOLE

    @property
    def is_in_log(self) -> bool:
        """True if the log has all entries from the first on, so the node can make the data again from the log."""
        return self.log.base == 0 and self.is_complete

    @property
    def is_made(self) -> bool:
        """True if this replica of a split's child has its data durably: from the split, or from its leader."""
        return self.log.base > 0 and self.copy is not Copy.MAKING

    @property
    def awaits_split(self) -> bool:
        """True if a split has yet to make this replica of a child from the parent's data."""
        return self.row.splitting and not self.row.split_to and not self.is_made

    @property
    def is_restructured(self) -> bool:
        """True if a split or a merge is about to change the range."""
        return bool(self.row.splitting or self.row.merge_from or self.row.merge_into)

    @property
    def takes_in_others_keys(self) -> bool:
        """True if the data may have, or be getting, keys of another partition that nobody may trim yet."""
        return bool(self.row.splitting or self.row.merge_from)

    # Its data

    def check_data(self) -> None:
        """Raises CORRUPT_DATA, now and at each later call, if the data is known to be damaged, or is gone."""
        if self.damage is not None:
            raise self.damage
        if self.data is not self._taken_over:
            self._or_condemn(self._check_data)

    def take_over_data(self) -> None:
        """Set `applied` to the data's applied offset. If the data is closed, this offset must be known. Raises
        STORAGE_FAILED; and CORRUPT_DATA, now and at each later call, if the data is damaged or doesn't fit the log.
        """
        self.check_data()
        if self.data is not self._taken_over:
            assert self.data.is_known or not self.data.is_closed, f"{self.data.describe()} is closed"
            if self.data.is_known:
                self._or_condemn(self._take_over_data)
            self._taken_over = self.data

    def _or_condemn(self, work: Callable[[], None]) -> None:
        try:
            work()
        except MinkaError as error:
            if error.code is Code.CORRUPT_DATA:
                self.data.condemn(error)
            raise

    def _check_data(self) -> None:
        if not self.is_complete:
            text = f"partition {self.id}: the copy was being replaced, or was attached to another one that is gone"
            raise MinkaError(Code.CORRUPT_DATA, text)
        if self.log.base > 0 and not self.data.exists():
            raise MinkaError(
                Code.CORRUPT_DATA,
                f"partition {self.id}: {self.data.describe()} is gone; what was written before offset "
                f"{self.log.base + 1} is nowhere else on this node",
            )

    def _take_over_data(self) -> None:
        position = self.data.applied
        applied = position.offset
        if self.is_async and applied > self.log.end:
            # A power cut took the end of the log, just after the data reached the disk.
            self.log.reset(applied, position.leader_epoch)
            self.recovered_to(applied)
        if not self.log.base <= applied <= self.log.end:
            raise MinkaError(
                Code.CORRUPT_DATA,
                f"partition {self.id}: {self.data.describe()} is at offset {applied}, its log has {self.log.base + 1} "
                f"to {self.log.end}",
            )
        self.applied = self.flushed = applied - self._is_marker(applied)
        self.high_watermark = max(self.high_watermark, applied)

    def _is_marker(self, applied: int) -> bool:
        """True if the last applied entry is a split's marker. The replica applies a marker again after a start: perhaps
        the child isn't made yet.
        """
        if applied <= self.log.base:
            return False
        return isinstance(decode_entry(self.log.read(applied, applied, 1)[0].body), SplitMarker)

    # Its log

    def recovered(self, log_end: int, *, is_complete: bool) -> None:
        """The node has recovered the log up to `log_end`. `is_complete`: no checkpoint was replacing log and data."""
        self.copy = Copy.WHOLE if is_complete else Copy.INCOMPLETE
        self.recovered_to(log_end)

    def recovered_to(self, offset: int) -> None:
        """The disk has the whole log, which ends at `offset`."""
        self.durable = self._written = self._synced = offset

    def stored(self, end: int, truncations: int, *, on_disk: bool) -> None:
        """The disk (without `on_disk`: the operating system) has the changes that were staged when the log ended at
        `end`. `truncations`: the log's count then; the call has no effect if the log was truncated since.
        """
        if truncations != self.log.truncations:
            return
        self._written = max(self._written, end)
        if on_disk:
            self._synced = max(self._synced, end)
        is_free = self.is_async and self._synced >= self._barrier
        self.durable = max(self.durable, self._written if is_free else self._synced)

    @property
    def needs_disk(self) -> bool:
        """True if the next entries of an `async` log have to be on the disk before they count as durable. The disk
        perhaps doesn't know yet that this replica exists. After a crash, a node must not have data without the replica.
        """
        return self.is_async and self._synced == 0

    def barrier(self, offset: int) -> None:
        """Until the entry at `offset` is on the disk, only entries on the disk count as durable, also in an `async`
        keyspace.
        """
        self._barrier = offset

    def truncate(self, end: int) -> None:
        """Stage the removal of the entries after `end`, which the leader lacks."""
        assert end >= self.high_watermark, (
            f"partition {self.id}: truncated to {end}, committed is {self.high_watermark}"
        )
        self.log.truncate(end)
        self.durable, self._written, self._synced = (
            min(was, end) for was in (self.durable, self._written, self._synced)
        )
        self._barrier = min(self._barrier, end)

    def _begin_at(self, offset: int, leader_epoch: int) -> None:
        """The data is a copy up to `offset`: stage a log that begins after it."""
        self.log.reset(offset, leader_epoch)
        self._taken_over = self.data
        self._barrier = 0
        self.high_watermark = self.applied = self.flushed = offset
        self.recovered_to(offset)

    # Applying

    def commit(self, offset: int) -> None:
        """Everything up to `offset` is committed."""
        if offset > self.high_watermark:
            self.high_watermark = offset

    def queue_apply(self) -> None:
        """The shell is to apply what is committed."""
        self.applying = Applying.QUEUED

    def begin_mark(self) -> None:
        """The shell carries out a mark: apply nothing until `end_mark`."""
        assert self.applying is not Applying.AT_MARK, f"partition {self.id} is at a mark already"
        self.applying = Applying.AT_MARK

    def end_mark(self) -> None:
        """Go on applying: after the mark if the shell has carried it out, else at the mark again."""
        self.applying = Applying.IDLE

    def end_apply(self) -> None:
        """All committed entries are applied, or the shell can't apply the rest now."""
        if self.applying is Applying.QUEUED:
            self.applying = Applying.IDLE

    def has_applied(self, offset: int) -> None:
        """The data has everything up to `offset`."""
        self.applied = offset

    def begin_unknown(self) -> None:
        """The data's applied offset isn't known: count the whole log as unapplied."""
        self.applied = self.flushed = self.log.base

    def flushed_to(self, offset: int) -> bool:
        """The data on disk has everything up to `offset`. `flushed` becomes at most `applied`, so that a split's marker
        that isn't carried out yet stays in the log. Stages the removal of the entries that nobody needs; returns True
        if there were any.
        """
        self.flushed = max(self.flushed, min(offset, self.applied))
        return self.trim_log()

    def trim_log(self) -> bool:
        """Stage the removal of the entries that nobody needs. Returns True if there were any."""
        is_alone = len(self.row.replicas) == 1
        base = self.retention.flushed_to(self.flushed, self.log.base, is_alone=is_alone)
        if base <= self.log.base:
            return False
        self.log.trim(base)
        return True

    # Always true

    def violated(self) -> str:
        """Return the rule that this state breaks; "" if it breaks none. Ask between two events."""
        if self.role is Role.LEADER and self.row.leader_epoch <= self.led_before:
            return "a leadership that was given up goes on"
        if self.role is not Role.LEADER and self.gate.state is not Gate.OPEN:
            return "its gate is closed, and it doesn't lead"
        if self.durable > max(self._written, self._synced):
            return "more is durable than was written"
        if not self.is_complete or self.role is Role.REMOVED:
            return ""
        if self.durable > self.log.end:
            return "more is durable than the log has"
        if not self.log.base <= self.flushed <= self.applied <= self.high_watermark:
            return "base <= flushed <= applied <= high_watermark"
        return "" if self.high_watermark <= self.durable else "more is committed than is durable"
