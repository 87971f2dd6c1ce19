"""The node's answers about operations with thousands of migrations."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from minka.errors import MinkaError
from minka.v1.admin_pb2 import GetOperationsRequest, GetOperationsResponse
from minka.v1.cluster_pb2 import MigrationState, Node
from minka.v1.coordinator_pb2 import MigrationProgress
from minkad.coordinator.coordinator import Coordinator
from minkad.core.controller.mover import MigrationCaps
from minkad.core.state import ROWS_A_PIECE
from minkad.rpc import operations
from minkad.rpc.operations import get_operations
from tests.unit.coordinator.large_operation import a_cluster, begun
from tests.unit.core.model import Controller

MANY = 3 * ROWS_A_PIECE
PENDING, COPYING = MigrationState.MIGRATION_STATE_PENDING, MigrationState.MIGRATION_STATE_COPYING


def ask(c: Controller, active: Any = None, leader: Node | None = None, **request: Any) -> GetOperationsResponse:
    node = SimpleNamespace(state=c.state, active=active, leader=lambda: leader)
    node.controller = lambda: Coordinator.controller(cast(Coordinator, node))
    node.up_to_date = lambda: Coordinator.up_to_date(cast(Coordinator, node))
    coordinator = cast(Coordinator, node)
    return asyncio.run(get_operations(coordinator, GetOperationsRequest(**request)))


@pytest.fixture(scope="module")
def cluster() -> Controller:
    """An operation with many migrations. The last four are under way."""
    c = a_cluster(MANY)
    c.caps = MigrationCaps(per_node=4, cluster=4)
    begun(c)
    c.schedule_once()
    rows = c.state.migrations[1]
    for place in list(rows)[:4]:
        rows[place] = rows.pop(place)
        c.state.unended[1][place] = c.state.unended[1].pop(place)
    return c


def test_without_a_limit_an_answer_has_all_migrations_in_the_order_of_the_plan(cluster: Controller) -> None:
    told = ask(cluster, ids=[1], with_migrations=True)
    assert list(told.migrations) == list(cluster.state.migrations[1].values())


def test_with_a_limit_migrations_under_way_come_first_and_a_summary_counts_all(cluster: Controller) -> None:
    told = ask(cluster, ids=[1], with_migrations=True, migrations_limit=10)
    assert [one.state for one in told.migrations] == [COPYING] * 4 + [PENDING] * 6
    assert len({one.partition_id for one in told.migrations}) == 10
    (summary,) = told.summaries
    assert (summary.operation_id, dict(summary.by_state)) == (1, {COPYING: 4, PENDING: MANY - 4})
    assert not summary.bytes_total


def test_the_active_controllers_answer_has_the_bytes_to_move(cluster: Controller) -> None:
    reports = SimpleNamespace(size=lambda partition_id: 100, progress=list)
    told = ask(cluster, SimpleNamespace(reports=reports), ids=[1], with_migrations=True, migrations_limit=1)
    assert (told.summaries[0].bytes_done, told.summaries[0].bytes_total) == (0, 100 * MANY)


def test_a_migration_that_needs_a_person_is_a_blocker_of_its_operation(cluster: Controller) -> None:
    """A blocker that ends without a person's help is shown only in the row of the migration itself."""
    moved = [thing.id for thing in list(cluster.state.under_way)[:2]]
    reported = [
        MigrationProgress(partition_id=moved[0], target="ephesus", blocked_by="outrun", remedy="minkactl operations …"),
        MigrationProgress(partition_id=moved[1], target="ephesus", blocked_by="the stream broke"),
    ]
    reports = SimpleNamespace(size=lambda partition_id: 100, progress=lambda: reported)
    told = ask(cluster, SimpleNamespace(reports=reports), ids=[1])
    [blocker] = [one for one in told.blockers if one.partition_id in moved]
    assert (blocker.operation_id, blocker.partition_id) == (1, moved[0])
    assert (blocker.reason, blocker.remedy) == ("outrun", "minkactl operations …")


def test_only_the_active_controller_says_that_there_is_no_such_operation(cluster: Controller) -> None:
    """Another node's copy of the table may lag and not have the operation yet, so a caller goes on to ask."""
    with pytest.raises(MinkaError, match="NO_CONTROLLER"):
        ask(cluster, ids=[2])
    with pytest.raises(MinkaError, match="NOT_CONTROLLER") as refused:
        ask(cluster, leader=Node(id="b", address="b:7400"), ids=[2])
    assert refused.value.details["leader_address"] == "b:7400"
    with pytest.raises(MinkaError, match="UNKNOWN_OPERATION"):
        ask(cluster, SimpleNamespace(up_to_date=AsyncMock()), ids=[2])


def test_a_long_answer_leaves_turns_to_other_tasks(cluster: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Counter[str]()

    async def turn() -> None:
        turns["taken"] += 1

    monkeypatch.setattr(operations, "turn", turn)
    ask(cluster, ids=[1], with_migrations=True)
    assert turns["taken"] == 2 * MANY // ROWS_A_PIECE
