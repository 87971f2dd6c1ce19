"""The progress of one follower, as its leader sees it (etcd's Progress)."""

from collections import deque
from enum import IntEnum
from typing import Final

from minka.errors import Code, MinkaError
from minkad.core.replication.peer_messages import Ack, Append, Entry, Standing
from minkad.core.replication.replica_state import ReplicaState

_READ_BYTES: Final = 256 * 1024  # read for one partition into one frame
_UNACKNOWLEDGED_BYTES: Final = 4 * 1024 * 1024  # sent to one follower of a partition and not acknowledged yet
_NEAR_BYTES: Final = 256 * 1024


class Stage(IntEnum):
    """The kind of message that is sent to the follower."""

    CHECKPOINT = 0  # nothing on this stream: it is sent a checkpoint, or will leave the in-sync set
    PROBE = 1  # the question where it stands
    PROBED = 2  # nothing until it has answered
    REPLICATE = 3  # entries
    ALIGNED = 4  # entries; since the first it has said that its log is a part of the leader's


class Reaction(IntEnum):
    """The meaning of an answer for the leader."""

    NONE = 0
    STANDS = 1  # it says where it stands
    MATCHED = 2  # it has more entries, or is aligned now, or has detached its data from its parent's


class Progress:
    """The follower has everything up to `matched`; `next`, which is greater, is the offset to send next. The node is
    asked where it stands whenever a stream to it begins, and after a failed checkpoint.
    """

    __slots__ = (
        "_in_flight",
        "_paused",
        "_told",
        "_truncate",
        "error",
        "fell_behind",
        "is_attached",
        "is_queued",
        "leader_epoch",
        "matched",
        "next",
        "node_id",
        "stage",
        "state",
        "unacknowledged",
    )

    def __init__(self, node_id: str, state: ReplicaState) -> None:
        self.node_id = node_id
        self.state = state
        self.leader_epoch = state.row.leader_epoch
        self.stage = Stage.PROBE
        self.next = 0  # the first offset that isn't sent yet; 0 while no entries are sent
        self.matched = 0  # up to here it has everything, as durably as the keyspace asks
        self.is_attached = False  # its data, of a split's child, is still in its parent's database
        self.error = ""  # why the stream is broken; "" while it isn't
        self.fell_behind = False  # the log that it lacks is gone, although it was sent entries all the time
        self.is_queued = False  # the sender knows that there is something to send
        self.unacknowledged = 0  # bytes
        self._truncate = False  # its log is to end where the next entries begin
        self._paused = False
        self._told = 0  # the last high watermark that it was told
        self._in_flight: deque[tuple[int, int]] = deque()  # (last offset, bytes) of each unacknowledged append

    @property
    def is_replicating(self) -> bool:
        """True if it is known where the node stands, so entries are sent."""
        return self.stage >= Stage.REPLICATE

    @property
    def is_aligned(self) -> bool:
        """True if the node has said, since the first entries, that its log is a part of this leader's."""
        return self.stage is Stage.ALIGNED

    def probe(self) -> None:
        """Ask the node where it stands, with the next append."""
        self._stop(Stage.PROBE)

    def replicate(self, offset: int) -> None:
        """Send everything after `offset`: up to there, the node has the leader's log."""
        self._stop(Stage.REPLICATE)
        self.next, self.matched, self._truncate = offset + 1, offset, True
        self.fell_behind = False
        self.state.retention.keep_for(self.node_id, offset)
        self.state.retention.in_time(self.node_id)

    def wait_for_checkpoint(self) -> None:
        """Send no entries until a checkpoint is in place or the node is asked again."""
        self._stop(Stage.CHECKPOINT)

    def _stop(self, stage: Stage) -> None:
        self.stage, self.next = stage, 0
        self._in_flight.clear()
        self.unacknowledged = 0

    def pause(self, pause: bool) -> bool:
        """`pause`: send no entries, since the node has no room for them and isn't in sync. Returns True if this
        changed.
        """
        was, self._paused = self._paused, pause
        return was != pause

    @property
    def wants_sending(self) -> bool:
        """True if there may be something to send that the sender doesn't know about."""
        if self.is_queued:
            return False
        if self.stage < Stage.REPLICATE:
            return self.stage is Stage.PROBE
        return self._truncate or self.next <= self.state.log.end

    @property
    def has_more(self) -> bool:
        """True if there is more to send right now."""
        has_room = not self._paused and self.unacknowledged < _UNACKNOWLEDGED_BYTES
        return self.stage >= Stage.REPLICATE and self.next <= self._readable() and has_room

    @property
    def is_near(self) -> bool:
        """True if the node was sent everything that is durable here, and has acknowledged nearly all of it."""
        is_sent = self.stage >= Stage.REPLICATE and self.next > self.state.durable
        return is_sent and self.unacknowledged <= _NEAR_BYTES

    @property
    def lag(self) -> int:
        """The number of entries that it lacks."""
        return self.state.log.end - self.matched

    def next_append(self, limit: int) -> Append | None:
        """The next append, up to `limit` bytes and at least one entry; None if there is nothing to send now. Raises
        CORRUPT_DATA, STORAGE_FAILED.
        """
        if self.stage >= Stage.REPLICATE and self.next <= self.state.log.base and not self._paused:
            self.fell_behind = True
            self.probe()  # the log did not wait for it
        if self.stage is Stage.PROBE:
            self.stage = Stage.PROBED
            return Append(self.state.id, self.leader_epoch, 0, 0, 0, [], True)
        if self.stage < Stage.REPLICATE or self._paused or self.unacknowledged >= _UNACKNOWLEDGED_BYTES:
            return None
        prev, end = self.next - 1, self._readable()
        if prev >= end:
            return self.next_watermark() if self._truncate else None
        entries = self.state.log.read(self.next, end, min(limit, _READ_BYTES))
        size = sum(len(entry.body) for entry in entries)
        self.next += len(entries)
        self._in_flight.append((self.next - 1, size))
        self.unacknowledged += size
        return self._append(prev, entries)

    def next_watermark(self) -> Append | None:
        """The high watermark without entries; None if the node knows it already, or is sent no entries now."""
        if self.stage < Stage.REPLICATE or (self._told == self.state.high_watermark and not self._truncate):
            return None
        return self._append(self.next - 1, [])

    def _readable(self) -> int:
        state = self.state
        return (
            state.log.readable(self.next, state.durable) if state.durable_epoch == self.leader_epoch else state.durable
        )

    def _append(self, prev: int, entries: list[Entry]) -> Append:
        state = self.state
        truncate, self._truncate, self._told = self._truncate, False, state.high_watermark
        return Append(
            partition_id=state.id,
            leader_epoch=self.leader_epoch,
            prev_offset=prev,
            high_watermark=self._told,
            epoch_start=state.ready_at,
            entries=entries,
            truncate=truncate,
            generation=state.row.generation,
        )

    def acknowledged(self, ack: Ack) -> Reaction:
        """The node has answered. Raises INTERNAL for an answer to a message that was never sent."""
        if ack.leader_epoch != self.leader_epoch:
            return Reaction.NONE
        self.error = ""
        has_detached, self.is_attached = self.is_attached and not ack.attached, ack.attached
        if ack.lineage is not None:
            if self.stage is not Stage.PROBED:
                return Reaction.NONE
            self.wait_for_checkpoint()
            return Reaction.STANDS
        if ack.standing == Standing.NEEDS_CHECKPOINT:
            self.wait_for_checkpoint()
            return Reaction.STANDS
        return self._has(ack, has_detached) if self.stage >= Stage.REPLICATE else Reaction.NONE

    def _has(self, ack: Ack, has_detached: bool) -> Reaction:
        if ack.offset >= self.next:
            raise MinkaError(Code.INTERNAL, f"partition {ack.partition_id}: {ack.offset} was never sent")
        is_new = has_detached or self.stage is not Stage.ALIGNED
        self.stage = Stage.ALIGNED
        if ack.offset <= self.matched:
            return Reaction.MATCHED if is_new else Reaction.NONE
        self.matched = ack.offset
        self.state.retention.keep_for(self.node_id, self.matched)
        while self._in_flight and self._in_flight[0][0] <= ack.offset:
            self.unacknowledged -= self._in_flight.popleft()[1]
        return Reaction.MATCHED
