"""The behaviour of a follower: it appends and truncates as its leader says, and notes how old its data may be."""

from contextlib import suppress

from minka.errors import Code, MinkaError
from minkad.core.replication.entries import is_mark
from minkad.core.replication.freshness import UNKNOWN
from minkad.core.replication.instructions import Answer, Level, OpenData, Sync
from minkad.core.replication.peer_messages import Ack, Append, KeptFile, Standing
from minkad.core.replication.replica_state import ReplicaState
from minkad.core.replication.shared_state import SharedState


class LeaderStream:
    """A stream from another node, for all partitions that the other node leads and this node follows."""

    def __init__(self, number: int = 0) -> None:
        self.number = number  # grows with each stream of a process of the other node
        self.known_at = float("-inf")  # by this node's clock: the stream has told every high watermark as of then


class Follower:
    """A replica's time as a follower at one leader_epoch."""

    def __init__(self, shared: SharedState, state: ReplicaState) -> None:
        self.state = state
        self.stream: LeaderStream | None = None  # of the leader's last probe; takes the answers
        self._shared = shared
        self._is_aligned = False  # an append of this stream was taken, so the log is a part of the leader's
        self._is_refused = False  # the replica has asked for a checkpoint, and ignores appends that don't truncate
        self._asked: list[KeptFile] | None = None  # while a probe isn't answered: its files of a broken checkpoint
        self._stands_at = state.durable  # the offset in the last answer to a probe
        self._told = state.high_watermark  # the leader's newest high watermark, perhaps after this log's end
        # The leader's `ready_at`. Up to there, more may be committed than the leader's high watermark says.
        self._epoch_start = UNKNOWN
        self._generation = 0  # of the leader's row, by its last append
        self._held: list[tuple[Append, LeaderStream, float]] = []  # appends that wait until the data is open

    # What the leader says

    def probed(self, stream: LeaderStream, kept: list[KeptFile]) -> None:
        """The leader asks where this replica stands. `kept`: the files that are left of a broken checkpoint transfer.

        This node may read a leader's streams in another order than the leader began them, so older streams are ignored.
        """
        if self.stream is not None and stream.number < self.stream.number:
            return
        state, self.stream = self.state, stream
        self._is_aligned = self._is_refused = False
        self._held.clear()
        self._epoch_start = UNKNOWN  # until it is told
        state.freshness.unmark()
        if state.log.base and not state.data.exists():
            with suppress(MinkaError):
                state.check_data()
        self._asked = kept
        self._stand()

    def _stand(self) -> None:
        """Say where this replica stands, once its whole log is durable: the leader then truncates the log to at most
        this offset. If the replica answered earlier, the truncation could remove entries that become durable, and
        perhaps committed, after the answer.
        """
        state = self.state
        if self.stream is None or self._asked is None or (state.is_usable and state.durable < state.log.end):
            return
        self._say(self.stream, Standing.STORED if state.is_usable else Standing.NEEDS_CHECKPOINT, self._asked)

    def append(self, append: Append, stream: LeaderStream, known_at: float) -> None:
        """The leader sends entries, or its high watermark. `known_at`: by this node's clock, in seconds, a time at
        which nothing after this high watermark and `epoch_start` was committed. Raises INTERNAL for entries that don't
        follow the end of the log, and STORAGE_FAILED.
        """
        if self.stream is not stream or self.state.is_receiving:
            return
        log = self.state.log
        shortens = append.truncate and append.prev_offset < log.end
        is_unknown = self.state.data.is_closed and not self.state.data.is_known
        if self._held or (shortens and is_unknown):
            if not self._held:
                self._shared.outbox.append(OpenData(self.state.id))  # all entries in the data are certainly committed
            self._held.append((append, stream, known_at))
            return
        if append.truncate:
            self._is_refused = False  # the leader sends the log again, from `prev_offset` on
        if self._is_refused:
            return
        if shortens and not self._truncate(append.prev_offset):
            return
        if append.prev_offset != log.end:
            text = f"{self.state}: the leader appends after {append.prev_offset}"
            raise MinkaError(Code.INTERNAL, text)
        self._is_aligned = True
        for entry in append.entries:
            log.append(entry.leader_epoch, entry.body)
        self._hear(append, known_at)
        if append.entries or append.truncate:
            has_mark = self.state.is_async and any(is_mark(entry.body) for entry in append.entries)
            is_barrier = has_mark or self.state.needs_disk
            if is_barrier:
                self.state.barrier(log.end)
            self._shared.outbox.append(Sync(self.state.id, is_barrier))
        else:
            self.advance()

    def data_opened(self) -> None:
        """The data is open, or was found unusable: take the appends that waited for it. Raises errors of `append`."""
        held, self._held = self._held, []
        for append, stream, known_at in held:
            self.append(append, stream, known_at)

    def _hear(self, append: Append, known_at: float) -> None:
        """Note the generation of the leader's row, its high watermark and the start of its epoch."""
        self._generation = append.generation
        if append.high_watermark == self._told and append.epoch_start == self._epoch_start:
            return
        state = self.state
        self.refresh()
        self._told, self._epoch_start = append.high_watermark, append.epoch_start
        state.freshness.mark(state.applied, max(append.high_watermark, append.epoch_start), known_at)

    def _truncate(self, end: int) -> bool:
        """Truncate the log to `end`, the last entry that the leader has, too. Returns False, without an effect, if this
        would remove committed entries, or if the data is damaged.
        """
        state = self.state
        try:
            state.take_over_data()  # all entries in the data are certainly committed
        except MinkaError as error:
            if error.code is not Code.CORRUPT_DATA:
                raise
            return False  # damaged data makes the replica ask for a checkpoint
        if end >= state.high_watermark:
            self._report_truncation(end)
            state.truncate(end)
            return True
        # The leader lacks committed entries: it was elected without them, or disks have lost them. This replica had
        # them when it said where it stands, or has them in its data.
        text = "the leader lacks what was committed here; this copy is replaced by the leader's"
        lacking = state.high_watermark - end
        self._report(Level.ERROR, text, committed=state.high_watermark, at_the_leader=end, lacking=lacking)
        self.needs_checkpoint()
        return False

    def _report_truncation(self, end: int) -> None:
        """Report the truncation. `_stands_at` is the offset that this replica told the leader.

            | end ........ _stands_at | the leader lacks these entries: a warning, or an error
            | _stands_at .... log.end | the leader sends these entries again: harmless

        If the leader is in sync and no disk has lost anything, nobody has acknowledged the entries that it lacks. But
        this replica can't be sure: after a restart, it knows only the commits up to its last flush.
        """
        log, stands_at = self.state.log, self._stands_at
        level, text = Level.INFO, "a log is truncated"
        if stands_at > end:
            level, text = Level.WARNING, "the leader lacks the end of this log, which is truncated"
            newest = max(epoch for start, epoch in log.lineage() if start <= stands_at)
            if newest >= self.state.row.leader_epoch:  # a leader has all entries of its own leadership
                level, text = Level.ERROR, f"{text}; it is of this leadership or a later one: the table was set back"
        self._report(level, text, at=end, end=log.end, lacking=max(stands_at - end, 0))

    def _report(self, level: Level, text: str, **names: object) -> None:
        self._shared.outbox.report(level, text, partition=self.state.id, **names)

    def disconnected(self) -> None:
        """The leader's stream has ended."""
        self.refresh()
        self.stream = self._asked = None

    # What happens here

    def stored(self) -> None:
        """More of the log is durable."""
        self.advance()
        if self._asked is not None:
            self._stand()
        elif self.stream is not None and self._is_aligned:
            self._answer(Standing.STORED)

    def advance(self) -> None:
        """Move the high watermark to the leader's, as far as the log is durable here."""
        state = self.state
        state.commit(min(state.durable, self._told))
        state.log.bound_tail(state.durable)
        self._shared.apply(state)

    def needs_checkpoint(self) -> None:
        """The copy here is unusable: ask the leader for a checkpoint. If a probe is still unanswered, this is its
        answer, with the files that are left of a broken checkpoint transfer.
        """
        if self.stream is None:
            return
        self._is_refused = True
        if self._asked is not None:
            self._say(self.stream, Standing.NEEDS_CHECKPOINT, self._asked)
        else:
            self._answer(Standing.NEEDS_CHECKPOINT)

    def _say(self, stream: LeaderStream, standing: Standing, kept: list[KeptFile]) -> None:
        self._asked, self._stands_at = None, self.state.durable
        self._put(stream, standing, self.state.log.lineage(), kept)

    def _answer(self, standing: Standing) -> None:
        assert self.stream is not None, f"nobody asks for partition {self.state.id}"
        self._put(self.stream, standing, None, [])

    def _put(
        self, stream: LeaderStream, standing: Standing, lineage: list[tuple[int, int]] | None, kept: list[KeptFile]
    ) -> None:
        state = self.state
        epoch, is_attached = state.row.leader_epoch, state.data.is_attached
        ack = Ack(state.id, epoch, standing, state.durable, lineage, kept, is_attached)
        self._shared.outbox.append(Answer(stream, ack))

    def refresh(self) -> None:
        """Bring `freshness` up to the applied offset. If the leader's row has a greater generation, do nothing: a split
        may have taken keys from the range in this replica's row, and the leader's log no longer has writes to them.
        """
        state = self.state
        if state.row.generation < self._generation:
            return
        state.freshness.reached(state.applied)
        if self.stream is not None and state.applied >= max(self._told, self._epoch_start):
            state.freshness.newest_at(self.stream.known_at)
