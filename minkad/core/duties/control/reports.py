"""Turns the reports of shards about their duties into records."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from minka.v1.cluster_pb2 import MigrationState
from minka.v1.duties_pb2 import AssignmentState, Duty, Shard, ShardState
from minka.v1.records_pb2 import Record
from minka.v1.shards_pb2 import FailedDuty, Holding, ReportShardsRequest, ShardReport
from minkad.core.controller.decision import Steps, one_by_one
from minkad.core.controller.rows import migration_in_state
from minkad.core.duties.control.duty_rows import duties_in_pieces, duty_with, in_state, stops
from minkad.core.duties.control.quarantines import quarantine
from minkad.core.duties.control.shard_lives import is_process
from minkad.core.duties.control.suspects import clear
from minkad.core.state import Assignment, DutyState, Placed, State, weight_of

_A = AssignmentState
WEIGHT_TOLERANCE: Final = 0.1  # of the weight; a smaller change is ignored, here and by the SDK


def report(state: State, request: ReportShardsRequest, now_ms: int) -> Steps[None]:
    """Record what follows from the shards' reports. A report about a duty counts only if it names the epoch of the
    shard's present assignment. Reports of a process that isn't registered are ignored.
    """
    for one in request.reports:
        shard = state.duties.shards.get(one.shard)
        if shard is not None and is_process(shard, one.incarnation):
            yield from one_by_one(_report(state, shard, one.report, now_ms))


def _report(state: State, shard: Shard, said: ShardReport, now_ms: int) -> Iterator[Record]:
    duties = state.duties
    yield from _attached(duties, shard, said.attached, now_ms)
    yield from _finished(duties, shard, said.finished, now_ms)
    yield from _failed(state, shard, said.failed, now_ms)
    yield from _released(duties, shard, said.released, now_ms)
    yield from _weighed(duties, shard, [(one.holding, one.weight) for one in said.weights])
    yield from _prepared(state, shard, said.prepared, now_ms)


def _meant(
    duties: DutyState, shard: Shard, said: Iterable[Holding], is_in: Callable[[int], bool]
) -> Iterator[Assignment]:
    for holding in {one.duty: one for one in said}.values():
        one = duties.assignment(holding.duty, shard.name)
        if one is not None and one.epoch == holding.epoch and is_in(one.state):
            yield one


def _attached(duties: DutyState, shard: Shard, said: Iterable[Holding], now_ms: int) -> Iterator[Record]:
    found = [one.duty for one in _meant(duties, shard, said, lambda s: s == _A.ASSIGNMENT_STATE_ASSIGNED)]
    rows = [row for row in map(duties.duties.__getitem__, found) if _is_news(row)]
    yield from duties_in_pieces(duty_with(row, _begin) for row in rows)
    yield from in_state(shard.name, _A.ASSIGNMENT_STATE_ATTACHED, found, now_ms)


def _is_news(row: Duty) -> bool:
    """True if the row has to change now that the duty is attached."""
    return row.HasField("suspicion") or (row.stationary and not row.was_attached)


def _begin(row: Duty) -> None:
    row.was_attached = row.stationary
    clear(row)


def _end(row: Duty) -> None:
    row.was_attached = False


def _may_hold(state: int) -> bool:
    return state in (_A.ASSIGNMENT_STATE_ASSIGNED, _A.ASSIGNMENT_STATE_ATTACHED, _A.ASSIGNMENT_STATE_RELEASING)


def _may_hold_or_prepare(state: int) -> bool:
    return _may_hold(state) or state == _A.ASSIGNMENT_STATE_PREPARING


def _released(duties: DutyState, shard: Shard, said: Iterable[Holding], now_ms: int) -> Iterator[Record]:
    """Take released duties from the shard. If it leaves and may come back within its grace, its duties are kept for it,
    except those that are being deleted. A stationary duty that is released as planned counts as new: it hasn't failed.
    """
    leaves = shard.state == ShardState.SHARD_STATE_LEAVING
    keeps = leaves and shard.grace_ms > 0
    found = list(_meant(duties, shard, said, _may_hold))
    planned = [duties.duties[one.duty] for one in found if leaves or one.state == _A.ASSIGNMENT_STATE_RELEASING]
    yield from duties_in_pieces(duty_with(row, _end) for row in planned if row.was_attached)
    kept = [one.duty for one in found if keeps and not duties.duties[one.duty].deleting]
    free = [one.duty for one in found if not keeps or duties.duties[one.duty].deleting]
    yield from in_state(shard.name, _A.ASSIGNMENT_STATE_KEPT, kept, now_ms)
    reason = stops(shard) if leaves else f"{shard.name} has released it"
    yield from in_state(shard.name, _A.ASSIGNMENT_STATE_UNSPECIFIED, free, now_ms, reason)


def _finished(duties: DutyState, shard: Shard, said: Iterable[Holding], now_ms: int) -> Iterator[Record]:
    """Delete lazy duties that the shard reports as finished."""
    found = [one.duty for one in _meant(duties, shard, said, _may_hold) if duties.duties[one.duty].lazy]
    yield from in_state(shard.name, _A.ASSIGNMENT_STATE_UNSPECIFIED, found, now_ms)
    preparing: dict[str, list[int]] = {}
    for number in found:
        for other in duties.of_duty.get(number, ()):
            preparing.setdefault(other.shard, []).append(number)
    for name, numbers in preparing.items():
        yield from in_state(name, _A.ASSIGNMENT_STATE_UNSPECIFIED, numbers, now_ms)
    yield from duties_in_pieces(removed=found)


def _failed(state: State, shard: Shard, said: Iterable[FailedDuty], now_ms: int) -> Iterator[Record]:
    """Take from the shard the duties that it couldn't attach, so that other shards try them. The shard doesn't get such
    a duty again until a person clears the quarantine, a client updates the duty, or the shard runs another version. If
    the shard couldn't prepare for a duty, the duty stays where it is.
    """
    duties = state.duties
    reasons = {one.holding.duty: one.reason for one in said}
    found = [one.duty for one in _meant(duties, shard, (one.holding for one in said), _may_hold_or_prepare)]
    rows = (duty_with(duties.duties[number], quarantine(state, shard, reasons[number], now_ms)) for number in found)
    yield from duties_in_pieces(rows)
    reason = f"it couldn't be attached on {shard.name}"
    yield from in_state(shard.name, _A.ASSIGNMENT_STATE_UNSPECIFIED, found, now_ms, reason)


def _weighed(duties: DutyState, shard: Shard, said: Iterable[tuple[Holding, int]]) -> Iterator[Record]:
    """Record reported weights. Small changes are ignored, so that jitter moves nothing."""
    weights = {holding.duty: weight for holding, weight in said}
    held = list(_meant(duties, shard, (holding for holding, _ in said), _may_hold))
    rows = ((duties.duties[one.duty], weights[one.duty]) for one in held)
    yield from duties_in_pieces(
        duty_with(row, lambda new, weight=weight: setattr(new, "reported_weight", weight))  # type: ignore[misc]
        for row, weight in rows
        if _differs(weight, weight_of(row))
    )


def _differs(weight: int, known: int) -> bool:
    """True if the weight is recorded. The SDK also applies this rule, and never reports one weight twice."""
    return weight != known and abs(weight - known) >= WEIGHT_TOLERANCE * known


def _prepared(state: State, shard: Shard, said: Iterable[Holding], now_ms: int) -> Iterator[Record]:
    """This shard is prepared for duties: let the shards that have them release them. Then this shard gets them."""
    by_holder: dict[str, list[int]] = {}
    for one in _meant(state.duties, shard, said, lambda s: s == _A.ASSIGNMENT_STATE_PREPARING):
        holder = state.duties.holder(one.duty)
        if holder is not None and holder.state in (_A.ASSIGNMENT_STATE_ASSIGNED, _A.ASSIGNMENT_STATE_ATTACHED):
            by_holder.setdefault(holder.shard, []).append(one.duty)
        migration = state.under_way.get(Placed.duty(one.duty))
        if migration is not None and migration.state == MigrationState.MIGRATION_STATE_PREPARING:
            yield migration_in_state(migration, MigrationState.MIGRATION_STATE_RELEASING, now_ms)
    for name, numbers in by_holder.items():
        yield from in_state(name, _A.ASSIGNMENT_STATE_RELEASING, numbers, now_ms, f"{shard.name} is prepared for it")
