"""The balancer that moves partitions because of load: which partition it chooses, when, and the record of the move."""

from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import CancelOperationRequest
from minka.v1.cluster_pb2 import HashFunction, Operation, OperationState, Partition
from minka.v1.coordinator_pb2 import ReplicaStats
from minkad.core.controller.balancer import View
from minkad.core.controller.drains import DrainNode
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.controller.load_balancer import AFTER_FAILURE_S, SETTLE_S, SUSTAINED_S, LoadBalancer, SpreadLoad
from minkad.core.placement.spread import MAX_SKEW, NodeLoads, Shift, best_shift
from minkad.core.state import State
from minkad.core.state.state import KEPT_OPERATIONS
from tests.unit.core.model import Controller, changed

NODES = ("athens", "byzantium", "cyrene")
LETTERS = [bytes([letter]) for letter in b"bcdefghi"]


def cluster(
    points: Sequence[bytes] = LETTERS[:5], replicas: int = 3, nodes: Iterable[str] = NODES, max_ops: int = 1000
) -> Controller:
    """A cluster with a keyspace by ranges. A partition's leader is the first of its nodes in alphabetical order."""
    c = Controller()
    c.register(*nodes)
    create(c, "authors", points, replicas, max_ops)
    for row in list(c.state.partitions.values()):
        first = min(row.replicas)
        others = [node for node in row.replicas if node != first]

        def lead(row: Partition, order: Sequence[str] = (first, *others)) -> None:
            row.replicas[:], row.leader = order, order[0]

        c.state.partitions.put(changed(row, lead))
    return c


def create(c: Controller, name: str, points: Sequence[bytes] | None, replicas: int, max_ops: int) -> None:
    count = 0 if points is not None else 6
    c.run(
        CreateKeyspace(name, count, HashFunction.HASH_FUNCTION_MURMUR3, replicas, split_points=points, max_ops=max_ops)
    )
    c.deliver()


def shift_of(c: Controller, ops: Mapping[int, int], sizes: Mapping[int, int] | None = None) -> Shift | None:
    return best_shift(c.state, ops, sizes or {})


def move(c: Controller, shift: Shift) -> Operation:
    """Record the shift as an operation, and carry it out."""
    operation_id = c.state.next_operation_id
    c.run(SpreadLoad(shift.partition_id, shift.target_replicas, shift.source, shift.target, shift.reason))
    c.settle()
    return c.state.operations[operation_id]


def test_a_leadership_moves_to_a_replica_in_sync() -> None:
    """The move copies no data, and makes the new leader the preferred one."""
    c = cluster()
    ops = dict(zip(sorted(c.state.partitions), [900, 800, 300, 0, 0, 0], strict=True))
    shift = shift_of(c, ops)
    assert shift is not None
    assert (shift.source, shift.target) == ("", "")
    operation = move(c, shift)
    assert operation.state == OperationState.OPERATION_STATE_SUCCEEDED, operation
    assert operation.automatic
    row = c.state.partitions[shift.partition_id]
    assert row.leader == row.replicas[0] == shift.target_replicas[0] != "athens"
    assert set(row.replicas) == set(NODES)
    assert "has 900 operations a second, athens 2,000, " in operation.reason
    assert "667 on average" in operation.reason


def test_moves_go_on_until_the_load_is_even() -> None:
    c = cluster()
    ops = dict(zip(sorted(c.state.partitions), [500, 400, 400, 300, 300, 100], strict=True))
    skews = []
    while (shift := shift_of(c, ops)) is not None:
        move(c, shift)
        skews.append(NodeLoads(c.state, ops).skew)
    assert len(skews) <= 4
    assert skews == sorted(skews, reverse=True)
    assert skews[-1] <= MAX_SKEW


def test_a_partition_without_another_replica_is_copied() -> None:
    """If the moves of two partitions help equally, the balancer copies the smaller partition."""
    c = cluster(replicas=1)
    assert {row.leader for row in c.state.partitions.values()} == set(NODES)
    mine = sorted(row.id for row in c.state.partitions.values() if row.leader == "athens")
    ops = dict.fromkeys(mine, 600)
    shift = shift_of(c, ops, {mine[0]: 2000, mine[1]: 1000})
    assert shift is not None
    assert (shift.partition_id, shift.source, shift.target) == (mine[1], "athens", "byzantium")
    assert move(c, shift).state == OperationState.OPERATION_STATE_SUCCEEDED
    assert list(c.state.partitions[mine[1]].replicas) == ["byzantium"]


def test_moves_respect_zones_and_capacity() -> None:
    c = Controller()
    for name, zone in zip("abcdef", "xxyyzz", strict=True):
        c.register(name, zone=zone, capacity=1000)
    create(c, "authors", LETTERS[:1], 3, 1000)
    rows = list(c.state.partitions.values())
    for row in rows:

        def place(row: Partition) -> None:
            row.replicas[:], row.isr[:], row.leader = ["a", "c", "e"], ["a"], "a"

        c.state.partitions.put(changed(row, place))
    shift = shift_of(c, dict.fromkeys([row.id for row in rows], 600), dict.fromkeys([row.id for row in rows], 100))
    assert shift is not None
    assert (shift.source, shift.target, shift.target_replicas) == ("a", "b", ("b", "c", "e"))
    assert (
        shift_of(c, dict.fromkeys([row.id for row in rows], 600), dict.fromkeys([row.id for row in rows], 1001)) is None
    )


def test_partitions_whose_move_would_not_help_stay() -> None:
    c = cluster()
    first, second, *_ = sorted(c.state.partitions)
    assert shift_of(c, {first: 5000}) is None, "the move would only bring the whole load to another node"
    assert shift_of(c, {first: 499, second: 500}) is None, (
        "the node's load is below max_ops, the limit of one partition"
    )
    assert shift_of(c, {first: 501, second: 500}) is not None
    assert shift_of(c, {first: 5000, second: 20}) is None, "the move of the second partition would change little"
    c.state.keyspaces[1].max_ops = 0
    assert shift_of(c, {first: 501, second: 500}) is None, "the keyspace has no max_ops"


@pytest.mark.parametrize(
    "field", [("splitting", True), ("successor", "byzantium"), ("merge_from", 9), ("merge_into", 9)], ids=str
)
def test_partitions_that_are_changing_stay(field: tuple[str, object]) -> None:
    c = cluster()
    first, second, *_ = sorted(c.state.partitions)
    ops = {first: 600, second: 600}
    for id_ in (first, second):
        c.state.partitions.put(changed(c.state.partitions[id_], lambda row: setattr(row, *field)))
    assert shift_of(c, ops) is None


def test_nodes_that_are_not_live_get_no_partitions() -> None:
    c = cluster()
    first, second, *_ = sorted(c.state.partitions)
    c.run(DrainNode("cyrene", False, "tester", "", {}))
    shift = shift_of(c, {first: 600, second: 600})
    assert shift is not None
    assert shift.target_replicas[0] == "byzantium"
    for id_ in (first, second):
        row = c.state.partitions[id_]
        c.state.partitions.put(changed(row, lambda row: row.isr.remove("byzantium")))
    assert shift_of(c, {first: 600, second: 600}) is None, "a replica that is not in sync can't lead"


def test_a_node_of_weight_3_gets_three_times_the_load() -> None:
    c = Controller()
    c.register("athens", weight=3)
    c.register("byzantium")
    create(c, "authors", LETTERS[:3], 2, 1000)
    for row in list(c.state.partitions.values()):
        c.state.partitions.put(changed(row, lambda row: setattr(row, "leader", "athens")))
    ops = dict.fromkeys(c.state.partitions, 500)
    shift = shift_of(c, ops)
    assert shift is not None
    move(c, shift)
    assert shift_of(c, ops) is None, "three to one is even"


def test_partitions_that_may_not_move_count_for_their_nodes_load() -> None:
    """If a node is busy with a keyspace by hash, which can't move, it gives up partitions of a keyspace by ranges."""
    c = cluster(points=LETTERS[:1])
    create(c, "flights", None, 3, 0)
    mine = [row.id for row in c.state.partitions.values() if row.keyspace_id == 1]
    others = [row.id for row in c.state.partitions.values() if row.keyspace_id == 2 and row.leader == "athens"]
    ops = dict.fromkeys(others, 2000) | dict.fromkeys(mine, 500)
    while (shift := shift_of(c, ops)) is not None:
        assert shift.partition_id in mine
        move(c, shift)
    assert all(c.state.partitions[id_].leader != "athens" for id_ in mine)


@given(
    st.lists(st.integers(0, 3000), min_size=9, max_size=9),
    st.lists(st.integers(0, 2), min_size=9, max_size=9),
    st.sampled_from([1, 2, 3]),
)
def test_each_move_helps_and_the_moves_end(counts: list[int], leaders: list[int], replicas: int) -> None:
    """A move is between two nodes. After it, the busier of the two has less load than the busier one had before."""
    c = cluster(LETTERS, replicas)
    for row, leader in zip(list(c.state.partitions.values()), leaders, strict=True):
        node = row.replicas[leader % replicas]
        c.state.partitions.put(changed(row, lambda row, node=node: setattr(row, "leader", node)))  # type: ignore[misc]
    ops = dict(zip(sorted(c.state.partitions), counts, strict=True))
    for _ in range(40):
        shift = shift_of(c, ops)
        if shift is None:
            return
        old, new = c.state.partitions[shift.partition_id].leader, shift.target_replicas[0]
        before = NodeLoads(c.state, ops)

        def lead(row: Partition, shift: Shift = shift, node: str = new) -> None:
            row.replicas[:], row.isr[:], row.leader = shift.target_replicas, shift.target_replicas, node

        c.state.partitions.put(changed(c.state.partitions[shift.partition_id], lead))
        after = NodeLoads(c.state, ops)
        assert before.of(old) > MAX_SKEW * before.mean
        assert max(after.of(old), after.of(new)) == shift.busier < before.of(old)
    raise AssertionError("it goes on and on")


# The times of the moves


class Clock:
    """A clock with a load balancer that looks at the state every second."""

    def __init__(self, c: Controller, ops: Mapping[int, int]) -> None:
        self.c, self.ops, self.now = c, ops, 100.0
        self.balancer = LoadBalancer()

    def due(self) -> SpreadLoad | None:
        self.now += 1
        stats = [ReplicaStats(partition_id=id_, ops=ops) for id_, ops in self.ops.items()]
        return self.balancer.due(View(self.c.state, lambda: stats, self.now))

    def until_due(self, limit: int = 200) -> tuple[SpreadLoad, int]:
        for seconds in range(limit):
            if (command := self.due()) is not None:
                return command, seconds
        raise AssertionError("nothing is due")


def uneven() -> Clock:
    c = cluster()
    return Clock(c, dict(zip(sorted(c.state.partitions), [900, 800, 700, 0, 0, 0], strict=True)))


def test_only_lasting_load_causes_a_move_and_each_move_is_followed_by_a_rest() -> None:
    clock = uneven()
    even, uneven_ops = dict.fromkeys(clock.ops, 0), clock.ops
    for _ in range(3):
        assert [clock.due() for _ in range(int(SUSTAINED_S))] == [None] * int(SUSTAINED_S)
        clock.ops = even
        clock.due()
        clock.ops = uneven_ops
    command, seconds = clock.until_due()
    assert seconds == SUSTAINED_S
    clock.c.run(command)
    assert clock.c.state.moving
    assert [clock.due() for _ in range(100)] == [None] * 100, "no other move is due while one is under way"
    clock.c.settle()
    command, seconds = clock.until_due()
    assert seconds >= SETTLE_S + SUSTAINED_S
    clock.c.run(command)
    clock.c.settle()
    assert [clock.due() for _ in range(100)] == [None] * 100, "the load is even by now"
    assert sorted(row.leader for row in clock.c.state.partitions.values() if clock.ops[row.id]) == sorted(NODES)


def test_no_move_follows_soon_after_a_cancelled_one() -> None:
    clock = uneven()
    command, _ = clock.until_due()
    clock.c.run(command)
    clock.c.run(CancelOperationRequest(id=max(clock.c.state.operations), requested_by="tester", reason=""))
    clock.c.schedule()
    assert not clock.c.state.running_operations()
    _, seconds = clock.until_due()
    assert seconds >= AFTER_FAILURE_S


def test_no_move_is_due_while_another_operation_moves_partitions() -> None:
    clock = uneven()
    clock.c.run(DrainNode("cyrene", False, "tester", "", {}))
    assert clock.c.state.running_operations()
    assert [clock.due() for _ in range(20)] == [None] * 20
    assert not clock.c.state.moving


def test_a_move_that_is_asked_for_twice_is_recorded_once() -> None:
    clock = uneven()
    command, _ = clock.until_due()
    clock.c.run(command)
    clock.c.run(command)
    assert len(clock.c.state.operations) == 1


def test_automatic_operations_do_not_push_out_those_of_people() -> None:
    clock = uneven()
    c, rows = clock.c, sorted(clock.c.state.partitions)
    for number in range(3):
        c.run(DrainNode("cyrene", False, "tester", f"{number}", {}))
        c.run(CancelOperationRequest(id=max(c.state.operations), requested_by="tester", reason=""))
        c.schedule()
    for number in range(2 * KEPT_OPERATIONS):
        order = NODES[number % 3], *(node for node in NODES if node != NODES[number % 3])
        c.run(SpreadLoad(rows[0], order, "", "", "test"))
        c.settle()
    kept = [operation.automatic for operation in c.state.operations.values()]
    assert kept.count(False) == 3
    assert kept.count(True) == KEPT_OPERATIONS + 1, "old ones are dropped when a new one begins"
    assert set(c.state.migrations) == set(c.state.operations)
    assert State.from_snapshot(c.state.to_snapshot()).operations == c.state.operations


def test_the_allowed_values_of_max_ops() -> None:
    c = Controller()
    c.register(*NODES)
    for points, max_ops in (((), 99), (None, 1000)):
        with pytest.raises(MinkaError) as refused:
            create(c, "authors", points, 1, max_ops)
        assert refused.value.code is Code.INVALID_ARGUMENT
        assert f"max_ops {max_ops}: at least 100, and only for a keyspace by ranges" in refused.value.message
    create(c, "authors", (), 1, 100)
    assert c.state.keyspaces[1].max_ops == 100
