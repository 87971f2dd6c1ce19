"""Who votes."""

from minka.v1.cluster_pb2 import Node, NodeState
from minka.v1.raft_pb2 import ConfChangeType, ConfChangeV2, ConfState
from minkad.core.controller.voters import VoterSettings, next_membership_change

SETTINGS = VoterSettings(voters=3, replace_after_ms=60_000)
LIVE, FAILED = NodeState.NODE_STATE_LIVE, NodeState.NODE_STATE_FAILED
VOTER, LEARNER = ConfChangeType.CONF_CHANGE_ADD_NODE, ConfChangeType.CONF_CHANGE_ADD_LEARNER_NODE


def node(raft_id: int, state: NodeState.ValueType = LIVE, since: int = 0) -> Node:
    return Node(id=f"n{raft_id}", raft_id=raft_id, state=state, state_since_ms=since)


def steps(change: ConfChangeV2 | None) -> list[tuple[int, int]]:
    return [(c.type, c.node_id) for c in change.changes] if change else []


def test_a_live_stranger_becomes_a_learner() -> None:
    nodes = [node(1), node(2), node(3), node(4), node(5, FAILED)]
    change = next_membership_change(ConfState(voters=[1, 2, 3]), nodes, {}, SETTINGS, 0)
    assert steps(change) == [(LEARNER, 4)]


def test_the_most_up_to_date_learner_is_promoted_while_voters_are_missing() -> None:
    conf = ConfState(voters=[1], learners=[2, 3])
    nodes = [node(1), node(2), node(3)]
    assert steps(next_membership_change(conf, nodes, {1: 9, 2: 7, 3: 9}, SETTINGS, 0)) == [(VOTER, 3)]
    assert steps(next_membership_change(conf, nodes, {}, SETTINGS, 0)) == [], "it has nothing of the log yet"


def test_a_voter_that_is_gone_for_long_gives_its_seat_to_a_learner() -> None:
    conf = ConfState(voters=[1, 2, 3], learners=[4, 5])
    nodes = [node(1), node(2, FAILED, since=1_000), node(3), node(4), node(5)]
    match = {1: 9, 3: 9, 4: 5, 5: 8}
    assert steps(next_membership_change(conf, nodes, match, SETTINGS, 60_999)) == []
    assert steps(next_membership_change(conf, nodes, match, SETTINGS, 61_000)) == [(VOTER, 5), (LEARNER, 2)]


def test_nothing_while_a_joint_change_is_under_way_or_all_is_well() -> None:
    nodes = [node(1), node(2), node(3), node(4)]
    joint = ConfState(voters=[1, 2, 3], voters_outgoing=[1, 2])
    assert next_membership_change(joint, nodes, {4: 1}, SETTINGS, 0) is None
    assert next_membership_change(ConfState(voters=[1, 2, 3], learners=[4]), nodes, {4: 1}, SETTINGS, 0) is None


def test_a_removed_node_is_no_member() -> None:
    conf = ConfState(voters=[1, 2, 3])
    change = next_membership_change(conf, [node(1), node(3)], {}, SETTINGS, 0)
    assert steps(change) == [(ConfChangeType.CONF_CHANGE_REMOVE_NODE, 2)]


def test_nothing_before_the_cluster_is_created() -> None:
    assert next_membership_change(ConfState(voters=[1, 2, 3]), [], {}, SETTINGS, 0) is None
