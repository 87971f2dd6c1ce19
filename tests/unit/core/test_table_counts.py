"""The table's counts are updated with each changed row. They always equal counts over all rows."""

from collections import Counter
from collections.abc import Collection
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from minka.cluster.in_sync import is_under_min_insync, missing_in_sync
from minka.v1.admin_pb2 import NodeCounts, NodeShare, TableSummary, ZoneCounts
from minka.v1.cluster_pb2 import Keyspace, Node, NodeState, Partition, PartitionState
from minkad.core import table_counts
from minkad.core.table_counts import TableCounts

ONLINE, OFFLINE = PartitionState.PARTITION_STATE_ONLINE, PartitionState.PARTITION_STATE_OFFLINE
NODES = [Node(id=name, state=NodeState.NODE_STATE_LIVE, zone=zone) for name, zone in zip("abcd", "xxyz", strict=True)]
ZONES = {node.id: node.zone for node in NODES}
KEYSPACES = {
    1: Keyspace(id=1, name="flights", replicas=3, min_insync=2),
    2: Keyspace(id=2, name="fares", replicas=4),
}


@st.composite
def rows(draw: st.DrawFn) -> Partition:
    replicas = draw(st.permutations("abcd"))[: draw(st.integers(1, 4))]
    some = st.lists(st.sampled_from(replicas), unique=True)
    isr = draw(some)
    return Partition(
        id=draw(st.integers(1, 6)),
        keyspace_id=draw(st.sampled_from([1, 2])),
        replicas=replicas,
        isr=isr,
        leader=draw(st.sampled_from([*isr, ""])),
        state=draw(st.sampled_from([ONLINE, OFFLINE, PartitionState.PARTITION_STATE_ASSIGNED])),
        adding_replicas=[node for node in draw(some) if node not in isr],
        removing_replicas=draw(some),
        target_replicas=draw(st.one_of(st.just([]), some)),
        leader_epoch=draw(st.integers(0, 3)),
    )


sizes = st.tuples(st.integers(1, 6), st.integers(0, 9), st.integers(0, 99))
changes = st.one_of(rows(), st.integers(1, 6), sizes, st.none())  # a row, a deletion, a size, a pause


def counted(table: dict[int, Partition], reported: dict[int, tuple[int, int]]) -> TableSummary:
    """Compute the expected summary from all rows."""

    def number(of: Any) -> int:
        return sum(1 for row in table.values() if of(row))

    found = TableSummary(
        partitions=len(table),
        reassigned=number(lambda row: row.target_replicas),
        under_replicated=number(missing_in_sync),
        under_min_insync=number(lambda row: is_under_min_insync(row, KEYSPACES[row.keyspace_id])),
    )
    found.nodes.extend(on_node(name, table.values(), reported) for name in "abcd")
    for id_ in KEYSPACES:
        own = [row for row in table.values() if row.keyspace_id == id_]
        found.keyspaces.add(
            keyspace_id=id_,
            partitions=len(own),
            online=sum(row.state == ONLINE for row in own),
            assigned=sum(row.state == PartitionState.PARTITION_STATE_ASSIGNED for row in own),
            offline=sum(row.state == OFFLINE for row in own),
            keys=sum(reported.get(row.id, (0, 0))[0] for row in own),
            bytes=sum(reported.get(row.id, (0, 0))[1] for row in own),
            shares=shares(own),
        )
    found.zones.extend(without_zone(zone, table.values()) for zone in "xyz")
    return found


def shares(own: Collection[Partition]) -> list[NodeShare]:
    """Return a keyspace's counts for each node, or an empty list if the nodes differ little."""
    elected = [row.replicas[0] if row.replicas[0] in row.isr else row.leader for row in own]
    found = [
        NodeShare(
            replicas=sum(name in row.replicas for row in own),
            leads=sum(row.leader == name for row in own),
            preferred=sum(row.replicas[0] == name for row in own),
            leads_if_elected=elected.count(name),
        )
        for name in "abcd"
    ]
    fields = ("replicas", "leads", "preferred", "leads_if_elected")
    counts = [[getattr(one, field) for one in found] for field in fields]
    return found if any(max(numbers) - min(numbers) >= table_counts.LEAST_UNEVEN for numbers in counts) else []


def without_zone(zone: str, table: Collection[Partition]) -> ZoneCounts:
    """Count the served partitions that would be offline, or would refuse writes, if this zone were gone."""
    found = ZoneCounts(zone=zone)
    for row in table:
        least, left = KEYSPACES[row.keyspace_id].min_insync, [node for node in row.isr if ZONES[node] != zone]
        if row.state != OFFLINE and len(left) < len(row.isr) >= least:
            found.would_be_offline += not left
            found.would_refuse_writes += 0 < len(left) < least
    return found


def on_node(name: str, table: Collection[Partition], reported: dict[int, tuple[int, int]]) -> NodeCounts:
    held = [row for row in table if name in row.replicas]
    refusing = [row for row in held if is_under_min_insync(row, KEYSPACES[row.keyspace_id])]
    elected = [row.replicas[0] if row.replicas[0] in row.isr else row.leader for row in table]
    return NodeCounts(
        node_id=name,
        replicas=len(held),
        staying=sum(name not in row.removing_replicas for row in held),
        leads=sum(row.leader == name for row in table),
        leads_online=sum(row.leader == name and row.state == ONLINE for row in table),
        preferred=sum(row.replicas[0] == name for row in table),
        leads_if_elected=elected.count(name),
        movable=sum(row.keyspace_id == 1 for row in held),
        sole=sum(not set(row.isr) - {name} for row in held),
        needed_replicas=max((KEYSPACES[row.keyspace_id].replicas for row in held), default=0),
        offline_in_sync=sum(row.state == OFFLINE and name in row.isr for row in held),
        keeps_from_writes=sum(name not in row.isr for row in refusing),
        bytes=sum(reported.get(row.id, (0, 0))[1] for row in held),
    )


@given(st.lists(changes, max_size=40))
def test_updated_counts_equal_counts_of_all_rows(steps: list[Any]) -> None:
    counts, table, reported = TableCounts(), dict[int, Partition](), dict[int, tuple[int, int]]()
    assert not list(counts.place(ZONES))
    for step in steps:
        if isinstance(step, Partition):
            table[step.id] = step
            counts.put(step.id, step)
        elif isinstance(step, int):
            table.pop(step, None)
            reported.pop(step, None)
            counts.put(step, None)
        elif step is None:
            counts.settle(KEYSPACES)
        elif step[0] in table:
            reported[step[0]] = step[1:]
            counts.put_size(*step)
    counts.settle(KEYSPACES)
    summary = counts.summary(NODES, KEYSPACES.values())
    lacking = {frozenset(one.nodes): one.partitions for one in summary.not_in_sync}
    under = [row for row in table.values() if missing_in_sync(row)]
    assert lacking == Counter(frozenset(row.replicas) - {*row.isr, *row.adding_replicas} for row in under)
    summary.ClearField("not_in_sync")
    summary.ClearField("others_not_in_sync")
    assert summary == counted(table, reported)


def test_a_node_that_changes_its_zone_is_counted_in_the_new_one() -> None:
    counts = TableCounts()
    assert not list(counts.place(dict.fromkeys("abc", "x")))
    for id_ in range(1, 4):
        counts.put(id_, Partition(id=id_, keyspace_id=1, replicas="abc", isr="abc", leader="a", state=ONLINE))
    counts.settle(KEYSPACES)
    nodes = [Node(id=name, zone=zone) for name, zone in zip("abc", "xxy", strict=True)]
    given_up = counts.place({node.id: node.zone for node in nodes})
    next(given_up)
    for _ in range(2):
        list(counts.place({node.id: node.zone for node in nodes}))
        assert list(counts.summary(nodes, ()).zones) == [
            ZoneCounts(zone="x", would_refuse_writes=3),
            ZoneCounts(zone="y"),
        ]


def test_a_partitions_size_counts_for_its_present_nodes_and_keyspace() -> None:
    counts = TableCounts()
    counts.put(1, Partition(id=1, keyspace_id=1, replicas="ab", isr="ab", leader="a"))
    counts.put_size(1, 5, 50)
    counts.put(1, Partition(id=1, keyspace_id=2, replicas="bc", isr="bc", leader="b"))
    counts.settle(KEYSPACES)
    summary = counts.summary(NODES, KEYSPACES.values())
    assert [node.bytes for node in summary.nodes] == [0, 50, 50, 0]
    assert [(keyspace.keys, keyspace.bytes) for keyspace in summary.keyspaces] == [(0, 0), (5, 50)]
    counts.put(1, None)
    counts.settle(KEYSPACES)
    assert not any(node.bytes for node in counts.summary(NODES, ()).nodes)


def test_replicas_that_are_in_sync_again_are_not_listed() -> None:
    counts = TableCounts()
    for isr in ("ab", "abc"):
        counts.put(1, Partition(id=1, keyspace_id=1, replicas="abc", isr=isr, leader="a"))
        counts.settle(KEYSPACES)
    assert not counts.summary(NODES, ()).not_in_sync


def test_the_nodes_that_lack_most_replicas_are_listed_and_the_rest_summed(monkeypatch: Any) -> None:
    monkeypatch.setattr(table_counts, "MAX_NOT_IN_SYNC", 2)
    counts = TableCounts()
    for id_, isr in enumerate(["ab", "ab", "ac", "ac", "bc", "a"], 1):
        counts.put(id_, Partition(id=id_, keyspace_id=1, replicas="abc", isr=isr, leader=isr[0], state=ONLINE))
    counts.settle(KEYSPACES)
    summary = counts.summary(NODES, KEYSPACES.values())
    assert sorted((list(one.nodes), one.partitions) for one in summary.not_in_sync) == [(["b"], 2), (["c"], 2)]
    assert (list(summary.others_not_in_sync.nodes), summary.others_not_in_sync.partitions) == (["a", "b", "c"], 2)


def test_equal_rows_are_added_up_together(monkeypatch: Any) -> None:
    added = []
    monkeypatch.setattr(TableCounts, "_add", lambda self, kind, count, keyspace: added.append(count))
    counts = TableCounts()
    for id_ in range(1, 1001):
        counts.put(id_, Partition(id=id_, keyspace_id=1, replicas="abc", isr="abc", leader="abc"[id_ % 3]))
    counts.settle(KEYSPACES)
    assert sorted(added) == [333, 333, 334]
