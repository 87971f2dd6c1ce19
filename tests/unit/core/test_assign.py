"""The choice of nodes for the replicas of new partitions."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from minka.v1.cluster_pb2 import Node
from tests.unit.core.placed import assign_replicas


@given(nodes=st.integers(1, 12), replicas=st.integers(1, 5), partitions=st.integers(1, 80))
def test_leaders_and_replicas_are_spread_evenly(nodes: int, replicas: int, partitions: int) -> None:
    replicas = min(replicas, nodes)
    placed = assign_replicas([Node(id=f"n{i:02}") for i in range(nodes)], partitions, replicas)
    assert all(len(set(p)) == replicas for p in placed)
    leaders, copies = Counter(p[0] for p in placed), Counter(n for p in placed for n in p)
    for counts in (leaders, copies):
        each = [counts[f"n{i:02}"] for i in range(nodes)]
        assert max(each) - min(each) <= 1


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), replicas=st.integers(1, 4), partitions=st.integers(1, 40)
)
def test_a_zone_is_shared_only_if_there_are_too_few(sizes: list[int], replicas: int, partitions: int) -> None:
    nodes = [Node(id=f"z{z}n{i}", zone=f"z{z}") for z, size in enumerate(sizes) for i in range(size)]
    replicas = min(replicas, len(nodes))
    for placed in assign_replicas(nodes, partitions, replicas):
        assert len(set(placed)) == replicas
        assert len({n.split("n")[0] for n in placed}) == min(replicas, len(sizes))


def test_zones_of_equal_size_get_equal_shares() -> None:
    nodes = [Node(id=f"z{z}n{i}", zone=f"z{z}") for z in range(3) for i in range(2)]
    placed = assign_replicas(nodes, 60, 3)
    assert set(Counter(n for p in placed for n in p).values()) == {30}
    assert set(Counter(p[0] for p in placed).values()) == {10}


def test_many_nodes_follow_the_partitions_that_one_node_leads() -> None:
    placed = assign_replicas([Node(id=f"n{i:02}") for i in range(10)], 1000, 2)
    assert len({p[1] for p in placed if p[0] == "n00"}) >= 8
