"""The progress of one follower, as its leader sees it (etcd's Progress)."""

from collections import deque
from enum import IntEnum
from typing import Final

from minka.errors import Code, MinkaError
from minkad.core.replication.peer_messages import Ack, Append, Entry, Standing
from minkad.core.replication.replica_state import ReplicaState

_READ_BYTES: Final = 256 * 1024  # at most this much of one partition in one frame
_UNACKNOWLEDGED_BYTES: Final = 4 * 1024 * 1024  # with this much in flight to a follower, send it no more (flow control)
_NEAR_BYTES: Final = 256 * 1024  # a follower with at most this much in flight is near the end of the log


class Stage(IntEnum):
    """The kind of message that the leader sends next (etcd/raft: StateProbe, StateReplicate, StateSnapshot)."""

    CHECKPOINT = 0  # nothing on this stream: the follower gets a checkpoint, or will leave the in-sync set
    PROBE = 1  # the question where the follower stands
    PROBED = 2  # nothing until the follower has answered
    REPLICATE = 3  # entries
    ALIGNED = 4  # entries; the follower has answered the first append, so its log is a part of the leader's


class Reaction(IntEnum):
    """The meaning of an answer for the leader."""

    NONE = 0
    STANDS = 1  # the follower says where it stands
    MATCHED = 2  # the follower has more entries, or is aligned now, or has detached its data from its parent's


class Progress:
    """While the leader sends entries, its log has three parts for this follower:

        | the follower has them |  in flight  |  not sent yet  |
        +-----------------------+-------------+----------------+
                            matched       next - 1          log.end

    So matched < next. The leader probes the follower whenever a stream to it begins, and after a failed checkpoint.
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
        self.node_id = node_id  # of the follower
        self.state = state  # of the leader's replica
        self.leader_epoch = state.row.leader_epoch  # an answer with another leader_epoch is stale
        self.stage = Stage.PROBE
        self.next = 0  # the first offset that isn't sent yet; 0 below REPLICATE
        self.matched = 0  # the follower has the log up to here, as durably as the keyspace asks
        self.is_attached = False  # the follower's data, of a split's child, is still in the parent's database
        self.error = ""  # the reason why the stream broke; "" since the follower's last answer
        self.fell_behind = False  # the log was trimmed past `next` while entries were sent
        self.is_queued = False  # the sender has an instruction to send to this follower
        self.unacknowledged = 0  # the bytes in flight: the sum over `_in_flight`
        self._truncate = False  # the next append tells the follower to truncate its log to `next - 1`
        self._paused = False  # no entries: the follower's disk is low, and the follower isn't in sync
        self._told = 0  # the last high watermark that was sent
        self._in_flight: deque[tuple[int, int]] = deque()  # (last offset, bytes) of each unacknowledged append

    @property
    def is_replicating(self) -> bool:
        """True if the leader knows where the follower stands, so the leader sends entries."""
        return self.stage >= Stage.REPLICATE

    @property
    def is_aligned(self) -> bool:
        """True if the follower has answered the first append, so its log is a part of this leader's."""
        return self.stage is Stage.ALIGNED

    def probe(self) -> None:
        """With the next append, ask the follower where it stands."""
        self._stop(Stage.PROBE)

    def replicate(self, offset: int) -> None:
        """Send the entries after `offset`: up to there, the follower has the leader's log."""
        self._stop(Stage.REPLICATE)
        self.next, self.matched, self._truncate = offset + 1, offset, True
        self.fell_behind = False
        self.state.retention.keep_for(self.node_id, offset)
        self.state.retention.in_time(self.node_id)

    def wait_for_checkpoint(self) -> None:
        """Send no entries until a checkpoint is in place, or the leader probes the follower again."""
        self._stop(Stage.CHECKPOINT)

    def _stop(self, stage: Stage) -> None:
        self.stage, self.next = stage, 0
        self._in_flight.clear()
        self.unacknowledged = 0

    def pause(self, pause: bool) -> bool:
        """Begin or end a pause: see `_paused`. Returns True if this is a change."""
        was, self._paused = self._paused, pause
        return was != pause

    @property
    def wants_sending(self) -> bool:
        """True if there may be something to send, and the sender has no instruction to send yet."""
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
        """True if all durable entries are sent, and at most `_NEAR_BYTES` of them are in flight."""
        is_sent = self.stage >= Stage.REPLICATE and self.next > self.state.durable
        return is_sent and self.unacknowledged <= _NEAR_BYTES

    @property
    def lag(self) -> int:
        """The number of entries that the follower lacks, as far as the leader knows."""
        return self.state.log.end - self.matched

    def next_append(self, limit: int) -> Append | None:
        """Return the next append, with at most `limit` bytes but at least one entry; None if there is nothing to send
        now. Raises CORRUPT_DATA, STORAGE_FAILED.
        """
        if self.stage >= Stage.REPLICATE and self.next <= self.state.log.base and not self._paused:
            self.fell_behind = True
            self.probe()  # the next entry is trimmed, so the follower needs a checkpoint
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
        """Return an append with the high watermark alone; None if it was sent already, or if nothing may be sent."""
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
        """The follower has answered. Raises INTERNAL if the follower acknowledges an entry that was never sent."""
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
