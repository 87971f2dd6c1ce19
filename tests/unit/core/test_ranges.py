"""Keyspaces by ranges and their splits, by the controller and its state alone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minka.errors import Code, MinkaError
from minka.ranges import KeyRange, ranges_at, readable
from minka.v1.cluster_pb2 import (
    HashFunction,
    Operation,
    OperationState,
    Partition,
    Partitioning,
    PartitionState,
)
from minka.v1.coordinator_pb2 import IsrChange
from minka.v1.records_pb2 import PartitionsChanged, PartitionSplit, Record
from minkad.core.controller import (
    CancelOperation,
    CreateKeyspace,
    FinishMerge,
    FinishSplit,
    Merge,
    ProposeSplit,
    RemoveNode,
    Split,
    blockers_of,
    isr_refusal,
    splits,
)
from minkad.core.controller.rows import changed
from minkad.core.controller.splits import Ranges, split_at
from minkad.core.state import State, check_ranges, is_by_ranges, is_up, range_of
from tests.unit.core.model import Controller

NODES = ("athens", "byzantium", "cyrene")
PROBES = [b"", *(bytes([byte]) for byte in range(0, 256, 15))]


def by_ranges(c: Controller, points: Sequence[bytes] = (), replicas: int = 1, name: str = "authors") -> list[Partition]:
    """A keyspace by ranges whose partitions are ONLINE, in order."""
    c.run(CreateKeyspace(name, 0, HashFunction.HASH_FUNCTION_UNSPECIFIED, replicas, split_points=points))
    c.deliver()
    return rows_of(c, name)


def rows_of(c: Controller, name: str = "authors") -> list[Partition]:
    keyspace = c.state.keyspace_named(name)
    assert keyspace is not None
    return sorted((p for p in c.state.partitions.values() if p.keyspace_id == keyspace.id), key=lambda p: p.start_key)


def ranges_of(rows: Sequence[Partition]) -> list[str]:
    return [str(range_of(row)) for row in rows]


def three(replicas: int = 1, points: Sequence[bytes] = ()) -> Controller:
    c = Controller()
    c.register(*NODES)
    by_ranges(c, points, replicas)
    return c


def split(c: Controller, *keys: bytes) -> Operation:
    """Ask for it, and let the controller begin."""
    c.run(Split("authors", keys, "tester", "test"))
    operation = max(c.state.operations)
    c.schedule()
    return c.state.operations[operation]


def merge(c: Controller, *keys: bytes, sizes: dict[int, int] | None = None) -> Operation:
    """Ask for it, and let the controller begin."""
    c.run(Merge("authors", keys, "tester", "test", sizes or {}))
    operation = max(c.state.operations)
    c.schedule()
    return c.state.operations[operation]


def finish_merges(c: Controller) -> None:
    """Every leader of two that are being merged says that one has all that the other has."""
    for row in list(c.state.partitions.values()):
        behind = c.state.partitions.get(row.merge_from)
        if behind is not None and row.leader and row.leader == behind.leader:
            c.run(FinishMerge(row.leader, row.id, row.partition_epoch, behind.id, behind.partition_epoch))
    c.schedule()


def finish(c: Controller) -> None:
    """Every leader says that what it was to make or to merge is made."""
    finish_merges(c)
    for row in list(c.state.partitions.values()):
        if row.splitting and not row.split_to and row.leader:
            c.run(FinishSplit(row.leader, row.id, row.leader_epoch))
    c.schedule()


# The seed's examples


def test_predefined_ranges() -> None:
    """The seed's predefined key ranges: b and d give three ranges, assigned in turn to three nodes."""
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
    """The seed's example: of the ranges of athens, byzantium and cyrene, names from a to c are on the first two."""
    ranges = ranges_at([b"b", b"d"])
    wanted = KeyRange(b"a", b"c")
    assert [wanted.overlaps(range_) for range_ in ranges] == [True, True, False]
    assert [str(wanted.clip(range_)) for range_ in ranges[:2]] == ["[a, b)", "[b, c)"]
    names = {b"alice": 0, b"az": 0, b"b": 1, b"bob": 1, b"cyril": 1, b"d": 2, b"mary": 2, b"philip": 2}
    assert all(ranges[place].contains(name) for name, place in names.items())
    assert sum(range_.contains(name) for name in names for range_ in ranges) == len(names)


def test_automatic_splitting_begins_with_one_range() -> None:
    """The seed's automatic splitting: one partition over all keys, then P1 of athens is split at bob."""
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


# Refusals


@pytest.mark.parametrize(
    ("points", "code"),
    [
        ([b"d", b"b"], Code.UNSORTED_SPLIT_POINTS),
        ([b"b", b"b"], Code.DUPLICATE_SPLIT_POINT),
        ([b"", b"b"], Code.EMPTY_SPLIT_POINT),
        ([b"b", b""], Code.EMPTY_SPLIT_POINT),
        ([b"k" * 65537], Code.TOO_LARGE),
    ],
)
def test_split_points_are_refused_by_name(points: list[bytes], code: Code) -> None:
    c = Controller()
    c.register(*NODES)
    with pytest.raises(MinkaError) as refusal:
        by_ranges(c, points)
    assert refusal.value.code is code


def test_what_can_not_be_split() -> None:
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
    c.run(Split("authors", [b"m"], "tester", "test"))  # it is split there: nothing to do
    finish(c)
    before = len(c.log)
    c.run(Split("authors", [b"m"], "tester", "test"))
    assert len(c.log) == before


def propose(c: Controller, row: Partition, key: bytes, *, node: str = "", generation: int = 0) -> Code | None:
    """As its leader does; why it is refused."""
    try:
        c.run(ProposeSplit(node or row.leader, row.id, generation or row.generation, key))
    except MinkaError as refusal:
        return refusal.code
    return None


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
        assert propose(c, row, key, **options) is code  # type: ignore[arg-type]  # mypy sees one type for all options
    hashed = next(p for p in c.state.partitions.values() if c.state.keyspaces[p.keyspace_id].name == "flights")
    assert propose(c, hashed, b"f") is Code.INVALID_ARGUMENT
    assert propose(c, row, b"f") is None
    before = len(c.log)
    assert propose(c, row, b"f") is None, "asked again: the answer was lost"
    assert len(c.log) == before
    assert ranges_of(rows_of(c)) == ['["", d)', "[d, f)", "[f, m)", '[m, "")']
    parent = c.state.partitions[row.id]
    assert propose(c, parent, b"e") is Code.SPLIT_REFUSED
    finish(c)
    c.fail(*[node for node in NODES if node != parent.leader])
    assert propose(c, c.state.partitions[row.id], b"e") is Code.SPLIT_REFUSED


def test_not_too_many_at_once_nor_on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "SPLITS_AT_ONCE", 2)
    c = three(points=[b"d", b"m"])
    refusals = [propose(c, row, row.start_key + b"\x01") for row in rows_of(c)]
    assert refusals == [None, None, Code.SPLIT_REFUSED]
    finish(c)
    monkeypatch.setattr(splits, "MAX_PARTITIONS_A_NODE", 2)
    assert propose(c, rows_of(c)[1], b"b") is Code.SPLIT_REFUSED


def test_a_keyspace_that_splits_itself() -> None:
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


# What splits wait for


def test_several_keys_of_one_partition_one_after_the_other() -> None:
    c = three()
    operation = split(c, b"b", b"d", b"f")
    assert ranges_of(rows_of(c)) == ['["", d)', '[d, "")']
    assert list(c.state.operations[operation.id].split_keys) == [b"b", b"f"]
    assert [b.reason for b in blockers_of(c.state, c.state.operations[operation.id])] == [
        "to be split at b: it is being split already",
        "to be split at f: it is being split already",
    ]
    finish(c)
    assert ranges_of(rows_of(c)) == ['["", b)', "[b, d)", "[d, f)", '[f, "")']
    finish(c)
    assert c.state.operations[operation.id].outcome == "3 of 3 new partitions made"


def test_cancelled_before_all_is_split() -> None:
    c = three()
    operation = split(c, b"b", b"d", b"f")
    c.run(CancelOperation(operation.id, "tester", "enough"))
    finish(c)
    ended = c.state.operations[operation.id]
    assert ended.state == OperationState.OPERATION_STATE_CANCELLED
    assert ended.outcome == "1 of 3 new partitions made; cancelled by tester: enough"
    assert len(rows_of(c)) == 2


def test_too_few_in_sync() -> None:
    c = three(replicas=3)
    c.fail("byzantium", "cyrene")
    operation = split(c, b"m")
    assert len(rows_of(c)) == 1
    assert [b.reason for b in blockers_of(c.state, operation)] == ["to be split at m: 1 of 2 replicas are in sync"]
    c.register("byzantium", "cyrene", incarnation="2")
    c.catch_up()
    c.schedule()
    assert len(rows_of(c)) == 2


def test_no_reassignment_of_what_is_being_split_and_no_split_of_what_is_being_reassigned() -> None:
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


def test_the_leader_dies_in_between() -> None:
    c = three(replicas=3)
    split(c, b"m")
    parent, child = rows_of(c)
    old = parent.leader
    c.fail(old)
    parent, child = rows_of(c)
    assert parent.leader == child.leader != old
    assert parent.leader_epoch == child.leader_epoch == 2
    with pytest.raises(MinkaError) as refusal:
        c.run(FinishSplit(old, child.id, 1))
    assert refusal.value.code is Code.STALE_EPOCH
    finish(c)
    assert not any(row.splitting for row in rows_of(c))
    other = next(node for node in NODES if node not in (old, parent.leader))
    c.register(old, incarnation="2")
    c.settle()
    c.fail(other)
    assert all(row.leader for row in rows_of(c))


def test_in_sync_sets_are_the_same() -> None:
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


def test_all_replicas_gone_and_back() -> None:
    c = three()
    split(c, b"m")
    node = rows_of(c)[0].leader
    c.fail(node)
    assert {row.state for row in rows_of(c)} == {PartitionState.PARTITION_STATE_OFFLINE}
    c.register(node, incarnation="2")
    parent, child = rows_of(c)
    assert parent.leader == child.leader == node
    assert parent.leader_epoch == child.leader_epoch


# Merges


def test_the_undo_of_a_split() -> None:
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
    assert list(c.state.merged[upper.id].removing_replicas) == list(upper.replicas)
    gone = c.state.row(upper.id)
    assert gone is not None
    assert gone.merge_into == lower.id
    c.deliver()
    assert not c.state.merged
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
    ],
)
def test_what_cant_be_merged(keyspace: str, keys: list[bytes], code: Code) -> None:
    c = three(points=[b"m"])
    c.keyspace("flights", 2)
    with pytest.raises(MinkaError) as refusal:
        c.run(Merge(keyspace, keys, "tester", "test", {}))
    assert refusal.value.code is code


def test_what_would_be_split_again_is_not_merged() -> None:
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


def test_one_change_of_the_ranges_at_a_time() -> None:
    c = three(points=[b"d", b"m"], replicas=3)
    merge(c, b"d")
    c.settle()
    for command in (Merge("authors", [b"m"], "", "", {}), Split("authors", [b"z"], "", "")):
        with pytest.raises(MinkaError) as refusal:
            c.run(command)
        assert refusal.value.code is Code.OPERATION_RUNNING
    lower = rows_of(c)[0]
    assert propose(c, lower, b"b") is Code.SPLIT_REFUSED


def test_leaders_and_replicas_are_brought_together_first() -> None:
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


def test_leadership_comes_together_where_both_are_in_sync() -> None:
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


def test_the_leader_dies_while_it_merges() -> None:
    c = three(points=[b"d"], replicas=3)
    merge(c, b"d")
    c.settle()
    lower, upper = rows_of(c)
    old = FinishMerge(lower.leader, lower.id, lower.partition_epoch, upper.id, upper.partition_epoch)
    c.fail(lower.leader)
    with pytest.raises(MinkaError) as refusal:
        c.run(old)
    assert refusal.value.code is Code.NOT_LEADER
    c.settle()
    finish(c)
    assert ranges_of(rows_of(c)) == ['["", "")']


def test_who_was_fenced_at_another_epoch_does_not_count() -> None:
    c = three(points=[b"d"], replicas=3)
    merge(c, b"d")
    c.settle()
    lower, upper = rows_of(c)
    old = FinishMerge(lower.leader, lower.id, lower.partition_epoch, upper.id, upper.partition_epoch)
    c.alter_isr(upper, [upper.leader])
    with pytest.raises(MinkaError) as refusal:
        c.run(old)
    assert refusal.value.code is Code.STALE_EPOCH
    c.settle()
    finish(c)
    c.run(old)  # asked again: the answer was lost
    assert len(rows_of(c)) == 1


def test_a_merge_that_is_cancelled() -> None:
    c = three(points=[b"d"], replicas=3)
    operation = merge(c, b"d")
    c.settle()
    lower, upper = rows_of(c)
    late = FinishMerge(lower.leader, lower.id, lower.partition_epoch, upper.id, upper.partition_epoch)
    c.run(CancelOperation(operation.id, "tester", "no"))
    c.schedule()
    lower, upper = rows_of(c)
    assert lower.merge_from == upper.merge_into == 0
    with pytest.raises(MinkaError) as refusal:
        c.run(late)
    assert refusal.value.code is Code.STALE_EPOCH
    assert c.state.operations[operation.id].outcome == "0 of 1 merged; cancelled by tester: no"


def test_a_move_of_what_is_merged_meanwhile() -> None:
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


def test_a_node_with_copies_of_what_was_merged_can_be_removed() -> None:
    c = three(points=[b"d"], replicas=3)
    merge(c, b"d")
    c.settle()
    gone = next(node for node in NODES if node != rows_of(c)[0].leader)
    c.fail(gone)
    finish(c)
    c.deliver()
    assert [list(row.removing_replicas) for row in c.state.merged.values()] == [[gone]]
    c.register("delphi")
    c.begin(c.plan(drain=[gone]))
    c.settle()
    c.run(RemoveNode(gone))
    assert not c.state.merged


# The state asserts it


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
def test_readable(key: bytes, text: str) -> None:
    assert readable(key) == text


@contextmanager
def refusals() -> Iterator[None]:
    """What is refused at the moment is no bug."""
    try:
        yield
    except MinkaError as refusal:
        if refusal.code not in (Code.OPERATION_RUNNING, Code.STALE_PLAN, Code.PARTITION_OFFLINE, Code.NOT_ENOUGH_NODES):
            raise


class Splitting(RuleBasedStateMachine):
    """Splits while nodes come and go: the ranges cover all keys after every record, and everything comes to an end."""

    def __init__(self) -> None:
        super().__init__()
        self.c = Controller()
        self.incarnations = 1
        self.c.after_record = self.check
        self.generations: dict[int, int] = {}
        self.of_keys: dict[bytes, int] = {}

    @initialize(replicas=st.integers(1, 3), points=st.sets(st.binary(min_size=1, max_size=2), max_size=3))
    def create(self, replicas: int, points: set[bytes]) -> None:
        self.c.register(*NODES, "delphi")
        by_ranges(self.c, sorted(points), replicas)

    def check(self) -> None:
        state = self.c.state
        for keyspace in filter(is_by_ranges, state.keyspaces.values()):
            rows = [row for row in state.partitions.values() if row.keyspace_id == keyspace.id]
            check_ranges(rows)
        for row in state.partitions.values():
            assert row.generation >= self.generations.get(row.id, 0)
            self.generations[row.id] = row.generation
            for key in filter(range_of(row).contains, PROBES):
                assert row.generation >= self.of_keys.get(key, 0)
                self.of_keys[key] = row.generation
            if row.splitting:
                other = state.partitions[row.split_to or row.split_from]
                assert (row.leader, row.leader_epoch, set(row.isr)) == (
                    other.leader,
                    other.leader_epoch,
                    set(other.isr),
                )

    @invariant()
    def rows_are_found(self) -> None:
        keyspace = self.c.state.keyspace_named("authors")
        if keyspace is not None:
            ranges = Ranges(self.c.state, keyspace.id)
            assert all(range_of(ranges.at(key)).contains(key) for key in (b"", b"a", b"\xff\xff\xff"))

    @rule(node=st.sampled_from((*NODES, "delphi")))
    def fail(self, node: str) -> None:
        self.c.fail(node)

    @rule(node=st.sampled_from((*NODES, "delphi")))
    def start(self, node: str) -> None:
        self.incarnations += 1
        self.c.register(node, incarnation=str(self.incarnations))

    @rule(keys=st.lists(st.binary(min_size=1, max_size=2), min_size=1, max_size=4))
    def split(self, keys: list[bytes]) -> None:
        with refusals():
            self.c.run(Split("authors", keys, "tester", "test"))

    @precondition(lambda self: len(rows_of(self.c)) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        bounds = [row.start_key for row in rows_of(self.c)[1:]]
        with refusals():
            keys = data.draw(st.sets(st.sampled_from(bounds), min_size=1, max_size=3))
            self.c.run(Merge("authors", sorted(keys), "tester", "test", {}))

    @rule()
    def cancel(self) -> None:
        for operation in self.c.state.running_operations():
            if operation.merge_keys and not operation.cancelled:
                self.c.run(CancelOperation(operation.id, "tester", "test"))

    @rule()
    def schedule(self) -> None:
        self.c.schedule()

    @rule()
    def deliver(self) -> None:
        self.c.deliver()

    @rule()
    def finish(self) -> None:
        finish(self.c)

    @rule()
    def lag(self) -> None:
        for row in list(self.c.state.partitions.values()):
            if row.leader and len(row.isr) > 1:
                self.c.alter_isr(self.c.state.partitions[row.id], [row.leader])

    @precondition(lambda self: self.c.state.running_operation() is None)
    @rule()
    def reassign(self) -> None:
        with refusals():
            plan = self.c.plan()
            if plan.moves:
                self.c.begin(plan)

    @rule()
    def replace_controller(self) -> None:
        self.c.replace_controller()

    def teardown(self) -> None:
        for node in (*NODES, "delphi"):
            if node in self.c.state.nodes and not is_up(self.c.state.nodes[node]):
                self.incarnations += 1
                self.c.register(node, incarnation=str(self.incarnations))
        for _ in range(50):
            self.c.settle()
            finish(self.c)
        assert not self.c.state.running_operations(), self.c.state.running_operations()
        assert not any(row.splitting or row.merge_from for row in self.c.state.partitions.values())
        assert not self.c.state.merged


Splitting.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestSplitting = Splitting.TestCase
