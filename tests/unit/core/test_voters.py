"""The controller's choice of the voters of the coordinator's Raft group."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Node, NodeState
from minka.v1.raft_pb2 import ConfChangeType, ConfChangeV2, ConfState
from minkad.core.controller.voters import VoterSettings, change_voters, check_transfer, next_membership_change

SETTINGS = VoterSettings(voters=3, replace_after_ms=60_000)
LIVE, FAILED = NodeState.NODE_STATE_LIVE, NodeState.NODE_STATE_FAILED
VOTER, LEARNER = ConfChangeType.CONF_CHANGE_ADD_NODE, ConfChangeType.CONF_CHANGE_ADD_LEARNER_NODE


def node(raft_id: int, state: NodeState.ValueType = LIVE, since: int = 0, zone: str = "") -> Node:
    return Node(id=f"n{raft_id}", raft_id=raft_id, state=state, state_since_ms=since, zone=zone)


def steps(change: ConfChangeV2 | None) -> list[tuple[int, int]]:
    return [(c.type, c.node_id) for c in change.changes] if change else []


def test_a_live_node_outside_of_the_group_becomes_a_learner() -> None:
    nodes = [node(1), node(2), node(3), node(4), node(5, FAILED)]
    change = next_membership_change(ConfState(voters=[1, 2, 3]), nodes, {}, 1, SETTINGS, 0)
    assert steps(change) == [(LEARNER, 4)]


def test_the_most_up_to_date_learner_is_promoted_while_voters_are_missing() -> None:
    conf = ConfState(voters=[1], learners=[2, 3])
    nodes = [node(1), node(2), node(3)]
    assert steps(next_membership_change(conf, nodes, {1: 9, 2: 7, 3: 9}, 1, SETTINGS, 0)) == [(VOTER, 3)]
    assert steps(next_membership_change(conf, nodes, {}, 1, SETTINGS, 0)) == [], (
        "the learner has nothing of the log yet"
    )


def test_a_learner_gets_the_seat_of_a_voter_that_is_gone_for_long() -> None:
    conf = ConfState(voters=[1, 2, 3], learners=[4, 5])
    nodes = [node(1), node(2, FAILED, since=1_000), node(3), node(4), node(5)]
    match = {1: 9, 3: 9, 4: 5, 5: 8}
    assert steps(next_membership_change(conf, nodes, match, 1, SETTINGS, 60_999)) == []
    assert steps(next_membership_change(conf, nodes, match, 1, SETTINGS, 61_000)) == [(VOTER, 5), (LEARNER, 2)]


def test_no_change_is_due_during_a_joint_change_or_if_all_is_well() -> None:
    nodes = [node(1), node(2), node(3), node(4)]
    joint = ConfState(voters=[1, 2, 3], voters_outgoing=[1, 2])
    assert next_membership_change(joint, nodes, {4: 1}, 1, SETTINGS, 0) is None
    assert next_membership_change(ConfState(voters=[1, 2, 3], learners=[4]), nodes, {4: 1}, 1, SETTINGS, 0) is None


def test_a_node_removed_from_the_cluster_is_removed_from_the_group() -> None:
    conf = ConfState(voters=[1, 2, 3])
    change = next_membership_change(conf, [node(1), node(3)], {}, 1, SETTINGS, 0)
    assert steps(change) == [(ConfChangeType.CONF_CHANGE_REMOVE_NODE, 2)]


def test_no_change_is_due_before_the_cluster_is_created() -> None:
    assert next_membership_change(ConfState(voters=[1, 2, 3]), [], {}, 1, SETTINGS, 0) is None


# Zones. In a text like "aab", the first letter is the zone of node 1, the second that of node 2, and so on.


def zoned(zones: str, since: int = 0, **failed: int) -> list[Node]:
    """Nodes in these zones, LIVE since `since`. Those named in `failed` are FAILED: `n2=7` means node 2, since 7 ms."""
    return [
        node(i, FAILED, failed[f"n{i}"], zone) if f"n{i}" in failed else node(i, LIVE, since, zone)
        for i, zone in enumerate(zones, 1)
    ]


def change(nodes: list[Node], voters: Sequence[int], match: dict[int, int] | None = None, now: int = 60_000) -> Any:
    """Return the controller's next change of members. Node 1 leads, and all nodes that don't vote are learners."""
    learners = [n.raft_id for n in nodes if n.raft_id not in voters]
    matched = dict.fromkeys([n.raft_id for n in nodes], 100) | (match or {})
    return steps(next_membership_change(ConfState(voters=voters, learners=learners), nodes, matched, 1, SETTINGS, now))


def test_a_dead_voters_seat_goes_to_a_zone_with_few_voters() -> None:
    nodes = zoned("abcacb", n2=0)
    assert change(nodes, [1, 2, 3], {4: 100, 5: 100, 6: 95}) == [(VOTER, 6), (LEARNER, 2)], (
        "zone b has no other voter, so 6 gets the seat, with less of the log"
    )
    assert change(nodes, [1, 2, 3], {6: 50}) == [(VOTER, 4), (LEARNER, 2)], "6 lags too far"
    assert change(zoned("aacab"), [1, 3], {5: 99}) == [(VOTER, 5)], "the same for a free seat"


def test_a_seat_moves_to_a_zone_without_voters_once_its_node_has_been_live_for_long() -> None:
    for since, moved in ((0, [(VOTER, 2), (LEARNER, 4)]), (1, [])):
        assert change([*zoned("a"), node(2, since=since, zone="b"), *zoned("xxca")[2:]], [1, 3, 4]) == moved


def test_no_seat_moves_while_a_voter_is_down_or_the_learner_lags() -> None:
    assert change(zoned("abca", n3=30_000), [1, 3, 4]) == []
    assert change(zoned("abca"), [1, 3, 4], {2: 89}) == []
    assert change(zoned("abca"), [1, 3, 4], {2: 90}) == [(VOTER, 2), (LEARNER, 4)]


def test_the_leader_keeps_its_seat() -> None:
    assert change(zoned("bcaa"), [1, 3, 4], {3: 90}) == [(VOTER, 2), (LEARNER, 3)]
    assert change(zoned("aabc"), [1, 2, 4]) == [(VOTER, 3), (LEARNER, 2)]


@given(zones=st.lists(st.sampled_from("abcd"), min_size=3, max_size=12), count=st.sampled_from([1, 3, 5]))
def test_seats_are_spread_evenly_over_zones_in_the_end(zones: list[str], count: int) -> None:
    nodes = zoned("".join(zones))
    voters = list(range(1, min(count, len(zones)) + 1))
    for _ in range(6):
        if not (moved := change(nodes, voters)):
            break
        up, down = {n for kind, n in moved if kind == VOTER}, {n for kind, n in moved if kind == LEARNER}
        assert 1 not in down
        voters = sorted({*voters} - down | up)
    seats = Counter(zones[v - 1] for v in voters)
    for zone, members in Counter(zones).items():
        assert seats[zone] == members or seats[zone] >= max(seats.values()) - 1


# Requests of a person: n1 leads, n4 and n5 are learners, n6 isn't a member yet.

CONF = ConfState(voters=[1, 2, 3], learners=[4, 5])
NODES = {n.id: n for n in [node(1), node(2), node(3), node(4), node(5, FAILED), node(6)]}
MATCH = {1: 100, 2: 100, 3: 100, 4: 95, 5: 20}


def asked(
    promote: Sequence[str] = (),
    demote: Sequence[str] = (),
    conf: ConfState = CONF,
    nodes: dict[str, Node] = NODES,
    match: dict[int, int] = MATCH,
    voters: int = 3,
) -> list[tuple[int, int]]:
    return steps(change_voters(conf, nodes, match, 1, VoterSettings(voters, 60_000), promote, demote))


def test_a_learner_takes_a_voters_seat_in_one_change() -> None:
    assert asked(["n4"], ["n2"]) == [(VOTER, 4), (LEARNER, 2)]


def test_a_person_can_add_or_remove_a_voter() -> None:
    assert asked(["n4"]) == [(VOTER, 4)]
    more = ConfState(voters=[1, 2, 3, 4], learners=[5])
    assert asked(demote=["n2"], conf=more) == [(LEARNER, 2)]


def test_a_request_for_the_present_state_changes_nothing() -> None:
    assert asked(["n2"], ["n4"]) == []
    assert asked(["n2"], conf=ConfState(voters=[1, 2, 3], voters_outgoing=[1, 3])) == []


@pytest.mark.parametrize(
    ("promote", "demote", "code", "reason"),
    [
        ([], [], Code.INVALID_ARGUMENT, "name a node"),
        (["n4"], ["n4"], Code.INVALID_ARGUMENT, "each of them once"),
        (["n9"], [], Code.UNKNOWN_NODE, "n9"),
        ([], ["n9"], Code.UNKNOWN_NODE, "n9"),
        (["n5"], [], Code.INVALID_VOTERS, "n5 is not LIVE"),
        (["n6"], [], Code.INVALID_VOTERS, "not a learner"),
        (["n4"], ["n1"], Code.INVALID_VOTERS, "transfer the leadership first"),
        ([], ["n2"], Code.INVALID_VOTERS, "2 voters would be left"),
        (["n4"], ["n2", "n3"], Code.INVALID_VOTERS, "2 voters would be left"),
    ],
)
def test_changes_that_are_refused(promote: list[str], demote: list[str], code: Code, reason: str) -> None:
    with pytest.raises(MinkaError, match=reason) as refusal:
        asked(promote, demote)
    assert refusal.value.code is code


def test_a_learner_that_lags_may_not_vote_yet() -> None:
    with pytest.raises(MinkaError, match="89 of 100 entries"):
        asked(["n4"], match=MATCH | {4: 89})
    assert asked(["n4"], match=MATCH | {4: 90}) == [(VOTER, 4)]


def test_a_request_is_refused_while_a_joint_change_is_under_way() -> None:
    with pytest.raises(MinkaError) as refusal:
        asked(["n4"], conf=ConfState(voters=[1, 2, 3], voters_outgoing=[1, 2], learners=[4]))
    assert refusal.value.code is Code.VOTERS_CHANGING


def test_there_are_between_one_and_nine_voters() -> None:
    with pytest.raises(MinkaError, match="leads the coordinator"):
        asked(demote=["n1"], conf=ConfState(voters=[1], learners=[2, 3]), voters=1)
    nine = ConfState(voters=[1, 2, 3, *range(11, 17)], learners=[4])
    with pytest.raises(MinkaError, match="10 voters"):
        asked(["n4"], conf=nine)


def test_a_demotion_that_is_allowed_is_not_undone_automatically() -> None:
    conf = ConfState(voters=[1, 3, 4], learners=[2, 5])
    assert next_membership_change(conf, [n for n in NODES.values() if n.id != "n6"], MATCH, 1, SETTINGS, 0) is None


def test_a_person_can_not_give_one_zone_two_voters_more_than_another_that_could_have_one() -> None:
    nodes = {n.id: n for n in zoned("abcabc")}
    conf, match = ConfState(voters=[1, 2, 3], learners=[4, 5, 6]), dict.fromkeys(range(1, 7), 100)
    with pytest.raises(MinkaError, match="zone a would have two voters more than zone b, where n2 is LIVE"):
        asked(["n4"], ["n2"], conf, nodes, match)
    assert asked(["n5"], ["n2"], conf, nodes, match) == [(VOTER, 5), (LEARNER, 2)]
    drained = nodes | {n: node(i, NodeState.NODE_STATE_DRAINING, zone="b") for n, i in (("n2", 2), ("n5", 5))}
    assert asked(["n4"], ["n2"], conf, drained, match) == [(VOTER, 4), (LEARNER, 2)]


def test_only_a_live_voter_can_be_asked_to_lead() -> None:
    assert check_transfer(CONF, NODES, "n2") == 2
    with pytest.raises(MinkaError, match="n4 is a learner"):
        check_transfer(CONF, NODES, "n4")
    with pytest.raises(MinkaError, match="not LIVE"):
        check_transfer(CONF, NODES | {"n2": node(2, FAILED)}, "n2")
    with pytest.raises(MinkaError, match="no node n9"):
        check_transfer(CONF, NODES, "n9")
