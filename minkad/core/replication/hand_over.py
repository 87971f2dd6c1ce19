"""A leader hands over gracefully: writes wait, the successor catches up, and the controller records the new leader.

Source: Fixed Partitions, Patterns of Distributed Systems ("Moving partitions to newly added members"), and the planned
changes of leader in Kafka's controller.
"""

from enum import Enum, auto

from minka.errors import MinkaError
from minka.v1.coordinator_pb2 import HandOverRequest, MigrationPhase
from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.inquiry import Inquiry, Outcome
from minkad.core.replication.instructions import AskHandOver, Changed, GateOpened, Level, Reached, WakeAt
from minkad.core.replication.replica_state import ReplicaState
from minkad.core.replication.shared_state import SharedState


class _Step(Enum):
    FOLLOW = auto()  # until the successor is in sync and near the end of the log
    CLOSE = auto()  # writes wait until the successor has the whole log, at most `write_pause_timeout`
    ASK = auto()  # writes and reads wait until the controller's decision is known
    PAUSE = auto()  # after a failed try; then FOLLOW again


class HandOver:
    """The hand-over to one successor, while the row names this successor.

    Once the gate is closed, the log no longer grows, so the successor and the leader's own applying reach its end:

        leader's log        |----------------------------------| log.end = 120, fixed while the gate is closed
        leader's applied    |------------------------------| 116
        successor's matched |---------------------------| 113     both at 120: ask the controller
    """

    def __init__(self, shared: SharedState, state: ReplicaState, progress: Progress) -> None:
        self.successor = progress.node_id
        self.blocked_by = ""  # the reason why the last try failed; "" if none did since the controller was asked
        self._shared = shared
        self._state = state  # of the leader's replica
        self._progress = progress  # of the successor
        self._step = _Step.FOLLOW  # the gate is closed in CLOSE and ASK, and open in FOLLOW and PAUSE
        self._closed_at = 0.0  # the time when the gate was closed last
        self._partition_epoch = 0  # of the row with which the controller is asked; a newer row ends the try
        self._inquiry = Inquiry(shared.settings)  # the request of the present try
        self._due_at = 0.0  # in CLOSE: when writes have waited long enough; in PAUSE: when the pause ends
        self._pause = shared.settings.first_backoff  # of the next failure; doubles with each, up to `longest_backoff`

    @property
    def phase(self) -> MigrationPhase.ValueType:
        """The phase of the hand-over, for the progress of migrations."""
        asks = self._step is _Step.ASK
        return MigrationPhase.MIGRATION_PHASE_HAND_OVER if asks else MigrationPhase.MIGRATION_PHASE_FOLLOW

    def advance(self, now: float) -> None:
        """Take the next steps: the leader or the successor has progressed, or time has passed."""
        if self._step is _Step.PAUSE and now >= self._due_at:
            self._step = _Step.FOLLOW
        if self._step is _Step.FOLLOW and self._progress.is_near and self._is_possible():
            self._close_gate(now)
        if self._step is _Step.CLOSE:
            self._wait_closed(now)
        elif self._step is _Step.ASK and self._inquiry.is_due(now):
            self._ask(now)

    def _is_possible(self) -> bool:
        """True if the successor is in sync, and no node of the in-sync set is absent. With an absent node in the set,
        nothing is committed until that node leaves the set; and no node leaves the set while the gate is closed.
        """
        isr = self._state.row.isr
        return self.successor in isr and not any(self._shared.view.is_absent(node) for node in isr)

    def cancel(self, now: float) -> None:
        """End this hand-over, since the row has changed: the waiting writes go on."""
        self._open_gate(now)

    def _close_gate(self, now: float) -> None:
        self._step, self._closed_at = _Step.CLOSE, now
        self._state.gate.close()
        self._shared.outbox.append(Reached("migration.close_gate"))
        self._wake(now + self._shared.settings.write_pause_timeout)

    def _wait_closed(self, now: float) -> None:
        state, end = self._state, self._state.log.end
        if self._progress.matched >= end and state.applied >= end and self._progress.is_replicating:
            state.note_led(self._shared.view.last_clearance(now))
            state.gate.close_to_reads()
            self._step, self.blocked_by = _Step.ASK, ""
            self._inquiry, self._partition_epoch = Inquiry(self._shared.settings), state.row.partition_epoch
            self._ask(now)
        elif not self._progress.is_replicating or not self._is_possible():
            self._give_up(now)
        elif now >= self._due_at:
            self._block(f"the target did not catch up within {self._shared.settings.write_pause_timeout} s")
            self._give_up(now)

    def _ask(self, now: float) -> None:
        row = self._state.row
        if row.partition_epoch != self._partition_epoch:
            self._give_up(now)  # try again with the newer row, which has the same leader and the same successor
            return
        request = HandOverRequest(
            node_id=self._shared.id,
            partition_id=row.id,
            leader_epoch=row.leader_epoch,
            partition_epoch=row.partition_epoch,
            target=self.successor,
        )
        self._inquiry.asked(request)
        self._shared.outbox.append(AskHandOver(request))

    def answered(self, request: HandOverRequest, error: MinkaError | None, now: float) -> None:
        """The controller has answered; the rows that it sent are adopted already."""
        outcome = self._inquiry.answered(request, error, now)
        if outcome is Outcome.REFUSED:
            self._block(str(error))
            self._give_up(now)
        elif outcome is not Outcome.STALE:  # if it is RECORDED, the new row has ended this hand-over, or will soon
            if outcome is Outcome.UNKNOWN:
                self._block(f"waiting for the outcome of the hand-over: {error}")
            self._shared.outbox.append(WakeAt(self._state.id, self._inquiry.due_at))

    def _give_up(self, now: float) -> None:
        self._open_gate(now)
        self._step = _Step.PAUSE
        self._wake(now + self._pause)
        self._pause = min(2 * self._pause, self._shared.settings.longest_backoff)

    def _open_gate(self, now: float) -> None:
        if self._state.gate.is_closed:
            self._state.gate.open()
            self._shared.outbox.append(GateOpened(self._state.id, self.successor, now - self._closed_at))
            self._shared.outbox.append(Changed(self._state.id))

    def _block(self, reason: str) -> None:
        if not self.blocked_by:
            self._shared.outbox.report(
                Level.WARNING,
                "a hand-over is blocked; it goes on trying",
                partition=self._state.id,
                target=self.successor,
                phase=MigrationPhase.Name(self.phase),
                reason=reason,
            )
        self.blocked_by = reason

    def _wake(self, at: float) -> None:
        self._due_at = at
        self._shared.outbox.append(WakeAt(self._state.id, at))
