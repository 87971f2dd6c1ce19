"""Whatever happens, in any order: the controller never drops the last replica in sync, and each operation ends."""

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minka.cluster.in_sync import eligible_replicas, has_everything
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import CancelOperationRequest, PauseOperationRequest, ResumeOperationRequest, UndrainNodeRequest
from minka.v1.cluster_pb2 import NodeState, Partition, PartitionState
from minka.v1.coordinator_pb2 import ControlledShutdownRequest, HandOverRequest, LeaveRequest
from minkad.core.controller.begin import BeginQueued
from minkad.core.controller.blockers import blockers_of
from minkad.core.controller.drains import DrainNode
from minkad.core.controller.membership import FailNodes
from minkad.core.controller.operations import CancelMigration
from minkad.core.controller.preferred import ElectLeaders
from minkad.core.state import Placed, ReplicaStateName, State, is_up, replica_states
from minkad.core.state.replica_states import REPLICA_TRANSITIONS
from tests.unit.core.model import Controller, check_indexes

NODES = ("a", "b", "c", "d", "e")
REFUSALS = {
    Code.OPERATION_RUNNING,
    Code.OPERATION_ENDED,
    Code.CANCEL_REFUSED,
    Code.PARTITION_OFFLINE,
    Code.NO_SOURCE,
    Code.NOT_ENOUGH_NODES,
    Code.INVALID_ARGUMENT,
    Code.STALE_PLAN,
    Code.STALE_EPOCH,
}


class Cluster(RuleBasedStateMachine):
    """Five nodes with a few partitions. `holds` has, for each partition, the nodes with every acknowledged write."""

    def __init__(self) -> None:
        super().__init__()
        self.c = Controller()
        self.incarnations = 0
        self.holds: dict[int, set[str]] = {}
        self.before: dict[int, Partition] = {}
        self.replica_states: dict[tuple[int, str], ReplicaStateName] = {}
        self.c.after_record = self.check_record

    @initialize(
        replicas=st.integers(1, 3), unclean=st.booleans(), volatile=st.booleans(), zones=st.lists(st.integers(0, 2))
    )
    def create(self, replicas: int, unclean: bool, volatile: bool, zones: list[int]) -> None:
        for i, node in enumerate(NODES):
            self.c.register(node, zone=str(zones[i % len(zones)]) if zones else "")
        self.c.keyspace("flights", 4, replicas=replicas, unclean=unclean, volatile=volatile)

    # Checks after every record

    def check_record(self) -> None:
        for row in self.c.state.partitions.values():
            old = self.before.get(row.id)
            if old is not None and old != row:
                self.check_change(old, row)
            self.before[row.id] = row
            for node in NODES:
                now = replica_states(row, self.c.state.nodes).get(node, ReplicaStateName.NON_EXISTENT)
                before = self.replica_states.get((row.id, node), ReplicaStateName.NON_EXISTENT)
                if old is None and now is ReplicaStateName.ONLINE:
                    before = ReplicaStateName.NEW  # the replica was created and came online in one record
                assert now is before or now in REPLICA_TRANSITIONS[before] or began_again(before, now), (node, old, row)
                self.replica_states[row.id, node] = now

    def check_change(self, old: Partition, new: Partition) -> None:
        """Every node of an in-sync set has every acknowledged write. So the new set must have at least one node of the
        old set.
        """
        assert new.partition_epoch == old.partition_epoch + 1
        assert new.leader_epoch >= old.leader_epoch
        if new.unclean_elections == old.unclean_elections:
            assert not old.isr or set(new.isr) & set(old.isr), (old, new)
            assert new.leader in ("", old.leader) or not old.isr or new.leader in old.isr, (old, new)
        if set(eligible_replicas(new)) - set(eligible_replicas(old)):
            min_insync = self.c.state.keyspaces[new.keyspace_id].min_insync
            assert len(new.isr) < min_insync, ("writes go on without it", old, new)
            assert set(eligible_replicas(new)) <= {*old.isr, *eligible_replicas(old)}, (old, new)
        if new.leader and new.leader != old.leader:
            assert new.leader_epoch > old.leader_epoch
        if set(old.isr) - set(new.isr):
            assert new.leader, ("nobody makes use of it", old, new)
            assert self.is_up(new.leader), ("nobody makes use of it", old, new)
        dropped = set(old.replicas) - set(new.replicas)
        assert dropped <= set(new.removing_replicas), "each node that is dropped has to delete its copy"

    @invariant()
    def rows_make_sense(self) -> None:
        for row in self.c.state.partitions.values():
            assert not row.leader or row.leader in row.isr
            assert set(row.isr) <= set(row.replicas) - set(row.removing_replicas)
            assert not row.leader or is_up(self.c.state.nodes[row.leader]), "a dead node leads"
            assert row.leader or not any(self.is_up(node) for node in has_everything(row)), (
                "a replica could lead, but none does"
            )
            if row.target_replicas:
                assert Placed.partition(row.id) in self.c.state.under_way

    @invariant()
    def the_indexes_of_moves_match_a_state_built_again(self) -> None:
        fresh = State.from_snapshot(self.c.state.to_snapshot())
        assert (fresh.moving, fresh.under_way) == (self.c.state.moving, self.c.state.under_way)
        check_indexes(self.c.state)

    def is_up(self, node: str) -> bool:
        return is_up(self.c.state.nodes[node])

    # Nodes

    @rule(nodes=st.sets(st.sampled_from(NODES), min_size=1, max_size=3))
    def fail(self, nodes: set[str]) -> None:
        self.c.run(FailNodes(dict.fromkeys(sorted(nodes), "no heartbeat for 1.5 s")))

    @rule(node=st.sampled_from(NODES))
    def start(self, node: str) -> None:
        self.incarnations += 1
        self.c.register(node, incarnation=str(self.incarnations + 1))

    @rule(node=st.sampled_from(NODES), in_time=st.booleans())
    def stop(self, node: str, in_time: bool) -> None:
        incarnation = self.c.state.nodes[node].incarnation
        self.c.run(ControlledShutdownRequest(node_id=node, incarnation=incarnation))
        if in_time:
            self.c.schedule()
            self.c.hand_over_all()
        self.c.run(LeaveRequest(node_id=node, incarnation=incarnation))

    @rule()
    def the_controller_is_replaced(self) -> None:
        self.c.replace_controller()

    # Automatic steps

    @rule()
    def schedule(self) -> None:
        self.c.schedule_once()

    @rule()
    def leaders_see_who_is_gone(self) -> None:
        self.c.take_out_absent()

    @rule()
    def deliver(self) -> None:
        self.c.deliver()

    @rule(data=st.data())
    def alter_isr(self, data: st.DataObject) -> None:
        led = [p for p in self.c.state.partitions.values() if p.leader]
        if not led:
            return
        row = data.draw(st.sampled_from(led))
        stays = [n for n in row.replicas if n not in row.removing_replicas and self.is_up(n) and n != row.leader]
        self.c.alter_isr(row, [row.leader, *data.draw(st.sets(st.sampled_from(stays)) if stays else st.just(set()))])

    @rule()
    def hand_over(self) -> None:
        self.c.hand_over_all()

    @rule(data=st.data(), node=st.sampled_from(NODES))
    def hand_over_to_anybody(self, data: st.DataObject, node: str) -> None:
        """Ask for a hand-over to any node; only a successor is accepted."""
        row = data.draw(st.sampled_from(list(self.c.state.partitions.values())))
        run_or_be_refused(
            lambda: self.c.run(
                HandOverRequest(
                    node_id=row.leader or "a", partition_id=row.id, partition_epoch=row.partition_epoch, target=node
                )
            )
        )

    # People

    @rule(
        to=st.sets(st.sampled_from(NODES), max_size=4),
        drain=st.sets(st.sampled_from(NODES), max_size=2),
        queue=st.booleans(),
    )
    def reassign(self, to: set[str], drain: set[str], queue: bool) -> None:
        def begin() -> None:
            plan = self.c.plan(sorted(to), sorted(drain), queue=queue)
            if plan.moves:
                self.c.begin(plan)

        run_or_be_refused(begin)

    @rule(data=st.data(), replicas=st.permutations(NODES), count=st.integers(1, 4), queue=st.booleans())
    def reassign_one(self, data: st.DataObject, replicas: list[str], count: int, queue: bool) -> None:
        def begin() -> None:
            row = data.draw(st.sampled_from(list(self.c.state.partitions.values())))
            plan = self.c.plan(partitions={row.id: replicas[:count]}, queue=queue)
            if plan.moves:
                self.c.begin(plan)

        run_or_be_refused(begin)

    @rule()
    def elect(self) -> None:
        run_or_be_refused(lambda: self.c.run(ElectLeaders(list(self.c.state.partitions), "tester", "")))

    @rule(node=st.sampled_from(NODES), decommission=st.booleans(), queue=st.booleans())
    def drain(self, node: str, decommission: bool, queue: bool) -> None:
        run_or_be_refused(lambda: self.c.run(DrainNode(node, decommission, "tester", "", {}, queue=queue)))

    @rule()
    def begin_queued(self) -> None:
        self.c.run(BeginQueued({}, {}))

    @rule(node=st.sampled_from(NODES))
    def undrain(self, node: str) -> None:
        run_or_be_refused(lambda: self.c.run(UndrainNodeRequest(node=node)))

    @precondition(lambda self: self.c.state.unended_operations())
    @rule(data=st.data(), what=st.sampled_from(["pause", "resume", "cancel", "stall"]))
    def change_operation(self, data: st.DataObject, what: str) -> None:
        operation = data.draw(st.sampled_from(self.c.state.unended_operations()))
        if what == "stall":
            for partition_id in self.c.state.partitions:
                self.c.run(CancelMigration(operation.id, Placed.partition(partition_id), "no progress for 60 s"))
        elif what == "cancel":
            run_or_be_refused(
                lambda: self.c.run(CancelOperationRequest(id=operation.id, requested_by="tester", reason=""))
            )
        else:
            self.c.run(PauseOperationRequest(id=operation.id))

    # The end of a run

    def settle(self) -> None:
        """Settle until no queued operation can begin."""
        while True:
            self.c.settle()
            before = len(self.c.log)
            self.c.run(BeginQueued({}, {}))
            if len(self.c.log) == before:
                return

    def teardown(self) -> None:
        """Once nothing fails, every operation ends, and all replicas are in sync."""
        if not self.c.state.partitions:
            return
        for node in NODES:
            if not self.is_up(node):
                self.start(node)
        for operation in self.c.state.unended_operations():
            self.c.run(ResumeOperationRequest(id=operation.id))
        self.settle()
        # Each running operation that is left waits for a person, and its blockers state the reasons. Each queued
        # operation waits for a running operation.
        while unended := self.c.state.unended_operations():
            for operation in unended:
                assert all(b.reason for b in blockers_of(self.c.state, operation)), operation
                assert blockers_of(self.c.state, operation), operation
            assert any(n.state == NodeState.NODE_STATE_DRAINING for n in self.c.state.nodes.values())
            running = self.c.state.running_operations()
            assert running, unended
            for operation in running:
                self.c.run(CancelOperationRequest(id=operation.id, requested_by="tester", reason=""))
            self.settle()
        for row in self.c.state.partitions.values():
            assert row.state == PartitionState.PARTITION_STATE_ONLINE, row
            assert set(row.isr) == set(row.replicas), row
            left = [*row.adding_replicas, *row.removing_replicas, *row.target_replicas, *row.successor]
            assert not left, row


def began_again(before: ReplicaStateName, now: ReplicaStateName) -> bool:
    """True if an added replica begins again, since its node was away."""
    return (before, now) == (ReplicaStateName.OFFLINE, ReplicaStateName.NEW)


def run_or_be_refused(attempt: Callable[[], None]) -> None:
    """Run the attempt. Ignore refusals with the expected codes."""
    try:
        attempt()
    except MinkaError as error:
        if error.code not in REFUSALS:
            raise


Cluster.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestCluster = Cluster.TestCase
