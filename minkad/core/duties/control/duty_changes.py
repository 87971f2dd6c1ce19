"""Changes of pallets and duties by clients and people. Either all changes of a request are made, or none is."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from google.protobuf.message import Message

from minka.errors import Code, MinkaError
from minka.v1.duties_pb2 import AssignmentState, BalancerKind, Duty, FillBy, Pallet
from minka.v1.duty_api_pb2 import (
    ChangeDutiesRequest,
    ChangeDutiesResponse,
    ChangePalletsRequest,
    ChangePalletsResponse,
    DutyChange,
    DutyName,
    DutyPin,
    DutySpec,
    PalletChange,
)
from minka.v1.records_pb2 import Record
from minkad.core.controller.decision import Steps
from minkad.core.duties.control.duty_rows import duties_changed, duty_with, in_state
from minkad.core.duties.control.suspects import try_again
from minkad.core.state import Assignment, DutyState, State, duty_name

MAX_CHANGES: Final = 1000
_A = AssignmentState
_HAS: Final = (_A.ASSIGNMENT_STATE_ASSIGNED, _A.ASSIGNMENT_STATE_ATTACHED)
_OF_CLUSTER: Final = ("version", "created_ms", "changed_ms")


def change_pallets(state: State, request: ChangePalletsRequest, now_ms: int) -> Steps[ChangePalletsResponse]:
    """The answer has the pallets' rows; for a deleted pallet, the last row. Raises PALLET_EXISTS, UNKNOWN_PALLET,
    PALLET_IN_USE, VERSION_MISMATCH, INVALID_ARGUMENT.
    """
    ids = [_pallet_of(change) for change in request.changes]
    _refuse_twice(ids)
    last = [state.duties.pallets.get(id_) for id_ in ids]
    yield [record for change in request.changes for record in _change_pallet(state.duties, change, now_ms)]
    rows = [state.duties.pallets.get(id_) or row for id_, row in zip(ids, last, strict=True)]
    return ChangePalletsResponse(pallets=[row for row in rows if row is not None])


def _pallet_of(change: PalletChange) -> str:
    named = {"create": change.create.id, "update": change.update.id}
    return named.get(change.WhichOneof("change") or "", change.delete)


def _change_pallet(state: DutyState, change: PalletChange, now_ms: int) -> list[Record]:
    kind, id_ = change.WhichOneof("change"), _pallet_of(change)
    old = state.pallets.get(id_)
    if kind == "create":
        _check_pallet(change.create)
        if old is None:
            return [Record(pallet_changed=_row(change.create, 1, now_ms, now_ms))]
        if _said(old) == _said(change.create):
            return []
        others = ", ".join(_differing(_said(old), _said(change.create)))
        text = f"there is a pallet {id_} already, with other settings ({others}); an update would change them"
        raise MinkaError(Code.PALLET_EXISTS, text, pallet=id_)
    if old is None:
        raise unknown_pallet(id_)
    _check_version("pallet", id_, old.version, change.if_version)
    if kind == "delete":
        if held := len(state.in_pallet.get(id_, ())):
            raise MinkaError(Code.PALLET_IN_USE, f"pallet {id_} has {held} duties", pallet=id_)
        return [Record(pallet_removed=id_)]
    _check_pallet(change.update)
    if _said(old) == _said(change.update):
        return []
    return [Record(pallet_changed=_row(change.update, old.version + 1, old.created_ms, now_ms))]


def _row(said: Pallet, version: int, created_ms: int, now_ms: int) -> Pallet:
    row = Pallet()
    row.CopyFrom(said)
    row.version, row.created_ms, row.changed_ms = version, created_ms, now_ms
    return row


def _said(pallet: Pallet) -> Pallet:
    """The fields of the pallet that a client can set."""
    row = Pallet()
    row.CopyFrom(pallet)
    for name in _OF_CLUSTER:
        row.ClearField(name)
    return row


def _differing(one: Message, other: Message) -> Iterator[str]:
    """The names of the fields in which the messages differ."""
    for field in one.DESCRIPTOR.fields:
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if mine == theirs and (not field.has_presence or one.HasField(field.name) == other.HasField(field.name)):
            continue
        inner = () if field.is_repeated or field.message_type is None else tuple(_differing(mine, theirs))
        yield from (f"{field.name}.{name}" for name in inner)
        if not inner:
            yield field.name


def _check_pallet(pallet: Pallet) -> None:
    balancer = pallet.balancer
    by_limit = balancer.fill_by in (FillBy.FILL_BY_WEIGHT, FillBy.FILL_BY_COUNT)
    if balancer.kind == BalancerKind.BALANCER_KIND_SPILL_OVER and by_limit and not balancer.fill_limit:
        raise MinkaError(Code.INVALID_ARGUMENT, f"pallet {pallet.id}: to fill by weight or count takes a fill_limit")
    if pallet.HasField("canary") and not (pallet.canary.version and 1 <= pallet.canary.percent <= 100):
        raise MinkaError(Code.INVALID_ARGUMENT, f"pallet {pallet.id}: a canary takes a version, and 1 to 100 percent")


def unknown_pallet(id_: str) -> MinkaError:
    """The refusal of a request that names an unknown pallet."""
    return MinkaError(Code.UNKNOWN_PALLET, f"there is no pallet {id_}", pallet=id_)


def unknown_duty(pallet: str, id_: str) -> MinkaError:
    """The refusal of a request that names an unknown duty."""
    return MinkaError(Code.UNKNOWN_DUTY, f"there is no duty {pallet}/{id_}", duty=f"{pallet}/{id_}")


def _refuse_twice(names: Sequence[object]) -> None:
    if not names:
        raise MinkaError(Code.INVALID_ARGUMENT, "the request changes nothing")
    if len(names) > MAX_CHANGES:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{len(names)} changes: a request may have {MAX_CHANGES}")
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        shown = "/".join(name) if isinstance(name, tuple) else name
        raise MinkaError(Code.INVALID_ARGUMENT, f"{shown} is changed {times} times in one request")


def _check_version(kind: str, name: str, version: int, wanted: int) -> None:
    if wanted and wanted != version:
        text = f"{kind} {name} has version {version}, not {wanted}"
        raise MinkaError(Code.VERSION_MISMATCH, text, **{kind: name, "version": str(version)})


# Duties


def change_duties(state: State, request: ChangeDutiesRequest, now_ms: int) -> Steps[ChangeDutiesResponse]:
    """The payloads are stored already. The answer has the duties' rows; for a deleted duty, the last row. Raises
    UNKNOWN_PALLET, DUTY_EXISTS, UNKNOWN_DUTY, UNKNOWN_SHARD, VERSION_MISMATCH, INVALID_DUTY.
    """
    names = [_name_of(change) for change in request.changes]
    _refuse_twice(names)
    last = [state.duties.named(*name) for name in names]
    batch = _Batch(state.duties, now_ms)
    for change in request.changes:
        batch.take(change)
    yield batch.records()
    rows = [state.duties.named(*name) or row for name, row in zip(names, last, strict=True)]
    return ChangeDutiesResponse(duties=[row for row in rows if row is not None])


def _name_of(change: DutyChange) -> tuple[str, str]:
    """The pallet and the id of the duty that the change is about. Raises INVALID_ARGUMENT."""
    kind = change.WhichOneof("change")
    if kind is None:
        raise MinkaError(Code.INVALID_ARGUMENT, "a change says nothing")
    named: DutySpec | DutyName = change.pin.duty if kind == "pin" else getattr(change, kind)
    return named.pallet, named.id


class _Batch:
    """Collects the changes of one request."""

    def __init__(self, state: DutyState, now_ms: int) -> None:
        self._state = state
        self._now_ms = now_ms
        self._next_number = state.next_number
        self._rows: list[Duty] = []
        self._removed: list[int] = []
        self._dropped: dict[str, list[int]] = {}
        self._released: dict[str, list[int]] = {}

    def records(self) -> list[Record]:
        """The records that make all the changes."""
        states = ((self._dropped, _A.ASSIGNMENT_STATE_UNSPECIFIED), (self._released, _A.ASSIGNMENT_STATE_RELEASING))
        return [
            *(
                record
                for by_shard, state in states
                for shard, numbers in by_shard.items()
                for record in in_state(shard, state, numbers, self._now_ms, "deleted")
            ),
            *duties_changed(self._rows, self._removed),
        ]

    def take(self, change: DutyChange) -> None:
        """Add one of the changes. Raises MinkaError if it is refused."""
        kind = change.WhichOneof("change")
        pallet, id_ = _name_of(change)
        row = self._state.named(pallet, id_)
        if kind == "create":
            self._create(change.create, row)
            return
        if row is None or row.deleting:
            raise unknown_duty(pallet, id_)
        if kind == "update" and _is_stored(row, change.update):
            return  # the client asks again: the answer was lost
        _check_version("duty", duty_name(row), row.version, change.if_version)
        if kind == "update":
            self._update(change.update, row)
        elif kind == "delete":
            self._delete(row)
        elif kind == "pin":
            self._pin(change.pin, row)
        elif row.quarantines or row.HasField("suspicion"):
            self._rows.append(duty_with(row, _let_try_again))

    def _create(self, spec: DutySpec, row: Duty | None) -> None:
        if spec.pallet not in self._state.pallets:
            raise unknown_pallet(spec.pallet)
        name = f"{spec.pallet}/{spec.id}"
        if row is not None:
            if not row.deleting and _is_stored(row, spec):
                return  # the client asks again: the answer was lost
            text = "is being deleted: its shard has yet to release it" if row.deleting else "is there already"
            raise MinkaError(Code.DUTY_EXISTS, f"duty {name} {text}", duty=name)
        if spec.synthetic and (spec.lazy or spec.stationary):
            other = "lazy" if spec.lazy else "stationary"
            raise MinkaError(Code.INVALID_DUTY, f"duty {name} is synthetic, so it can't be {other}", duty=name)
        new = Duty(
            number=self._next_number,
            pallet=spec.pallet,
            id=spec.id,
            version=1,
            weight=spec.weight if spec.HasField("weight") else 1,
            synthetic=spec.synthetic,
            stationary=spec.stationary,
            lazy=spec.lazy,
            payload_id=spec.payload_id,
            payload_bytes=spec.payload_bytes,
            created_ms=self._now_ms,
            changed_ms=self._now_ms,
        )
        self._next_number += 1
        self._rows.append(new)

    def _update(self, spec: DutySpec, row: Duty) -> None:
        if not (spec.HasField("weight") or spec.payload_id):
            text = f"the update of {duty_name(row)} would change nothing: it takes a payload, a weight, or both"
            raise MinkaError(Code.INVALID_ARGUMENT, text)

        def change(new: Duty) -> None:
            new.version, new.changed_ms = row.version + 1, self._now_ms
            _let_try_again(new)  # shards may have failed to attach it because of the old content
            if spec.HasField("weight"):
                new.weight = spec.weight
                new.ClearField("reported_weight")
            if spec.payload_id:
                new.payload_id, new.payload_bytes = spec.payload_id, spec.payload_bytes

        self._rows.append(duty_with(row, change))

    def _delete(self, row: Duty) -> None:
        """Remove the duty: at once if no shard may have it, else once the shards have released it."""
        assignments = self._state.assignments(row.number)
        for one in assignments:
            if one.state in _HAS:
                self._released.setdefault(one.shard, []).append(row.number)
            elif one.state != _A.ASSIGNMENT_STATE_RELEASING:
                self._dropped.setdefault(one.shard, []).append(row.number)
        if any(_may_hold(one) for one in assignments):
            self._rows.append(duty_with(row, lambda new: setattr(new, "deleting", True)))
        else:
            self._removed.append(row.number)

    def _pin(self, pin: DutyPin, row: Duty) -> None:
        """Pin or unpin the duty. This also lets a stationary duty whose shard has failed be placed again."""
        if row.synthetic:
            name = duty_name(row)
            raise MinkaError(Code.INVALID_DUTY, f"duty {name} is synthetic: it is on every shard", duty=name)
        if pin.shard and pin.shard not in self._state.shards:
            raise MinkaError(Code.UNKNOWN_SHARD, f"there is no shard {pin.shard}", shard=pin.shard)
        has_failed = row.was_attached and self._state.holder(row.number) is None

        def change(new: Duty) -> None:
            new.pinned_to = pin.shard
            new.was_attached = row.was_attached and not has_failed

        if row.pinned_to != pin.shard or has_failed:
            self._rows.append(duty_with(row, change))


def _let_try_again(row: Duty) -> None:
    row.ClearField("quarantines")
    try_again(row)


def _may_hold(one: Assignment) -> bool:
    return one.state in (*_HAS, _A.ASSIGNMENT_STATE_RELEASING)


def _is_stored(row: Duty, spec: DutySpec) -> bool:
    """True if this request has made the row before: each id of a payload is used only once."""
    return bool(spec.payload_id) and row.payload_id == spec.payload_id


def removed_when_released(state: DutyState) -> Iterator[int]:
    """The duties that are being deleted and that all shards have released."""
    return (number for number in state.deleting if not state.assignments(number))
