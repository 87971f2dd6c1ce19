"""Plans for several replicas: the fewest moves, zones, weights, capacities, drains, preferred leaders."""

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minka.cluster.plan_digest import plan_digest
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import Plan
from minka.v1.cluster_pb2 import Node
from minkad.core.controller.reassigns import ApplyPlan
from minkad.core.placement.quotas import even_quotas, filled_quotas
from tests.unit.core.model import Controller


def a_cluster(nodes: int, partitions: int, replicas: int, zones: int = 0) -> Controller:
    c = Controller()
    for i in range(nodes):
        c.register(f"n{i}", zone=f"z{i % zones}" if zones else "")
    c.keyspace("flights", partitions, replicas=replicas)
    return c


def layout(c: Controller, plan: Plan) -> dict[int, list[str]]:
    """Return the replicas after the plan. Check that each move adds at most one replica, on a node that has none."""
    replicas = {p.id: list(p.replicas) for p in c.state.partitions.values()}
    for move in plan.moves:
        assert list(move.replicas) == replicas[move.partition_id]
        after = list(move.target_replicas)
        assert len(set(after)) == len(after) == len(move.replicas)
        assert len(set(after) - set(move.replicas)) <= 1
        assert move.reason
        replicas[move.partition_id] = after
    return replicas


def copies(replicas: dict[int, list[str]]) -> Counter[str]:
    return Counter(node for nodes in replicas.values() for node in nodes)


def leads(replicas: dict[int, list[str]]) -> Counter[str]:
    return Counter(nodes[0] for nodes in replicas.values())


@settings(max_examples=60, deadline=None)
@given(nodes=st.integers(3, 7), added=st.integers(0, 3), replicas=st.integers(1, 3), partitions=st.integers(1, 30))
def test_replicas_and_leaders_even_out_with_the_fewest_moves(
    nodes: int, added: int, replicas: int, partitions: int
) -> None:
    c = a_cluster(nodes, partitions, replicas)
    c.register(*(f"new{i}" for i in range(added)))
    before = copies({p.id: list(p.replicas) for p in c.state.partitions.values()})
    plan = c.plan()
    after = layout(c, plan)
    each = [copies(after)[n] for n in c.state.nodes]
    assert max(each) - min(each) <= 1, plan.notes
    led = [leads(after)[n] for n in c.state.nodes]
    assert max(led) - min(led) <= 1
    copied = sum(len(set(m.target_replicas) - set(m.replicas)) for m in plan.moves)
    assert copied == plan.minimum_moves == sum(max(0, before[n] - copies(after)[n]) for n in c.state.nodes)
    assert {n.node: (n.partitions_after, n.leaders_after) for n in plan.nodes} == {
        n: (copies(after)[n], leads(after)[n]) for n in c.state.nodes
    }


@settings(max_examples=40, deadline=None)
@given(nodes=st.integers(4, 7), replicas=st.integers(1, 3), partitions=st.integers(1, 24), out=st.integers(0, 3))
def test_a_drain_moves_only_the_replicas_of_its_node(nodes: int, replicas: int, partitions: int, out: int) -> None:
    c = a_cluster(nodes, partitions, replicas)
    there = [p for p in c.state.partitions.values() if f"n{out}" in p.replicas]
    plan = c.plan(drain=[f"n{out}"])
    after = layout(c, plan)
    assert copies(after)[f"n{out}"] == 0
    assert len(plan.moves) == len(there) == plan.minimum_moves
    assert {m.source for m in plan.moves} <= {f"n{out}"}
    each = [copies(after)[n] for n in c.state.nodes if n != f"n{out}"]
    assert max(each) - min(each) <= 2


def test_replicas_share_no_zone_after_a_reassignment_either() -> None:
    c = a_cluster(6, 30, 3, zones=3)
    c.register("new", zone="z1")
    after = layout(c, c.plan())
    zones = {n.id: n.zone for n in c.state.nodes.values()}
    assert all(len({zones[n] for n in nodes}) == 3 for nodes in after.values())
    assert copies(after)["new"] > 0


def test_the_only_node_of_a_zone_is_drained_although_replicas_then_share_a_zone() -> None:
    c = a_cluster(3, 6, 3, zones=3)
    c.register("new", zone="z0")
    plan = c.plan(drain=["n1"])
    assert copies(layout(c, plan))["new"] == 6
    assert len(plan.notes) == 6
    assert "has to share a zone" in plan.notes[0]


def test_nodes_get_shares_by_the_weights_in_the_request() -> None:
    c = a_cluster(3, 40, 1)
    plan = c.plan(weights={"n0": 2.0})
    assert copies(layout(c, plan)) == {"n0": 20, "n1": 10, "n2": 10}
    assert len(plan.moves) == plan.minimum_moves
    with pytest.raises(MinkaError) as refusal:
        c.plan(weights={"n0": 0.0})
    assert refusal.value.code is Code.INVALID_ARGUMENT


def test_nodes_get_shares_by_their_own_weights() -> None:
    c = a_cluster(3, 40, 1)
    c.register("big", weight=2)
    assert copies(layout(c, c.plan())) == {"n0": 8, "n1": 8, "n2": 8, "big": 16}
    assert copies(layout(c, c.plan(weights={"big": 1.0}))) == {"n0": 10, "n1": 10, "n2": 10, "big": 10}
    c.settle()
    c.begin(c.plan())
    c.settle()
    assert not c.plan().moves, "the result is stable"


def test_no_node_gets_more_than_its_capacity() -> None:
    c = a_cluster(3, 12, 1)
    c.register("small", capacity=250)
    plan = c.plan(sizes=dict.fromkeys(c.state.partitions, 100))
    after = copies(layout(c, plan))
    assert after["small"] == 2
    assert any("capacity" in note for note in plan.notes)


def test_the_refusal_says_that_too_few_nodes_are_left() -> None:
    c = a_cluster(3, 6, 3)
    with pytest.raises(MinkaError, match="flights keeps 3 replicas, and 2 nodes would be left") as refusal:
        c.plan(drain=["n1"])
    assert refusal.value.code is Code.NOT_ENOUGH_NODES
    with pytest.raises(MinkaError, match="no node is left"):
        c.plan(to=["n1"], drain=["n1"])


def two_dead_of_five() -> Controller:
    """Five nodes that all have replicas of flights. n3 and n4 are dead, and a spare has joined."""
    c = a_cluster(5, 4, 5)
    c.register("spare")
    c.fail("n3", "n4")
    c.take_out_absent()
    return c


def test_a_dead_node_is_replaced_while_another_one_is_down() -> None:
    c = two_dead_of_five()
    plan = c.plan(drain=["n3"])
    assert not plan.notes
    assert {(move.source, move.target) for move in plan.moves} == {("n3", "spare")}
    after = copies(layout(c, plan))
    assert (after["n3"], after["n4"], after["spare"]) == (0, 4, 4), "n4 keeps its replicas: only n3 is drained"


@pytest.mark.parametrize("drain", [["n3", "n4"], []])
def test_replicas_that_no_node_can_take_stay_and_are_named(drain: list[str]) -> None:
    c = two_dead_of_five()
    plan = c.plan(drain=drain)
    after = copies(layout(c, plan))
    assert after["spare"] == 4, "each partition has a fourth live copy"
    assert after["n3"] + after["n4"] == 4
    kept = [note for note in plan.notes if "Let a node join" in note]
    assert sum(int(note.split()[2]) for note in kept) == 4
    assert all(note.startswith(("n3 keeps", "n4 keeps")) and "flights/" in note for note in kept)


def test_an_offline_partition_does_not_keep_others_from_moving() -> None:
    c = a_cluster(4, 4, 2)
    c.keyspace("single", 4)
    c.fail("n3")
    c.take_out_absent()
    offline = next(p for p in c.state.partitions.values() if list(p.replicas) == ["n3"])
    plan = c.plan(drain=["n3"])
    assert {move.partition.split("/")[0] for move in plan.moves} == {"flights"}
    assert copies(layout(c, plan))["n3"] == 1
    assert plan.notes == [
        f"1 partitions of single are OFFLINE and left alone (single/{offline.slot}); their data is on n3"
    ]
    assert c.plan(drain=["n0"]).moves, "a live node can be emptied, too"


def test_a_replica_moves_in_two_steps_if_it_can_not_move_directly() -> None:
    c = Controller()
    c.register("n0", "n1", "n2", "n3")
    c.keyspace("flights", 4, replicas=2)
    rows = list(c.state.partitions.values())
    for row, replicas in zip(rows, (["n0", "n3"], ["n0", "n3"], ["n0", "n1"], ["n1", "n2"]), strict=True):
        changed = type(row)()
        changed.CopyFrom(row)
        changed.replicas[:], changed.isr[:], changed.leader = replicas, replicas, replicas[0]
        c.state.partitions.put(changed)
    after = layout(c, c.plan())
    assert copies(after) == dict.fromkeys(("n0", "n1", "n2", "n3"), 2)


@pytest.mark.parametrize(
    ("replicas", "code", "text"),
    [
        (["n0", "n0"], Code.INVALID_ARGUMENT, "flights/0: n0, n0: a node can have only one replica of it"),
        (["n0"], Code.INVALID_ARGUMENT, "n0: it needs 2 replicas or more (min_insync of keyspace flights)"),
        ([], Code.INVALID_ARGUMENT, "flights/0 needs one replica or more"),
        (["n0", "zeta"], Code.UNKNOWN_NODE, "there is no node zeta"),
        (["n0", "n1", "n4"], Code.NOT_ENOUGH_NODES, "node n4 is not LIVE"),
    ],
)
def test_requests_for_replicas_that_are_refused(replicas: list[str], code: Code, text: str) -> None:
    c = a_cluster(3, 1, 3)
    c.register("n4")
    c.fail("n4")
    with pytest.raises(MinkaError) as refusal:
        c.plan(partitions={1: replicas})
    assert refusal.value.code is code
    assert text in refusal.value.message
    with pytest.raises(MinkaError) as unknown:
        c.plan(partitions={99: ["n0"]})
    assert unknown.value.code is Code.UNKNOWN_PARTITION


def test_a_plan_for_explicit_replicas_has_exactly_those() -> None:
    c = a_cluster(6, 2, 3)
    first = list(c.state.partitions[1].replicas)
    others = [n for n in c.state.nodes if n not in first]
    plan = c.plan(partitions={1: others, 2: list(c.state.partitions[2].replicas)}, sizes={1: 10})
    (move,) = plan.moves
    assert (move.source, move.target, list(move.target_replicas), move.bytes) == ("", "", others, 30)
    assert plan.minimum_moves == 1  # one move replaces all replicas of the partition


def test_plans_name_partitions_with_fewer_replicas_than_their_keyspace() -> None:
    c = a_cluster(3, 2, 3)
    lower = c.plan(partitions={1: c.state.partitions[1].replicas[:2], 2: c.state.partitions[2].replicas[::-1]})
    note = (
        "after this plan, flights/0 has fewer replicas than the 3 of keyspace flights; only a plan that names all "
        "replicas of a partition adds one"
    )
    assert list(lower.notes) == [note]
    c.begin(lower)
    c.settle()
    assert list(c.plan().notes) == [note]
    assert list(c.plan(partitions={1: ["n0", "n1", "n2"]}).notes) == []


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_stated_minimum_of_moves_is_at_most_the_number_of_moves(data: st.DataObject) -> None:
    c = Controller()
    nodes, zones = data.draw(st.integers(3, 6)), data.draw(st.integers(0, 3))
    for i in range(nodes):
        c.register(f"n{i}", zone=f"z{i % zones}" if zones else "", weight=data.draw(st.integers(1, 3)))
    for name in ("flights", "crews"):
        c.keyspace(name, data.draw(st.integers(1, 12)), replicas=data.draw(st.integers(1, 3)))
    for i in range(data.draw(st.integers(0, 3))):
        capacity, zone = data.draw(st.sampled_from([0, 30, 100])), data.draw(st.sampled_from(["", "z0", "z1", "new"]))
        c.register(f"new{i}", zone=zone, capacity=capacity)
    drain = data.draw(st.lists(st.sampled_from(sorted(c.state.nodes)), max_size=2, unique=True))
    sizes = {p: data.draw(st.integers(0, 40)) for p in c.state.partitions}
    scope = data.draw(st.sampled_from([(), ("crews",)]))
    try:
        plan = c.plan(drain=drain, keyspaces=scope, sizes=sizes)
    except MinkaError:  # the drawn request has no plan
        return
    copied = [move for move in plan.moves if set(move.replicas) != set(move.target_replicas)]
    after = layout(c, plan)
    needed = 0
    for keyspace in c.state.keyspaces.values():
        own = [p for p in c.state.partitions.values() if p.keyspace_id == keyspace.id]
        had, has = (copies({p.id: list(x[p.id]) for p in own}) for x in ({p.id: p.replicas for p in own}, after))
        needed += sum(max(0, had[n] - has[n]) for n in had)
    assert plan.minimum_moves == needed <= len(copied)


def test_the_stated_minimum_of_moves_respects_capacity() -> None:
    """An equal share for the new node would need nine moves, but the node has room for only four replicas."""
    c = a_cluster(3, 36, 1)
    c.register("small", capacity=40)
    plan = c.plan(sizes=dict.fromkeys(c.state.partitions, 10))
    assert len(plan.moves) == plan.minimum_moves == 4
    assert "no other node can take one of them" in plan.notes[0]


def test_a_plan_has_a_reason_and_a_rate_limit() -> None:
    c = a_cluster(3, 9, 1)
    c.register("new")
    plan = c.plan(reason="new is new", rate_limit=5 << 20)
    assert plan.digest == plan_digest(plan)
    for field in ("reason", "rate_limit"):
        other = Plan()
        other.CopyFrom(plan)
        other.ClearField(field)
        assert plan_digest(other) != plan.digest
    twin = a_cluster(3, 9, 1)
    twin.register("new")
    for cluster, command, expected in (
        (c, ApplyPlan(plan, "tester"), ("new is new", 5 << 20)),
        (twin, ApplyPlan(plan, "tester", "sooner", 0), ("sooner", 0)),
    ):
        cluster.run(command)
        operation = cluster.state.running_operations()[0]
        assert (operation.reason, operation.rate_limit) == expected


# Quotas: the number of replicas that each node should have


@given(
    counts=st.lists(st.integers(0, 20), min_size=1, max_size=6),
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=6, max_size=6),
)
@example([0, 11, 7, 7], [2.0, 2.0, 3.0, 3.0, 0.5, 0.5])  # n1 has 11 of 25, and its share is exactly 5
def test_quotas_are_shares_within_the_limit_of_a_node(counts: list[int], weights: list[float]) -> None:
    nodes = [f"n{i}" for i in range(len(counts))]
    has, weight = dict(zip(nodes, counts, strict=True)), dict(zip(nodes, weights[: len(nodes)], strict=True))
    total = sum(counts)
    limit = max(1, -(-total // max(1, len(nodes) - 1)))
    for quotas in (even_quotas, filled_quotas):
        result = quotas(has, nodes, weight, max(limit, *counts), Counter())
        assert sum(result.values()) == total
        assert all(q <= max(limit, *counts) for q in result.values())
    unlimited = even_quotas(has, nodes, weight, total + 1, Counter())
    share = total / sum(weight.values())
    assert all(abs(q - share * weight[n]) < 1 for n, q in unlimited.items())


def test_nodes_without_a_zone_do_not_share_one() -> None:
    assert Node().zone == ""
    c = a_cluster(3, 6, 3)
    c.register("new")
    assert copies(layout(c, c.plan()))["new"] == 4
