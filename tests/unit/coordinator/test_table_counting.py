"""A node's counts follow each change of its table, whether by a record or by a snapshot."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minka.v1.cluster_pb2 import Keyspace, Node, NodeState, Partition, PartitionState
from minka.v1.coordinator_pb2 import DamagedReplica, HeartbeatRequest, ReplicaStats
from minkad.coordinator import table_counting
from minkad.coordinator.node_reports import NodeReports
from minkad.coordinator.table_counting import TableCounting
from minkad.core.state import State
from minkad.core.state.row_changes import Changed
from minkad.core.table_counts import TableCounts

ONLINE, ASSIGNED = PartitionState.PARTITION_STATE_ONLINE, PartitionState.PARTITION_STATE_ASSIGNED
OFFLINE = PartitionState.PARTITION_STATE_OFFLINE


class World:
    """A coordinator with a table of `count` partitions. Each has replicas on a, b and c, and a or b leads it."""

    def __init__(self, count: int) -> None:
        self.state = State()
        self.state.keyspaces[1] = Keyspace(id=1, name="flights", replicas=3, min_insync=2)
        for name in "abc":
            self.state.nodes[name] = Node(id=name, state=NodeState.NODE_STATE_LIVE)
        self.change(*(self.row(id_) for id_ in range(1, count + 1)))
        self.coordinator = SimpleNamespace(state=self.state, active=None)
        self.now = 0.0
        self.counting = TableCounting(cast(Any, self.coordinator), lambda: self.now)

    def row(self, id_: int, leader: str = "", isr: str = "abc", **more: Any) -> Partition:
        fields = {"keyspace_id": 1, "state": ONLINE, "replicas": "abc", "isr": isr, **more}
        return Partition(id=id_, leader=leader or "ab"[id_ % 2], **fields)

    def change(self, *rows: Partition) -> None:
        for row in rows:
            self.state.partitions.put(row)
        self.state._note(Changed(partitions=frozenset(row.id for row in rows)))

    def lead(self) -> NodeReports:
        reports = NodeReports(self.state, self.state)
        self.coordinator.active = SimpleNamespace(reports=reports)
        return reports

    def report(self, reports: NodeReports, node: str, *ids: int, size: int = 100) -> None:
        stats = [ReplicaStats(partition_id=id_, keys=size // 10, bytes=size) for id_ in ids]
        reports.note(self.state.nodes[node], HeartbeatRequest(replicas=stats), 0.0)


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions whose rows have been counted, in order."""
    seen: list[int] = []
    whole = TableCounts.put

    def noted(self: TableCounts, partition_id: int, row: Partition | None) -> None:
        seen.append(partition_id)
        whole(self, partition_id, row)

    monkeypatch.setattr(TableCounts, "put", noted)
    return seen


async def test_a_summary_counts_only_the_rows_that_have_changed(put: list[int]) -> None:
    world = World(1000)
    assert (await world.counting.summary(())).partitions == 1000
    assert len(put) == 1000
    put.clear()
    assert (await world.counting.summary(())).under_replicated == 0
    assert put == []
    world.change(world.row(7, isr="ab"), world.row(8, leader="c"))
    summary = await world.counting.summary(())
    assert sorted(put) == [7, 8]
    assert (summary.under_replicated, [one.leads for one in summary.nodes]) == (1, [499, 500, 1])


async def test_each_turn_counts_at_most_one_piece(monkeypatch: pytest.MonkeyPatch, put: list[int]) -> None:
    turns: list[int] = []

    async def turn() -> None:
        turns.append(len(put))

    monkeypatch.setattr(table_counting, "turn", turn)
    await World(1000).counting.count()
    assert turns == [250, 500, 750, 1000]


async def test_rows_that_change_during_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    world, left = World(1000), [1]

    async def turn() -> None:
        if left:
            world.change(world.row(left.pop(), isr="a"))

    monkeypatch.setattr(table_counting, "turn", turn)
    await world.counting.count()
    assert (await world.counting.summary(())).under_min_insync == 1


async def test_rows_that_were_deleted_before_a_snapshot_was_restored() -> None:
    world = World(10)
    await world.counting.count()
    del world.state.partitions[3]
    for _ in range(3):  # the copy is like a restored snapshot: another state, which doesn't remember these changes
        world.state.version += 1
    restored = world.state.copy()
    world.coordinator.state = restored
    assert (await world.counting.summary(())).partitions == 9


async def test_a_keyspace_that_is_being_created_is_not_counted() -> None:
    world = World(10)
    world.state.incomplete.add(1)
    summary = await world.counting.summary(())
    assert (summary.partitions, len(summary.keyspaces)) == (0, 0)
    world.state.incomplete.clear()
    world.change(*world.state.partitions.values())
    assert (await world.counting.summary(())).partitions == 10


async def test_sizes_are_those_that_the_leaders_report() -> None:
    world = World(4)
    assert (await world.counting.summary(())).keyspaces[0].bytes == 0, "only the active controller gets reports"
    reports = world.lead()
    world.report(reports, "b", 1, 2, 3)  # 2 doesn't count: b leads only 1 and 3
    world.report(reports, "a", 2, size=50)
    summary = await world.counting.summary(())
    assert (summary.keyspaces[0].keys, summary.keyspaces[0].bytes) == (25, 250)
    assert [one.bytes for one in summary.nodes] == [250, 250, 250]
    world.report(reports, "b", 3, size=300)
    assert (await world.counting.summary(())).keyspaces[0].bytes == 450
    world.change(world.row(2, leader="b"))
    assert (await world.counting.summary(())).keyspaces[0].bytes == 450, "b leads 2 now, but hasn't reported since"
    world.report(reports, "b", 2)
    assert (await world.counting.summary(())).keyspaces[0].bytes == 500
    world.lead()
    assert (await world.counting.summary(())).keyspaces[0].bytes == 0, "a new active controller has no reports yet"


async def test_partitions_that_are_only_on_silent_nodes() -> None:
    world = World(3)
    world.change(
        world.row(1, replicas="a", isr="a", leader="a"),
        world.row(2, replicas="ba", isr="ba", leader="b"),
        world.row(3, replicas="bac", isr="ba", leader="b", adding_replicas="c"),
    )
    assert [(await world.counting.summary(silent)).only_on_silent for silent in ("", "a", "ab", "c")] == [0, 1, 3, 0]


async def test_partitions_whose_leader_has_a_damaged_copy() -> None:
    world = World(4)
    reports = world.lead()
    world.change(world.row(1, replicas="b", isr="b", state=ASSIGNED), world.row(3, isr="bc"))
    damaged = [DamagedReplica(partition_id=id_, reason="CORRUPT_DATA: gone") for id_ in (1, 2, 3)]
    reports.note(world.state.nodes["b"], HeartbeatRequest(from_start=True, damaged=damaged), 0.0)
    found = (await world.counting.summary(())).unserved
    told = [(one.partition, one.node_id, one.is_alone, list(one.others)) for one in found.leaders]
    assert told == [("flights/0", "b", True, []), ("flights/0", "b", False, ["a", "c"])], "a leads 2"
    assert found.leaders[0].reason == "CORRUPT_DATA: gone"
    assert [(one.node_id, one.damaged, one.damaged_online) for one in found.nodes] == [("b", 2, 1)]
    assert (found.damaged, found.unconfirmed) == (2, 0)
    world.now = 10.0
    assert (await world.counting.summary(())).unserved.unconfirmed == 0, "it is told as damaged"


async def test_damaged_copies_do_not_count_as_copies_that_could_lead() -> None:
    world = World(4)
    reports = world.lead()
    world.state.nodes["a"] = Node(id="a", state=NodeState.NODE_STATE_FAILED)
    led: dict[str, Any] = {"state": ASSIGNED, "isr": "b", "leader": "b", "eligible": "ac"}
    offline = Partition(id=2, keyspace_id=1, state=OFFLINE, replicas="ac", isr="a")
    world.change(world.row(1, **led), offline, world.row(3, leader="c"), world.row(4, leader="c"))
    for node, *ids in ("b", 1), ("c", 1, 2):
        damaged = [DamagedReplica(partition_id=id_, reason="CORRUPT_DATA: gone") for id_ in ids]
        reports.note(world.state.nodes[node], HeartbeatRequest(from_start=True, damaged=damaged), 0.0)
    found = (await world.counting.summary(())).unserved
    assert [(one.node_id, list(one.others), list(one.eligible)) for one in found.leaders] == [("b", ["a"], ["a"])]
    assert (found.without_copy, {one.node_id: one.without_copy for one in found.nodes}) == (1, {"a": 1, "b": 0})


async def test_a_leader_that_does_not_confirm_is_reported_after_a_while() -> None:
    world = World(4)
    world.lead()
    world.change(world.row(1, state=ASSIGNED))
    for now, told in ((0.0, 0), (2.9, 0), (3.0, 1)):
        world.now = now
        assert (await world.counting.summary(())).unserved.unconfirmed == told
    assert list((await world.counting.summary(())).unserved.unconfirmed_by) == ["b"]
    world.change(world.row(1))
    assert (await world.counting.summary(())).unserved.unconfirmed == 0


async def test_each_leader_has_its_own_time_to_confirm() -> None:
    world = World(4)
    world.lead()
    world.change(world.row(1, state=ASSIGNED, leader_epoch=1))
    await world.counting.count()
    # The own time of c begins when its row is counted: at 10 s.
    world.change(world.row(1, leader="c", state=ASSIGNED, leader_epoch=2))
    world.now = 10.0
    assert (await world.counting.summary(())).unserved.unconfirmed == 0
    world.now = 13.0
    assert list((await world.counting.summary(())).unserved.unconfirmed_by) == ["c"]


async def test_a_new_active_controller_gives_leaders_the_whole_time_to_confirm() -> None:
    world = World(4)
    world.change(world.row(1, state=ASSIGNED))
    await world.counting.count()
    world.lead()
    world.now = 10.0
    assert (await world.counting.summary(())).unserved.unconfirmed == 0


async def test_a_partition_that_never_had_a_leader_does_not_count_as_unconfirmed() -> None:
    world = World(4)
    world.lead()
    new = PartitionState.PARTITION_STATE_NEW
    world.change(Partition(id=1, keyspace_id=1, state=new, replicas="b"))
    await world.counting.count()
    world.now = 10.0
    assert (await world.counting.summary(())).unserved.unconfirmed == 0


async def test_offline_partitions_without_any_copy_that_could_lead() -> None:
    world = World(4)
    world.lead()
    for name in "ab":
        world.state.nodes[name] = Node(id=name, state=NodeState.NODE_STATE_FAILED)
    rows = [
        Partition(id=id_, keyspace_id=1, state=OFFLINE, replicas=on, isr=on[0]) for id_, on in ((1, "ab"), (2, "ac"))
    ]
    world.change(*rows, world.row(3, leader="c"), world.row(4, leader="c"))
    summary = await world.counting.summary(())
    found, by_node = summary.unserved, {one.node_id: one.without_copy for one in summary.unserved.nodes}
    assert (found.without_copy, by_node) == (1, {"a": 1}), "partition 2 has a live copy, on c"
    assert [one.sole for one in summary.nodes] == [2, 0, 0]
