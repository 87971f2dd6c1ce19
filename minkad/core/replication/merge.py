"""What a leader does in a merge, for which it leads both partitions (Key-Range Partitions, Patterns of Distributed
Systems).

The leader copies the right partition's data into the log of the left partition, so the data reaches the left one's
replicas as all writes do: first the rows, then, from the right one's log, the writes made meanwhile. At the end, new
writes to the right partition wait until the last writes are copied and the controller has recorded the merge. Reads
don't wait.
"""

from collections import deque
from enum import Enum, auto
from typing import Final

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import FinishMergeRequest
from minka.wire.kv_frames import StoredWrite, WriteBody, encode
from minka.wire.stored_values import head, version_at, with_version
from minkad.core.replication.entries import decode_entry
from minkad.core.replication.inquiry import Inquiry, Outcome
from minkad.core.replication.instructions import AskFinishMerge, Changed, Level, MakeRoom, OpenData, Reached, WakeAt
from minkad.core.replication.replica import Replica
from minkad.core.replication.replica_storage import DeletedAheadError
from minkad.core.state import range_of

_PAGE_ROWS: Final = 250
_PAGE_BYTES: Final = 64 * 1024
_MAX_PASSED: Final = 20_000
_AHEAD: Final = 4  # copied entries that the left one may have unapplied; users' writes queue after them
_NEAR: Final = 64  # entries of the right one's log; when at most this many are left to copy, writes may wait
# The controller's answers if the rows have changed, so the request can't succeed.
_REFUSALS: Final = frozenset({Code.STALE_EPOCH, Code.NOT_LEADER, Code.UNKNOWN_PARTITION})


class _Step(Enum):
    COPY = auto()  # copy the rows
    CATCH_UP = auto()  # copy the writes made meanwhile, until at most `_NEAR` are left
    FREEZE = auto()  # writes to the right one wait, at most `write_pause_timeout`, until all of them are copied
    DRAIN = auto()  # writes still wait, until the left one has applied all copied entries
    RECORD = auto()  # writes still wait, until the controller's decision is known
    PAUSE = auto()  # after a freeze that took too long, or a refusal; then FREEZE again
    BEGIN_AGAIN = auto()  # after an error; then COPY from the first row on


class Merge:
    """A merge of two replicas, while this node leads both at the leader_epochs at which the merge began."""

    def __init__(self, left: Replica, right: Replica) -> None:
        self.left = left
        self.right = right
        self._shared = left.shared
        self._name = f"merge into {left.id}"  # as a reader of the right one's log: see `Retention`
        self._range = range_of(right.row)
        self._epochs = (left.row.leader_epoch, right.row.leader_epoch)
        self._step = _Step.COPY
        self._start: bytes | None = None  # the first key that isn't copied yet; None before the copy begins
        self._copied = 0  # the last offset of the right one's log that is copied
        # From this time on, writes may wait although the left one still has entries to apply: see `_is_near`. 0.0 until
        # at most `_NEAR` entries are left to copy.
        self._near_until = 0.0
        self._base = 0  # the right one's version base: offset + base is the version of an entry's rows
        self._appended: deque[int] = deque(maxlen=_AHEAD)  # offsets, in the left one's log, of the last copied entries
        self._end = 0  # in DRAIN and RECORD: the left one's log end, after all copied entries
        self._inquiry = Inquiry(self._shared.settings, _REFUSALS)
        self._asked_epochs = (0, 0)  # the partition_epochs with which the controller is asked
        self._due_at = 0.0  # the end of the freeze (FREEZE, DRAIN), or of a pause
        self._pause = self._shared.settings.first_backoff  # the next pause; doubles each time, up to `longest_backoff`
        self._is_clearing = False  # the shell carries out `MakeRoom`; nothing is copied meanwhile

    @property
    def goes_on(self) -> bool:
        """True if this node still has to carry out the merge."""
        epochs = (self.left.row.leader_epoch, self.right.row.leader_epoch)
        return epochs == self._epochs and is_due(self.left, self.right)

    def advance(self, now: float) -> None:
        """Take the next steps: one of the two has progressed, or has another row, or time has passed."""
        try:
            is_closed = self.left.gate.is_closed or self.right.gate.is_closed
            if self._step is not _Step.RECORD and not is_closed:  # a partition that is handed over takes no entries
                self._advance(now)
            self._time_out(now)
            if self._step is _Step.RECORD and self._inquiry.is_due(now):
                self._ask(now)
        except MinkaError as error:
            names = {"partition": self.left.id, "right": self.right.id, "reason": str(error)}
            self._shared.outbox.report(Level.WARNING, "a merge begins again", **names)
            self._thaw()
            self._wait(_Step.BEGIN_AGAIN, now)

    def _advance(self, now: float) -> None:
        if self._step in (_Step.PAUSE, _Step.BEGIN_AGAIN) and now >= self._due_at:
            self._start = None if self._step is _Step.BEGIN_AGAIN else self._start
            self._step = _Step.COPY if self._step is _Step.BEGIN_AGAIN else _Step.FREEZE
            if self._step is _Step.FREEZE:
                self._freeze(now)
        if self._step is _Step.COPY:
            self._copy(now)
        if self._step is _Step.CATCH_UP:
            self._catch_up()
            if self._is_near(now):
                self._freeze(now)
        if self._step is _Step.FREEZE and self._catch_up() and self.right.applied == self.right.log.end:
            self._drain()
        if self._step is _Step.DRAIN and self.left.applied >= self._end:
            self._step, self._inquiry = _Step.RECORD, Inquiry(self._shared.settings, _REFUSALS)
            self._asked_epochs = self._partition_epochs()

    def _time_out(self, now: float) -> None:
        if self._step in (_Step.FREEZE, _Step.DRAIN) and now >= self._due_at:
            names = {"partition": self.left.id, "right": self.right.id}
            self._shared.outbox.report(Level.INFO, "a merge waits for the last writes", **names)
            self._thaw()
            self._wait(_Step.PAUSE, now)

    def close(self) -> None:
        """This node no longer carries out the merge, or it is recorded."""
        self.right.retention.release(self._name)
        self._thaw()

    # Copying

    def _copy(self, now: float) -> None:
        """Copy the next page of the right one's rows."""
        if self.right.data.is_closed:
            self._shared.outbox.append(OpenData(self.right.id))
            return
        if self._start is None:
            self._shared.outbox.append(Reached("merge.copy"))
            self.left.announce_trim(range_of(self.left.row), copies_follow=True)
            self._start, self._copied, self._near_until = self._range.start, self.right.applied, 0.0
            self._base = self.right.data.version_base
            self.right.retention.keep_for(self._name, self._copied)
        if self._is_clearing or not self._has_room():
            return
        wanted = KeyRange(self._start, self._range.end)
        try:
            keys, rows, is_all = self.right.data.stored_page(*wanted, False, _PAGE_ROWS, _PAGE_BYTES, _MAX_PASSED)
        except DeletedAheadError:
            self._is_clearing = True
            self._shared.outbox.append(MakeRoom(self.left.id, self.right.id, wanted))
            return
        if keys or is_all:  # even without rows: later rows need versions above those of deleted rows
            loaded = self.right.data.loaded_version
            self._append(StoredWrite(keys, [with_version(row, loaded) for row in rows], self._copied + self._base))
        if keys:
            self._start = keys[-1] + b"\x00"
        if is_all:
            self._step = _Step.CATCH_UP
        self._shared.outbox.append(WakeAt(self.left.id, now))  # other partitions have their turn before the next page

    def cleared(self, error: MinkaError | None, now: float) -> None:
        """The shell has carried out `MakeRoom`, or `MakeRoom` has failed with `error`."""
        if not self._is_clearing:
            return  # the answer to an earlier merge of the two
        self._is_clearing = False
        if error is not None:
            self._wait(_Step.BEGIN_AGAIN, now)
        self.advance(now)

    def _catch_up(self) -> bool:
        """Copy the entries that the right one has applied since the last call. True if none is left at the moment."""
        while self._copied < self.right.applied:
            if not self._has_room():
                return False
            self._copy_entries()
        return True

    def _copy_entries(self) -> None:
        """Copy the next entries of the right one's log as one entry: a replication round for each would be slow."""
        right = self.right
        keys: list[bytes] = []
        values: list[bytes | None] = []
        has_write = False
        for entry in right.log.read(self._copied + 1, right.applied, _PAGE_BYTES):
            self._copied += 1
            if isinstance(write := decode_entry(entry.body), WriteBody):
                has_write = True
                if isinstance(write, StoredWrite):
                    self._base = max(self._base, write.floor - self._copied)
                keys += write.keys
                values += self._stored(write)
        right.retention.keep_for(self._name, self._copied)
        if has_write:
            self._append(StoredWrite(keys, values, self._copied + self._base))

    def _stored(self, write: WriteBody) -> list[bytes | None]:
        """The values, in the stored form, with the versions that the rows have in the right partition."""
        if isinstance(write, StoredWrite):
            return write.values
        first = head(version_at(self._copied + self._base))
        return [None if value is None else first + value for value in write.values]

    def _is_near(self, now: float) -> bool:
        """True if writes may begin to wait. Entries that the left one has yet to apply would prolong this wait, so it
        begins when at most one copied entry is unapplied. Under load that might never happen; so `write_pause_timeout`
        after the copy came near for the first time, the wait begins in any case.
        """
        if self.right.applied - self._copied > _NEAR:
            return False
        if not self._near_until:
            self._near_until = now + self._shared.settings.write_pause_timeout
            self._shared.outbox.append(WakeAt(self.left.id, self._near_until))
        return now >= self._near_until or len(self._appended) < 2 or self.left.applied >= self._appended[-2]

    def _has_room(self) -> bool:
        return len(self._appended) < _AHEAD or self.left.applied >= self._appended[0]

    def _append(self, write: StoredWrite) -> None:
        offset = self.left.append(encode(write))
        self.left.raise_versions(offset, write.floor)
        self._appended.append(offset)

    # The end

    def _freeze(self, now: float) -> None:
        """Let new writes to the right one wait, so that the last writes can be copied."""
        self._shared.outbox.append(Reached("merge.freeze"))
        self.right.gate.freeze()
        self._step, self._due_at = _Step.FREEZE, now + self._shared.settings.write_pause_timeout
        self._shared.outbox.append(WakeAt(self.left.id, self._due_at))

    def _drain(self) -> None:
        if self.left.is_async:  # this mark brings the copy to the disk before the right one's data is deleted
            self.left.announce_trim(KeyRange(self.left.row.start_key, self._range.end))
        self._step, self._end = _Step.DRAIN, self.left.log.end

    def _ask(self, now: float) -> None:
        """Ask the controller to record the merge. Writes wait until the outcome is known, since the right one must not
        take a write after the merge.
        """
        if self._partition_epochs() != self._asked_epochs:
            self._thaw()
            self._wait(_Step.PAUSE, now)
            return
        request = FinishMergeRequest(
            node_id=self._shared.id,
            partition_id=self.left.id,
            partition_epoch=self.left.row.partition_epoch,
            merged_id=self.right.id,
            merged_epoch=self.right.row.partition_epoch,
        )
        self._inquiry.asked(request)
        self._shared.outbox.append(AskFinishMerge(request))

    def answered(self, request: FinishMergeRequest, error: MinkaError | None, now: float) -> None:
        """The controller has answered; the rows that it sent are adopted already."""
        outcome = self._inquiry.answered(request, error, now)
        if outcome is Outcome.STALE:
            return
        if error is not None:
            names = {"partition": self.left.id, "right": self.right.id, "reason": str(error)}
            self._shared.outbox.report(Level.INFO, "the end of a merge is tried again", **names)
        if outcome is Outcome.REFUSED:
            self._thaw()
            self._wait(_Step.PAUSE, now)
        else:
            self._shared.outbox.append(WakeAt(self.left.id, self._inquiry.due_at))

    def _partition_epochs(self) -> tuple[int, int]:
        return self.left.row.partition_epoch, self.right.row.partition_epoch

    def _wait(self, step: _Step, now: float) -> None:
        self._step, self._due_at = step, now + self._pause
        self._pause = min(2 * self._pause, self._shared.settings.longest_backoff)
        self._shared.outbox.append(WakeAt(self.left.id, self._due_at))

    def _thaw(self) -> None:
        """Writes to the right one go on. After the merge nobody leads the right one, so these writes are refused."""
        self.right.gate.thaw()
        self._shared.outbox.append(Changed(self.right.id))


def is_due(left: Replica, right: Replica) -> bool:
    """True if the rows say that the two are to be merged, and this node serves both."""
    is_pair = (left.row.merge_from, right.row.merge_into) == (right.id, left.id)
    return is_pair and left.is_ready and right.is_ready
