"""Keyspaces with several replicas: creation, nodes that fail, leave and come back, drains, preferred leaders."""

import pytest

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import (
    CancelOperationRequest,
    LimitOperationRequest,
    PauseOperationRequest,
    PlanReassignRequest,
    RemoveNodeRequest,
    UndrainNodeRequest,
)
from minka.v1.cluster_pb2 import (
    Durability,
    HashFunction,
    NodeState,
    OperationState,
    Partition,
    PartitionState,
)
from minka.v1.coordinator_pb2 import AlterIsrRequest, ControlledShutdownRequest, IsrChange, LeaveRequest
from minkad.core.controller import drains, preferred
from minkad.core.controller.blockers import blockers_of
from minkad.core.controller.drains import DrainNode
from minkad.core.controller.isr import isr_refusal
from minkad.core.controller.keyspaces import CreateKeyspace, Creation
from minkad.core.controller.membership import FailNodes
from minkad.core.controller.preferred import ElectLeaders
from minkad.core.placement import plan_reassign
from minkad.core.state import PartitionStateName, partition_state
from tests.unit.core.deciding import decided
from tests.unit.core.model import Controller

MURMUR3 = HashFunction.HASH_FUNCTION_MURMUR3


def three_nodes(partitions: int = 3, **more: bool) -> Controller:
    c = Controller()
    c.register("a", "b", "c")
    c.keyspace("flights", partitions, replicas=3, min_insync=2, **more)
    return c


def rows(c: Controller) -> list[Partition]:
    return list(c.state.partitions.values())


def led_by(c: Controller, node: str) -> Partition:
    return next(p for p in rows(c) if p.leader == node)


# The creation of keyspaces


def test_a_new_partition_has_a_leader_from_its_first_record_on() -> None:
    c = Controller()
    c.register("a", "b", "c")
    (created,) = decided(c.state, CreateKeyspace("flights", 3, MURMUR3, 3), 0)
    c.state.apply(created)
    assert [p.replicas[0] for p in rows(c)] == ["a", "b", "c"]
    assert {p.state for p in rows(c)} == {PartitionState.PARTITION_STATE_ASSIGNED}
    assert [(p.leader, sorted(p.isr), p.leader_epoch) for p in rows(c)] == [(n, ["a", "b", "c"], 1) for n in "abc"]


def test_a_node_that_fails_during_the_preparation_of_a_keyspace_leads_none_of_it() -> None:
    """The node fails before the partitions are recorded. A partition whose only replica is on this node waits for the
    node, without a leader.
    """
    c = Controller()
    c.register("a", "b")
    creation = Creation(c.state, CreateKeyspace("flights", 4, MURMUR3, 1))
    assert list(creation.prepare()), "it is done in steps"
    c.fail("a")
    for record in creation.records(c.state, 0):
        c.state.apply(record)
    assert {(p.replicas[0], partition_state(p)) for p in rows(c)} == {
        ("a", PartitionStateName.NEW),
        ("b", PartitionStateName.ONLINE),
    }
    c.register("a", incarnation="2")
    assert {partition_state(p) for p in rows(c)} == {PartitionStateName.ONLINE}


@pytest.mark.parametrize(
    ("nodes", "replicas", "min_insync"), [("abcd", 3, 2), ("abc", 3, 2), ("ab", 1, 1), ("a", 1, 1)]
)
def test_the_default_replicas_depend_on_the_size_of_the_cluster(nodes: str, replicas: int, min_insync: int) -> None:
    c = Controller()
    c.register(*nodes)
    c.run(CreateKeyspace("flights", 3, MURMUR3))
    keyspace = c.state.keyspaces[1]
    assert (keyspace.replicas, keyspace.min_insync) == (replicas, min_insync)
    assert keyspace.durability == Durability.DURABILITY_SYNC


@pytest.mark.parametrize(("replicas", "min_insync"), [(1, 1), (2, 1), (3, 2), (4, 3), (5, 3)])
def test_the_default_min_insync_is_a_majority(replicas: int, min_insync: int) -> None:
    c = Controller()
    c.register(*"abcde")
    c.run(CreateKeyspace("flights", 3, MURMUR3, replicas))
    assert c.state.keyspaces[1].min_insync == min_insync


def test_a_node_that_is_down_does_not_lower_the_default_number_of_replicas() -> None:
    c = Controller()
    c.register("a", "b", "c")
    c.fail("c")
    with pytest.raises(MinkaError, match="3 replicas need as many nodes; 2 are LIVE") as refusal:
        c.run(CreateKeyspace("flights", 3, MURMUR3))
    assert refusal.value.code is Code.NOT_ENOUGH_NODES
    c.run(CreateKeyspace("flights", 3, MURMUR3, 1))
    assert c.state.keyspaces[1].replicas == 1


@pytest.mark.parametrize(
    ("replicas", "min_insync", "code"),
    [(10, 1, Code.INVALID_ARGUMENT), (3, 4, Code.INVALID_ARGUMENT), (4, 2, Code.NOT_ENOUGH_NODES)],
)
def test_numbers_of_replicas_that_are_refused(replicas: int, min_insync: int, code: Code) -> None:
    c = Controller()
    c.register("a", "b", "c")
    with pytest.raises(MinkaError) as refusal:
        c.run(CreateKeyspace("flights", 3, MURMUR3, replicas, min_insync))
    assert refusal.value.code is code


# Nodes that fail or start (Kafka's onBrokerFailure and onBrokerStartup)


def test_after_a_nodes_failure_a_leader_is_elected_from_the_isr_and_shrinks_it() -> None:
    c = three_nodes()
    led = led_by(c, "a")
    c.fail("a")
    row = c.state.partitions[led.id]
    assert (row.state, row.leader_epoch, row.generation) == (
        PartitionState.PARTITION_STATE_ASSIGNED,
        led.leader_epoch + 1,
        led.generation,
    )
    assert row.leader == led.replicas[1]
    assert all(sorted(p.isr) == ["b", "c"] for p in rows(c))
    assert all("a" in p.replicas for p in rows(c))
    assert not any(p.unclean_elections for p in rows(c))


def test_the_controller_takes_no_node_out_of_the_isr() -> None:
    """Only the leader takes nodes out of the isr. The leader may be gone, too, even if the table doesn't say so yet."""
    c = three_nodes()
    for gone in ("a", "b"):
        c.run(FailNodes({gone: "no heartbeat for 0.8 s"}))
        assert all(sorted(p.isr) == ["a", "b", "c"] for p in rows(c))
    assert all(p.leader == "c" for p in rows(c))
    c.run(LeaveRequest(node_id="c", incarnation="1"))
    assert all(sorted(p.isr) == ["a", "b", "c"] and not p.leader for p in rows(c))


@pytest.mark.parametrize("first", ["a", "b", "c"])
@pytest.mark.parametrize("together", [False, True])
def test_if_the_whole_isr_is_gone_the_first_node_that_is_back_leads(first: str, together: bool) -> None:
    c = three_nodes()
    for nodes in ["abc"] if together else ["b", "a", "c"]:
        c.run(FailNodes(dict.fromkeys(nodes, "no heartbeat for 0.8 s")))
    assert all(p.state == PartitionState.PARTITION_STATE_OFFLINE for p in rows(c))
    c.register(first, incarnation="2")
    assert all(p.leader == first and p.unclean_elections == 0 for p in rows(c))
    c.settle()
    assert all(list(p.isr) == [first] for p in rows(c))
    c.register(*set("abc") - {first}, incarnation="2")
    c.settle()
    assert all(len(p.isr) == 3 for p in rows(c))


def test_nodes_that_fail_together_are_not_elected_in_between() -> None:
    c = three_nodes()
    before = {p.id: p.leader_epoch for p in rows(c)}
    c.run(FailNodes(dict.fromkeys("ab", "no heartbeat for 0.8 s")))
    assert all(p.leader == "c" for p in rows(c))
    assert all(p.leader_epoch <= before[p.id] + 1 for p in rows(c))


def test_a_hand_over_ends_when_the_successor_fails() -> None:
    c = three_nodes(1)
    leader = rows(c)[0].leader
    c.run(ControlledShutdownRequest(node_id=leader, incarnation="1"))
    c.schedule()
    successor = rows(c)[0].successor
    assert successor
    epoch = rows(c)[0].partition_epoch
    c.run(FailNodes({successor: "no heartbeat for 0.8 s"}))
    assert (rows(c)[0].successor, rows(c)[0].leader) == ("", leader)
    assert rows(c)[0].partition_epoch == epoch + 1, "so the leader learns that its hand-over has failed"


def test_a_migration_waits_for_a_failed_node_that_is_still_in_the_isr() -> None:
    """The node d is to replace a follower, and fails. The follower stays in the in-sync set until d is back."""
    c = Controller()
    c.register("a", "b", "c")
    c.keyspace("flights", 1, replicas=3, min_insync=2)
    c.register("d")
    follower = next(node for node in rows(c)[0].replicas if node != rows(c)[0].leader)
    drain(c, follower, decommission=True)
    c.schedule()
    c.deliver()
    c.catch_up()
    assert "d" in rows(c)[0].isr
    c.run(FailNodes({"d": "no heartbeat for 0.8 s"}))
    c.schedule()
    assert follower in rows(c)[0].isr
    assert not rows(c)[0].removing_replicas
    c.take_out_absent()
    c.register("d", incarnation="2")
    c.settle()
    assert follower not in rows(c)[0].replicas


def test_a_partition_is_offline_until_a_replica_in_sync_is_back() -> None:
    c = three_nodes(1)
    first, second, third = rows(c)[0].replicas
    c.fail(third)
    c.fail(second)
    c.alter_isr(rows(c)[0], [first], eligible=[])  # the other replicas may lack entries, so they aren't eligible
    c.register(third, incarnation="2")
    c.fail(first)
    row = rows(c)[0]
    assert (row.state, row.leader, list(row.isr)) == (PartitionState.PARTITION_STATE_OFFLINE, "", [first])
    c.register(second, incarnation="2")
    assert rows(c)[0].state == PartitionState.PARTITION_STATE_OFFLINE, "it was not in sync"
    c.register(first, incarnation="2")
    c.settle()
    row = rows(c)[0]
    assert (row.leader, sorted(row.isr), row.state) == (first, ["a", "b", "c"], PartitionState.PARTITION_STATE_ONLINE)


def test_an_unclean_election_happens_only_if_allowed_and_is_counted() -> None:
    for unclean in (False, True):
        c = three_nodes(1, unclean=unclean)
        first, second, third = rows(c)[0].replicas
        c.fail(second, third)
        c.alter_isr(rows(c)[0], [first], eligible=[])  # the other replicas may lack entries, so they aren't eligible
        c.register(third, incarnation="2")
        assert list(rows(c)[0].isr) == [first]
        c.fail(first)
        row = rows(c)[0]
        assert (row.leader, list(row.isr), row.unclean_elections) == (
            (third, [third], 1) if unclean else ("", [first], 0)
        )


def test_a_leader_without_data_gives_way_to_a_replica_that_it_names() -> None:
    """The named replica isn't in sync, so its election is unclean, and the keyspace must allow unclean elections."""
    for unclean in (True, False):
        c = three_nodes(1, unclean=unclean)
        (row,) = rows(c)
        first, second, third = row.replicas
        c.alter_isr(row, [first])
        change = IsrChange(
            partition_id=row.id, leader_epoch=row.leader_epoch, partition_epoch=rows(c)[0].partition_epoch, isr=[third]
        )
        assert isr_refusal(c.state, first, change) is (None if unclean else Code.INVALID_ARGUMENT)
        c.run(AlterIsrRequest(node_id=first, changes=[change]))
        (row,) = rows(c)
        now = (row.leader, list(row.isr), row.unclean_elections)
        assert now == ((third, [third], 1) if unclean else (first, [first], 0))
        if unclean:
            c.fail(second)
            change = IsrChange(
                partition_id=row.id, leader_epoch=row.leader_epoch, partition_epoch=row.partition_epoch, isr=[second]
            )
            assert isr_refusal(c.state, third, change) is Code.INELIGIBLE_REPLICA, "it isn't up"


def test_a_partition_that_allows_unclean_elections_waits_for_any_replica() -> None:
    c = three_nodes(1, unclean=True)
    first, second, third = rows(c)[0].replicas
    c.fail(second, third, first)
    assert partition_state(rows(c)[0]) is PartitionStateName.OFFLINE
    c.register(second, incarnation="2")
    row = rows(c)[0]
    assert (row.leader, row.unclean_elections) == (second, 1)


def test_a_process_that_replaced_another_unnoticed_gives_up_its_leaderships() -> None:
    c = three_nodes()
    led = led_by(c, "a")
    c.register("a", incarnation="2")
    row = c.state.partitions[led.id]
    assert row.leader != "a"
    assert sorted(row.isr) == ["a", "b", "c"], "its log is on its disk"
    assert row.leader_epoch == led.leader_epoch + 1


def test_in_an_async_keyspace_a_new_process_has_to_catch_up_first() -> None:
    c = three_nodes(volatile=True)
    led, followed = led_by(c, "a"), led_by(c, "b")
    c.register("a", incarnation="2")
    assert all(sorted(p.isr) == ["b", "c"] for p in rows(c))
    assert c.state.partitions[led.id].leader != "a"
    assert c.state.partitions[followed.id].leader == "b"
    before = {p.id: p.partition_epoch for p in rows(c)}
    c.register("a", incarnation="3")
    assert all(p.partition_epoch == before[p.id] + 1 for p in rows(c)), "requests that name its old rows are void"
    c.catch_up()
    assert all(sorted(p.isr) == ["a", "b", "c"] for p in rows(c))


def test_all_partitions_are_online_after_all_nodes_restarted_at_once() -> None:
    c = three_nodes(6)
    for node in "abc":
        c.register(node, incarnation="2")
    c.settle()
    assert all(p.state == PartitionState.PARTITION_STATE_ONLINE and len(p.isr) == 3 for p in rows(c))


# Nodes that stop gracefully or are drained


def test_a_stopping_node_hands_over_and_then_leaves_the_isr() -> None:
    c = three_nodes(6)
    led = [p for p in rows(c) if p.leader == "a"]
    c.run(ControlledShutdownRequest(node_id="a", incarnation="another process"))
    assert c.state.nodes["a"].state == NodeState.NODE_STATE_LIVE
    c.run(ControlledShutdownRequest(node_id="a", incarnation="1"))
    c.schedule()
    assert all(c.state.partitions[p.id].successor for p in led)
    assert c.counts()["a"] == 2, "a leads until it has handed over"
    c.hand_over_all()
    assert c.counts()["a"] == 0
    assert all(len(p.isr) == 3 for p in rows(c))
    c.run(LeaveRequest(node_id="a", incarnation="1"))
    c.take_out_absent()
    assert all(sorted(p.isr) == ["b", "c"] for p in rows(c))
    assert c.state.nodes["a"].state == NodeState.NODE_STATE_LEFT
    c.register("a", incarnation="2")
    assert c.state.nodes["a"].state == NodeState.NODE_STATE_LIVE


def test_a_node_that_stops_without_a_hand_over_is_replaced_at_once() -> None:
    c = three_nodes()
    c.run(LeaveRequest(node_id="a", incarnation="1"))
    c.take_out_absent()
    assert all(p.leader in ("b", "c") and sorted(p.isr) == ["b", "c"] for p in rows(c))


def drain(c: Controller, node: str, decommission: bool = False) -> int:
    operation_id = c.state.next_operation_id
    c.run(DrainNode(node, decommission, "tester", "disk", {}))
    return operation_id


def test_a_drained_node_leads_no_partition_and_is_safe_to_stop() -> None:
    c = three_nodes(6)
    operation = drain(c, "a")
    with pytest.raises(MinkaError) as again:
        drain(c, "a")
    assert again.value.code is Code.OPERATION_RUNNING
    assert [blocker.partition_id for some in drains.blockers(c.state, "a") for blocker in some] == [
        row.id for row in rows(c) if row.leader == "a"
    ]
    c.settle()
    assert c.counts() == {"a": 0, "b": 3, "c": 3}
    assert c.operation(operation).state == OperationState.OPERATION_STATE_SUCCEEDED
    assert c.operation(operation).outcome == "a is safe to stop"
    assert not any(drains.blockers(c.state, "a"))
    assert c.state.nodes["a"].state == NodeState.NODE_STATE_DRAINING
    c.run(UndrainNodeRequest(node="a"))
    assert c.state.nodes["a"].state == NodeState.NODE_STATE_LIVE


def test_a_node_that_is_not_drained_keeps_its_leaderships() -> None:
    c = three_nodes(6)
    told = {(b.reason, b.remedy) for some in drains.blockers(c.state, "a") for b in some}
    assert told == {("a leads it, and nobody drains a", "minkactl drain a")}
    drain(c, "a")
    told = {(b.reason, b.remedy) for some in drains.blockers(c.state, "a") for b in some}
    assert told <= {(f"a leads it; leadership goes{to} in a moment", "") for to in ("", " to b", " to c")}
    with pytest.raises(MinkaError, match="node a is DRAINING: stop it first"):
        c.run(RemoveNodeRequest(node="a"))


def test_blockers_of_a_drain_have_remedies() -> None:
    c = three_nodes(1)
    c.keyspace("single", 3, replicas=1)
    c.fail("b")
    operation = drain(c, "a")
    c.settle()
    assert c.operation(operation).state == OperationState.OPERATION_STATE_RUNNING
    blockers = {b.partition: (b.reason, b.remedy) for b in blockers_of(c.state, c.operation(operation))}
    assert blockers == {
        "flights/0": ("1 of 2 would be in sync: its writes would be refused", "start b"),
        "single/0": (
            "no other replica is in sync: it would be OFFLINE",
            "minkactl reassign --keyspace single --drain a",  # flights needs three nodes
        ),
    }
    c.run(CancelOperationRequest(id=operation, requested_by="tester", reason=""))
    c.settle()
    assert c.operation(operation).state == OperationState.OPERATION_STATE_CANCELLED
    assert c.state.nodes["a"].state == NodeState.NODE_STATE_LIVE


def test_the_remedy_for_a_partition_of_one_replica_is_possible() -> None:
    """A decommission needs at least as many other nodes as any keyspace has replicas."""
    c = three_nodes(1)
    c.keyspace("single", 3, replicas=1)
    (alone,) = {b.remedy for some in drains.blockers(c.state, "a") for b in some if b.partition.startswith("single/")}
    assert alone == "minkactl reassign --keyspace single --drain a"
    with pytest.raises(MinkaError) as refused:
        plan_reassign(c.state, {}, PlanReassignRequest(drain=["a"]), 0)
    assert refused.value.code is Code.NOT_ENOUGH_NODES
    plan = plan_reassign(c.state, {}, PlanReassignRequest(keyspaces=["single"], drain=["a"]), 0)
    assert [move.source for move in plan.moves] == ["a"]
    c.register("d")
    (alone,) = {b.remedy for some in drains.blockers(c.state, "a") for b in some if b.partition.startswith("single/")}
    assert alone == "minkactl drain a --decommission"
    assert plan_reassign(c.state, {}, PlanReassignRequest(drain=["a"]), 0).moves


def test_a_spare_node_replaces_one_of_two_dead_nodes() -> None:
    c = Controller()
    c.register("a", "b", "c", "d", "e")
    c.keyspace("flights", 4, replicas=5)
    c.register("spare")
    c.fail("d", "e")
    first = drain(c, "d", decommission=True)
    c.settle()
    assert c.operation(first).outcome == "d holds nothing and is safe to stop; 4 of 4 replicas moved"
    assert all(set(p.isr) == {"a", "b", "c", "spare"} for p in rows(c)), "four copies of five, while e is away"
    with pytest.raises(MinkaError, match=r"e keeps 4 replicas of flights \(flights/0, .*Let a node join") as refusal:
        drain(c, "e", decommission=True)
    assert refusal.value.code is Code.NOT_ENOUGH_NODES
    c.register("e", incarnation="2")
    c.settle()
    assert all(len(p.isr) == 5 for p in rows(c))


def test_a_drain_names_the_replicas_that_it_leaves_behind() -> None:
    c = Controller()
    c.register("a", "b", "c")
    c.keyspace("flights", 3, replicas=3)
    c.keyspace("pairs", 3, replicas=2)
    c.fail("c")
    operation = drain(c, "c", decommission=True)
    c.settle()
    assert all("c" not in p.replicas or p.keyspace_id == 1 for p in rows(c))
    done = c.operation(operation)
    assert done.state == OperationState.OPERATION_STATE_FAILED
    assert done.outcome.startswith(
        "c still holds 3 partitions (flights/0, flights/1, flights/2): it stays on c: each LIVE node has a replica of "
        "it; let a node join, then drain again"
    )


def test_a_move_waits_for_a_dead_target_instead_of_giving_up_a_live_replica() -> None:
    c = three_nodes(1)
    c.register("d")
    c.fail("c")
    (row,) = rows(c)
    operation = c.begin(c.plan(partitions={row.id: ["a", "c"]}))
    c.settle()
    assert c.operation(operation).state == OperationState.OPERATION_STATE_RUNNING
    assert set(rows(c)[0].isr) == {"a", "b"}, "the live replica b isn't given up for c, which is dead"


def test_a_decommissioned_node_has_no_replicas() -> None:
    c = three_nodes(6)
    c.keyspace("single", 3, replicas=1)
    c.register("d")
    operation = drain(c, "a", decommission=True)
    c.register("a", incarnation="2")
    assert c.state.nodes["a"].state == NodeState.NODE_STATE_DRAINING, "a drain outlives the process"
    c.settle()
    assert list(c.state.partitions_on("a")) == []
    assert c.operation(operation).outcome == "a holds nothing and is safe to stop; 7 of 7 replicas moved"
    assert all(len(p.isr) == len(p.replicas) for p in rows(c))


def test_a_dead_node_is_decommissioned_by_copies_of_the_other_replicas() -> None:
    c = three_nodes(6)
    c.register("d")
    c.fail("a")
    c.settle()
    operation = drain(c, "a", decommission=True)
    c.settle()
    assert c.operation(operation).state == OperationState.OPERATION_STATE_SUCCEEDED
    assert all(sorted(p.isr) == ["b", "c", "d"] == sorted(p.replicas) for p in rows(c))
    c.register("a", incarnation="2")
    c.settle()
    assert list(c.state.partitions_on("a")) == []


def test_drains_that_are_refused() -> None:
    c = three_nodes()
    with pytest.raises(MinkaError, match="keeps 3 replicas, and 2 nodes would be left"):
        drain(c, "a", decommission=True)
    with pytest.raises(MinkaError, match="no node z"):
        drain(c, "z")
    c.fail("a")
    with pytest.raises(MinkaError, match="nothing to drain"):
        drain(c, "a")


def test_a_drain_fails_when_its_node_fails() -> None:
    c = three_nodes(1)
    c.fail("b")
    operation = drain(c, "a")
    c.fail("a")
    c.settle()
    assert c.operation(operation).state == OperationState.OPERATION_STATE_FAILED
    assert "a failed" in c.operation(operation).outcome


def test_undrain_cancels_a_running_decommission() -> None:
    c = three_nodes(6)
    c.register("d")
    operation = drain(c, "a", decommission=True)
    c.schedule()
    c.run(UndrainNodeRequest(node="a", requested_by="ann@host"))
    c.settle()
    assert c.operation(operation).state == OperationState.OPERATION_STATE_CANCELLED
    assert c.operation(operation).outcome.endswith("cancelled by ann@host: the node stays")
    assert all(sorted(p.replicas) == ["a", "b", "c"] for p in rows(c))
    assert not any(p.removing_replicas for p in rows(c))


# Elections of preferred leaders (Kafka's onPreferredReplicaElection)


def test_an_election_makes_preferred_leaders_lead_again() -> None:
    c = three_nodes(6)
    c.fail("a")
    c.register("a", incarnation="2")
    partitions = preferred.chosen(c.state, ["flights"], [])
    assert preferred.due(c.state, partitions) == []
    assert {b.reason for b in preferred.skipped(c.state, partitions)} == {"a, its preferred leader, is not in sync"}
    c.settle()
    assert c.counts()["a"] == 0
    due = preferred.due(c.state, partitions)
    assert len(due) == 2
    c.run(ElectLeaders(due, "tester", ""))
    c.schedule()
    assert all(c.state.partitions[p].successor == "a" for p in due)
    c.replace_controller()
    c.settle()
    assert c.counts() == {"a": 2, "b": 2, "c": 2}
    assert c.operation(1).outcome == "2 of 2 preferred leaders lead"
    c.run(ElectLeaders(partitions, "tester", ""))
    assert c.state.next_operation_id == 2, "there is nothing to elect"


def test_a_preferred_election_ends_if_the_leader_fails_or_somebody_cancels_it() -> None:
    for end in ("failure", "cancel"):
        c = three_nodes(6)
        c.fail("a")
        c.register("a", incarnation="2")
        c.settle()
        c.run(ElectLeaders(preferred.chosen(c.state, [], []), "tester", ""))
        c.schedule()
        if end == "failure":
            c.fail("a")
        else:
            c.run(CancelOperationRequest(id=1, requested_by="tester", reason=""))
        c.schedule()
        assert c.operation(1).state != OperationState.OPERATION_STATE_RUNNING
        assert not any(p.successor for p in rows(c))


# Operations


def test_the_rate_limit_of_an_operation_can_be_changed_until_it_ends() -> None:
    c = Controller()
    c.register("a", "b")
    c.keyspace("flights", 4)
    c.register("d")
    operation = c.reassign()
    c.run(LimitOperationRequest(id=operation, rate_limit=10_000_000))
    (running,) = c.state.running_operations()
    assert running.rate_limit == 10_000_000
    c.settle()
    assert not c.state.running_operations()
    for command in (LimitOperationRequest(id=operation, rate_limit=1), PauseOperationRequest(id=operation)):
        with pytest.raises(MinkaError) as refusal:
            c.run(command)
        assert refusal.value.code is Code.OPERATION_ENDED
    with pytest.raises(MinkaError) as unknown:
        c.run(LimitOperationRequest(id=99, rate_limit=1))
    assert unknown.value.code is Code.UNKNOWN_OPERATION


def test_a_running_operation_is_not_forgotten() -> None:
    c = three_nodes(1)
    c.fail("b")
    held_up = drain(c, "a")
    for _ in range(30):
        c.register("c", incarnation=str(c.now_ms))
        c.settle()
        c.run(ElectLeaders([rows(c)[0].id], "tester", ""))
        drained = drain(c, "c")
        c.run(CancelOperationRequest(id=drained, requested_by="tester", reason=""))
        c.settle()
    assert c.operation(held_up).state == OperationState.OPERATION_STATE_RUNNING
    assert len(c.state.operations) <= 22
