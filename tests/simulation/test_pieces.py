"""Whole simulated runs in which each piece of a command has one row. So commands are divided here that are otherwise
divided only in large clusters.
"""

import pytest

from minkad.coordinator import active_controller, piece
from minkad.core.controller import keyspaces, rows
from tests.simulation.run import Failure, run


@pytest.mark.seeds(4)
def test_no_invariant_is_violated_where_every_row_is_a_piece(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (active_controller, keyspaces, rows):
        monkeypatch.setattr(module, "ROWS_A_RECORD", 1)
    monkeypatch.setattr(piece, "PIECE_BYTES", 1)
    outcome = run("full", seed)
    assert not isinstance(outcome, Failure), str(outcome)
