"""The tables of pallets, duties and shards, and how records change them (seed: the Minka sharding library)."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self, TypeVar

from minka.v1.duties_pb2 import (
    Assignment as AssignmentRow,
)
from minka.v1.duties_pb2 import (
    AssignmentsChanged,
    AssignmentState,
    DutiesChanged,
    Duty,
    DutyTables,
    Pallet,
    Shard,
)

_A = AssignmentState
_K = TypeVar("_K")

ASSIGNMENT_TRANSITIONS: Final[dict[int, set[int]]] = {
    _A.ASSIGNMENT_STATE_UNSPECIFIED: {_A.ASSIGNMENT_STATE_ASSIGNED, _A.ASSIGNMENT_STATE_PREPARING},
    _A.ASSIGNMENT_STATE_ASSIGNED: {
        _A.ASSIGNMENT_STATE_ATTACHED,
        _A.ASSIGNMENT_STATE_RELEASING,
        _A.ASSIGNMENT_STATE_KEPT,
        _A.ASSIGNMENT_STATE_UNSPECIFIED,
    },
    _A.ASSIGNMENT_STATE_ATTACHED: {
        _A.ASSIGNMENT_STATE_RELEASING,
        _A.ASSIGNMENT_STATE_KEPT,
        _A.ASSIGNMENT_STATE_UNSPECIFIED,
    },
    _A.ASSIGNMENT_STATE_RELEASING: {_A.ASSIGNMENT_STATE_KEPT, _A.ASSIGNMENT_STATE_UNSPECIFIED},
    _A.ASSIGNMENT_STATE_KEPT: {_A.ASSIGNMENT_STATE_ASSIGNED, _A.ASSIGNMENT_STATE_UNSPECIFIED},
    _A.ASSIGNMENT_STATE_PREPARING: {_A.ASSIGNMENT_STATE_ASSIGNED, _A.ASSIGNMENT_STATE_UNSPECIFIED},
}
# Looked up once: Protobuf finds an enum's member by a function call each time.
_NONE: Final = int(_A.ASSIGNMENT_STATE_UNSPECIFIED)
_ASSIGNED: Final = int(_A.ASSIGNMENT_STATE_ASSIGNED)
_ATTACHED: Final = int(_A.ASSIGNMENT_STATE_ATTACHED)
_RELEASING: Final = int(_A.ASSIGNMENT_STATE_RELEASING)
_PREPARING: Final = int(_A.ASSIGNMENT_STATE_PREPARING)
WITH_NEW_EPOCH: Final = (_A.ASSIGNMENT_STATE_ASSIGNED, _A.ASSIGNMENT_STATE_PREPARING)
ROWS_A_PIECE: Final = 1000


class Assignment(NamedTuple):
    """A shard has a duty, is about to get it, prepares for it, or is away while the duty is kept for it. `epoch`: the
    fencing token. `state`: an AssignmentState. `was_attached`: the shard has reported that it has attached the duty.
    """

    duty: int
    shard: str
    epoch: int
    state: int
    since_ms: int
    reason: str
    was_attached: bool

    @property
    def holds(self) -> bool:
        """True if, unless the duty is synthetic, no other shard may have it meanwhile."""
        return self.state != _PREPARING


class Load(NamedTuple):
    """A shard's duties of one pallet: their number and their weight, without synthetic duties."""

    duties: int = 0
    weight: int = 0


@dataclass(frozen=True, slots=True)
class NotifyShard:
    """The effect of a changed row: the shard has to learn that its assignments of these duties, or the duties'
    rows, have changed. Without duties: the shard's own row has changed.
    """

    shard: str
    duties: tuple[int, ...] = ()


def weight_of(duty: Duty) -> int:
    """The weight that the balancers count for the duty."""
    return duty.reported_weight if duty.HasField("reported_weight") else duty.weight


def duty_name(duty: Duty) -> str:
    """The duty's name for people: feeds/bbc."""
    return f"{duty.pallet}/{duty.id}"


@dataclass(slots=True)
class DutyState:
    """All tables of duties. Rows and tuples of assignments are replaced, never mutated.

    A duty has few assignments, in a tuple. A synthetic duty may have an assignment to each shard; these are in a
    dictionary, so the time to add one doesn't depend on their number.

    As long as the values of `room` and `balance` for a pallet don't change, a controller that has looked at the pallet
    needn't look again. The values are revisions, so none comes twice, even if a pallet is deleted and created again.
    """

    pallets: dict[str, Pallet] = field(default_factory=dict)  # by id
    duties: dict[int, Duty] = field(default_factory=dict)  # by number, with those that are being deleted
    shards: dict[str, Shard] = field(default_factory=dict)  # by name, with shards that are away or gone
    # By duty, without synthetic duties: its assignments, of which at most one `holds`.
    of_duty: dict[int, tuple[Assignment, ...]] = field(default_factory=dict)
    of_synthetic: dict[int, dict[str, Assignment]] = field(default_factory=dict)  # by synthetic duty, by shard
    next_number: int = 1  # of a new duty; numbers are never used again
    next_epoch: int = 1  # of a new assignment; greater than all epochs so far
    # Indexes, which follow from the tables
    numbers: dict[tuple[str, str], int] = field(default_factory=dict, compare=False)  # by pallet and id
    in_pallet: dict[str, dict[int, None]] = field(default_factory=dict, compare=False)  # by pallet: its duties
    synthetic: dict[str, dict[int, None]] = field(default_factory=dict, compare=False)  # by pallet: synthetic duties
    # By pallet: duties without a holder (see `holder`), except synthetic duties and those that are being deleted.
    nowhere: dict[str, dict[int, None]] = field(default_factory=dict, compare=False)
    deleting: dict[int, None] = field(default_factory=dict, compare=False)  # duties that are being deleted
    pinned: dict[int, None] = field(default_factory=dict, compare=False)  # duties that are pinned to a shard
    suspected: dict[int, None] = field(default_factory=dict, compare=False)  # duties with a suspicion
    on_shard: dict[str, dict[int, Assignment]] = field(default_factory=dict, compare=False)  # by shard, by duty
    loads: dict[str, dict[str, Load]] = field(default_factory=dict, compare=False)  # by shard, by pallet
    # By shard: the pallets for which its capacity isn't zero.
    takes: dict[str, frozenset[str]] = field(default_factory=dict, compare=False)
    # (duty, shard) of the assignments that are ASSIGNED, the oldest first.
    attaching: dict[tuple[int, str], None] = field(default_factory=dict, compare=False)
    preparing: dict[tuple[int, str], None] = field(default_factory=dict, compare=False)  # (duty, shard): PREPARING
    # By shard: the number of its assignments in `attaching`, without synthetic duties.
    taking: dict[str, int] = field(default_factory=dict, compare=False)
    releasing: dict[str, int] = field(default_factory=dict, compare=False)  # by shard: its RELEASING assignments
    # By pallet: the last revision since which there may be more room for its duties in `nowhere`.
    room: dict[str, int] = field(default_factory=dict, compare=False)
    # By pallet: the last revision at which its balance may have become worse.
    balance: dict[str, int] = field(default_factory=dict, compare=False)
    revision: int = field(default=0, compare=False)  # counts all changes

    def copy(self) -> Self:
        """An independent copy of the tables."""
        return type(self)(
            dict(self.pallets),
            dict(self.duties),
            dict(self.shards),
            dict(self.of_duty),
            {number: dict(some) for number, some in self.of_synthetic.items()},
            self.next_number,
            self.next_epoch,
            dict(self.numbers),
            {pallet: dict(some) for pallet, some in self.in_pallet.items()},
            {pallet: dict(some) for pallet, some in self.synthetic.items()},
            {pallet: dict(some) for pallet, some in self.nowhere.items()},
            dict(self.deleting),
            dict(self.pinned),
            dict(self.suspected),
            {shard: dict(some) for shard, some in self.on_shard.items()},
            {shard: dict(some) for shard, some in self.loads.items()},
            dict(self.takes),
            dict(self.attaching),
            dict(self.preparing),
            dict(self.taking),
            dict(self.releasing),
            dict(self.room),
            dict(self.balance),
            self.revision,
        )

    # Reading

    def named(self, pallet: str, id_: str) -> Duty | None:
        """The duty with this id in the pallet."""
        number = self.numbers.get((pallet, id_))
        return None if number is None else self.duties[number]

    def holder(self, number: int) -> Assignment | None:
        """The duty's assignment that `holds`: at most one. None for a synthetic duty."""
        return next((one for one in self.of_duty.get(number, ()) if one.holds), None)

    def assignments(self, number: int) -> Collection[Assignment]:
        """All assignments of the duty. Read them before the next change."""
        some = self.of_synthetic.get(number)
        return self.of_duty.get(number, ()) if some is None else some.values()

    def assignment(self, number: int, shard: str) -> Assignment | None:
        """The assignment of a duty to this shard."""
        return self.on_shard.get(shard, {}).get(number)

    def load(self, shard: str, pallet: str) -> Load:
        """The load of the shard by duties of the pallet."""
        return self.loads.get(shard, {}).get(pallet, Load())

    # Changing

    def put_pallet(self, row: Pallet) -> None:
        """Add a pallet, or replace its row."""
        self.revision += 1
        old = self.pallets.get(row.id)
        assert old is None or row.version >= old.version, (old, row)
        self.pallets[row.id] = row
        self._note_room(row.id)

    def remove_pallet(self, pallet: str) -> None:
        """Remove a pallet, which must have no duties."""
        self.revision += 1
        assert not self.in_pallet.get(pallet), f"{pallet} has duties"
        del self.pallets[pallet]
        for index in (self.in_pallet, self.synthetic, self.nowhere, self.room, self.balance):
            index.pop(pallet, None)

    def put_shard(self, row: Shard) -> list[NotifyShard]:
        """Add a shard, or replace its row."""
        self.revision += 1
        old = self.shards.get(row.name)
        self.shards[row.name] = row
        taken = (one.pallet for one in row.pallets if not one.HasField("capacity") or one.capacity)
        self.takes[row.name] = frozenset(taken)
        self._note_room_of(row if old is None else old, row)
        return [NotifyShard(row.name)]

    def remove_shard(self, name: str) -> list[NotifyShard]:
        """Remove the row of a shard, which must have no assignments."""
        self.revision += 1
        assert not self.on_shard.get(name), f"{name} has duties"
        self._note_room_of(self.shards.pop(name))
        for index in (self.on_shard, self.loads, self.takes, self.taking, self.releasing):
            index.pop(name, None)
        return [NotifyShard(name)]

    def change_duties(self, changed: DutiesChanged) -> list[NotifyShard]:
        """Add, replace and remove duties."""
        self.revision += 1
        told: dict[str, list[int]] = {}
        for row in changed.duties:
            old = self.duties.get(row.number)
            self._put(row, old)
            if old is not None and old.version != row.version:
                for one in self.assignments(row.number):
                    told.setdefault(one.shard, []).append(row.number)
        for number in changed.removed:
            self._remove(number)
        return [NotifyShard(shard, tuple(numbers)) for shard, numbers in told.items()]

    def _put(self, row: Duty, old: Duty | None) -> None:
        if old is None:
            assert row.number >= self.next_number, f"number {row.number} was used before"
            assert (row.pallet, row.id) not in self.numbers, f"there is {duty_name(row)} already"
            self.next_number = row.number + 1
            self.numbers[row.pallet, row.id] = row.number
            self.in_pallet.setdefault(row.pallet, {})[row.number] = None
            if row.synthetic:
                self.synthetic.setdefault(row.pallet, {})[row.number] = None
        else:
            assert (old.pallet, old.id, old.synthetic) == (row.pallet, row.id, row.synthetic), (old, row)
            self._reweigh(row, weight_of(row) - weight_of(old))
        self.duties[row.number] = row
        _keep(self.deleting, row.number, row.deleting)
        _keep(self.pinned, row.number, bool(row.pinned_to))
        _keep(self.suspected, row.number, row.HasField("suspicion"))
        self._note_where(row)
        self.balance[row.pallet] = self.revision
        if old is not None:
            self._note_room(row.pallet)

    def _reweigh(self, row: Duty, more: int) -> None:
        holder = self.holder(row.number)
        if more and holder is not None and not row.synthetic:
            count, weight = self.loads[holder.shard][row.pallet]
            self.loads[holder.shard][row.pallet] = Load(count, weight + more)

    def _remove(self, number: int) -> None:
        assert not self.assignments(number), f"{number} is on {self.assignments(number)}"
        row = self.duties.pop(number)
        del self.numbers[row.pallet, row.id], self.in_pallet[row.pallet][number]
        for index in (self.synthetic, self.nowhere):
            index.get(row.pallet, {}).pop(number, None)
        for some in (self.deleting, self.pinned, self.suspected):
            some.pop(number, None)
        self._note_room(row.pallet)

    def change_assignments(self, changed: AssignmentsChanged) -> list[NotifyShard]:
        """Bring duties of one shard into one state."""
        self.revision += 1
        for place, number in enumerate(changed.duties):
            old = self.assignment(number, changed.shard)
            assert changed.state in ASSIGNMENT_TRANSITIONS[old.state if old is not None else _NONE], (old, changed)
            new = None
            if changed.state:
                epoch = changed.first_epoch + place if changed.state in WITH_NEW_EPOCH else 0
                new = self._assignment(old, changed, number, epoch)
            self._assign(changed.shard, self.duties[number], old, new)
        return [NotifyShard(changed.shard, tuple(changed.duties))]

    def _assignment(self, old: Assignment | None, changed: AssignmentsChanged, number: int, epoch: int) -> Assignment:
        was_attached = changed.state == _ATTACHED
        if not epoch:
            assert old is not None, changed
            epoch = old.epoch
            was_attached = was_attached or old.was_attached
        else:
            assert epoch >= self.next_epoch, changed
            self.next_epoch = epoch + 1
        reason = changed.reason or (old.reason if old is not None else "")
        return Assignment(number, changed.shard, epoch, changed.state, changed.time_ms, reason, was_attached)

    def _assign(self, shard: str, duty: Duty, old: Assignment | None, new: Assignment | None) -> None:
        number = duty.number
        if duty.synthetic:
            self._assign_synthetic(shard, number, new)
        else:
            self._assign_ordinary(shard, number, new)
        if new is not None:
            assert shard in self.shards, new
            self.on_shard.setdefault(shard, {})[number] = new
        else:
            del self.on_shard[shard][number]
        was, is_ = old is not None and old.holds, new is not None and new.holds
        if was != is_ and not duty.synthetic:
            loads = self.loads.setdefault(shard, {})
            count, weight = loads.get(duty.pallet, Load())
            sign = 1 if is_ else -1
            loads[duty.pallet] = Load(count + sign, weight + sign * weight_of(duty))
        before = old is not None and old.state == _ASSIGNED
        after = new is not None and new.state == _ASSIGNED
        if before != after:
            _keep(self.attaching, (number, shard), after)
        if before != after and not duty.synthetic:
            self.taking[shard] = self.taking.get(shard, 0) + (1 if after else -1)
        _keep(self.preparing, (number, shard), new is not None and new.state == _PREPARING)
        before = old is not None and old.state == _RELEASING
        after = new is not None and new.state == _RELEASING
        if before != after:
            self.releasing[shard] = self.releasing.get(shard, 0) + (1 if after else -1)
        self._note_where(duty)
        if was and not is_:
            self._note_room(duty.pallet)

    def _assign_ordinary(self, shard: str, number: int, new: Assignment | None) -> None:
        others = tuple(one for one in self.of_duty.get(number, ()) if one.shard != shard)
        if new is not None:
            assert not new.holds or not any(one.holds for one in others), (new, others)
            self.of_duty[number] = (*others, new)
        elif others:
            self.of_duty[number] = others
        else:
            del self.of_duty[number]

    def _assign_synthetic(self, shard: str, number: int, new: Assignment | None) -> None:
        if new is not None:
            self.of_synthetic.setdefault(number, {})[shard] = new
            return
        del self.of_synthetic[number][shard]
        if not self.of_synthetic[number]:
            del self.of_synthetic[number]

    def _note_where(self, duty: Duty) -> None:
        is_nowhere = not duty.synthetic and not duty.deleting and self.holder(duty.number) is None
        _keep(self.nowhere.setdefault(duty.pallet, {}), duty.number, is_nowhere)

    def _note_room_of(self, *rows: Shard) -> None:
        """Note that there may be more room for the pallets in a shard's rows, and for the pallets of duties that are
        pinned to the shard: once the shard is gone, any shard may take these duties.
        """
        pinned = (row for row in map(self.duties.__getitem__, self.pinned) if row.pinned_to == rows[0].name)
        for pallet in {one.pallet for row in rows for one in row.pallets} | {row.pallet for row in pinned}:
            self._note_room(pallet)

    def _note_room(self, pallet: str) -> None:
        self.room[pallet] = self.balance[pallet] = self.revision

    # Snapshots

    def pieces(self) -> Iterator[DutyTables]:
        """The tables in pieces, for `of`: merged in their order, they are the whole tables again."""
        yield DutyTables(
            pallets=self.pallets.values(),
            shards=self.shards.values(),
            next_number=self.next_number,
            next_epoch=self.next_epoch,
        )
        rows = list(self.duties.values())
        for start in range(0, len(rows), ROWS_A_PIECE):
            yield DutyTables(duties=rows[start : start + ROWS_A_PIECE])
        assignments = [one for some in self.of_duty.values() for one in some]
        assignments += (one for some in self.of_synthetic.values() for one in some.values())
        for start in range(0, len(assignments), ROWS_A_PIECE):
            some = assignments[start : start + ROWS_A_PIECE]
            yield DutyTables(assignments=(assignment_row(one) for one in some))

    @classmethod
    def of(cls, tables: DutyTables) -> Self:
        """The state of the merged pieces."""
        state = cls(next_epoch=tables.next_epoch or 1)
        for pallet in tables.pallets:
            state.put_pallet(pallet)
        for shard in tables.shards:
            state.put_shard(shard)
        state.next_number = 0
        for duty in tables.duties:
            state._put(duty, None)
        state.next_number = tables.next_number or 1
        for row in tables.assignments:
            was_attached = row.was_attached or row.state == _ATTACHED  # older versions store only the state
            one = Assignment(row.duty, row.shard, row.epoch, row.state, row.since_ms, row.reason, was_attached)
            state._assign(one.shard, state.duties[one.duty], None, one)
        return state


def assignment_row(one: Assignment) -> AssignmentRow:
    """The assignment as a row, for messages and snapshots."""
    return AssignmentRow(
        duty=one.duty,
        shard=one.shard,
        epoch=one.epoch,
        state=AssignmentState.ValueType(one.state),
        since_ms=one.since_ms,
        reason=one.reason,
        was_attached=one.was_attached,
    )


def assignments_changed(
    shard: str,
    state: AssignmentState.ValueType,
    duties: Iterable[int],
    now_ms: int,
    reason: str = "",
    first_epoch: int = 0,
) -> AssignmentsChanged:
    """The fact that these duties are now in this state on the shard."""
    return AssignmentsChanged(
        shard=shard, state=state, duties=duties, first_epoch=first_epoch, reason=reason, time_ms=now_ms
    )


def _keep(some: dict[_K, None], key: _K, is_in: bool) -> None:
    if is_in:
        some[key] = None
    else:
        some.pop(key, None)
