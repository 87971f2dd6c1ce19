"""Plans of many partitions on many nodes. They make the fewest moves, and the planners' work grows in proportion to the
table, not to its square. Times are measured in `benchmarks/placement.py`.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import minkad.core.placement
from minka.v1.admin_pb2 import Plan, PlanReassignRequest
from minka.v1.cluster_pb2 import Keyspace, Node, NodeState, Partition, PartitionState
from minkad.core.controller import drains
from minkad.core.controller.drains import DrainNode
from minkad.core.controller.reassigns import ApplyPlan
from minkad.core.placement import plan_reassign
from minkad.core.state import Placed, State
from tests.unit.core.model import Controller
from tests.unit.core.placed import assign_replicas

PLANNERS = str(Path(minkad.core.placement.__file__).parent)


def a_table(nodes: int, partitions: int, *, more: int = 0, zones: int = 0, keyspaces: int = 1) -> State:
    """Make a table of partitions with three replicas, evenly on the first `nodes` nodes; `more` nodes are empty."""
    state = State()
    rows = [
        Node(id=f"n{i:04}", state=NodeState.NODE_STATE_LIVE, zone=f"z{i % zones}" if zones else "")
        for i in range(nodes + more)
    ]
    state.nodes = {row.id: row for row in rows}
    for keyspace in range(1, keyspaces + 1):
        state.keyspaces[keyspace] = Keyspace(id=keyspace, name=f"k{keyspace}", replicas=3, min_insync=2)
        for slot, replicas in enumerate(assign_replicas(rows[:nodes], partitions // keyspaces, 3)):
            row = Partition(
                id=len(state.partitions) + 1, keyspace_id=keyspace, slot=slot, replicas=replicas, isr=replicas,
                leader=replicas[0], state=PartitionState.PARTITION_STATE_ONLINE,
            )  # fmt: skip
            state.partitions.put(row)
    return state


def planned(state: State, *drain: str) -> Plan:
    return plan_reassign(state, {}, PlanReassignRequest(drain=drain), 0)


def lines_of(work: Callable[[], object]) -> int:
    """Do the work. Returns the number of lines of code that the planners executed, which is the same in each run."""
    lines = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(PLANNERS):
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("zones", [0, 3, 10])
def test_new_nodes_get_their_share_with_the_fewest_moves(zones: int) -> None:
    plan = planned(a_table(100, 3000, more=8, zones=zones))
    share = 3 * 3000 // 108
    has = {n.node: n.partitions_after for n in plan.nodes}
    moved = [m for m in plan.moves if set(m.replicas) != set(m.target_replicas)]
    assert set(has.values()) == {share, share + 1}
    # Every plan with equal shares has to move as many replicas to the new nodes as these nodes have in the end. This
    # plan moves no other replicas.
    assert len(moved) == plan.minimum_moves == sum(has[f"n{i:04}"] for i in range(100, 108)) <= 8 * (share + 1)
    assert not plan.notes


def test_nodes_of_one_zone_have_equal_shares() -> None:
    """Each of three zones has one replica of each partition, so nodes of larger zones have fewer replicas."""
    state = a_table(9, 300, zones=3)
    state.nodes |= {f"new{i}": Node(id=f"new{i}", state=NodeState.NODE_STATE_LIVE, zone="z1") for i in range(2)}
    plan = planned(state)
    has = {n.node: n.partitions_after for n in plan.nodes}
    zones = {zone: [has[n.id] for n in state.nodes.values() if n.zone == zone] for zone in ("z0", "z1", "z2")}
    assert zones == {"z0": [100] * 3, "z1": [60] * 5, "z2": [100] * 3}
    assert not plan.notes
    assert plan.minimum_moves == 120 == sum(m.target.startswith("new") for m in plan.moves if m.target)


@pytest.mark.parametrize("zones", [0, 3])
@pytest.mark.parametrize("drains", [False, True])
def test_the_work_is_proportional_to_the_table(zones: int, drains: bool) -> None:
    def work(size: int) -> int:
        state = a_table(40 * size, 1000 * size, more=0 if drains else 2 * size, zones=zones)
        return lines_of(lambda: planned(state, *[f"n{i:04}" for i in range(2 * size if drains else 0)]))

    assert work(4) < 4.6 * work(1)  # four times the work, and a little more for sorting


def test_the_work_does_not_grow_with_the_number_of_keyspaces() -> None:
    def work(keyspaces: int) -> int:
        state = a_table(10, 1000, more=1, keyspaces=keyspaces)
        return lines_of(lambda: planned(state))

    assert work(50) < 1.2 * work(1)


def test_leaders_are_spread_by_a_few_looks_at_the_table() -> None:
    """At first the leaders are uneven: each partition prefers its replica on the node with the smallest id."""

    def work(size: int) -> int:
        state = a_table(20 * size, 1000 * size)
        for row in list(state.partitions.values()):
            row.replicas.sort()
        plans = list[Plan]()
        lines = lines_of(lambda: plans.append(planned(state)))
        leaders = [n.leaders_after for n in plans[0].nodes]
        assert (min(leaders), max(leaders)) == (50, 50)
        return lines

    assert work(4) < 6 * work(1)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets an element for each plan that the controller makes for a drain."""

    def planner(*args: Any) -> Plan:
        plans.append(1)
        return plan_reassign(*args)

    plans = list[int]()
    monkeypatch.setattr(drains, "plan_reassign", planner)
    return plans


def test_a_decommission_uses_the_plan_made_before_if_it_still_holds(made: list[int]) -> None:
    c = Controller()
    c.register("a", "b")
    c.keyspace("k", 8)
    plan = c.plan(drain=["a"])
    c.register("c")
    c.run(DrainNode("a", True, "ann", "", {}, plan=plan))
    assert not made
    assert {m.target for m in c.state.migrations[1].values()} == {"b"}


@pytest.mark.parametrize("change", ["one is moved", "another one came", "the target is drained"])
def test_a_decommission_is_planned_again_if_something_has_changed(made: list[int], change: str) -> None:
    c = Controller()
    c.register("a", "b", "c")
    c.keyspace("k", 9)
    stale = c.plan(drain=["a"])
    first = stale.moves[0]
    match change:
        case "one is moved":
            c.run(ApplyPlan(c.plan(partitions={first.partition_id: [first.target]}), "ann"))
        case "another one came":
            c.keyspace("more", 3)
        case "the target is drained":
            c.run(DrainNode(first.target, False, "ann", "", {}))
    c.run(DrainNode("a", True, "ann", "", {}, plan=stale))
    assert made
    planned = {m.partition_id: m.target for m in c.state.migrations[max(c.state.operations)].values()}
    left = {Placed.partition(row.id) for row in c.state.partitions_on("a")} - c.state.moving.keys()
    assert not left
    assert change != "the target is drained" or first.target not in planned.values()
