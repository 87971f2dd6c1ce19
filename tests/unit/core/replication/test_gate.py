"""A leader's write gate: open, or closed for a hand-over or a merge."""

import pytest

from minkad.core.replication.gate import Gate, WriteGate


def test_the_gate_opens_once_both_hand_over_and_merge_have_let_it_go() -> None:
    gate = WriteGate()
    states = [gate.state]
    for change in (gate.freeze, gate.close, gate.close_to_reads, gate.open, gate.thaw):
        change()
        states.append(gate.state)
    assert states == [Gate.OPEN, Gate.FROZEN, Gate.CLOSED, Gate.CLOSED_TO_READS, Gate.FROZEN, Gate.OPEN]


def test_the_end_of_a_merge_leaves_the_gate_closed_for_a_hand_over() -> None:
    gate = WriteGate()
    gate.close()
    gate.freeze()
    gate.thaw()
    assert gate.state is Gate.CLOSED


def test_only_a_hand_over_closes_the_gate() -> None:
    gate = WriteGate()
    gate.freeze()
    closed = [gate.is_closed]
    gate.close()
    closed.append(gate.is_closed)
    gate.open()
    closed.append(gate.is_closed)
    assert closed == [False, True, False]


def test_a_gate_can_be_closed_to_reads_only_after_it_is_closed_to_writes() -> None:
    gate = WriteGate()
    gate.freeze()
    with pytest.raises(AssertionError, match="wait before"):
        gate.close_to_reads()
