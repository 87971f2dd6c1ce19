"""A node's messages to a shard: the node derives them from the table's rows about the shard."""

import pytest

from minka.v1.duties_pb2 import AssignmentState, DutiesChanged, Duty, Pallet, Shard
from minka.v1.shards_pb2 import Holding, ShardInstruction, ShardReport
from minkad.core.duties.duty_table import assignments_changed
from minkad.core.state import DutyState
from minkad.duties.node.telling import MAX_BYTES, MAX_DUTIES, Telling

ASSIGNED = AssignmentState.ASSIGNMENT_STATE_ASSIGNED
ATTACHED = AssignmentState.ASSIGNMENT_STATE_ATTACHED
RELEASING = AssignmentState.ASSIGNMENT_STATE_RELEASING
KEPT = AssignmentState.ASSIGNMENT_STATE_KEPT
PREPARING = AssignmentState.ASSIGNMENT_STATE_PREPARING
NONE = AssignmentState.ASSIGNMENT_STATE_UNSPECIFIED


class Table:
    """The table's rows, and the messages that a node sends to a shard when they change."""

    def __init__(self, holdings: list[Holding] | None = None) -> None:
        self.rows = DutyState()
        self.rows.put_pallet(Pallet(id="feeds", version=1))
        self.rows.put_shard(Shard(name="s"))
        self.telling = Telling("s", holdings or [])
        self.payloads: dict[bytes, bytes] = {}

    def create(self, number: int, payload: bytes = b"", version: int = 1) -> None:
        id_ = b"%d.%d" % (number, version)
        if payload:
            self.payloads[id_] = payload
        row = Duty(number=number, pallet="feeds", id=f"d{number}", version=version, payload_bytes=len(payload))
        if payload:
            row.payload_id = id_
        self.rows.change_duties(DutiesChanged(duties=[row]))
        self.telling.changed[number] = None

    def state(self, state: AssignmentState.ValueType, *duties: int) -> None:
        first = self.rows.next_epoch if state in (ASSIGNED, PREPARING) else 0
        for notice in self.rows.change_assignments(assignments_changed("s", state, duties, 0, "", first)):
            self.telling.changed |= dict.fromkeys(notice.duties)

    def said(self) -> list[ShardInstruction]:
        found = []
        while self.telling.changed:
            instruction = self.telling.releases(self.rows)
            if instruction is not None:
                found.append(instruction)
        if wanted := self.telling.next_waiting(self.rows):
            found += self.telling.take(self.rows, wanted, self.payloads.get)
        return found

    def words(self) -> list[tuple[str, int, int]]:
        """The messages as tuples: kind, duty, epoch."""
        return [
            (kind, duty.duty, duty.epoch)
            for one in self.said()
            for kind in [str(one.WhichOneof("instruction"))]
            for duty in getattr(one, kind).duties
        ]


@pytest.fixture
def table() -> Table:
    table = Table()
    table.create(1, b"one")
    table.create(2)
    return table


def test_an_assigned_duty_is_sent_once_with_its_payload(table: Table) -> None:
    table.state(ASSIGNED, 1, 2)
    (one,) = table.said()
    assert sorted((d.duty, d.epoch, d.id, d.payload, d.version) for d in one.attach.duties) == [
        (1, 1, "d1", b"one", 1),
        (2, 2, "d2", b"", 1),
    ]
    table.state(ATTACHED, 1, 2)
    assert table.words() == []


def test_a_release_is_sent_once_even_for_a_duty_that_was_never_sent(table: Table) -> None:
    table.state(ASSIGNED, 1, 2)
    table.said()
    table.state(RELEASING, 1)
    assert table.words() == [("detach", 1, 1)]
    table.telling.changed[1] = None
    assert table.words() == []
    table.state(NONE, 1)
    assert table.words() == []
    table.state(ASSIGNED, 1)
    table.state(RELEASING, 1)
    assert table.words() == [("detach", 1, 3)]


def test_a_duty_that_the_shard_gave_back_is_not_sent_again_for_the_same_epoch(table: Table) -> None:
    table.state(ASSIGNED, 1)
    table.said()
    table.telling.given_back(ShardReport(released=[Holding(duty=1, epoch=1)]))
    table.create(1, b"changed", version=2)
    assert table.words() == []
    table.state(NONE, 1)
    table.state(ASSIGNED, 1)
    assert table.words() == [("attach", 1, 2)]


def test_a_duty_that_disappears_from_the_rows_is_detached(table: Table) -> None:
    table.state(ASSIGNED, 1, 2)
    table.said()
    table.state(NONE, 1)
    table.state(KEPT, 2)
    assert sorted(table.words()) == [("detach", 1, 1), ("detach", 2, 2)]


def test_a_changed_duty_is_sent_as_an_update_once_its_new_payload_is_there(table: Table) -> None:
    table.state(ASSIGNED, 1)
    table.said()
    table.create(1, b"changed", version=2)
    payload = table.payloads.pop(b"1.2")
    assert table.words() == []
    table.payloads[b"1.2"] = payload
    (one,) = table.said()
    assert [(d.duty, d.payload) for d in one.update.duties] == [(1, b"changed")]
    assert table.words() == []


def test_a_payload_replaced_during_the_read_is_read_again(table: Table) -> None:
    table.state(ASSIGNED, 1)
    while table.telling.changed:
        table.telling.releases(table.rows)
    wanted = table.telling.next_waiting(table.rows)
    table.create(1, b"changed", version=2)
    assert table.telling.take(table.rows, wanted, table.payloads.get) == []
    (one,) = table.said()
    assert [d.payload for d in one.attach.duties] == [b"changed"]


def test_a_session_begins_with_the_differences_between_rows_and_shard() -> None:
    table = Table([Holding(duty=1, epoch=1, version=1), Holding(duty=2, epoch=1, version=1), Holding(duty=4, epoch=9)])
    for number in (1, 2, 3, 4):
        table.create(number)
    table.state(ASSIGNED, 1, 2, 3)
    table.create(1, b"changed", version=2)
    table.telling.everything(table.rows)
    assert sorted(table.words()) == [("attach", 2, 2), ("attach", 3, 3), ("detach", 4, 9), ("update", 1, 1)]


def test_a_preparing_shard_is_told_to_prepare_and_then_to_attach(table: Table) -> None:
    table.state(PREPARING, 1)
    assert table.words() == [("prepare", 1, 1)]
    table.state(ASSIGNED, 1)
    assert table.words() == [("attach", 1, 2)]


def test_the_size_of_a_message_is_limited() -> None:
    table = Table()
    for number in range(1, 2_502):
        table.create(number)
    table.state(ASSIGNED, *range(1, 2_502))
    assert [len(table.said()[0].attach.duties) for _ in range(3)] == [MAX_DUTIES, MAX_DUTIES, 501]
    for number in range(1, 11):
        table.create(number, bytes(MAX_BYTES // 3), version=2)
    sizes = [len(table.said()[0].update.duties) for _ in range(5)]
    assert sizes == [2] * 5
    assert table.said() == []
