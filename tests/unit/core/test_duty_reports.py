"""Reports of shards: large ones, and those with changed weights."""

from collections.abc import Callable

import pytest

from minka.v1.shards_pb2 import FailedDuty, Holding, ReportShardsRequest, ShardReport, ShardReported, WeighedDuty
from minkad.core.controller.rows import ROWS_A_RECORD, rows_in
from minkad.core.duties.control.duty_rows import DUTIES_A_RECORD
from tests.unit.core.deciding import records_of
from tests.unit.core.duty_world import DutyWorld

MANY = [f"d{number}" for number in range(3 * DUTIES_A_RECORD + 1)]


@pytest.fixture
def world() -> DutyWorld:
    """A world with a shard that has no duties yet."""
    world = DutyWorld()
    world.pallet("feeds")
    world.join("s1")
    return world


@pytest.mark.parametrize(
    ("fields", "of"),
    [
        ({"stationary": True}, lambda held: ShardReport(attached=held)),
        ({"lazy": True}, lambda held: ShardReport(finished=held)),
        ({}, lambda held: ShardReport(released=held)),
        ({}, lambda held: ShardReport(failed=[FailedDuty(holding=one, reason="no") for one in held])),
        ({}, lambda held: ShardReport(weights=[WeighedDuty(holding=one, weight=9) for one in held])),
    ],
    ids=["attached", "finished", "released", "failed", "weighed"],
)
def test_a_large_report_makes_several_records(
    world: DutyWorld, fields: dict[str, bool], of: Callable[[list[Holding]], ShardReport]
) -> None:
    """If one record had all duties of the report, applying it would block the event loop for too long."""
    world.create("feeds", MANY, **fields)
    world.follow()
    held = [Holding(duty=one.duty, epoch=one.epoch) for one in world.duties.on_shard["s1"].values()]
    assert len(held) == len(MANY)
    said = ShardReported(shard="s1", incarnation=world.processes["s1"].incarnation, report=of(held))
    sizes = []
    for record in records_of(world.state, ReportShardsRequest(reports=[said]), world.now_ms):
        world.state.apply(record)
        changed, placed = record.duties_changed, record.assignments_changed
        sizes.append(len(changed.duties) + len(changed.removed) + len(placed.duties))
        assert (rows_in(record) >= ROWS_A_RECORD) == (sizes[-1] == DUTIES_A_RECORD), (
            "the loop gets a turn after each full record"
        )
    assert max(sizes) <= DUTIES_A_RECORD
    assert sum(sizes) >= len(MANY)
    world.check_tables()


def test_a_weight_that_hardly_changes_is_not_recorded(world: DutyWorld) -> None:
    world.create("feeds", ["a"], weight=100)
    world.settle()
    for weight, counted in ((109, 100), (110, 110), (100, 110), (99, 99), (0, 0), (0, 0), (1, 1), (130, 130)):
        world.weigh("s1", "a", weight)
        assert world.duties.load("s1", "feeds").weight == counted
    world.check_tables()
