"""The real controller's work for an event grows with the number of rows that the event changes, not with the table. The
tests count visits of rows, not seconds: see docs/simulation.md, "The world of scale".
"""

from itertools import islice

import pytest

from tests.simulation.scale.scenario import EVENTS, IDLE, Measurement, Scenario
from tests.simulation.scale.world import ScaleWorld, Size

_NODES = 30
_SMALL, _LARGE = 300, 1200  # partitions
_VISITS_PER_ROW = 25  # visits of a recorded row: to decide, apply, send, acknowledge and look it up
_WHOLE_TABLE = ("create", "another voter leads")  # events that may go over all rows


@pytest.fixture(scope="module")
def measured() -> dict[int, dict[str, Measurement]]:
    """The measurements, by number of partitions and event. `reassign` is left out: a thread makes its plan."""
    return {partitions: _measured(partitions) for partitions in (_SMALL, _LARGE)}


def _measured(partitions: int) -> dict[str, Measurement]:
    world = ScaleWorld(Size(_NODES, partitions, learners=False, charged=False))
    with world.running():
        events = islice(Scenario(world, watched=True).run(), EVENTS - 1)
        return {one.event: one for one in events}


def test_every_event_ends(measured: dict[int, dict[str, Measurement]]) -> None:
    for events in measured.values():
        assert len(events) == EVENTS - 1
        assert all(one.ended for one in events.values()), [one.event for one in events.values() if not one.ended]


def test_each_event_changes_the_rows_of_its_nodes(measured: dict[int, dict[str, Measurement]]) -> None:
    """The fake nodes cause as many changes of rows as real nodes would."""
    for partitions, events in measured.items():
        copies = 3 * partitions // _NODES
        assert events["create"].rows == 2 * partitions  # the creation, then the leader's acknowledgement
        assert events["one node fails"].rows >= copies
        assert events["it comes back"].rows >= copies
        assert events["a zone fails"].rows >= partitions


def test_no_event_goes_over_the_whole_table(measured: dict[int, dict[str, Measurement]]) -> None:
    found = [
        (one.event, walk) for one in measured[_LARGE].values() for walk in one.walks if one.event not in _WHOLE_TABLE
    ]
    assert not found


def test_an_idle_controller_visits_no_row(measured: dict[int, dict[str, Measurement]]) -> None:
    assert measured[_LARGE][IDLE].visited == 0


def test_visits_are_proportional_to_the_changed_rows(measured: dict[int, dict[str, Measurement]]) -> None:
    for one in measured[_LARGE].values():
        if one.event not in _WHOLE_TABLE:
            assert one.visited <= _VISITS_PER_ROW * one.rows, f"{one.event}: {one.visited} visits for {one.rows} rows"


def test_a_larger_table_costs_no_more_visits_per_changed_row(measured: dict[int, dict[str, Measurement]]) -> None:
    for small, large in zip(measured[_SMALL].values(), measured[_LARGE].values(), strict=True):
        if small.rows and large.event not in _WHOLE_TABLE:
            assert large.visited / large.rows <= 1.3 * small.visited / small.rows, large.event
