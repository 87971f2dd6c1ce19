"""Merges of neighbouring partitions, decided by the controller without a network."""

import pytest

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import CancelOperationRequest, RemoveNodeRequest
from minka.v1.cluster_pb2 import HashFunction, OperationState
from minka.v1.coordinator_pb2 import FinishMergeRequest
from minkad.core.controller.begin import BeginQueued
from minkad.core.controller.blockers import blockers_of
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.controller.merges import Merge
from minkad.core.controller.preferred import ElectLeaders
from minkad.core.controller.splits import Split
from minkad.core.state import range_of
from tests.unit.core.model import Controller
from tests.unit.core.ranges import NODES, by_ranges, finish, merge, propose, ranges_of, rows_of, split, three


def test_a_merge_undoes_a_split() -> None:
    c = three(replicas=3)
    split(c, b"m")
    finish(c)
    lower, upper = rows_of(c)
    assert upper.keeps_start
    operation = merge(c, b"m")
    lower, upper = rows_of(c)
    assert (lower.merge_from, upper.merge_into) == (upper.id, lower.id)
    assert (lower.generation, lower.end_key) == (2, b"m")
    finish(c)
    (row,) = rows_of(c)
    assert (row.id, str(range_of(row)), row.generation) == (lower.id, '["", "")', 3)
    ended = c.state.operations[operation.id]
    assert (ended.state, ended.outcome) == (OperationState.OPERATION_STATE_SUCCEEDED, "1 of 1 merged")
    assert list(c.state.tombstones[upper.id].removing_replicas) == list(upper.replicas)
    gone = c.state.row(upper.id)
    assert gone is not None
    assert gone.merge_into == lower.id
    c.deliver()
    assert not c.state.tombstones
    assert c.state.row(upper.id) is None
    c.replace_controller()


@pytest.mark.parametrize(
    ("keyspace", "keys", "code"),
    [
        ("nothing", [b"m"], Code.UNKNOWN_KEYSPACE),
        ("flights", [b"m"], Code.NOT_BY_RANGES),
        ("authors", [b"n"], Code.NO_BOUND),
        ("authors", [b""], Code.NO_BOUND),
        ("authors", [], Code.INVALID_ARGUMENT),
        ("authors", [b"m", b"m"], Code.DUPLICATE_SPLIT_POINT),
    ],
)
def test_merges_that_are_refused(keyspace: str, keys: list[bytes], code: Code) -> None:
    c = three(points=[b"m"])
    c.keyspace("flights", 2)
    with pytest.raises(MinkaError) as refusal:
        c.run(Merge(keyspace, keys, "tester", "test", {}))
    assert refusal.value.code is code


def test_partitions_that_would_be_split_again_are_not_merged() -> None:
    c = three()
    nothing = HashFunction.HASH_FUNCTION_UNSPECIFIED
    c.run(CreateKeyspace("authors2", 0, nothing, 1, split_points=[b"d", b"m", b"t"], max_bytes=1 << 20))
    c.deliver()
    first, second, third, last = rows_of(c, "authors2")
    half = (1 << 19) + 1
    sizes = {first.id: half, second.id: half, third.id: 0, last.id: half}
    with pytest.raises(MinkaError) as refusal:
        c.run(Merge("authors2", [b"d"], "tester", "test", sizes))
    assert refusal.value.code is Code.MERGE_REFUSED
    with pytest.raises(MinkaError) as refusal:
        c.run(Merge("authors2", [b"m", b"t"], "tester", "test", sizes))
    assert refusal.value.code is Code.MERGE_REFUSED
    c.run(Merge("authors2", [b"m"], "tester", "test", sizes))


def test_no_second_change_of_the_same_ranges_begins_during_a_merge() -> None:
    c = three(points=[b"d", b"m"], replicas=3)
    merge(c, b"d")
    c.settle()
    for command in (Merge("authors", [b"m"], "", "", {}), Split("authors", [b"z"], "", "")):
        with pytest.raises(MinkaError) as refusal:
            c.run(command)
        assert refusal.value.code is Code.OPERATION_RUNNING
    lower = rows_of(c)[0]
    assert propose(c, lower, b"b") is Code.SPLIT_REFUSED


def test_a_merge_first_moves_both_partitions_to_the_same_nodes() -> None:
    c = three(points=[b"d"], replicas=1)
    lower, upper = rows_of(c)
    assert lower.leader != upper.leader
    merge(c, b"d")
    lower, upper = rows_of(c)
    assert list(upper.target_replicas) == [lower.leader]
    assert not upper.merge_into
    c.settle()
    lower, upper = rows_of(c)
    assert lower.leader == upper.leader
    assert upper.merge_into == lower.id
    finish(c)
    assert ranges_of(rows_of(c)) == ['["", "")']
    assert c.state.operations[1].outcome == "1 of 1 merged; 1 of 1 partitions moved"


def test_a_merge_only_hands_over_if_both_partitions_have_the_same_nodes() -> None:
    c = three(points=[b"d"], replicas=3)
    lower, upper = rows_of(c)
    assert lower.leader != upper.leader
    merge(c, b"d")
    assert not c.state.migrations[1]
    lower, upper = rows_of(c)
    assert upper.successor == lower.leader
    c.hand_over_all()
    c.schedule()
    lower, upper = rows_of(c)
    assert (upper.leader, upper.merge_into) == (lower.leader, lower.id)


def test_a_merge_goes_on_when_its_leader_dies() -> None:
    c = three(points=[b"d"], replicas=3)
    merge(c, b"d")
    c.settle()
    lower, upper = rows_of(c)
    old = FinishMergeRequest(
        node_id=lower.leader,
        partition_id=lower.id,
        partition_epoch=lower.partition_epoch,
        merged_id=upper.id,
        merged_epoch=upper.partition_epoch,
    )
    c.fail(lower.leader)
    with pytest.raises(MinkaError) as refusal:
        c.run(old)
    assert refusal.value.code is Code.NOT_LEADER
    c.settle()
    finish(c)
    assert ranges_of(rows_of(c)) == ['["", "")']


def test_the_end_of_a_merge_is_refused_for_an_older_row() -> None:
    c = three(points=[b"d"], replicas=3)
    merge(c, b"d")
    c.settle()
    lower, upper = rows_of(c)
    old = FinishMergeRequest(
        node_id=lower.leader,
        partition_id=lower.id,
        partition_epoch=lower.partition_epoch,
        merged_id=upper.id,
        merged_epoch=upper.partition_epoch,
    )
    c.alter_isr(upper, [upper.leader])
    with pytest.raises(MinkaError) as refusal:
        c.run(old)
    assert refusal.value.code is Code.STALE_EPOCH
    c.settle()
    finish(c)
    c.run(old)  # the leader asks again because the answer was lost
    assert len(rows_of(c)) == 1


def test_a_merge_is_cancelled() -> None:
    c = three(points=[b"d"], replicas=3)
    operation = merge(c, b"d")
    c.settle()
    lower, upper = rows_of(c)
    late = FinishMergeRequest(
        node_id=lower.leader,
        partition_id=lower.id,
        partition_epoch=lower.partition_epoch,
        merged_id=upper.id,
        merged_epoch=upper.partition_epoch,
    )
    c.run(CancelOperationRequest(id=operation.id, requested_by="tester", reason="no"))
    c.schedule()
    lower, upper = rows_of(c)
    assert lower.merge_from == upper.merge_into == 0
    with pytest.raises(MinkaError) as refusal:
        c.run(late)
    assert refusal.value.code is Code.STALE_EPOCH
    assert c.state.operations[operation.id].outcome == "0 of 1 merged; cancelled by tester: no"


def test_a_move_of_a_partition_that_is_merged_meanwhile_fails() -> None:
    c = three(points=[b"d"], replicas=3)
    c.register("delphi")
    merge(c, b"d")
    c.settle()
    lower, upper = rows_of(c)
    operation = c.begin(c.plan(partitions={upper.id: ["delphi", *upper.replicas[1:]], lower.id: lower.replicas[::-1]}))
    c.settle()
    assert not rows_of(c)[1].target_replicas
    finish(c)
    c.settle()
    ended = c.operation(operation)
    assert ended.state == OperationState.OPERATION_STATE_FAILED
    assert f"partition {upper.id}: it was merged into partition {lower.id}" in ended.outcome


def test_elections_skip_a_partition_that_is_merged_meanwhile() -> None:
    """One election runs, and another waits for it. Both leave out the partition that the merge has removed (seed
    207104 of the simulation).
    """
    c = Controller()
    c.register("athens", "byzantium")
    by_ranges(c, [b"d", b"m"], replicas=2)
    c.keyspace("flights", 3, replicas=2)
    c.fail("athens")
    c.register("athens", incarnation="2")
    c.deliver()
    c.catch_up()
    merge(c, b"m")
    everything = list(c.state.partitions)
    gone = rows_of(c)[-1].id
    c.run(ElectLeaders(everything, "tester", ""))
    c.run(ElectLeaders(everything, "tester", "", queue=True))
    first, second = sorted(c.state.operations)[-2:]
    assert gone in c.operation(second).elect_leaders.partitions
    finish(c)
    assert gone not in c.state.partitions
    assert c.operation(first).state == OperationState.OPERATION_STATE_RUNNING
    c.run(BeginQueued({}, {}))
    assert c.operation(second).state == OperationState.OPERATION_STATE_QUEUED
    (blocker,) = blockers_of(c.state, c.operation(second))
    assert "both elect the leader of" in blocker.reason
    c.settle()
    c.run(BeginQueued({}, {}))
    c.settle()
    assert c.operation(first).state == c.operation(second).state == OperationState.OPERATION_STATE_SUCCEEDED
    assert c.operation(second).outcome.endswith("preferred leaders lead")


def test_a_drained_node_with_copies_of_merged_partitions_can_be_removed() -> None:
    c = three(points=[b"d"], replicas=3)
    merge(c, b"d")
    c.settle()
    gone = next(node for node in NODES if node != rows_of(c)[0].leader)
    c.fail(gone)
    finish(c)
    c.deliver()
    assert [list(row.removing_replicas) for row in c.state.tombstones.values()] == [[gone]]
    c.register("delphi")
    c.begin(c.plan(drain=[gone]))
    c.settle()
    c.run(RemoveNodeRequest(node=gone))
    assert not c.state.tombstones
