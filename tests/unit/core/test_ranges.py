"""Keyspaces by ranges and their splits, decided by the controller without a network."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.cluster.key_ranges import KeyRange, ranges_at, readable
from minka.errors import Code, MinkaError, newer_rows
from minka.v1.admin_pb2 import CancelOperationRequest, GetSplitBlockersResponse
from minka.v1.cluster_pb2 import HashFunction, OperationState, Partition, Partitioning, PartitionState
from minka.v1.coordinator_pb2 import FinishSplitRequest, IsrChange
from minka.v1.records_pb2 import PartitionsChanged, PartitionSplit, Record
from minkad.core.controller import splits
from minkad.core.controller.blockers import blockers_of, split_blockers
from minkad.core.controller.isr import isr_refusal
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.controller.splits import Split, split_at
from minkad.core.state import State, range_of
from tests.unit.core.model import Controller, changed
from tests.unit.core.ranges import NODES, by_ranges, finish, propose, ranges_of, rows_of, split, three

# The examples of Key-Range Partitions (Patterns of Distributed Systems)


def test_predefined_ranges() -> None:
    """As in the pattern's predefined key ranges, the points b and d give three ranges, and each node gets one."""
    c = three(points=[b"b", b"d"])
    rows = rows_of(c)
    assert ranges_of(rows) == ['["", b)', "[b, d)", '[d, "")']
    assert [row.leader for row in rows] == list(NODES)
    assert [row.slot for row in rows] == [row.id for row in rows]
    keyspace = c.state.keyspaces[rows[0].keyspace_id]
    assert keyspace.partitioning == Partitioning.PARTITIONING_RANGES
    assert keyspace.partition_count == 0
    assert c.state.to_snapshot() == State.from_snapshot(c.state.to_snapshot()).to_snapshot()


def test_names_from_a_to_c() -> None:
    """As in the pattern's example, two of three ranges have names from a to c: those on athens and byzantium."""
    ranges = ranges_at([b"b", b"d"])
    wanted = KeyRange(b"a", b"c")
    assert [wanted.overlaps(range_) for range_ in ranges] == [True, True, False]
    assert [str(wanted.clip(range_)) for range_ in ranges[:2]] == ["[a, b)", "[b, c)"]
    names = {b"alice": 0, b"az": 0, b"b": 1, b"bob": 1, b"cyril": 1, b"d": 2, b"mary": 2, b"philip": 2}
    assert all(ranges[place].contains(name) for name, place in names.items())
    assert sum(range_.contains(name) for name in names for range_ in ranges) == len(names)


def test_automatic_splitting_begins_with_one_range() -> None:
    """As in the pattern's example, one partition has all keys at first. Later P1 on athens is split at the key bob."""
    c = three()
    (only,) = rows_of(c)
    assert str(range_of(only)) == '["", "")'
    operation = split(c, b"bob")
    parent, child = rows_of(c)
    assert ranges_of([parent, child]) == ['["", bob)', '[bob, "")']
    assert parent.id == only.id
    assert child.leader == parent.leader == only.leader
    assert parent.generation == child.generation == only.generation + 1
    assert (parent.split_to, child.split_from) == (child.id, parent.id)
    assert operation.state == OperationState.OPERATION_STATE_RUNNING
    finish(c)
    done = c.state.operations[operation.id]
    assert done.state == OperationState.OPERATION_STATE_SUCCEEDED
    assert done.outcome == "1 of 1 new partitions made"
    assert not any(row.splitting for row in rows_of(c))


# Refused splits


@pytest.mark.parametrize(
    ("points", "code"),
    [
        ([b"d", b"b"], Code.UNSORTED_SPLIT_POINTS),
        ([b"b", b"b"], Code.DUPLICATE_SPLIT_POINT),
        ([b"b", b"d", b"b"], Code.DUPLICATE_SPLIT_POINT),
        ([b"", b"b"], Code.EMPTY_SPLIT_POINT),
        ([b"b", b""], Code.EMPTY_SPLIT_POINT),
        ([b"k" * 65537], Code.TOO_LARGE),
    ],
)
def test_the_refusal_names_the_bad_split_point(points: list[bytes], code: Code) -> None:
    c = Controller()
    c.register(*NODES)
    with pytest.raises(MinkaError) as refusal:
        by_ranges(c, points)
    assert refusal.value.code is code


def test_the_keys_of_a_split_may_come_in_any_order_but_only_once() -> None:
    c = three()
    with pytest.raises(MinkaError, match="the split point x comes twice") as refusal:
        c.run(Split("authors", [b"x", b"m", b"x"], "tester", "test"))
    assert refusal.value.code is Code.DUPLICATE_SPLIT_POINT
    with pytest.raises(MinkaError, match="the split point b comes twice"):  # also if a partition begins there already
        c.run(Split("authors", [b"b", b"b"], "tester", "test"))
    c.run(Split("authors", [b"x", b"m"], "tester", "test"))
    finish(c)
    assert {b"m", b"x"} <= {row.start_key for row in rows_of(c)}


def test_splits_that_are_refused() -> None:
    c = three()
    c.keyspace("flights", 2)
    for keyspace, key, code in [
        ("flights", b"b", Code.NOT_BY_RANGES),
        ("nothing", b"b", Code.UNKNOWN_KEYSPACE),
        ("authors", b"", Code.EMPTY_SPLIT_POINT),
    ]:
        with pytest.raises(MinkaError) as refusal:
            c.run(Split(keyspace, [key], "tester", "test"))
        assert refusal.value.code is code
    split(c, b"m")
    with pytest.raises(MinkaError) as refusal:
        c.run(Split("authors", [b"x"], "tester", "test"))
    assert refusal.value.code is Code.OPERATION_RUNNING
    c.run(Split("authors", [b"m"], "tester", "test"))  # a split at this key is under way, so nothing is done
    finish(c)
    before = len(c.log)
    c.run(Split("authors", [b"m"], "tester", "test"))
    assert len(c.log) == before


def test_a_leader_proposes_a_split() -> None:
    c = three(replicas=3, points=[b"d", b"m"])
    c.keyspace("flights", 1)
    _, row, _ = rows_of(c)
    other = next(node for node in NODES if node != row.leader)
    for key, options, code in [
        (b"d", {}, Code.INVALID_ARGUMENT),
        (b"m", {}, Code.INVALID_ARGUMENT),
        (b"c", {}, Code.INVALID_ARGUMENT),
        (b"f", {"node": other}, Code.NOT_LEADER),
        (b"f", {"generation": 2}, Code.STALE_GENERATION),
    ]:
        assert propose(c, row, key, **options) is code  # type: ignore[arg-type]  # mypy infers one type for all options
    hashed = next(p for p in c.state.partitions.values() if c.state.keyspaces[p.keyspace_id].name == "flights")
    assert propose(c, hashed, b"f") is Code.INVALID_ARGUMENT
    assert propose(c, row, b"f") is None
    before = len(c.log)
    assert propose(c, row, b"f") is None, "the leader asks again because the answer was lost"
    assert len(c.log) == before
    assert ranges_of(rows_of(c)) == ['["", d)', "[d, f)", "[f, m)", '[m, "")']
    parent = c.state.partitions[row.id]
    assert propose(c, parent, b"e") is Code.SPLIT_REFUSED
    finish(c)
    c.fail(*[node for node in NODES if node != parent.leader])
    assert propose(c, c.state.partitions[row.id], b"e") is Code.SPLIT_REFUSED


def test_the_number_of_splits_at_once_and_of_partitions_a_node_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "SPLITS_AT_ONCE", 2)
    c = three(points=[b"d", b"m"])
    refusals = [propose(c, row, row.start_key + b"\x01") for row in rows_of(c)]
    assert refusals == [None, None, Code.SPLIT_REFUSED]
    finish(c)
    monkeypatch.setattr(splits, "MAX_PARTITIONS_A_NODE", 2)
    assert propose(c, rows_of(c)[1], b"b") is Code.SPLIT_REFUSED


def test_people_are_told_why_a_split_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each blocker has a remedy. The `caps` apply to splits that leaders propose, not to those that people ask for."""
    c = three(points=[b"d", b"m"])
    row = rows_of(c)[0]
    assert split_blockers(c.state, row.id) == GetSplitBlockersResponse()
    monkeypatch.setattr(splits, "SPLITS_AT_ONCE", 0)
    (cap,) = split_blockers(c.state, row.id).caps
    assert cap.reason == "0 splits are under way, the most at a time"
    c.fail(row.leader)
    (blocker,) = split_blockers(c.state, row.id).blockers
    assert (blocker.reason, blocker.remedy) == ("it has no leader", f"start {row.leader}")
    assert blocker.partition == f"authors/{row.slot}"
    with pytest.raises(MinkaError, match="UNKNOWN_PARTITION"):
        split_blockers(c.state, 999)


def test_the_allowed_values_of_max_bytes() -> None:
    c = three()
    hashed, small = {"max_bytes": 1 << 20}, {"split_points": [], "max_bytes": 1000}
    for options in (hashed, small):
        with pytest.raises(MinkaError) as refusal:
            c.run(CreateKeyspace("sized", 2, HashFunction.HASH_FUNCTION_MD5, 1, **options))
        assert refusal.value.code is Code.INVALID_ARGUMENT
    c.run(CreateKeyspace("sized", 0, HashFunction.HASH_FUNCTION_UNSPECIFIED, 1, split_points=[], max_bytes=1 << 20))
    keyspace = c.state.keyspace_named("sized")
    assert keyspace is not None
    assert keyspace.max_bytes == 1 << 20


# Splits that wait


def test_a_partition_is_split_at_several_keys_one_after_the_other() -> None:
    c = three()
    operation = split(c, b"b", b"d", b"f")
    assert ranges_of(rows_of(c)) == ['["", d)', '[d, "")']
    assert list(c.state.operations[operation.id].split.keys) == [b"b", b"f"]
    assert [b.reason for b in blockers_of(c.state, c.state.operations[operation.id])] == [
        "to be split at b: it is being split already",
        "to be split at f: it is being split already",
    ]
    finish(c)
    assert ranges_of(rows_of(c)) == ['["", b)', "[b, d)", "[d, f)", '[f, "")']
    finish(c)
    assert c.state.operations[operation.id].outcome == "3 of 3 new partitions made"


def test_a_split_at_several_keys_is_cancelled() -> None:
    c = three()
    operation = split(c, b"b", b"d", b"f")
    c.run(CancelOperationRequest(id=operation.id, requested_by="tester", reason="enough"))
    finish(c)
    ended = c.state.operations[operation.id]
    assert ended.state == OperationState.OPERATION_STATE_CANCELLED
    assert ended.outcome == "1 of 3 new partitions made; cancelled by tester: enough"
    assert len(rows_of(c)) == 2


def test_a_split_waits_while_too_few_replicas_are_in_sync() -> None:
    c = three(replicas=3)
    c.fail("byzantium", "cyrene")
    operation = split(c, b"m")
    assert len(rows_of(c)) == 1
    assert [b.reason for b in blockers_of(c.state, operation)] == ["to be split at m: 1 of 2 replicas are in sync"]
    c.register("byzantium", "cyrene", incarnation="2")
    c.catch_up()
    c.schedule()
    assert len(rows_of(c)) == 2


def test_splits_and_reassignments_of_a_partition_wait_for_each_other() -> None:
    c = Controller()
    c.register(*NODES, "delphi")
    (row,) = by_ranges(c, replicas=1)
    split(c, b"m")
    to = next(node for node in NODES if node != row.leader)
    c.begin(c.plan(partitions={row.id: [to]}))
    c.schedule()
    assert not c.state.partitions[row.id].target_replicas
    assert [b.reason for b in blockers_of(c.state, c.state.operations[2])] == ["it is being split"]
    finish(c)
    assert list(c.state.partitions[row.id].target_replicas) == [to]
    c.run(Split("authors", [b"b"], "tester", "test"))
    c.schedule()
    assert len(rows_of(c)) == 2
    c.settle()
    assert len(rows_of(c)) == 3


# One leadership for both halves


def test_another_node_leads_both_halves_when_the_leader_dies_during_a_split() -> None:
    c = three(replicas=3)
    split(c, b"m")
    parent, child = rows_of(c)
    old = parent.leader
    c.fail(old)
    parent, child = rows_of(c)
    assert parent.leader == child.leader != old
    assert parent.leader_epoch == child.leader_epoch == 2
    with pytest.raises(MinkaError) as refusal:
        c.run(
            FinishSplitRequest(
                node_id=old, partition_id=child.id, leader_epoch=1, partition_epoch=child.partition_epoch
            )
        )
    assert refusal.value.code is Code.STALE_EPOCH
    finish(c)
    assert not any(row.splitting for row in rows_of(c))
    other = next(node for node in NODES if node not in (old, parent.leader))
    c.register(old, incarnation="2")
    c.settle()
    c.fail(other)
    assert all(row.leader for row in rows_of(c))


def test_the_end_of_a_split_is_refused_for_an_older_in_sync_set() -> None:
    """Both halves have the same in-sync set. By a change of the other half's row, a replica may have joined the set
    that hasn't made this half yet.
    """
    c = three(replicas=3)
    split(c, b"m")
    parent, child = rows_of(c)
    late = next(node for node in NODES if node != parent.leader)
    c.alter_isr(child, [node for node in child.isr if node != late])
    parent, known = rows_of(c)
    c.alter_isr(parent, [*parent.isr, late])
    with pytest.raises(MinkaError) as refusal:
        c.run(
            FinishSplitRequest(
                node_id=known.leader,
                partition_id=known.id,
                leader_epoch=known.leader_epoch,
                partition_epoch=known.partition_epoch,
            )
        )
    assert refusal.value.code is Code.STALE_EPOCH
    (newest,) = newer_rows(refusal.value)
    assert late in newest.isr
    assert newest.splitting
    c.run(
        FinishSplitRequest(
            node_id=newest.leader,
            partition_id=newest.id,
            leader_epoch=newest.leader_epoch,
            partition_epoch=newest.partition_epoch,
        )
    )
    assert not any(row.splitting for row in rows_of(c))


def test_both_halves_have_the_same_in_sync_set_during_a_split() -> None:
    c = three(replicas=3)
    split(c, b"m")
    parent, child = rows_of(c)
    late = next(node for node in NODES if node != parent.leader)
    c.alter_isr(child, [node for node in child.isr if node != late])
    parent, child = rows_of(c)
    assert list(parent.isr) == list(child.isr)
    assert late not in parent.isr
    for row in (parent, child):
        change = IsrChange(
            partition_id=row.id, leader_epoch=row.leader_epoch, partition_epoch=row.partition_epoch, isr=row.replicas
        )
        refusal = isr_refusal(c.state, row.leader, change)
        assert refusal is (None if row.split_to else Code.INELIGIBLE_REPLICA)
    c.alter_isr(parent, parent.replicas)
    assert [set(row.isr) for row in rows_of(c)] == [set(NODES), set(NODES)]
    finish(c)
    c.settle()
    assert all(len(row.isr) == 3 for row in rows_of(c))


def test_both_halves_come_back_with_one_leader_after_all_replicas_were_gone() -> None:
    c = three()
    split(c, b"m")
    node = rows_of(c)[0].leader
    c.fail(node)
    assert {row.state for row in rows_of(c)} == {PartitionState.PARTITION_STATE_OFFLINE}
    c.register(node, incarnation="2")
    parent, child = rows_of(c)
    assert parent.leader == child.leader == node
    assert parent.leader_epoch == child.leader_epoch


# Rows that the state must never contain


def test_a_gap_or_an_overlap_is_a_bug() -> None:
    c = three(points=[b"m"])
    lower, _ = rows_of(c)

    def longer(row: Partition) -> None:
        row.end_key = b"n"

    with pytest.raises(AssertionError):
        c.state.copy().apply(Record(partitions_changed=PartitionsChanged(partitions=[changed(lower, longer)])))
    good = split_at(lower, b"d", c.state.next_partition_id).partition_split
    c.state.copy().apply(Record(partition_split=good))
    for half, field, value in [
        ("parent", "end_key", b"c"),
        ("parent", "start_key", b"a"),
        ("child", "start_key", b"e"),
        ("child", "end_key", b"n"),
        ("child", "leader_epoch", 7),
        ("child", "generation", 1),
        ("child", "splitting", False),
    ]:
        bad = PartitionSplit()
        bad.CopyFrom(good)
        setattr(getattr(bad, half), field, value)
        with pytest.raises(AssertionError):
            c.state.copy().apply(Record(partition_split=bad))


@given(st.lists(st.binary(min_size=1, max_size=3), unique=True), st.binary(max_size=3))
def test_each_key_is_in_one_range(points: list[bytes], key: bytes) -> None:
    ranges = ranges_at(sorted(points))
    assert sum(range_.contains(key) for range_ in ranges) == 1


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"", '""'),
        (b"bob", "bob"),
        ("Ωmega".encode(), "Ωmega"),
        (b"\xff\x00", "0xff00"),
        (b"a\n", "0x610a"),
        (b"0x12", "0x30783132"),
        (b"a,b", "0x612c62"),
        (b"@x", "0x4078"),
    ],
)
def test_the_readable_text_of_keys(key: bytes, text: str) -> None:
    assert readable(key) == text
