"""The leader of two partitions makes one of them: copy, catch up, freeze, drain, record."""

from typing import Any

import pytest

from minka.errors import Code, MinkaError
from minka.ranges import KeyRange
from minka.v1.cluster_pb2 import Durability, Keyspace
from minka.v1.coordinator_pb2 import FinishMergeRequest
from minka.wire import WriteBody
from minkad.core.replication.entries import SnapshotMark, TrimToRange, decode_entry, encode_mark
from minkad.core.replication.gate import Gate
from minkad.core.replication.instructions import AskFinishMerge, Changed, MakeRoom, Reached, WakeAt
from minkad.core.replication.replica import Replica
from minkad.core.replication.state import Role
from tests.unit.core.replication.bench import SETTINGS, Bench, MemoryData, a_write, gate_of, row

LEFT, RIGHT = 1, 2
ALONE = ("athens",)
REFUSED = MinkaError(Code.STALE_EPOCH, "no")
UNKNOWN = MinkaError(Code.UNREACHABLE, "gone")


class Merging:
    """Two partitions with one replica each; [b"", b"m") is to have [b"m", b"t"), too."""

    def __init__(self, *rows: bytes, is_async: bool = False) -> None:
        self.bench = Bench()
        if is_async:
            self.bench.view.keyspaces[1] = Keyspace(id=1, durability=Durability.DURABILITY_ASYNC)
        self.left = self.bench.host(row(LEFT, ALONE, end_key=b"m"))
        self.right = self.bench.host(row(RIGHT, ALONE, start_key=b"m", end_key=b"t"))
        for key in rows:
            self.write(key)

    def begin(self) -> None:
        """The rows come."""
        self.bench.adopt(self.right, merge_into=LEFT)
        self.bench.adopt(self.left, merge_from=RIGHT)

    def write(self, key: bytes) -> None:
        self.bench.write(self.right, a_write(key))
        self.settle(self.right)

    def settle(self, replica: Replica) -> None:
        self.bench.sync(replica)
        self.bench.apply(replica)

    def run(self) -> list[FinishMergeRequest]:
        """Apply and wake until nothing changes; what the controller is asked."""
        asked: list[FinishMergeRequest] = []
        for _ in range(50):
            self.settle(self.left)
            taken = self.bench.take_all()
            asked += [one.request for one in taken if isinstance(one, AskFinishMerge)]
            wakes = [one for one in taken if isinstance(one, WakeAt) and one.at <= self.bench.now]
            if not wakes and self.left.applied == self.left.log.end:
                return asked
            for wake in wakes:
                self.bench.tick(self.bench.replicas.hosted[wake.partition_id], self.bench.now)
        raise AssertionError("it never ends")

    def tick(self, now: float) -> None:
        self.bench.tick(self.left, now)

    def answer(self, request: FinishMergeRequest, error: MinkaError | None) -> None:
        self.bench.replicas.merge_answered(request, error, self.bench.now)

    def copied(self) -> list[Any]:
        """The left one's log."""
        if self.left.log.end == 0:
            return []
        return [decode_entry(entry.body) for entry in self.left.log.read(1, self.left.log.end, 2**30)]

    def copied_keys(self) -> list[bytes]:
        return [key for entry in self.copied() if isinstance(entry, WriteBody) for key in entry.keys]


def request(left_epoch: int = 2, right_epoch: int = 2) -> FinishMergeRequest:
    return FinishMergeRequest(
        node_id="athens",
        partition_id=LEFT,
        partition_epoch=left_epoch,
        merged_id=RIGHT,
        merged_epoch=right_epoch,
    )


def asked(*rows: bytes) -> tuple[Merging, FinishMergeRequest]:
    """All is copied, and the controller is asked."""
    m = Merging(*rows)
    m.begin()
    [ask] = m.run()
    return m, ask


# Copying


def test_first_the_left_ones_log_says_what_stays_and_then_come_the_rows() -> None:
    m = Merging(b"n", b"o")
    m.begin()
    assert Reached("merge.copy") in m.bench.take_all()
    assert m.copied() == [TrimToRange(b"", b"m"), WriteBody([b"n", b"o"], [b"v", b"v"])]


def test_rows_come_a_page_at_a_time_after_others_had_their_turn() -> None:
    m = Merging()
    data = m.right.data
    assert isinstance(data, MemoryData)
    data.rows = {b"n%04d" % number: b"v" for number in range(2500)}
    m.begin()
    sizes = [len(m.copied_keys())]
    assert WakeAt(LEFT, 0.0) in m.bench.take_all()
    for _ in range(2):
        m.tick(0.0)
        sizes.append(len(m.copied_keys()))
    assert sizes == [1000, 2000, 2500]
    assert m.copied_keys() == sorted(data.rows)


def test_then_what_was_written_meanwhile_and_nothing_twice() -> None:
    m = Merging(b"n")
    m.right.append(a_write(b"p"))  # not applied when the copy begins
    m.begin()
    assert m.copied_keys() == [b"n"]
    m.settle(m.right)
    m.run()
    assert m.copied_keys() == [b"n", b"p"]


def test_entries_that_are_no_writes_are_not_copied() -> None:
    m = Merging(b"n")
    m.right.append(encode_mark(SnapshotMark("s", 0, b"", b"")))
    m.begin()
    m.settle(m.right)
    [ask] = m.run()
    assert ask == request()
    assert m.copied() == [TrimToRange(b"", b"m"), WriteBody([b"n"], [b"v"])]


def test_no_more_is_appended_than_eight_entries_that_are_not_applied() -> None:
    m = Merging()
    for _ in range(30):
        m.right.append(a_write(b"n"))
    m.begin()
    m.settle(m.right)
    m.tick(0.0)
    assert len(m.copied_keys()) == 8
    m.settle(m.left)  # and one after the other as the left one applies
    assert len(m.copied_keys()) == 16
    m.run()
    assert len(m.copied_keys()) == 30


def test_the_right_ones_log_is_kept_as_far_as_it_is_not_copied() -> None:
    m = Merging(b"n", b"o")
    m.bench.write(m.right, *[a_write(b"p")] * 30)
    m.begin()
    m.settle(m.right)
    m.tick(0.0)
    assert list(m.right.retention.readers) == [f"merge into {LEFT}"]
    assert m.right.retention.base(m.right.applied, 0, is_alone=True) == 2 + 7  # a page and seven entries


def test_nothing_is_copied_while_one_of_the_two_is_about_to_be_led_elsewhere() -> None:
    for number in (LEFT, RIGHT):
        m = Merging(b"n")
        m.bench.replicas.hosted[number].gate.fence()
        m.begin()
        m.run()
        assert m.copied() == []
        m.bench.replicas.hosted[number].gate.unfence()
        m.tick(0.0)
        assert m.copied_keys() == [b"n"]


# Room


def test_where_many_deleted_keys_are_in_the_way_room_is_made_first() -> None:
    m = Merging(b"n")
    data = m.right.data
    assert isinstance(data, MemoryData)
    data.deleted_ahead = True
    m.begin()
    assert m.bench.take(MakeRoom) == [MakeRoom(LEFT, RIGHT, KeyRange(b"m", b"t"))]
    m.tick(0.0)
    assert m.bench.take(MakeRoom) == []
    data.deleted_ahead = False
    m.bench.replicas.cleared(LEFT, None, 0.0)
    assert m.copied_keys() == [b"n"]


def test_when_no_room_could_be_made_it_begins_again_after_a_pause() -> None:
    m = Merging(b"n")
    data = m.right.data
    assert isinstance(data, MemoryData)
    data.deleted_ahead = True
    m.begin()
    m.bench.replicas.cleared(LEFT, UNKNOWN, 0.0)
    m.bench.take_all()
    m.tick(0.04)
    assert m.bench.take(MakeRoom) == []
    m.tick(0.05)
    assert m.bench.take(MakeRoom) == [MakeRoom(LEFT, RIGHT, KeyRange(b"m", b"t"))]


def test_room_that_an_earlier_merge_asked_for_says_nothing() -> None:
    m, _ = asked(b"n")
    end = m.left.log.end
    m.bench.replicas.cleared(LEFT, UNKNOWN, 0.0)
    for now in (0.1, 0.1 + SETTINGS.fence_timeout):
        m.tick(now)
    # The outcome is not known: a write that is taken now may come after the merge.
    assert (gate_of(m.right), m.left.log.end) == (Gate.FROZEN, end)


def test_after_an_error_it_begins_again_from_the_first_key() -> None:
    m = Merging(b"n")
    m.right.append(a_write(b"p"))
    m.begin()
    data = m.right.data
    assert isinstance(data, MemoryData)
    log, read = m.right.log, m.right.log.read

    def broken(start: int, end: int, max_bytes: int) -> Any:
        raise MinkaError(Code.STORAGE_FAILED, "no")

    log.read = broken  # type: ignore[method-assign]
    m.right.high_watermark = m.right.applied = 2
    m.tick(0.0)
    log.read = read  # type: ignore[method-assign]
    assert gate_of(m.right) is Gate.OPEN
    data.rows[b"p"] = b"v"
    m.tick(0.05)
    assert m.copied_keys() == [b"n", b"n", b"p"]


# The end


def test_writes_to_the_right_one_wait_from_when_little_of_its_log_is_left() -> None:
    m = Merging()
    data = m.right.data
    assert isinstance(data, MemoryData)
    data.rows = {b"n%04d" % number: b"v" for number in range(2000)}
    m.begin()
    m.bench.write(m.right, *[a_write(b"p")] * 100)
    m.settle(m.right)
    m.tick(0.0)  # the last page, and seven of the hundred
    left = {m.right.applied - 6: gate_of(m.right)}
    for copied in range(14, 46, 8):
        m.settle(m.left)
        left[100 - copied] = gate_of(m.right)
    assert left == {94: Gate.OPEN, 86: Gate.OPEN, 78: Gate.OPEN, 70: Gate.OPEN, 62: Gate.FROZEN}


def test_the_controller_is_asked_once_the_left_one_has_applied_all() -> None:
    m = Merging(b"n")
    m.begin()
    m.tick(0.0)
    taken = m.bench.take_all()
    assert Reached("merge.freeze") in taken
    assert not any(isinstance(one, AskFinishMerge) for one in taken)
    m.settle(m.left)
    assert m.bench.take(AskFinishMerge) == [AskFinishMerge(request())]
    assert gate_of(m.right) is Gate.FROZEN


def test_the_last_writes_are_waited_for() -> None:
    m = Merging(b"n")
    m.bench.write(m.right, a_write(b"p"))
    m.begin()
    assert m.run() == []
    m.settle(m.right)
    assert m.run() == [request()]
    assert m.copied_keys() == [b"n", b"p"]


def test_of_an_async_keyspace_all_is_on_the_disk_first() -> None:
    m = Merging(b"n", is_async=True)
    m.begin()
    assert m.run() == [request()]
    assert m.copied()[-1] == TrimToRange(b"", b"t")


@pytest.mark.parametrize("is_drained", [False, True])
def test_writes_go_on_when_the_last_of_them_take_too_long(is_drained: bool) -> None:
    m = Merging(b"n")
    if not is_drained:
        m.bench.write(m.right, a_write(b"p"))
    m.begin()
    m.tick(SETTINGS.fence_timeout - 0.01)
    states = [gate_of(m.right)]
    m.bench.take_all()
    m.tick(SETTINGS.fence_timeout)
    states.append(gate_of(m.right))
    assert states == [Gate.FROZEN, Gate.OPEN]
    assert Changed(RIGHT) in m.bench.take_all()
    m.settle(m.right)
    m.tick(SETTINGS.fence_timeout + 0.05)
    assert gate_of(m.right) is Gate.FROZEN
    assert m.run() == [request()]


def test_a_refusal_lets_writes_go_on_and_it_is_tried_again_after_a_pause() -> None:
    m, ask = asked(b"n")
    m.answer(ask, REFUSED)
    assert gate_of(m.right) is Gate.OPEN
    m.write(b"p")
    m.tick(0.04)
    assert gate_of(m.right) is Gate.OPEN
    m.tick(0.05)
    assert m.run() == [request()]
    assert m.copied_keys() == [b"n", b"p"]


def test_while_the_outcome_is_unknown_writes_wait_and_it_is_asked_again() -> None:
    m, ask = asked(b"n")
    m.answer(ask, UNKNOWN)
    m.tick(0.05)
    [again] = m.bench.take(AskFinishMerge)
    m.answer(again.request, REFUSED)  # the first may be the reason
    assert gate_of(m.right) is Gate.FROZEN
    m.tick(9.0)
    assert len(m.bench.take(AskFinishMerge)) == 1
    assert gate_of(m.right) is Gate.FROZEN


def test_what_only_says_that_it_is_not_possible_now_is_unknown() -> None:
    m, ask = asked(b"n")
    m.answer(ask, MinkaError(Code.OVERLOADED, "later"))
    assert gate_of(m.right) is Gate.FROZEN


def test_after_a_newer_row_of_the_two_what_was_asked_for_cannot_be_recorded() -> None:
    m, ask = asked(b"n")
    m.bench.adopt(m.right)
    m.answer(ask, UNKNOWN)
    m.tick(0.05)
    assert gate_of(m.right) is Gate.OPEN
    m.tick(0.1)
    assert m.run() == [request(right_epoch=3)]


def test_late_answers_are_ignored() -> None:
    m, ask = asked(b"n")
    m.answer(request(), REFUSED)
    assert gate_of(m.right) is Gate.FROZEN
    m.answer(ask, REFUSED)
    m.answer(ask, REFUSED)
    m.tick(0.05)
    assert gate_of(m.right) is Gate.FROZEN


def test_when_the_row_says_that_it_is_over_writes_go_on_and_the_log_is_no_longer_kept() -> None:
    m, _ = asked(b"n")
    m.bench.adopt(m.left, merge_from=0)
    assert gate_of(m.right) is Gate.OPEN
    assert list(m.right.retention.readers) == []


def test_when_it_is_recorded_the_right_one_serves_nothing() -> None:
    m, _ = asked(b"n")
    m.bench.adopt(m.left, merge_from=0, end_key=b"t")
    assert m.right.role is Role.IDLE
    assert list(m.right.retention.readers) == []


def test_a_leadership_that_ends_ends_it_and_the_next_begins_from_the_first_key() -> None:
    m, _ = asked(b"n")
    m.bench.adopt(m.right, leader_epoch=2)
    m.run()
    assert m.copied_keys() == [b"n", b"n"]
