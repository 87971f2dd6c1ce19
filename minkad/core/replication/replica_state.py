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
    """The part that this node has in a partition by its row."""

    IDLE = "idle"  # it only keeps its copy, such as while the partition has no leader
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
    """The use that the data here has. `ReplicaState.damage` says if it is damaged."""

    WHOLE = "whole"
    MAKING = "making"  # a split has made the data, and the log's beginning isn't durable yet
    RECEIVING = "receiving"  # whole; a checkpoint that is to take its place is being received
    REPLACING = "replacing"  # a checkpoint takes its place
    INCOMPLETE = "incomplete"  # unusable: the replacement broke off, or the data that it was attached to is lost
    REBUILDING = "rebuilding"  # it was damaged, and is made again from the log


class Applying(Enum):
    """The state of applying the entries below the high watermark."""

    IDLE = "idle"
    QUEUED = "queued"
    AT_MARK = "at a mark"  # the mark is being carried out; nothing is applied meanwhile


class ReplicaState:
    """Its log, and how far each thing has come in it:

        gone since the data has it | in the log, by offset
        ---------------------------+------------------------------------------------------------------> log.end
                            log.base       flushed       applied     high_watermark       durable
        the data on disk has      <--------->|
        clients can see           <------------------------>|
        the whole in-sync set has <---------------------------------------->|  (committed: KIP-101)
        the disk here has         <----------------------------------------------------------->|

    So log.base <= flushed <= applied <= high_watermark <= durable <= log.end; `violated` has the exceptions. A write
    is acknowledged once it is applied.

    Only `Node` and the classes of this package that it calls change a state; the shell reads it.
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
        # The partition's newest row that was sent to this node; its partition_epoch never falls.
        self.row = row
        # This node's part in the partition by the row, or IDLE while it can't take that part.
        self.role = Role.IDLE
        self.log = log
        # Replaced as a whole: by a checkpoint, by a split, or by empty data when the copy is made again from the log.
        self.data = data
        # The data whose applied offset was taken over; a database that was opened since isn't looked at again.
        self._taken_over: ReplicaData | None = None
        # It is to lead, and leads as soon as its data is open: the data may be ahead of an `async` log.
        self.awaits_data = False
        # The use that log and data have. REPLACING and INCOMPLETE: they don't fit together.
        self.copy = Copy.WHOLE
        # By its keyspace: writes need this many replicas in sync; UNKNOWN_MIN_INSYNC until the keyspace is known here.
        self.min_insync = 1
        # By its keyspace: a replica that isn't in sync may lead if no other can.
        self.allows_unclean = False
        # By its keyspace: an entry counts as durable as soon as the operating system has it.
        self.is_async = False
        # Everything up to here would survive what the keyspace wants survived: a crash of the process or of the
        # machine. A follower acknowledges it. Falls only when the end of the log is cut off.
        self.durable = log.base
        # Everything up to here is committed. Never falls, and no entry up to it is cut off, except that a checkpoint
        # replaces the log as a whole.
        self.high_watermark = log.base
        # The data has everything up to here, perhaps in memory alone. Falls when empty data replaces damaged data.
        self.applied = log.base
        # The data on disk has everything up to here, so that the log may be trimmed.
        self.flushed = log.base
        self._written = self._synced = log.base  # what the operating system has, and what the disk has
        # Until this entry is on the disk, only entries on the disk count as durable: see `barrier`.
        self._barrier = 0
        self._raised: tuple[tuple[int, int], ...] = ()  # see `raise_versions`
        # QUEUED: the shell is to apply what is committed. AT_MARK: nothing is applied until a mark is carried out.
        self.applying = Applying.IDLE
        # It may have led at this leader_epoch before the node's start, and must not go on at it: writes may be lost.
        self.led_before = 0
        # The newest leader_epoch that this node, after a crash, would know it led at. Followers are sent entries ahead
        # of this node's own sync only at this epoch.
        self.durable_epoch = 0
        # Where the leader's epoch starts: it serves once this is applied, since it may have been acknowledged before.
        self.ready_at = 0
        self.gate = WriteGate()
        self.retention = Retention(change_bytes)
        self.freshness = Freshness()
        self.trim = RangeTrim()
        self.story = Story()

    def __repr__(self) -> str:
        offsets = f"{self.log.base} <= {self.applied} <= {self.high_watermark} <= {self.durable} <= {self.log.end}"
        return f"<{self.role.value} of partition {self.id}: {offsets}>"

    # The versions of appended rows

    def raise_versions(self, offset: int, floor: int) -> None:
        """This leader has appended an entry, at `offset`, that gives later ones versions above `floor`."""
        unapplied = [one for one in self._raised if one[0] > self.applied]
        self._raised = (*unapplied, (offset, floor - offset))

    def forget_raised(self) -> None:
        """Another leadership begins; it serves once all of the log is applied."""
        self._raised = ()

    def version_base(self, offset: int) -> int:
        """For an entry that isn't applied yet: its offset plus this is the version of its rows."""
        raised = [base for at, base in self._raised if self.applied < at < offset]
        return max([self.data.version_base, *raised])

    # Its use

    @property
    def is_ready(self) -> bool:
        """True if it leads, has applied the log that it began with, and doesn't know of any damage."""
        is_leading = self.role is Role.LEADER and not self.awaits_data
        return is_leading and self.applied >= self.ready_at and self.damage is None

    @property
    def serves_reads(self) -> bool:
        """True if it answers reads as the leader while its node has clearance."""
        return self.is_ready and self.gate.state is not Gate.CLOSED_TO_READS

    def note_led(self, cleared_at: float) -> None:
        """If it serves reads, it had everything that was acknowledged until `cleared_at`, when its node last had
        clearance: until then nobody else can have led. Call this before it stops serving.
        """
        if self.serves_reads:
            self.freshness.newest_at(cleared_at)

    @property
    def damage(self) -> MinkaError | None:
        """The damage for which its data is no longer used; None while none is known."""
        return self.data.damage

    @property
    def is_usable(self) -> bool:
        """True if its log can be continued, and its data is whole or will soon be."""
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
        """A checkpoint is being received from now on."""
        self.copy = Copy.RECEIVING if self.is_complete else Copy.REPLACING

    def clear(self) -> None:
        """The checkpoint has come whole, and takes the place of log and data: stage the end of the log."""
        assert self.is_receiving, self
        self.copy = Copy.REPLACING
        self.log.reset(0, 0)

    def put_data(self, data: ReplicaData) -> None:
        """Other data is in the place of the one here."""
        self.data = data

    def begin_with_checkpoint(self) -> None:
        """The data is the checkpoint: stage a log that begins after it."""
        applied = self.data.applied
        self._begin_at(applied.offset, applied.leader_epoch)
        self.copy = Copy.RECEIVING  # whole again; `end_receiving` follows once this is durable
        if self.row.start_key or self.row.end_key:
            self.trim.suspect()  # the sender's data may have keys outside of the range

    def end_receiving(self) -> None:
        """The checkpoint has broken off, or has replaced the copy here."""
        if self.is_receiving:
            self.copy = Copy.WHOLE if self.is_complete else Copy.INCOMPLETE

    def lose_data(self) -> None:
        """From now on the data can't be used, even after a restart."""
        self.copy = Copy.REPLACING if self.is_receiving else Copy.INCOMPLETE

    def begin_child(self, offset: int, leader_epoch: int) -> None:
        """A split has made its data, as of this entry of its parent: stage a log that begins after it. Until that is
        durable, a repeated row gives it no role.
        """
        self.copy = Copy.MAKING
        self._begin_at(offset, leader_epoch)
        self.trim.suspect()

    def end_child(self) -> None:
        """The child's beginning is durable."""
        if self.copy is Copy.MAKING:
            self.copy = Copy.WHOLE

    def begin_rebuilding(self) -> bool:
        """Its data is damaged. Returns True if it is to be made again from the log, and is REBUILDING from now on."""
        if not self.is_in_log or self.copy is not Copy.WHOLE:
            return False
        self.copy = Copy.REBUILDING
        return True

    def put_empty_data(self, data: ReplicaData) -> None:
        """Empty data is in the place of damaged data: the whole log is applied again before anything is served."""
        assert self.is_in_log, self
        self.data = data
        self.applied = self.flushed = 0
        self.retention.begin_again()
        self.ready_at = max(self.ready_at, self.high_watermark)
        self.freshness.begin_again()

    def end_rebuilding(self) -> None:
        """The data was replaced, or couldn't be."""
        if self.copy is Copy.REBUILDING:
            self.copy = Copy.WHOLE

    @property
    def is_in_log(self) -> bool:
        """True if its log has all entries since the first, so its data can be made from the log."""
        return self.log.base == 0 and self.is_complete

    @property
    def is_made(self) -> bool:
        """True if this replica of a child has, durably, its data from the split, or a copy from its leader."""
        return self.log.base > 0 and self.copy is not Copy.MAKING

    @property
    def awaits_split(self) -> bool:
        """True if this replica of a child has yet to be made from its parent's data."""
        return self.row.splitting and not self.row.split_to and not self.is_made

    @property
    def is_restructured(self) -> bool:
        """True if its range is about to change: it is being split, or merged with another one."""
        return bool(self.row.splitting or self.row.merge_from or self.row.merge_into)

    @property
    def takes_in_others_keys(self) -> bool:
        """True if its data may have, or is getting, keys of another partition, which have to stay."""
        return bool(self.row.splitting or self.row.merge_from)

    # Its data

    def check_data(self) -> None:
        """Raises CORRUPT_DATA, now and each later time, if the data is known to be damaged, or is gone."""
        if self.damage is not None:
            raise self.damage
        if self.data is not self._taken_over:
            self._or_condemn(self._check_data)

    def take_over_data(self) -> None:
        """Take over the data's applied offset, which must be known if the data is closed. Raises CORRUPT_DATA, now and
        each later time, if the data is damaged or doesn't fit the log; STORAGE_FAILED.
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
            # A power cut took the end of the log, just after the data was written.
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
        """True if the last applied entry is a split's marker: it is applied again, since the child may not be made
        yet.
        """
        if applied <= self.log.base:
            return False
        return isinstance(decode_entry(self.log.read(applied, applied, 1)[0].body), SplitMarker)

    # Its log

    def recovered(self, log_end: int, *, is_complete: bool) -> None:
        """The log was recovered up to `log_end`. `is_complete`: no checkpoint was replacing log and data."""
        self.copy = Copy.WHOLE if is_complete else Copy.INCOMPLETE
        self.recovered_to(log_end)

    def recovered_to(self, offset: int) -> None:
        """The log was recovered, or begins here: everything is on the disk."""
        self.durable = self._written = self._synced = offset

    def stored(self, end: int, truncations: int, *, on_disk: bool) -> None:
        """The changes staged when the log ended at `end` are on the disk, or the operating system has them.
        `truncations`: the log's count then; if the log was truncated since, this has no effect.
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
        """True if the next entries of an `async` log have to be on the disk. The disk has nothing of this replica yet,
        perhaps not even that it exists, and that must not be forgotten while its data is remembered.
        """
        return self.is_async and self._synced == 0

    def barrier(self, offset: int) -> None:
        """Until this entry is on the disk, only entries on the disk count as durable, even in an `async` keyspace."""
        self._barrier = offset

    def truncate(self, end: int) -> None:
        """Stage the removal of the entries after `end`: the leader doesn't have them."""
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
        """Apply nothing until `end_mark`: a mark is being carried out."""
        assert self.applying is not Applying.AT_MARK, f"partition {self.id} is at a mark already"
        self.applying = Applying.AT_MARK

    def end_mark(self) -> None:
        """Applying goes on, after the mark if it was carried out."""
        self.applying = Applying.IDLE

    def end_apply(self) -> None:
        """Everything committed is applied, or the rest can't be now."""
        if self.applying is Applying.QUEUED:
            self.applying = Applying.IDLE

    def has_applied(self, offset: int) -> None:
        """The data has everything up to `offset`."""
        self.applied = offset

    def begin_unknown(self) -> None:
        """The data isn't known: everything in the log is to be applied."""
        self.applied = self.flushed = self.log.base

    def flushed_to(self, offset: int) -> bool:
        """The data on disk has everything up to `offset`. A marker that isn't carried out yet has to stay in the log,
        so it doesn't count. Stages the removal of the entries that nobody needs; returns True if there were any.
        """
        self.flushed = max(self.flushed, min(offset, self.applied))
        return self.trim_log()

    def trim_log(self) -> bool:
        """Stage the removal of the entries that nobody needs. Returns True if there were any."""
        is_alone = len(self.row.replicas) == 1
        base = self.retention.base(self.flushed, self.log.base, is_alone=is_alone)
        if base <= self.log.base:
            return False
        self.log.trim(base)
        return True

    # Always true

    def violated(self) -> str:
        """What always holds, and doesn't now; "" if all does. Ask between two events."""
        if self.role is Role.LEADER and self.row.leader_epoch <= self.led_before:
            return "a leadership from before the start goes on"
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
