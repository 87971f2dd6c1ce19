"""The moves of duties that this node has seen in the log, for people to see, and the durations of hand-overs."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from minka.v1.duties_pb2 import AssignmentsChanged, AssignmentState
from minka.v1.duty_api_pb2 import DutyMoved, HandOverTimes
from minka.v1.records_pb2 import RecordBatch
from minka.v1.shards_pb2 import ShardReported
from minkad.core.state import DutyState, State

KEPT_MOVES: Final = 1000
KEPT_GAPS: Final = 10_000
# Looked up once: used for each duty that moves.
_NONE: Final = AssignmentState.ASSIGNMENT_STATE_UNSPECIFIED
_ASSIGNED: Final = AssignmentState.ASSIGNMENT_STATE_ASSIGNED
_ATTACHED: Final = AssignmentState.ASSIGNMENT_STATE_ATTACHED
_RELEASING: Final = AssignmentState.ASSIGNMENT_STATE_RELEASING


class _Gap(NamedTuple):
    pallet: str
    milliseconds: int


class DutyHistory:
    """The moves that one node has seen. Only the active controller's node knows how long delegates took."""

    def __init__(self) -> None:
        self._moves: deque[DutyMoved] = deque(maxlen=KEPT_MOVES)
        self._gaps: deque[_Gap] = deque(maxlen=KEPT_GAPS)  # of planned moves: how long the duty was attached nowhere
        self._left: dict[int, tuple[str, str]] = {}  # by duty: the last shard that had it, and why it no longer has it
        self._released_ms: dict[int, int] = {}  # by duty that was released as planned, and isn't attached yet: when
        self._took_ms: dict[int, int] = {}  # by duty about to be attached: the duration in the report

    def note(self, batch: RecordBatch, before: State) -> None:
        """Note the moves in records that are about to be applied to `before`."""
        for record in batch.records:
            if record.HasField("assignments_changed"):
                self._note(record.assignments_changed, before)
            elif record.HasField("duties_changed"):
                for number in record.duties_changed.removed:
                    self._left.pop(number, None)
                    self._released_ms.pop(number, None)
                    self._took_ms.pop(number, None)

    def _note(self, changed: AssignmentsChanged, before: State) -> None:
        state = changed.state
        if state == _ATTACHED and not self._released_ms:
            self._forget_times(changed.duties)
            return
        if state == _ASSIGNED and not self._left:
            return
        for number in changed.duties:
            row = before.duties.duties.get(number)
            if row is None or row.synthetic:
                continue
            if state == _NONE:
                old = before.duties.assignment(number, changed.shard)
                if old is not None and old.holds:
                    self._left[number] = changed.shard, old.reason if old.state == _RELEASING else changed.reason
                    if old.state == _RELEASING:
                        self._released_ms[number] = changed.time_ms
            elif state == _ASSIGNED and number in self._left:
                source, cause = self._left.pop(number)
                self._moves.append(
                    DutyMoved(
                        time_ms=changed.time_ms,
                        pallet=row.pallet,
                        id=row.id,
                        source=source,
                        target=changed.shard,
                        reason=_both(cause, changed.reason),
                    )
                )
            elif state == _ATTACHED and number in self._released_ms:
                gap = changed.time_ms - self._released_ms.pop(number) - self._took_ms.get(number, 0)
                self._gaps.append(_Gap(row.pallet, max(0, gap)))
        if state == _ATTACHED:
            self._forget_times(changed.duties)

    def _forget_times(self, duties: Iterable[int]) -> None:
        """These duties are attached, so their times aren't asked for again."""
        if self._took_ms:
            for number in duties:
                self._took_ms.pop(number, None)

    def note_times(self, duties: DutyState, reported: ShardReported) -> None:
        """Note how long it took to attach the duties that the report attaches. A repeated report attaches none."""
        report, attached = reported.report, set[int]()
        for holding in report.attached if report.times else ():
            one = duties.assignment(holding.duty, reported.shard)
            if one is not None and (one.epoch, one.state) == (holding.epoch, _ASSIGNED):
                attached.add(holding.duty)
        self._took_ms.update((one.duty, one.took_ms + one.waited_ms) for one in report.times if one.duty in attached)

    def moves(self) -> Iterator[DutyMoved]:
        """The last moves, the newest first."""
        return reversed(self._moves)

    def hand_overs(self, pallet: str) -> HandOverTimes:
        """How long the pallet's duties were attached to no shard in planned moves, less the time that delegates
        took.
        """
        gaps = sorted(gap.milliseconds for gap in self._gaps if gap.pallet == pallet)
        if not gaps:
            return HandOverTimes()
        return HandOverTimes(
            count=len(gaps),
            p50_ms=gaps[len(gaps) // 2],
            p99_ms=gaps[min(len(gaps) - 1, len(gaps) * 99 // 100)],
            max_ms=gaps[-1],
        )


def _both(cause: str, choice: str) -> str:
    """Why the duty left its shard, and why it came to the next shard. In a plan's move, both reasons are equal."""
    return choice if cause in ("", choice) else f"{cause}; {choice}"
