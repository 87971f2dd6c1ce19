"""Complete simulated runs in which a piece of a command has only one row, so that the code divides even small commands
into pieces.
"""

import pytest

from minkad.coordinator import deciding, piece
from minkad.core.controller import isr, keyspaces, row_answers, rows
from tests.simulation.run import Failure, run


@pytest.mark.seeds(4)
def test_no_invariant_is_violated_if_each_piece_has_one_row(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (deciding, isr, keyspaces, row_answers, rows):
        monkeypatch.setattr(module, "ROWS_A_RECORD", 1)
    monkeypatch.setattr(piece, "PIECE_BYTES", 1)
    outcome = run("full", seed)
    assert not isinstance(outcome, Failure), str(outcome)
