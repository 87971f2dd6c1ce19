"""The end of a merge: writes to the right partition wait until all is copied and applied, and the outcome is known."""

import pytest

from minka.errors import Code, MinkaError
from minka.wire.kv_frames import WriteBody, encode
from minkad.core.replication.entries import TrimToRange
from minkad.core.replication.gate import Gate
from minkad.core.replication.instructions import AskFinishMerge, Changed, Reached, WakeAt
from minkad.core.replication.replica_state import Role
from tests.unit.core.replication.bench import SETTINGS, MemoryData, a_write, gate_of, row
from tests.unit.core.replication.merging import ALONE, LEFT, REFUSED, RIGHT, UNKNOWN, Merging, asked_to_end, request


def test_writes_to_the_right_partition_wait_once_little_of_its_log_is_left_to_copy() -> None:
    m = Merging()
    data = m.right.data
    assert isinstance(data, MemoryData)
    data.rows = {b"n%04d" % number: b"v" for number in range(500)}
    m.begin()
    large = encode(WriteBody([b"p"], [bytes(40 * 1024)]))  # two such values don't fit into one entry
    m.bench.write(m.right, *[large] * 100)
    m.settle(m.right)
    m.tick(0.0)  # this tick copies the last page, and two of the hundred writes
    left = {m.right.applied - 2: gate_of(m.right)}
    for copied in range(6, 42, 4):
        m.settle(m.left)
        left[100 - copied] = gate_of(m.right)
    assert left == dict.fromkeys(range(98, 58, -4), Gate.OPEN)
    assert WakeAt(LEFT, SETTINGS.write_pause_timeout) in m.bench.take_all()
    m.tick(SETTINGS.write_pause_timeout)  # the left partition has four copied entries to apply, and more keep coming
    assert gate_of(m.right) is Gate.FROZEN


def test_writes_to_the_right_partition_wait_once_the_left_has_applied_most_copies() -> None:
    m = Merging()
    data = m.right.data
    assert isinstance(data, MemoryData)
    data.rows = {b"n%04d" % number: b"v" for number in range(500)}
    m.begin()
    m.tick(0.0)
    m.bench.write(m.right, a_write(b"p"))
    m.settle(m.right)
    assert gate_of(m.right) is Gate.OPEN
    m.settle(m.left)
    assert gate_of(m.right) is Gate.FROZEN


def test_the_controller_is_asked_once_the_left_partition_has_applied_all_copies() -> None:
    m = Merging(b"n")
    m.begin()
    m.tick(0.0)
    taken = m.bench.take_all()
    assert Reached("merge.freeze") in taken
    assert not any(isinstance(one, AskFinishMerge) for one in taken)
    m.settle(m.left)
    assert m.bench.take(AskFinishMerge) == [AskFinishMerge(request())]
    assert gate_of(m.right) is Gate.FROZEN


def test_the_controller_is_asked_only_after_the_last_writes_are_copied() -> None:
    m = Merging(b"n")
    m.bench.write(m.right, a_write(b"p"))
    m.begin()
    assert m.run() == []
    m.settle(m.right)
    assert m.run() == [request()]
    assert m.copied_keys() == [b"n", b"p"]


def test_in_an_async_keyspace_all_copies_are_on_the_disk_before_the_end() -> None:
    m = Merging(b"n", is_async=True)
    m.begin()
    assert m.run() == [request()]
    assert m.copied()[-1] == TrimToRange(b"", b"t", 2)


@pytest.mark.parametrize("is_drained", [False, True])
def test_writes_go_on_if_the_last_copies_take_too_long(is_drained: bool) -> None:
    m = Merging(b"n")
    if not is_drained:
        m.bench.write(m.right, a_write(b"p"))
    m.begin()
    m.tick(SETTINGS.write_pause_timeout - 0.01)
    states = [gate_of(m.right)]
    m.bench.take_all()
    m.tick(SETTINGS.write_pause_timeout)
    states.append(gate_of(m.right))
    assert states == [Gate.FROZEN, Gate.OPEN]
    assert Changed(RIGHT) in m.bench.take_all()
    m.settle(m.right)
    m.tick(SETTINGS.write_pause_timeout + 0.05)
    assert gate_of(m.right) is Gate.FROZEN
    assert m.run() == [request()]


def test_a_refusal_lets_writes_go_on_and_the_leader_tries_again_after_a_pause() -> None:
    m, ask = asked_to_end(b"n")
    m.answer(ask, REFUSED)
    assert gate_of(m.right) is Gate.OPEN
    m.write(b"p")
    m.tick(0.04)
    assert gate_of(m.right) is Gate.OPEN
    m.tick(0.05)
    assert m.run() == [request()]
    assert m.copied_keys() == [b"n", b"p"]


def test_while_the_outcome_is_unknown_writes_wait_and_the_leader_asks_again() -> None:
    m, ask = asked_to_end(b"n")
    m.answer(ask, UNKNOWN)
    m.tick(0.05)
    [again] = m.bench.take(AskFinishMerge)
    m.answer(again.request, REFUSED)  # perhaps the first request was recorded
    assert gate_of(m.right) is Gate.FROZEN
    m.tick(9.0)
    assert len(m.bench.take(AskFinishMerge)) == 1
    assert gate_of(m.right) is Gate.FROZEN


def test_a_temporary_refusal_leaves_the_outcome_unknown() -> None:
    m, ask = asked_to_end(b"n")
    m.answer(ask, MinkaError(Code.OVERLOADED, "try again later"))
    assert gate_of(m.right) is Gate.FROZEN


def test_after_a_newer_row_the_old_request_counts_as_refused() -> None:
    m, ask = asked_to_end(b"n")
    m.bench.adopt(m.right)
    m.answer(ask, UNKNOWN)
    m.tick(0.05)
    assert gate_of(m.right) is Gate.OPEN
    m.tick(0.1)
    assert m.run() == [request(right_epoch=3)]


def test_late_answers_about_the_end_of_a_merge_are_ignored() -> None:
    m, ask = asked_to_end(b"n")
    m.answer(request(), REFUSED)
    assert gate_of(m.right) is Gate.FROZEN
    m.answer(ask, REFUSED)
    m.answer(ask, REFUSED)
    m.tick(0.05)
    assert gate_of(m.right) is Gate.FROZEN


def test_a_row_that_ends_the_merge_lets_writes_go_on_and_releases_the_log() -> None:
    m, _ = asked_to_end(b"n")
    m.bench.adopt(m.left, merge_from=0)
    assert gate_of(m.right) is Gate.OPEN
    assert list(m.right.retention.readers) == []


def test_the_right_partition_serves_nothing_after_the_merge() -> None:
    m, _ = asked_to_end(b"n")
    m.bench.adopt(m.left, merge_from=0, end_key=b"t")
    assert m.right.role is Role.IDLE
    assert list(m.right.retention.readers) == []


def test_writes_no_longer_wait_at_a_node_that_stops_leading() -> None:
    m, _ = asked_to_end(b"n")
    m.bench.node.stop_leading(0.0)
    assert (m.right.role, gate_of(m.right)) == (Role.IDLE, Gate.OPEN)


def test_the_next_leadership_copies_from_the_first_key_again() -> None:
    m, _ = asked_to_end(b"n")
    m.bench.adopt(m.right, leader_epoch=2)
    m.run()
    assert m.copied_keys() == [b"n", b"n"]


def test_the_row_of_the_next_merge_does_not_begin_the_present_one_again() -> None:
    """The controller ends a merge, and begins the next merge into the same partition. The node gets the row of the
    next right partition before the left partition's row, which shows the end of the first merge.
    """
    m, ask = asked_to_end(b"n")
    third = m.bench.host(row(3, ALONE, start_key=b"t"))
    m.bench.adopt(third, merge_into=LEFT)
    assert m.run() == []
    assert m.copied_keys() == [b"n"]
    assert gate_of(m.right) is Gate.FROZEN
    m.answer(ask, None)
    m.bench.adopt(m.left, merge_from=3, end_key=b"t")
    [ask] = m.run()
    assert (ask.partition_id, ask.merged_id) == (LEFT, 3)
