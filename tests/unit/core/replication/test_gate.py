"""Whether a leader takes requests now."""

import pytest

from minkad.core.replication.gate import Gate, WriteGate


def test_it_is_open_when_both_hand_over_and_merge_have_let_go() -> None:
    gate = WriteGate()
    states = [gate.state]
    for change in (gate.freeze, gate.fence, gate.hand_over, gate.unfence, gate.thaw):
        change()
        states.append(gate.state)
    assert states == [Gate.OPEN, Gate.FROZEN, Gate.FENCED, Gate.HANDING_OVER, Gate.FROZEN, Gate.OPEN]


def test_thawing_leaves_a_fence() -> None:
    gate = WriteGate()
    gate.fence()
    gate.freeze()
    gate.thaw()
    assert gate.state is Gate.FENCED


def test_only_a_hand_over_fences() -> None:
    gate = WriteGate()
    gate.freeze()
    fenced = [gate.is_fenced]
    gate.fence()
    fenced.append(gate.is_fenced)
    gate.unfence()
    fenced.append(gate.is_fenced)
    assert fenced == [False, True, False]


def test_a_leadership_is_not_handed_over_before_writes_wait() -> None:
    gate = WriteGate()
    gate.freeze()
    with pytest.raises(AssertionError, match="fenced before"):
        gate.hand_over()
