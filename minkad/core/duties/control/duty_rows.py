"""Makes records from rows of shards and duties."""

from collections.abc import Callable, Iterable, Iterator

from minka.v1.duties_pb2 import AssignmentState, DutiesChanged, Duty, Shard, ShardState
from minka.v1.records_pb2 import Record
from minkad.core.state import assignments_changed, slices

DUTIES_A_RECORD = 250  # such a record takes a few milliseconds to apply


def shard_with(shard: Shard, change: Callable[[Shard], None]) -> Record:
    """The record that replaces the shard's row by a changed copy."""
    row = Shard()
    row.CopyFrom(shard)
    change(row)
    return Record(shard_changed=row)


def shard_in_state(shard: Shard, state: ShardState.ValueType, reason: str, now_ms: int) -> Record:
    """The record by which a shard is in this state from now on."""

    def change(row: Shard) -> None:
        row.state, row.state_reason, row.state_since_ms = state, reason, now_ms

    return shard_with(shard, change)


def duty_with(duty: Duty, change: Callable[[Duty], None]) -> Duty:
    """A changed copy of the row."""
    row = Duty()
    row.CopyFrom(duty)
    change(row)
    return row


def duties_changed(rows: Iterable[Duty] = (), removed: Iterable[int] = ()) -> list[Record]:
    """One record for all rows; none if there are no rows."""
    changed = DutiesChanged(duties=rows, removed=removed)
    return [Record(duties_changed=changed)] if changed.duties or changed.removed else []


def duties_in_pieces(rows: Iterable[Duty] = (), removed: Iterable[int] = ()) -> Iterator[Record]:
    """The records for all rows, with at most DUTIES_A_RECORD duties in each."""
    for some in slices(rows, DUTIES_A_RECORD):
        yield from duties_changed(some)
    for gone in slices(removed, DUTIES_A_RECORD):
        yield from duties_changed(removed=gone)


def in_state(
    shard: str, state: AssignmentState.ValueType, duties: Iterable[int], now_ms: int, reason: str = ""
) -> Iterator[Record]:
    """The records by which these duties of the shard are in this state from now on. For states without a new epoch:
    see `Epochs.given` for the others.
    """
    for some in slices(duties, DUTIES_A_RECORD):
        yield Record(assignments_changed=assignments_changed(shard, state, some, now_ms, reason))


def stops(shard: Shard) -> str:
    """The reason, for people, why a shard that leaves releases its duties."""
    return f"{shard.name} is about to stop"


class Epochs:
    """Gives the next epochs to assignments. For records that are applied in the order in which they are made."""

    def __init__(self, next_epoch: int) -> None:
        self.next = next_epoch

    def given(
        self, shard: str, state: AssignmentState.ValueType, duties: Iterable[int], now_ms: int, reason: str
    ) -> Iterator[Record]:
        """The records by which the shard is to have these duties, or to prepare for them, at new epochs."""
        for some in slices(duties, DUTIES_A_RECORD):
            changed = assignments_changed(shard, state, some, now_ms, reason, self.next)
            self.next += len(some)
            yield Record(assignments_changed=changed)
