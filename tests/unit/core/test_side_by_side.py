"""Operations on different things run at once. A second operation on the same thing is refused, and the error names the
first.
"""

import pytest

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import CancelOperationRequest
from minka.v1.cluster_pb2 import NodeState, OperationState, Partition
from minkad.core.controller.begin import MAX_QUEUED, BeginQueued
from minkad.core.controller.blockers import blockers_of
from minkad.core.controller.drains import DrainNode
from minkad.core.controller.mover import MigrationCaps
from minkad.core.controller.preferred import ElectLeaders
from minkad.core.controller.reassigns import ApplyPlan
from minkad.core.state import State
from tests.unit.core.model import Controller, led_by_others, refused

_SUCCEEDED = OperationState.OPERATION_STATE_SUCCEEDED


def two_keyspaces(caps: MigrationCaps | None = None) -> Controller:
    """Two keyspaces on three nodes, and a fourth node, which is empty."""
    c = Controller(caps=caps)
    c.register("athens", "byzantium", "cyrene")
    c.keyspace("flights", 30)
    c.keyspace("people", 12)
    c.register("ephesus")
    return c


def reassign(c: Controller, keyspace: str) -> int:
    """Reassign the keyspace to all nodes. Returns the id of the operation."""
    operation = c.begin(c.plan(keyspaces=[keyspace]))
    c.schedule()
    return operation


def rows(c: Controller, keyspace: str) -> list[Partition]:
    found = c.state.keyspace_named(keyspace)
    assert found is not None
    return [row for row in c.state.partitions.values() if row.keyspace_id == found.id]


def test_reassigns_of_different_keyspaces_run_at_once() -> None:
    c = two_keyspaces(MigrationCaps(per_node=8, cluster=32))
    first, second = reassign(c, "flights"), reassign(c, "people")
    assert {m.operation_id for m in c.state.under_way.values()} == {first, second}
    c.settle()
    assert c.operation(first).outcome == "7 of 7 partitions moved"
    assert c.operation(second).outcome == "3 of 3 partitions moved"
    assert not c.state.moving
    assert not c.state.under_way


def test_a_later_operation_does_not_wait_for_all_migrations_of_an_earlier_one() -> None:
    """The operation with the fewest migrations under way begins the next migration. The operations share the caps."""
    c = two_keyspaces(MigrationCaps(per_node=4, cluster=4))
    first = c.begin(c.plan(keyspaces=["flights"]))
    second = c.begin(c.plan(keyspaces=["people"]))
    c.schedule()
    assert sorted(m.operation_id for m in c.state.under_way.values()) == [first, first, second, second]


def test_a_plan_leaves_moving_partitions_alone_and_counts_them_at_their_targets() -> None:
    c = two_keyspaces()
    first = reassign(c, "flights")
    plan = c.plan()
    people = {row.id for row in rows(c, "people")}
    assert {move.partition_id for move in plan.moves} <= people
    assert plan.notes == [f"7 partitions of flights are left alone: operation {first} moves them"]
    ephesus = next(node for node in plan.nodes if node.node == "ephesus")
    assert (ephesus.partitions_before, ephesus.partitions_after) == (7, 10)
    c.begin(plan)
    c.settle()
    assert sorted(c.counts().values()) == [10, 10, 11, 11]


def test_the_refusal_of_a_plan_names_partitions_that_are_moving_by_now() -> None:
    c = two_keyspaces()
    plan = c.plan(keyspaces=["flights"])
    first = c.begin(plan)
    with pytest.raises(MinkaError) as refusal:
        c.begin(plan)
    assert refusal.value.code is Code.OPERATION_RUNNING
    assert refusal.value.details["operation"] == str(first)
    named = ", ".join(f"flights/{c.state.partitions[thing.id].slot}" for thing in sorted(c.state.moving, key=str)[:3])
    assert f"(reassign, asked for by tester) has not ended, and both move {named} and 4 more" in str(refusal.value)
    moving = next(iter(c.state.moving))
    with refused(Code.OPERATION_RUNNING):
        c.plan(partitions={moving.id: ["byzantium"]})


def test_a_plan_stays_valid_if_only_other_partitions_have_changed() -> None:
    """Before the plan is applied, other partitions move, and a new node joins."""
    c = two_keyspaces()
    plan = c.plan(keyspaces=["people"])
    c.begin(c.plan(keyspaces=["flights"]))
    c.settle()
    c.register("delphi")
    assert plan.table_version < c.state.version
    operation = c.begin(plan)
    c.settle()
    assert c.operation(operation).state == _SUCCEEDED


def test_migrations_under_way_are_known_after_a_snapshot() -> None:
    c = two_keyspaces()
    reassign(c, "flights")
    copy = State.from_snapshot(c.state.to_snapshot())
    assert (copy.moving, copy.under_way) == (c.state.moving, c.state.under_way)
    c.catch_up()
    c.schedule()
    c.replace_controller()
    c.settle()
    assert not c.state.moving


def test_cancelling_one_operation_does_not_stop_another() -> None:
    c = two_keyspaces()
    first, second = reassign(c, "flights"), reassign(c, "people")
    c.run(CancelOperationRequest(id=first, requested_by="tester", reason=""))
    c.settle()
    assert c.operation(first).state == OperationState.OPERATION_STATE_CANCELLED
    assert c.operation(second).state == _SUCCEEDED


def test_nodes_are_drained_side_by_side() -> None:
    c = two_keyspaces()
    c.register("delphi")
    for node in ("athens", "byzantium"):
        c.run(DrainNode(node, True, "tester", "", {}))
    c.settle()
    assert [o.outcome.split(";")[0] for o in c.state.operations.values()] == [
        "athens holds nothing and is safe to stop",
        "byzantium holds nothing and is safe to stop",
    ]


def test_a_drain_is_refused_while_a_replica_is_on_its_way_to_the_node() -> None:
    """The drain's plan could not move that replica, so the replica would stay on the node."""
    c = two_keyspaces()
    first = reassign(c, "flights")
    with pytest.raises(MinkaError, match=f"operation {first} moves flights/[0-9]+ and leaves a replica on ephesus"):
        c.run(DrainNode("ephesus", True, "tester", "", {}))
    assert c.state.nodes["ephesus"].state == NodeState.NODE_STATE_LIVE
    c.settle()
    c.run(DrainNode("ephesus", True, "tester", "", {}))
    c.settle()
    assert c.counts()["ephesus"] == 0


def test_a_decommission_waits_for_replicas_that_another_operation_moves_away() -> None:
    c = two_keyspaces(MigrationCaps(per_node=1, cluster=1))
    first = reassign(c, "flights")
    source = next(m.source for m in c.state.under_way.values())
    c.run(DrainNode(source, True, "tester", "", {}))
    second = max(c.state.operations)
    c.settle()
    assert c.operation(first).state == _SUCCEEDED
    assert c.operation(second).outcome.startswith(f"{source} holds nothing and is safe to stop")


def test_elections_of_different_partitions_run_at_once() -> None:
    c = led_by_others()
    due = [row.id for row in c.state.partitions.values() if row.replicas[0] == "athens"]
    for partition_id in due:
        c.run(ElectLeaders([partition_id], "tester", ""))
    with pytest.raises(MinkaError, match=f"operation 1 .* and both elect the leader of flights/{due[0] - 1}"):
        c.run(ElectLeaders(due, "tester", ""))
    c.settle()
    assert all(c.state.partitions[id_].leader == "athens" for id_ in due)


def test_a_damaged_plan_is_not_an_operation() -> None:
    c = two_keyspaces()
    plan = c.plan()
    plan.moves[0].target = "athens"
    with refused(Code.DAMAGED_PLAN):
        c.run(ApplyPlan(plan, "tester"))
    assert not c.state.operations


# Queued operations


def begin_queued(c: Controller) -> None:
    c.run(BeginQueued({}, {}))


def settle(c: Controller) -> None:
    """Let the controller and the nodes work, and begin queued operations, until nothing is left to do."""
    while True:
        c.settle()
        before = len(c.log)
        begin_queued(c)
        if len(c.log) == before:
            return


def test_a_queued_operation_begins_after_those_on_the_same_partitions() -> None:
    c = two_keyspaces()
    first = reassign(c, "flights")
    c.register("delphi")
    plan = c.plan(keyspaces=["flights"], queue=True)
    assert plan.queued
    assert any(move.source == "ephesus" for move in plan.moves), "the second plan begins at the result of the first one"
    second = c.begin(plan)
    assert c.operation(second).state == OperationState.OPERATION_STATE_QUEUED
    begin_queued(c)
    assert c.operation(second).state == OperationState.OPERATION_STATE_QUEUED
    assert not any(m.operation_id == second for m in c.state.under_way.values())
    (blocker,) = blockers_of(c.state, c.operation(second))
    assert blocker.reason.startswith(f"operation {first} (reassign, asked for by tester) has not ended, and both move")
    assert blocker.remedy == f"minkactl operations cancel {first}"
    c.replace_controller()
    settle(c)
    assert c.operation(first).state == c.operation(second).state == _SUCCEEDED
    assert [sum(row.leader == node for row in rows(c, "flights")) for node in c.state.nodes] == [6] * 5


def test_queued_operations_begin_in_order() -> None:
    c = two_keyspaces()
    reassign(c, "flights")
    for node in ("delphi", "zea"):
        c.register(node)
    second = c.begin(c.plan(keyspaces=["flights"], queue=True))
    with refused(Code.OPERATION_RUNNING):
        c.plan(partitions={next(iter(c.state.migrations[second]))[0].id: ["zea"]})
    third = c.begin(c.plan(to=["delphi", "zea"], keyspaces=["flights"], queue=True))
    people = c.begin(c.plan(keyspaces=["people"]))
    assert c.operation(people).state == OperationState.OPERATION_STATE_RUNNING, (
        "it has no partition in common with the others"
    )
    c.settle()
    begin_queued(c)
    assert [c.operation(id_).state for id_ in (second, third)] == [
        OperationState.OPERATION_STATE_RUNNING,
        OperationState.OPERATION_STATE_QUEUED,
    ]
    settle(c)
    assert {node for row in rows(c, "flights") for node in row.replicas} == {"delphi", "zea"}


def test_a_queued_operation_can_be_cancelled() -> None:
    c = two_keyspaces()
    first = reassign(c, "flights")
    c.register("delphi")
    second = c.begin(c.plan(to=["delphi"], keyspaces=["flights"], queue=True))
    under_way = dict(c.state.under_way)
    assert under_way.keys() & {partition_id for partition_id, _ in c.state.migrations[second]}
    c.run(CancelOperationRequest(id=second, requested_by="ann", reason="not now"))
    assert c.state.under_way == under_way
    assert c.operation(second).state == OperationState.OPERATION_STATE_CANCELLED
    assert c.operation(second).outcome == "cancelled by ann: not now"
    settle(c)
    assert c.operation(first).state == _SUCCEEDED


def test_a_queued_drain_waits_until_no_replica_is_on_its_way_to_its_node() -> None:
    c = two_keyspaces()
    reassign(c, "flights")
    c.run(DrainNode("ephesus", True, "tester", "", {}, queue=True))
    drain = max(c.state.operations)
    assert c.operation(drain).state == OperationState.OPERATION_STATE_QUEUED
    assert c.state.nodes["ephesus"].state == NodeState.NODE_STATE_LIVE
    settle(c)
    assert c.operation(drain).outcome == "ephesus holds nothing and is safe to stop; 7 of 7 partitions moved"


def test_a_queued_operation_that_can_no_longer_begin_fails_with_a_reason() -> None:
    c = two_keyspaces()
    reassign(c, "flights")
    c.run(DrainNode("ephesus", True, "tester", "", {}, queue=True))
    drain = max(c.state.operations)
    c.fail("athens", "byzantium", "cyrene")
    c.run(CancelOperationRequest(id=1, requested_by="tester", reason=""))
    settle(c)
    assert c.operation(drain).state == OperationState.OPERATION_STATE_FAILED
    assert "NOT_ENOUGH_NODES" in c.operation(drain).outcome or "NO_SOURCE" in c.operation(drain).outcome


def test_a_queued_plan_leaves_out_a_move_that_is_no_longer_possible() -> None:
    """The plan moves a partition away from ephesus, but the operation that should have moved it there was cancelled."""
    c = two_keyspaces()
    row = rows(c, "flights")[0]
    c.begin(c.plan(partitions={row.id: ["ephesus"]}))
    second = c.begin(c.plan(partitions={row.id: [row.replicas[0]]}, queue=True))
    c.run(CancelOperationRequest(id=1, requested_by="tester", reason=""))
    settle(c)
    assert c.operation(second).state == OperationState.OPERATION_STATE_FAILED
    assert "1 stayed" in c.operation(second).outcome


def test_at_most_100_operations_are_queued() -> None:
    c = two_keyspaces()
    reassign(c, "flights")
    drain = DrainNode("ephesus", True, "tester", "", {}, queue=True)
    for _ in range(MAX_QUEUED):
        c.run(drain)
    with refused(Code.OPERATION_RUNNING):
        c.run(drain)
