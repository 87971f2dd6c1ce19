"""The tables of loads: their states, and the parts that the partitions have yet to take in."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Self

from minka.v1.loads_pb2 import Load, LoadPart, LoadPartsAdded, LoadPartsDone, LoadState, LoadTables
from minka.v1.records_pb2 import Record

LOADS_UNENDED = (LoadState.LOAD_STATE_STAGING, LoadState.LOAD_STATE_COMMITTED)
KEPT_LOADS = 100  # of the ended loads, the last ones
_ROWS_A_PIECE = 250
_S = LoadState
_NEXT = {
    _S.LOAD_STATE_STAGING: (_S.LOAD_STATE_STAGING, _S.LOAD_STATE_COMMITTED, _S.LOAD_STATE_DONE, _S.LOAD_STATE_ABORTED),
    _S.LOAD_STATE_COMMITTED: (_S.LOAD_STATE_COMMITTED, _S.LOAD_STATE_DONE),
}


@dataclass(slots=True)
class LoadTable:
    """Rows are replaced, never mutated."""

    rows: dict[int, Load] = field(default_factory=dict)  # by number
    parts: dict[int, dict[int, LoadPart]] = field(default_factory=dict)  # by committed load, by partition
    next_number: int = 1  # of a new load; numbers are never used again
    # By partition: the loads that it has yet to take in, in the order of their commits.
    due: dict[int, dict[int, None]] = field(default_factory=dict)

    def copy(self) -> Self:
        """An independent copy of the table."""
        return type(self)(
            dict(self.rows),
            {number: dict(parts) for number, parts in self.parts.items()},
            self.next_number,
            {partition_id: dict(numbers) for partition_id, numbers in self.due.items()},
        )

    # Reading

    def with_id(self, load_id: str) -> Load | None:
        """The load with this id."""
        return next((load for load in self.rows.values() if load.id == load_id), None)

    def unended(self) -> list[Load]:
        """The loads that are staged or committed, the oldest first."""
        return [load for load in self.rows.values() if load.state in LOADS_UNENDED]

    def lowest_open(self) -> int:
        """The least number of an unended load, or of the next one: no partition takes in a load below this number."""
        return min((load.number for load in self.unended()), default=self.next_number)

    def taken_in(self, keyspace_id: int) -> Load | None:
        """A load that the partitions of the keyspace take in now; None without such a load."""
        committed = (self.rows[number] for number in self.parts)
        return next((load for load in committed if load.keyspace_id == keyspace_id), None)

    def due_parts(self, partition_id: int) -> list[LoadPart]:
        """The parts that the partition has yet to take in, in the order of the commits."""
        return [self.parts[number][partition_id] for number in self.due.get(partition_id, ())]

    # Changing

    def apply(self, record: Record) -> None:
        """Apply a record about loads."""
        match record.WhichOneof("fact"):
            case "load_changed":
                self.put(record.load_changed)
            case "load_parts_added":
                self.add(record.load_parts_added)
            case "load_parts_done":
                self.finish(record.load_parts_done)

    def put(self, load: Load) -> None:
        """Add or replace a load's row. An ended load loses its parts; only the last KEPT_LOADS ended loads are kept."""
        old = self.rows.get(load.number)
        if old is None:
            assert load.number >= self.next_number, f"load number {load.number} was used before"
            assert self.with_id(load.id) is None, f"load {load.id} exists already"
            assert load.state == _S.LOAD_STATE_STAGING, load
        else:
            assert load.state in _NEXT.get(old.state, ()), f"load {load.id}: {old.state} to {load.state}"
        if load.state == _S.LOAD_STATE_COMMITTED:
            assert len(self.parts[load.number]) == load.parts, load
        self.rows[load.number] = load
        self.next_number = max(self.next_number, load.number + 1)
        if load.state not in LOADS_UNENDED:
            parts = self.parts.pop(load.number, {})
            assert all(part.done for part in parts.values()), f"load {load.id} is not done"
            self._forget_old()

    def add(self, added: LoadPartsAdded) -> None:
        """Add parts of a load whose commit follows in the same Raft entry."""
        for part in added.parts:
            load, parts = self.rows[part.load_number], self.parts.setdefault(part.load_number, {})
            assert load.state == _S.LOAD_STATE_STAGING, load
            assert part.partition_id not in parts, part
            parts[part.partition_id] = part
            self.due.setdefault(part.partition_id, {})[part.load_number] = None

    def finish(self, done: LoadPartsDone) -> None:
        """Note that partitions have taken in their parts."""
        number = done.load.number
        parts = self.parts[number]
        for partition_id in done.partition_ids:
            assert not parts[partition_id].done, f"partition {partition_id} took in load {number} before"
            part = LoadPart()
            part.CopyFrom(parts[partition_id])
            part.done = True
            parts[partition_id] = part
            self._not_due(partition_id, number)
        self.put(done.load)

    def _not_due(self, partition_id: int, number: int) -> None:
        del self.due[partition_id][number]
        if not self.due[partition_id]:
            del self.due[partition_id]

    def _forget_old(self) -> None:
        ended = [number for number, load in self.rows.items() if load.state not in LOADS_UNENDED]
        for number in sorted(ended)[:-KEPT_LOADS]:
            del self.rows[number]

    # Snapshots

    def pieces(self) -> Iterator[LoadTables]:
        """The table in pieces, for `of`: merged in their order, they are the whole table again."""
        yield LoadTables(loads=self.rows.values(), next_number=self.next_number)
        # Each commit's Raft entry adds to `parts`, so the parts are in the order of the commits, as `due` needs them.
        rows = chain.from_iterable(parts.values() for parts in self.parts.values())
        while some := list(islice(rows, _ROWS_A_PIECE)):
            yield LoadTables(parts=some)

    @classmethod
    def of(cls, tables: LoadTables) -> Self:
        """The table of the merged pieces."""
        table = cls({load.number: load for load in tables.loads}, next_number=tables.next_number or 1)
        for part in tables.parts:
            table.parts.setdefault(part.load_number, {})[part.partition_id] = part
            if not part.done:
                table.due.setdefault(part.partition_id, {})[part.load_number] = None
        return table
