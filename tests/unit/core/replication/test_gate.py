"""A leader's write gate: open, or closed for a hand-over or a merge."""

import pytest

from minkad.core.replication.gate import Gate, WriteGate


def test_it_is_open_when_both_hand_over_and_merge_have_let_go() -> None:
    gate = WriteGate()
    states = [gate.state]
    for change in (gate.freeze, gate.close, gate.close_to_reads, gate.open, gate.thaw):
        change()
        states.append(gate.state)
    assert states == [Gate.OPEN, Gate.FROZEN, Gate.CLOSED, Gate.CLOSED_TO_READS, Gate.FROZEN, Gate.OPEN]


def test_thawing_leaves_it_closed_for_a_hand_over() -> None:
    gate = WriteGate()
    gate.close()
    gate.freeze()
    gate.thaw()
    assert gate.state is Gate.CLOSED


def test_only_a_hand_over_closes_it() -> None:
    gate = WriteGate()
    gate.freeze()
    closed = [gate.is_closed]
    gate.close()
    closed.append(gate.is_closed)
    gate.open()
    closed.append(gate.is_closed)
    assert closed == [False, True, False]


def test_a_leadership_is_not_handed_over_before_writes_wait() -> None:
    gate = WriteGate()
    gate.freeze()
    with pytest.raises(AssertionError, match="wait before"):
        gate.close_to_reads()
