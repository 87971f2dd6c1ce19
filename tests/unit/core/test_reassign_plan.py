"""The planner of reassignments makes the fewest moves, with reasons. The controller applies the whole plan or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.cluster.plan_digest import plan_digest
from minka.errors import Code, MinkaError
from minkad.core.controller.reassigns import ApplyPlan
from tests.unit.core.model import Controller


def test_a_fourth_node_gets_its_share_of_30_partitions() -> None:
    c = Controller()
    c.register("athens", "byzantium", "cyrene")
    c.keyspace("flights", 30)
    c.register("ephesus")
    plan = c.plan()
    assert len(plan.moves) == plan.minimum_moves == 7
    assert sorted(n.partitions_after for n in plan.nodes) == [7, 7, 8, 8]
    assert {m.target for m in plan.moves} == {"ephesus"}
    assert all(m.reason for m in plan.moves)


@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    added=st.integers(0, 3),
    sizes=st.lists(st.integers(0, 10_000), min_size=72, max_size=72),
)
def test_every_plan_evens_out_with_the_fewest_moves(counts: list[int], added: int, sizes: list[int]) -> None:
    c = Controller()
    names = [f"n{i}" for i in range(len(counts))]
    c.register(*names)
    if sum(counts):
        c.keyspace("k", sum(counts))
        owners = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
        for partition, owner in zip(list(c.state.partitions.values()), owners, strict=True):
            row = type(partition)()
            row.CopyFrom(partition)
            row.leader, row.replicas[:], row.isr[:] = owner, [owner], [owner]
            c.state.partitions.put(row)
    c.register(*(f"new{i}" for i in range(added)))
    plan = c.plan(sizes={p: sizes[p % 72] for p in c.state.partitions})
    after = [n.partitions_after for n in plan.nodes]
    assert max(after) - min(after) <= 1
    assert sum(after) == sum(counts)
    assert len(plan.moves) == plan.minimum_moves
    # Brute force tries each choice of the nodes that get one partition more than the others. No choice needs fewer
    # moves.
    assert plan.minimum_moves == _brute_force(dict(zip(names, counts, strict=True)), sorted(c.state.nodes))


def _brute_force(counts: dict[str, int], nodes: list[str]) -> int:
    from itertools import combinations

    total = sum(counts.values())
    floor, extra = divmod(total, len(nodes))
    return min(
        sum(max(0, counts.get(n, 0) - floor - (n in chosen)) for n in nodes) for chosen in combinations(nodes, extra)
    )


def test_nodes_outside_of_the_plan_give_up_everything() -> None:
    c = Controller()
    c.register("a", "b", "c")
    c.keyspace("k", 9)
    plan = c.plan(["a", "b"])
    assert {m.source for m in plan.moves} == {"c"}
    assert {n.node: n.partitions_after for n in plan.nodes}["c"] == 0


def test_a_changed_plan_or_a_changed_table_is_refused() -> None:
    c = Controller()
    c.register("a", "b")
    c.keyspace("k", 8)
    c.register("new")
    plan = c.plan()
    plan.moves[0].target = "b"
    with pytest.raises(MinkaError) as damaged:
        c.run(ApplyPlan(plan, "tester", ""))
    assert damaged.value.code is Code.DAMAGED_PLAN
    plan = c.plan()
    c.fail("b")
    with pytest.raises(MinkaError) as stale:
        c.run(ApplyPlan(plan, "tester", ""))
    assert stale.value.code is Code.STALE_PLAN


def test_the_refusal_names_unknown_nodes_and_offline_partitions() -> None:
    c = Controller()
    c.register("a", "b")
    c.keyspace("k", 4)
    with pytest.raises(MinkaError, match="no node zeta") as unknown:
        c.plan(["zeta"])
    assert unknown.value.code is Code.UNKNOWN_NODE
    c.fail("b")
    with pytest.raises(MinkaError, match="k/1 is OFFLINE") as offline:
        c.plan(partitions={2: ["a"]})
    assert offline.value.code is Code.NO_SOURCE


def test_the_digest_covers_every_field() -> None:
    c = Controller()
    c.register("a")
    c.keyspace("k", 4)
    c.register("b")
    plan = c.plan()
    assert plan.digest == plan_digest(plan)
    plan.moves[0].reason += "."
    assert plan.digest != plan_digest(plan)
