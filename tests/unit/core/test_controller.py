"""The controller's decisions about nodes, keyspaces and migrations, without a network."""

import pytest

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import RemoveNodeRequest
from minka.v1.cluster_pb2 import Cluster, HashFunction, MigrationState, Node, NodeState, OperationState, PartitionState
from minka.v1.coordinator_pb2 import HandOverRequest, LeaveRequest
from minka.v1.records_pb2 import Record
from minkad.core.controller.blockers import blockers_of
from minkad.core.controller.drains import DrainNode
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.controller.membership import CreateCluster, Register
from minkad.core.controller.mover import MigrationCaps
from minkad.core.controller.operations import CancelMigration
from minkad.core.state import Placed, State
from tests.unit.core.deciding import decided
from tests.unit.core.model import Controller, refused


def test_a_joining_node_takes_no_founders_raft_id() -> None:
    """If a node comes before the founders, it can register only once the founders are recorded."""
    state = State()
    node = Node(id="cyrene", data_id="d", incarnation="1", address="cyrene:1")
    with refused(Code.NO_CONTROLLER):
        decided(state, Register(node, holder_alive=False), 0)
    joining = NodeState.NODE_STATE_JOINING
    names = ("athens", "cyrene")
    founders = [Node(id=n, raft_id=i, address=f"{n}:1", state=joining) for i, n in enumerate(names, 1)]
    for command in (CreateCluster(Cluster(id="c", name="test"), founders), Register(node, holder_alive=False)):
        for record in decided(state, command, 0):
            state.apply(record)
    assert {row.id: row.raft_id for row in state.nodes.values()} == {"athens": 1, "cyrene": 2}


def test_no_partition_is_assigned_before_the_cluster_has_its_minimum_size() -> None:
    c = Controller(min_nodes=3)
    c.register("athens", "byzantium")
    with refused(Code.NOT_ENOUGH_NODES):
        c.keyspace("flights", 9)
    c.register("cyrene")
    assert len(c.keyspace("flights", 9)) == 9


def test_first_assignment_is_round_robin_and_goes_online_when_acknowledged() -> None:
    c = Controller()
    c.register("athens", "byzantium", "cyrene")
    c.run(CreateKeyspace("flights", 9, HashFunction.HASH_FUNCTION_MD5, 1))
    assert {p.state for p in c.state.partitions.values()} == {PartitionState.PARTITION_STATE_ASSIGNED}
    c.deliver()
    partitions = list(c.state.partitions.values())
    assert [p.leader for p in partitions] == ["athens", "byzantium", "cyrene"] * 3
    assert {p.state for p in partitions} == {PartitionState.PARTITION_STATE_ONLINE}


@pytest.mark.parametrize(
    ("name", "partitions", "code"),
    [
        ("flights", 3, Code.KEYSPACE_EXISTS),
        ("Flights", 3, Code.INVALID_ARGUMENT),
        ("more", 0, Code.INVALID_ARGUMENT),
        ("more", 140_000, Code.INVALID_ARGUMENT),
    ],
)
def test_a_bad_keyspace_is_refused_and_changes_nothing(name: str, partitions: int, code: Code) -> None:
    c = Controller()
    c.register("athens")
    c.keyspace("flights", 3)
    before = c.state.to_snapshot()
    with refused(code):
        c.keyspace(name, partitions)
    assert c.state.to_snapshot() == before


def test_a_second_process_cannot_take_a_live_node_id() -> None:
    c = Controller()
    c.register("athens")
    with refused(Code.NODE_ID_TAKEN):
        c.register("athens", incarnation="2", holder_alive=True)
    c.register("athens", incarnation="2")
    assert c.state.nodes["athens"].incarnation == "2"


def test_the_partitions_of_a_failed_node_are_offline_until_it_is_back() -> None:
    c = Controller()
    c.register("athens", "byzantium")
    c.keyspace("flights", 4)
    c.fail("athens")
    assert c.state.nodes["athens"].state == NodeState.NODE_STATE_FAILED
    assert c.counts() == {"athens": 0, "byzantium": 2}
    c.register("athens", incarnation="2")
    c.deliver()
    mine = [p for p in c.state.partitions.values() if p.leader == "athens"]
    assert [(p.state, p.leader_epoch, p.generation) for p in mine] == [
        (PartitionState.PARTITION_STATE_ONLINE, 2, 1)
    ] * 2


def test_a_failed_node_comes_back_only_as_a_new_process() -> None:
    c = Controller()
    c.register("athens")
    c.fail("athens")
    with refused(Code.NOT_REGISTERED):
        c.register("athens")
    c.register("athens", incarnation="1.2")
    assert c.state.nodes["athens"].state == NodeState.NODE_STATE_LIVE


def test_an_older_copy_of_a_data_directory_is_refused() -> None:
    """A copy is too old if its number of starts isn't greater than the recorded number. Only the registered process may
    come again with the recorded number.
    """
    c = Controller()

    def register(incarnation: str, starts: int) -> None:
        c.run(Register(Node(id="1", data_id="data-1", incarnation=incarnation, starts=starts), holder_alive=False))

    register("first", 7)
    c.fail("1")
    register("first.2", 7)
    register("second", 8)
    for starts in (8, 7):
        with refused(Code.DATA_DIRECTORY_ROLLED_BACK):
            register("third", starts)
    assert c.state.nodes["1"].incarnation == "second"
    register("third", 9)


def test_a_member_registers_once_its_log_is_known_to_be_whole() -> None:
    """Raft checks a node's log, and refuses a node that was started with an older copy of its data. If the older copy
    could register before the check, the controller would record its count of starts, and refuse the newest copy, whose
    count would then be too low.
    """
    c = Controller()
    c.register("athens", incarnation="1")
    c.fail("athens")
    old = c.state.nodes["athens"]
    node = Node(id="athens", data_id=old.data_id, incarnation="2", starts=2, address=old.address)
    node.data_address = old.data_address
    with refused(Code.LOG_UNCHECKED):
        c.run(Register(node, holder_alive=False, log_unchecked=True))
    assert c.state.nodes["athens"].incarnation == "1"
    c.run(Register(node, holder_alive=False))
    assert c.state.nodes["athens"].incarnation == "2"
    moved = Node(id="athens", data_id=node.data_id, incarnation="3", starts=3, address="athens:2")
    c.run(Register(moved, holder_alive=False, log_unchecked=True))
    assert c.state.nodes["athens"].address == "athens:2"
    moved.incarnation, moved.starts, moved.data_address = "4", 4, "athens:3"
    with refused(Code.LOG_UNCHECKED):  # the gRPC address hasn't changed, so the leader can check the log
        c.run(Register(moved, holder_alive=False, log_unchecked=True))


def test_leaving_counts_only_for_the_present_process() -> None:
    c = Controller()
    c.register("athens")
    c.run(LeaveRequest(node_id="athens", incarnation="another"))
    assert c.state.nodes["athens"].state == NodeState.NODE_STATE_LIVE
    c.run(LeaveRequest(node_id="athens", incarnation="1"))
    assert c.state.nodes["athens"].state == NodeState.NODE_STATE_LEFT


def test_leaving_without_a_registration_changes_nothing() -> None:
    """A request to leave may come from an unknown node, or from a voter that has not registered yet."""
    c = Controller()
    c.register("athens")
    voter = Node(id="byzantium", raft_id=2, incarnation="1", state=NodeState.NODE_STATE_JOINING)
    c.state.apply(Record(node_changed=voter))
    before = c.state.to_snapshot()
    for node in ("byzantium", "cyrene"):
        c.run(LeaveRequest(node_id=node, incarnation="1"))
    assert c.state.to_snapshot() == before


def four_nodes(caps: MigrationCaps | None = None) -> Controller:
    c = Controller(caps=caps)
    c.register("athens", "byzantium", "cyrene")
    c.keyspace("flights", 30)
    c.register("ephesus")
    return c


def test_a_reassignment_makes_all_moves_of_its_plan_and_ends() -> None:
    c = four_nodes()
    operation = c.reassign()
    while c.state.running_operations():
        copying = [p.id for p in c.state.partitions.values() if p.adding_replicas]
        assert len(copying) <= 4
        c.deliver()
        c.catch_up()
        while c.schedule_once() and not all(c.state.partitions[p].successor for p in copying):
            pass
        c.hand_over_all()
        c.deliver()
        c.schedule()
    assert sorted(c.counts().values()) == [7, 7, 8, 8]
    assert c.state.operations[operation].state == OperationState.OPERATION_STATE_SUCCEEDED
    assert c.state.operations[operation].outcome == "7 of 7 partitions moved"
    assert all(len(p.replicas) == 1 and not p.removing_replicas for p in c.state.partitions.values())


def test_a_hand_over_at_an_old_epoch_is_refused_but_a_repetition_is_accepted() -> None:
    c = four_nodes(MigrationCaps(per_node=1, cluster=1))
    c.reassign()
    c.catch_up()
    c.schedule()
    partition = next(p for p in c.state.partitions.values() if p.successor)
    stale = HandOverRequest(
        node_id=partition.leader,
        partition_id=partition.id,
        partition_epoch=partition.partition_epoch - 1,
        target="ephesus",
    )
    with refused(Code.STALE_EPOCH):
        c.run(stale)
    good = HandOverRequest(
        node_id=partition.leader, partition_id=partition.id, partition_epoch=partition.partition_epoch, target="ephesus"
    )
    c.run(good)
    c.schedule()
    moved = c.state.partitions[partition.id]
    assert (moved.leader, moved.generation, moved.leader_epoch) == ("ephesus", 2, 2)
    assert list(moved.removing_replicas) == [partition.leader]
    c.run(good)
    assert c.state.partitions[partition.id] == moved


@pytest.mark.parametrize("gone", ["athens", "ephesus"])
def test_a_migration_waits_for_its_failed_source_or_target(gone: str) -> None:
    c = four_nodes(MigrationCaps(per_node=30, cluster=30))
    operation = c.reassign()
    c.fail(gone)
    c.settle(unreachable=[gone])
    waiting = [m for m in c.state.migrations[operation].values() if m.state == MigrationState.MIGRATION_STATE_COPYING]
    assert waiting
    assert {gone} <= {m.source for m in waiting} | {m.target for m in waiting}
    blockers = blockers_of(c.state, c.operation(operation))
    assert len(blockers) == len(waiting)
    assert all(gone in b.reason and gone in b.remedy for b in blockers)
    c.register(gone, incarnation="2")
    c.settle()
    assert c.operation(operation).state == OperationState.OPERATION_STATE_SUCCEEDED
    assert sorted(c.counts().values()) == [7, 7, 8, 8]


@pytest.mark.parametrize("gone", ["athens", "ephesus"])
def test_the_operation_ends_when_migrations_that_wait_for_a_failed_node_are_cancelled(gone: str) -> None:
    c = four_nodes(MigrationCaps(per_node=30, cluster=30))
    operation = c.reassign()
    c.fail(gone)
    c.settle(unreachable=[gone])
    for migration in list(c.state.migrations[operation].values()):
        c.run(CancelMigration(operation, Placed.of(migration), f"no progress for 60 s: {gone} is not LIVE"))
    c.settle(unreachable=[gone])
    ended = c.operation(operation)
    assert ended.state == OperationState.OPERATION_STATE_FAILED
    assert gone in ended.outcome
    c.register(gone, incarnation="2")
    c.settle()
    assert not any(p.removing_replicas or p.adding_replicas for p in c.state.partitions.values())
    assert sum(c.counts().values()) == 30


def test_a_source_that_fails_after_the_hand_over_deletes_its_copy_when_it_is_back() -> None:
    c = four_nodes(MigrationCaps(per_node=1, cluster=1))
    operation = c.reassign()
    c.catch_up()
    c.schedule()
    partition = next(p for p in c.state.partitions.values() if p.successor)
    source = partition.leader
    c.hand_over(partition.id)
    c.fail(source)
    c.schedule()
    migration = c.state.migrations[operation][Placed.partition(partition.id), 0]
    assert migration.state == MigrationState.MIGRATION_STATE_COMPLETED
    assert list(c.state.partitions[partition.id].removing_replicas) == [source]
    c.register(source, incarnation="2")
    c.deliver()
    assert not c.state.partitions[partition.id].removing_replicas


def test_a_cancelled_migration_leaves_the_partition_where_it_was() -> None:
    c = four_nodes(MigrationCaps(per_node=1, cluster=1))
    operation = c.reassign()
    partition = next(p for p in c.state.partitions.values() if p.adding_replicas)
    c.run(CancelMigration(operation, Placed.partition(partition.id), "no progress for 60 s"))
    c.deliver()
    row = c.state.partitions[partition.id]
    assert (row.leader, list(row.replicas), list(row.removing_replicas)) == (partition.leader, [partition.leader], [])


def test_a_snapshot_restores_the_state() -> None:
    c = four_nodes()
    c.reassign()
    assert State.from_snapshot(c.state.to_snapshot()).to_snapshot() == c.state.to_snapshot()
    assert State.from_snapshot(b"") == State()


def test_a_drained_dead_node_can_be_removed_although_it_has_copies_to_delete() -> None:
    c = Controller()
    c.register("athens", "byzantium", "cyrene", "ephesus")
    c.keyspace("flights", 4, replicas=3)
    c.fail("cyrene")
    with refused(Code.NODE_IN_USE):
        c.run(RemoveNodeRequest(node="cyrene"))
    c.settle()
    c.run(DrainNode("cyrene", True, "tester", "", {}))
    c.settle()
    rows = [row for row in c.state.partitions.values() if "cyrene" in row.removing_replicas]
    assert rows, "cyrene has not reported that its copies are deleted"
    c.run(RemoveNodeRequest(node="cyrene"))
    assert "cyrene" not in c.state.nodes
    assert not list(c.state.partitions_on("cyrene"))
    assert State.from_snapshot(c.state.to_snapshot()).to_snapshot() == c.state.to_snapshot()


def test_only_an_empty_node_that_has_left_is_removed_and_for_ever() -> None:
    c = Controller()
    c.register("athens", "byzantium")
    with refused(Code.NODE_IN_USE):
        c.run(RemoveNodeRequest(node="byzantium"))
    c.run(LeaveRequest(node_id="byzantium", incarnation="1"))
    c.run(RemoveNodeRequest(node="byzantium"))
    assert list(c.state.nodes) == ["athens"]
    with refused(Code.NODE_REMOVED):
        c.register("byzantium", incarnation="2")
    c.keyspace("flights", 2)
    c.run(LeaveRequest(node_id="athens", incarnation="1"))
    with refused(Code.NODE_IN_USE):
        c.run(RemoveNodeRequest(node="athens"))
    assert State.from_snapshot(c.state.to_snapshot()).to_snapshot() == c.state.to_snapshot()


def test_the_refusal_of_a_keyspace_that_is_too_large_says_how_many_partitions_fit() -> None:
    c = Controller()
    c.register("athens", "byzantium", "cyrene")
    c.run(CreateKeyspace("first", 4, HashFunction.HASH_FUNCTION_MURMUR3, 3, max_replicas_per_node=10))
    before = c.state.to_snapshot()
    with pytest.raises(MinkaError, match="room for 6 such partitions") as refusal:
        c.run(CreateKeyspace("second", 7, HashFunction.HASH_FUNCTION_MURMUR3, 3, max_replicas_per_node=10))
    assert (refusal.value.code, refusal.value.details["fits"]) == (Code.TOO_MANY_REPLICAS, "6")
    assert c.state.to_snapshot() == before
    c.run(CreateKeyspace("second", 6, HashFunction.HASH_FUNCTION_MURMUR3, 3, max_replicas_per_node=10))
