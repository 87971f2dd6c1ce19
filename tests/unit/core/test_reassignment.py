"""A partition's way from its original replicas (OAR) to the new ones (RAR), as in Kafka's onPartitionReassignment
(Kafka Controller Internals).
"""

from collections.abc import Callable

import pytest

from minka.cluster.plan_digest import plan_digest
from minka.errors import Code, MinkaError, newer_rows
from minka.v1.admin_pb2 import CancelOperationRequest, PauseOperationRequest, ResumeOperationRequest
from minka.v1.cluster_pb2 import MigrationState, NodeState, OperationState, Partition
from minka.v1.coordinator_pb2 import HandOverRequest, IsrChange
from minkad.core.controller.blockers import blockers_of
from minkad.core.controller.drains import DrainNode
from minkad.core.controller.isr import isr_refusal
from minkad.core.controller.operations import CancelMigration
from minkad.core.state import Placed, ReplicaStateName, replica_states
from tests.unit.core.model import Controller

SIX = ("1", "2", "3", "4", "5", "6")
Seen = tuple[str, str]


def six_nodes() -> Controller:
    """A partition on {1,2,3}, led by 1, and three nodes that have nothing."""
    c = Controller()
    c.register(*SIX[:3])
    c.keyspace("flights", 1, replicas=3, min_insync=2)
    c.register(*SIX[3:])
    c.deliver()
    assert (only(c).leader, sorted(only(c).replicas)) == ("1", ["1", "2", "3"])
    return c


def only(c: Controller) -> Partition:
    return next(iter(c.state.partitions.values()))


def seen(row: Partition) -> Seen:
    """Return two texts in the form of the page's table: the assigned replicas, and the leader with the in-sync set."""
    return "{" + ",".join(sorted(row.replicas)) + "}", f"{row.leader}/{{{','.join(sorted(row.isr))}}}"


def watch(c: Controller) -> list[Seen]:
    """Return the history of the only partition. It grows with each record that changes the partition."""
    history = [seen(only(c))]

    def note() -> None:
        now = seen(only(c))
        if now != history[-1]:
            history.append(now)

    c.after_record = note
    return history


def join_all(c: Controller) -> None:
    """Let the leader add all replicas that have caught up to the in-sync set, as in the example."""
    c.catch_up()


# The steps that the controller and the nodes do automatically. Each function does one step.
STEPS: dict[str, Callable[[Controller], object]] = {
    "schedule": Controller.schedule_once,
    "deliver": Controller.deliver,
    "join": join_all,
    "hand over": Controller.hand_over_all,
}

THE_EXAMPLE = [
    ("{1,2,3}", "1/{1,2,3}"),  # initial state
    ("{1,2,3,4,5,6}", "1/{1,2,3}"),  # step 1; the page shows step 2 when the new replicas have joined
    ("{1,2,3,4,5,6}", "1/{1,2,3,4,5,6}"),  # step 2 to 5
    ("{1,2,3,4,5,6}", "4/{1,2,3,4,5,6}"),  # step 7
    ("{1,2,3,4,5,6}", "4/{4,5,6}"),  # step 8
    ("{4,5,6}", "4/{4,5,6}"),  # step 10
]


def run_to_the_end(c: Controller, operation: int, between: Callable[[int], None] = lambda _: None) -> int:
    """Run the steps one by one until the operation ends. After each step, call `between` with the number of steps so
    far. Returns the number of steps.
    """
    events = 0
    for _ in range(100):
        for step in STEPS.values():
            step(c)
            events += 1
            between(events)
            if c.operation(operation).state != OperationState.OPERATION_STATE_RUNNING:
                return events
    raise AssertionError("the reassignment never ends")


def test_the_states_of_a_reassignment_are_those_of_the_page() -> None:
    c = six_nodes()
    history = watch(c)
    operation = c.begin(c.plan(partitions={only(c).id: ["4", "5", "6"]}))
    run_to_the_end(c, operation)
    assert history == THE_EXAMPLE
    row = only(c)
    assert list(row.replicas) == ["4", "5", "6"]
    assert not [*row.target_replicas, *row.adding_replicas, *row.removing_replicas, *row.successor]
    assert c.operation(operation).state == OperationState.OPERATION_STATE_SUCCEEDED
    assert dict.fromkeys(SIX, ReplicaStateName.NON_EXISTENT) | replica_states(row, c.state.nodes) == {
        **dict.fromkeys("123", ReplicaStateName.NON_EXISTENT),
        **dict.fromkeys("456", ReplicaStateName.ONLINE),
    }


def test_a_reassignment_goes_on_when_the_controller_is_replaced() -> None:
    """Each run replaces the controller once, after a different step. The last run replaces it after every step."""
    c = six_nodes()
    events = run_to_the_end(c, c.begin(c.plan(partitions={only(c).id: ["4", "5", "6"]})))
    for dies_after in [*({n} for n in range(1, events + 1)), set(range(1, 10 * events))]:
        c = six_nodes()
        history = watch(c)
        operation = c.begin(c.plan(partitions={only(c).id: ["4", "5", "6"]}))

        def replace(event: int, c: Controller = c, dies_after: set[int] = dies_after) -> None:
            if event in dies_after:
                c.replace_controller()

        replace(0)
        run_to_the_end(c, operation, replace)
        assert history == THE_EXAMPLE, dies_after
        assert c.operation(operation).state == OperationState.OPERATION_STATE_SUCCEEDED


def test_the_states_of_the_replicas_during_a_reassignment() -> None:
    c = six_nodes()
    new, online, offline = ReplicaStateName.NEW, ReplicaStateName.ONLINE, ReplicaStateName.OFFLINE
    states: list[tuple[ReplicaStateName, ReplicaStateName]] = []

    def note() -> None:
        found = replica_states(only(c), c.state.nodes)
        now = found.get("1", ReplicaStateName.NON_EXISTENT), found.get("4", ReplicaStateName.NON_EXISTENT)
        if not states or states[-1] != now:
            states.append(now)

    c.after_record = note
    note()
    run_to_the_end(c, c.begin(c.plan(partitions={only(c).id: ["4", "5", "6"]})))
    none = ReplicaStateName.NON_EXISTENT
    assert states == [(online, none), (online, new), (online, online), (offline, online), (none, online)]


def test_no_replica_is_removed_before_all_of_rar_is_in_sync_and_leads() -> None:
    c = six_nodes()
    c.begin(c.plan(partitions={only(c).id: ["4", "5", "6"]}))
    c.schedule()
    c.deliver()
    c.alter_isr(only(c), ["1", "2", "3", "4", "5"])
    c.schedule()
    row = only(c)
    assert (row.leader, row.successor, list(row.adding_replicas)) == ("1", "", ["6"])
    c.alter_isr(row, [*row.isr, "6"])
    c.schedule()
    assert (only(c).successor, only(c).leader, len(only(c).isr)) == ("4", "1", 6)


def test_a_follower_is_replaced_without_a_new_leader() -> None:
    c = six_nodes()
    row = only(c)
    history = watch(c)
    run_to_the_end(c, c.begin(c.plan(partitions={row.id: ["1", "4", *row.replicas[2:]]})))
    assert {leader for _, leader in history if not leader.startswith("1/")} == set()
    assert only(c).leader_epoch == row.leader_epoch
    assert only(c).generation == row.generation


def test_another_order_of_replicas_only_changes_the_leader() -> None:
    c = six_nodes()
    row = only(c)
    run_to_the_end(c, c.begin(c.plan(partitions={row.id: ["3", "2", "1"]})))
    assert (only(c).leader, list(only(c).replicas)) == ("3", ["3", "2", "1"])
    assert c.counts()["3"] == 1


def test_the_reassignment_goes_on_when_the_leader_of_oar_dies_before_its_hand_over() -> None:
    c = six_nodes()
    operation = c.begin(c.plan(partitions={only(c).id: ["4", "5", "6"]}))
    c.schedule()
    c.deliver()
    c.catch_up()
    c.schedule()
    assert only(c).successor == "4"
    c.fail("1")
    assert only(c).leader == "4", "the election prefers a node that keeps its replica"
    c.settle()
    assert c.operation(operation).state == OperationState.OPERATION_STATE_SUCCEEDED
    assert list(only(c).removing_replicas) == ["1"], "node 1 has yet to delete its copy"
    c.register("1", incarnation="2")
    c.settle()
    assert not only(c).removing_replicas


def test_the_reassignment_waits_for_a_dead_successor() -> None:
    c = six_nodes()
    operation = c.begin(c.plan(partitions={only(c).id: ["4", "5", "6"]}))
    c.schedule()
    c.deliver()
    c.catch_up()
    c.schedule()
    c.fail("4")
    c.schedule()
    assert only(c).successor == "", "node 4, of RAR, is no longer in sync"
    (blocker,) = blockers_of(c.state, c.operation(operation))
    assert "4 is to be in sync and is not LIVE" in blocker.reason
    assert blocker.remedy == f"start 4, or minkactl operations cancel {operation}"
    c.register("4", incarnation="2")
    c.settle()
    assert list(only(c).replicas) == ["4", "5", "6"]


# Cancelled and impossible reassignments


def begun(c: Controller, *joined: str) -> int:
    """Begin the reassignment to {4,5,6}, and let the nodes `joined` be in sync. Returns the id of the operation."""
    operation = c.begin(c.plan(partitions={only(c).id: ["4", "5", "6"]}))
    c.schedule()
    c.deliver()
    c.alter_isr(only(c), [*only(c).isr, *joined])
    return operation


def test_cancel_goes_back_to_oar() -> None:
    c = six_nodes()
    before = only(c)
    operation = begun(c, "4", "5")
    c.run(CancelOperationRequest(id=operation, requested_by="tester", reason="changed my mind"))
    c.settle()
    row = only(c)
    assert (list(row.replicas), row.leader, sorted(row.isr)) == (list(before.replicas), "1", ["1", "2", "3"])
    ended = c.operation(operation)
    assert ended.state == OperationState.OPERATION_STATE_CANCELLED
    assert "cancelled by tester: changed my mind" in ended.outcome
    assert not row.removing_replicas
    with pytest.raises(MinkaError) as again:
        c.run(CancelOperationRequest(id=operation, requested_by="tester", reason=""))
    assert again.value.code is Code.OPERATION_ENDED


def test_cancel_is_refused_if_oar_is_no_longer_alive() -> None:
    c = six_nodes()
    operation = begun(c, "4", "5")
    c.fail("2", "3", "1")
    row = only(c)
    assert row.leader in ("4", "5")
    with pytest.raises(
        MinkaError, match=r"flights/0 can't go back: of its former replicas 1, .* none is alive"
    ) as refusal:
        c.run(CancelOperationRequest(id=operation, requested_by="tester", reason=""))
    assert refusal.value.code is Code.CANCEL_REFUSED
    assert only(c) == row
    c.run(CancelMigration(operation, Placed.partition(row.id), "no progress for 60 s"))
    assert only(c) == row, "the controller doesn't cancel it automatically, either"
    c.settle()
    assert list(only(c).replicas) == ["4", "5", "6"]
    assert c.operation(operation).state == OperationState.OPERATION_STATE_SUCCEEDED


def test_cancel_is_refused_if_too_few_would_be_in_sync() -> None:
    c = six_nodes()
    operation = begun(c, "4", "5")
    c.fail("2", "3")
    with pytest.raises(MinkaError, match="only 1 is alive and in sync, and 2 must be"):
        c.run(CancelOperationRequest(id=operation, requested_by="tester", reason=""))


def test_cancel_moves_the_leadership_back_if_it_has_moved_already() -> None:
    c = six_nodes()
    operation = begun(c, "4", "5", "6")
    c.schedule()
    c.hand_over_all()
    assert only(c).leader == "4"
    c.run(CancelOperationRequest(id=operation, requested_by="tester", reason=""))
    assert (only(c).leader, only(c).successor) == ("4", "1"), "4 may serve until it has handed over"
    assert not c.schedule_once(), "the controller waits for that"
    c.hand_over_all()
    c.schedule()
    row = only(c)
    assert (row.leader, sorted(row.isr), sorted(row.removing_replicas)) == ("1", ["1", "2", "3"], ["4", "5", "6"])
    c.settle()
    assert c.operation(operation).state == OperationState.OPERATION_STATE_CANCELLED


def test_a_cancelled_reassignment_completes_if_oar_dies_before_it_leads_again() -> None:
    c = six_nodes()
    operation = begun(c, "4", "5", "6")
    c.schedule()
    c.hand_over_all()
    c.run(CancelOperationRequest(id=operation, requested_by="tester", reason=""))
    c.fail("1", "2", "3")
    c.settle()
    assert sorted(only(c).replicas) == ["4", "5", "6"]
    assert c.operation(operation).outcome.startswith("1 of 1 partitions moved; cancelled by tester")


def test_a_reassignment_that_is_removing_old_replicas_completes_although_cancelled() -> None:
    c = six_nodes()
    operation = begun(c, "4", "5", "6")
    c.schedule()
    c.hand_over_all()
    c.schedule()
    assert list(only(c).replicas) == ["4", "5", "6"]
    c.run(CancelOperationRequest(id=operation, requested_by="tester", reason=""))
    c.settle()
    assert list(only(c).replicas) == ["4", "5", "6"]
    assert c.operation(operation).outcome.startswith("1 of 1 partitions moved; cancelled by tester")


# Reassignments of several partitions


def test_a_paused_operation_begins_no_migration() -> None:
    c = Controller()
    c.register("a", "b", "c")
    c.keyspace("flights", 6)
    c.register("d")
    operation = c.begin(c.plan())
    c.run(PauseOperationRequest(id=operation))
    c.settle()
    assert not any(p.target_replicas for p in c.state.partitions.values())
    assert blockers_of(c.state, c.operation(operation))[0].remedy == f"minkactl operations resume {operation}"
    c.run(ResumeOperationRequest(id=operation))
    c.settle()
    assert c.operation(operation).state == OperationState.OPERATION_STATE_SUCCEEDED


def test_several_moves_of_a_partition_come_one_after_the_other() -> None:
    c = Controller()
    c.register("a", "b", "c")
    c.keyspace("flights", 6, replicas=2)
    c.register("d", "e")
    most = 0

    def note() -> None:
        nonlocal most
        most = max(most, *(len(set(p.replicas)) for p in c.state.partitions.values()))

    plan = c.plan(drain=["a", "b"])
    assert len(plan.moves) == 8 == plan.minimum_moves
    c.after_record = note
    operation = c.begin(plan)
    c.settle()
    assert most == 3, "one replica is added at a time"
    assert c.operation(operation).outcome == "8 of 8 replicas moved"
    assert not any({"a", "b"} & {*p.replicas, *p.isr} for p in c.state.partitions.values())


def test_the_refusal_names_the_operation_that_runs() -> None:
    c = six_nodes()
    c.run(DrainNode("1", decommission=True, requested_by="ann@host", reason="", rate_limit=0, sizes={}))
    with pytest.raises(
        MinkaError,
        match=r"(?m)operation 1 \(drain 1 --decommission, asked for by ann@host\) has not ended, and both drain 1$",
    ):
        c.run(DrainNode("1", decommission=False, requested_by="bob@host", reason="", rate_limit=0, sizes={}))


def test_a_move_that_depends_on_a_cancelled_one_is_given_up() -> None:
    c = six_nodes()
    row = only(c)
    first = c.plan(partitions={row.id: ["4", *row.replicas[1:]]})
    second = c.plan(partitions={row.id: ["5", *row.replicas[1:]]}).moves[0]
    second.source, second.replicas[:], second.target_replicas[:] = "4", ["4", *row.replicas[1:]], second.target_replicas
    first.moves.append(second)
    first.digest = plan_digest(first)
    operation = c.begin(first)
    c.schedule()
    c.run(CancelMigration(operation, Placed.partition(row.id), "no progress for 60 s"))
    c.settle()
    states = [m.state for m in c.state.migrations[operation].values()]
    assert states == [MigrationState.MIGRATION_STATE_CANCELLED] * 2
    assert "4 no longer holds a replica of it" in c.operation(operation).outcome
    assert only(c).replicas == row.replicas


def test_the_next_move_begins_when_the_ones_before_are_given_up() -> None:
    """The controller begins the move in the same turn, without waiting for another event."""
    c = six_nodes()
    row = only(c)
    plan = c.plan(partitions={row.id: ["4", *row.replicas[1:]]})
    for source, before, after in (("4", ["4", "2", "3"], ["5", "2", "3"]), ("2", ["5", "2", "3"], ["5", "6", "3"])):
        move = c.plan(partitions={row.id: after}).moves[0]
        move.source, move.replicas[:] = source, before
        plan.moves.append(move)
    plan.digest = plan_digest(plan)
    operation = c.begin(plan)
    c.schedule()
    c.run(CancelMigration(operation, Placed.partition(row.id), "no progress for 60 s"))
    c.schedule()
    states = [m.state for m in c.state.migrations[operation].values()]
    copying, cancelled = MigrationState.MIGRATION_STATE_COPYING, MigrationState.MIGRATION_STATE_CANCELLED
    assert states == [cancelled, cancelled, copying]


# The in-sync set


def test_changes_of_the_in_sync_set_that_are_refused() -> None:
    c = six_nodes()
    row = only(c)

    def refusal(node: str, *isr: str, leader_epoch: int = row.leader_epoch, epoch: int = 0) -> Code | None:
        change = IsrChange(
            partition_id=row.id, leader_epoch=leader_epoch, partition_epoch=epoch or only(c).partition_epoch, isr=isr
        )
        return isr_refusal(c.state, node, change)

    assert refusal("1", "1", "2") is None
    assert refusal("2", "1", "2") is Code.NOT_LEADER
    assert refusal("1", "2") is None, "a leader with a damaged copy may leave the set"
    assert refusal("1") is Code.INVALID_ARGUMENT, "the set may not become empty"
    assert refusal("1", "1", "2", "4") is Code.INELIGIBLE_REPLICA
    assert refusal("1", "1", "2", epoch=99) is Code.STALE_EPOCH
    assert refusal("1", "1", "2", leader_epoch=99) is Code.STALE_EPOCH
    assert isr_refusal(c.state, "1", IsrChange(partition_id=99)) is Code.UNKNOWN_PARTITION
    c.fail("3")
    assert "3" not in only(c).isr
    assert refusal("1", "1", "2", "3") is Code.INELIGIBLE_REPLICA, "3 is not LIVE"
    c.alter_isr(only(c), ["1"])
    assert list(only(c).isr) == ["1"]
    c.catch_up()
    assert sorted(only(c).isr) == ["1", "2"]


def test_a_leader_with_a_damaged_copy_leaves_the_in_sync_set() -> None:
    """Another replica in sync leads from then on. If none is up, the leader's request to leave is refused."""
    c = six_nodes()
    row = only(c)
    c.alter_isr(row, ["2", "3"])
    after = only(c)
    assert (after.leader, list(after.isr), after.leader_epoch) == ("2", ["2", "3"], row.leader_epoch + 1)
    c.settle()
    c.alter_isr(only(c), ["2"])
    c.fail("1")
    change = IsrChange(
        partition_id=row.id, leader_epoch=only(c).leader_epoch, partition_epoch=only(c).partition_epoch, isr=["3"]
    )
    assert isr_refusal(c.state, "2", change) is Code.INVALID_ARGUMENT, "3 is not in sync"
    c.catch_up()
    c.state.nodes["3"].state = NodeState.NODE_STATE_FAILED
    change.partition_epoch = only(c).partition_epoch
    assert isr_refusal(c.state, "2", change) is Code.INELIGIBLE_REPLICA, "3 is not up"


def test_a_hand_over_needs_a_successor() -> None:
    c = six_nodes()
    row = only(c)
    with pytest.raises(MinkaError) as refusal:
        c.run(HandOverRequest(node_id="1", partition_id=row.id, partition_epoch=row.partition_epoch, target="2"))
    assert refusal.value.code is Code.STALE_EPOCH
    assert newer_rows(refusal.value) == (row,)
