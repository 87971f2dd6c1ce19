"""Operations with thousands of migrations. Other tasks get turns meanwhile, and rows that belong together are in one
entry of the log.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from minka.v1.admin_pb2 import CancelOperationRequest, PauseOperationRequest, PlanReassignRequest
from minka.v1.cluster_pb2 import MigrationState, OperationState
from minka.v1.records_pb2 import RecordBatch
from minkad.coordinator import deciding
from minkad.coordinator.stalls import WAITING_A_LOOK, Stalls
from minkad.core.controller import operations, reassigns, schedule
from minkad.core.controller.blockers import blockers_of
from minkad.core.controller.mover import MigrationCaps
from minkad.core.controller.reassignment import PartitionMover
from minkad.core.controller.reassigns import ApplyPlan
from minkad.core.controller.rows import ROWS_A_STEP
from minkad.core.controller.schedule import Scheduler
from minkad.core.placement import plan_reassign
from minkad.process.turns import turn
from tests.unit.coordinator.controller_harness import RecordingHarness
from tests.unit.coordinator.large_operation import MANY, a_cluster, begun, moving_all

PENDING, CANCELLED = MigrationState.MIGRATION_STATE_PENDING, MigrationState.MIGRATION_STATE_CANCELLED


class Work:
    """Counts the rows that the controller visits or makes between two turns of the loop. `most`: the largest counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.now = Counter[str]()
        self.most = Counter[str]()
        self._count_turns()
        for module, name in (
            (reassigns, "_problem_of"),
            (operations, "migration_in_state"),
            (PartitionMover, "obstacle"),
            (PartitionMover, "hosts"),
        ):
            self._count(module, name)

    def _count(self, module: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def counted(*args: Any) -> Any:
            self.now[name] += 1
            self.most[name] = max(self.most[name], self.now[name])
            return real(*args)

        self._monkeypatch.setattr(module, name, counted)

    def _count_turns(self) -> None:
        async def counted() -> None:
            await turn()
            self.now.clear()

        self._monkeypatch.setattr(deciding, "turn", counted)


def started(proposed: list[list[RecordBatch]]) -> Iterator[list[RecordBatch]]:
    return (entry for entry in proposed if any(r.HasField("operation_started") for b in entry for r in b.records))


async def test_a_large_operation_is_checked_paused_and_cancelled_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    c = a_cluster()
    h, work = RecordingHarness(c.state), Work(monkeypatch)
    operation = await h.controller.run(moving_all(c))
    assert operation is not None
    assert operation.migration_count == MANY
    assert work.most["_problem_of"] == ROWS_A_STEP
    # All migrations are in one entry of the Raft log: either all of them are recorded, or none.
    (entry,) = started(h.proposed)
    facts = [record for batch in entry for record in batch.records]
    some = [len(fact.operation_started.migrations) + len(fact.migrations_added.migrations) for fact in facts]
    assert sum(some) == MANY
    assert max(some) == ROWS_A_STEP

    await h.controller.run(PauseOperationRequest(id=operation.id))
    h.proposed.clear()
    await h.controller.run(CancelOperationRequest(id=operation.id, requested_by="tester", reason=""))
    assert work.most["migration_in_state"] <= ROWS_A_STEP
    (entry,) = [entry for entry in h.proposed if any(r.HasField("operation_changed") for b in entry for r in b.records)]
    dropped = [sum(r.migration_changed.state == CANCELLED for r in batch.records) for batch in entry]
    assert sum(dropped) >= MANY - 32
    assert max(dropped) <= ROWS_A_STEP
    assert not any(one.state == PENDING for one in h.state.migrations[operation.id].values())
    h.controller.close()


def test_a_queued_operation_with_many_migrations_is_cancelled_as_a_whole() -> None:
    c = a_cluster()
    begun(c)
    plan = plan_reassign(c.state, {}, PlanReassignRequest(to=["a"], queue=True), 0)
    c.run(ApplyPlan(plan, "tester"))
    queued = max(c.state.operations)
    assert c.operation(queued).state == OperationState.OPERATION_STATE_QUEUED
    c.run(CancelOperationRequest(id=queued, requested_by="tester", reason=""))
    assert c.operation(queued).state == OperationState.OPERATION_STATE_CANCELLED
    assert {one.state for one in c.state.migrations[queued].values()} == {CANCELLED}


def test_each_look_for_migrations_that_may_begin_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All migrations that haven't begun wait for the same full node. Each look covers some of them. When all have been
    looked at, the scheduler rests until something changes.
    """
    monkeypatch.setattr(schedule, "WAITING_A_LOOK", 100)
    c = a_cluster(1000)
    begun(c)
    work, scheduler, looks = Work(monkeypatch), Scheduler(), []
    caps = MigrationCaps(per_node=4, cluster=32)
    for record in scheduler.next_steps(c.state, caps, 0):
        c.state.apply(record)
    for _ in range(20):
        work.now.clear()
        assert scheduler.next_steps(c.state, caps, 1) == []
        looks.append(work.now["hosts"])
    assert max(looks) <= 100 + 3 * 4
    assert sum(looks) >= 1000
    assert looks[-1] == 0


def test_looks_for_stalled_migrations_go_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look covers some of the migrations that have not begun, and the next look goes on from there. So each
    stalled migration is given up when its time has come.
    """
    c = a_cluster(3 * WAITING_A_LOOK)
    operation = begun(c)
    c.fail("b")
    work, looker, given_up = Work(monkeypatch), Stalls(), set[object]()
    for second in range(100):
        work.now.clear()
        given_up |= {command.thing for command in looker.due(c.state, list, float(second), 60.0)}
        assert work.now["obstacle"] <= 2 * WAITING_A_LOOK
        assert second > 60 or not given_up
    assert len(given_up) == len(c.state.unended[operation]) == 3 * WAITING_A_LOOK


def test_the_wait_of_a_migration_starts_again_after_a_time_in_which_it_could_begin() -> None:
    c = a_cluster(3)
    begun(c)
    looker = Stalls()
    c.fail("b")
    assert not [*looker.due(c.state, list, 0.0, 60.0), *looker.due(c.state, list, 1.0, 60.0)]
    c.register("b", incarnation="2")
    assert not [*looker.due(c.state, list, 30.0, 60.0), *looker.due(c.state, list, 31.0, 60.0)]
    c.fail("b")
    assert not [*looker.due(c.state, list, 50.0, 60.0), *looker.due(c.state, list, 70.0, 60.0)]
    assert len(list(looker.due(c.state, list, 111.0, 60.0))) == 3


def test_blockers_are_reported_only_for_the_migrations_that_are_next(monkeypatch: pytest.MonkeyPatch) -> None:
    c = a_cluster()
    operation = begun(c)
    work = Work(monkeypatch)
    assert blockers_of(c.state, c.operation(operation)) == []
    assert 0 < work.now["obstacle"] <= 500
    c.fail("b")
    assert len(blockers_of(c.state, c.operation(operation))) == 100
