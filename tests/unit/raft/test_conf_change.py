"""Configuration changes: one at a time, simple or joint."""

import pytest

from minka.v1.raft_pb2 import (
    CONF_CHANGE_ADD_LEARNER_NODE,
    CONF_CHANGE_ADD_NODE,
    CONF_CHANGE_REMOVE_NODE,
    CONF_CHANGE_TRANSITION_AUTO,
    CONF_CHANGE_TRANSITION_JOINT_EXPLICIT,
    CONF_CHANGE_TRANSITION_JOINT_IMPLICIT,
    ENTRY_NORMAL,
    MSG_TIMEOUT_NOW,
    ConfChange,
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
)
from minkad.core.raft import ConfChangeError, ProposalDropped, RawNode, Role
from tests.unit.raft.group import Group, GroupStorage

Change = tuple[ConfChangeType.ValueType, int]


def change(*changes: Change, transition: ConfChangeTransition.ValueType = CONF_CHANGE_TRANSITION_AUTO) -> ConfChangeV2:
    """A configuration change of several nodes in one entry."""
    singles = [ConfChangeSingle(type=type_, node_id=id_) for type_, id_ in changes]
    return ConfChangeV2(transition=transition, changes=singles)


def voters(node: RawNode) -> str:
    """The voters that a node knows, as text: `(1 2)&&(3)` is a joint configuration."""
    return str(node.status().config.voters)


def test_a_node_is_added_and_another_one_removed() -> None:
    group = Group(3)
    leader = group.elect(1)
    group.start(4, GroupStorage())
    leader.propose_conf_change(ConfChange(type=CONF_CHANGE_ADD_NODE, node_id=4))
    group.settle()
    assert voters(leader) == "(1 2 3 4)"
    leader.propose_conf_change(ConfChange(type=CONF_CHANGE_REMOVE_NODE, node_id=2))
    group.settle()
    assert voters(leader) == voters(group.nodes[3]) == "(1 3 4)"


def test_a_second_change_before_the_first_is_applied_becomes_empty() -> None:
    group = Group(3)
    leader = group.elect(1)
    leader.propose_conf_change(ConfChange(type=CONF_CHANGE_ADD_NODE, node_id=4))
    leader.propose_conf_change(ConfChange(type=CONF_CHANGE_ADD_NODE, node_id=5))
    group.settle()
    assert voters(leader) == "(1 2 3 4)"
    last = group.applied[1][-1]
    assert (last.type, last.data) == (ENTRY_NORMAL, b"")


def test_a_new_leader_proposes_no_change_before_it_has_applied_its_log() -> None:
    group = Group(3, check_quorum=False)
    group.elect(1).propose(b"x")
    group.process(1)
    group.deliver()
    for id_ in (2, 3):
        group.process(id_)
    group.net = []  # the answers are lost, so no node learns that the entry is committed
    group.nodes[2].campaign()
    group.settle_until_leader(2)
    group.nodes[2].propose_conf_change(ConfChange(type=CONF_CHANGE_ADD_NODE, node_id=4))
    group.settle()
    assert voters(group.nodes[2]) == "(1 2 3)"
    group.nodes[2].propose_conf_change(ConfChange(type=CONF_CHANGE_ADD_NODE, node_id=4))
    group.settle()
    assert voters(group.nodes[2]) == "(1 2 3 4)"


def test_a_dropped_change_does_not_block_the_next() -> None:
    group = Group(3, max_uncommitted_entries_size=10)
    leader = group.elect(1)
    leader.propose(b"x" * 10)
    with pytest.raises(ProposalDropped):
        leader.propose_conf_change(ConfChange(type=CONF_CHANGE_ADD_NODE, node_id=4))
    group.settle()
    leader.propose_conf_change(ConfChange(type=CONF_CHANGE_ADD_NODE, node_id=4))
    group.settle()
    assert voters(leader) == "(1 2 3 4)"


def test_a_joint_configuration_lasts_until_it_is_left_explicitly() -> None:
    group = Group(3)
    leader = group.elect(1)
    joint = change((CONF_CHANGE_ADD_NODE, 4), transition=CONF_CHANGE_TRANSITION_JOINT_EXPLICIT)
    leader.propose_conf_change(joint)
    group.settle()
    assert voters(leader) == "(1 2 3 4)&&(1 2 3)"
    leader.propose_conf_change(change((CONF_CHANGE_ADD_NODE, 5)))
    group.settle()
    assert voters(leader) == "(1 2 3 4)&&(1 2 3)"  # the second change was refused
    leader.propose_conf_change(ConfChangeV2())
    group.settle()
    assert voters(leader) == "(1 2 3 4)"
    leader.propose_conf_change(ConfChangeV2())
    group.settle()
    assert voters(leader) == "(1 2 3 4)"


def test_a_joint_configuration_is_left_by_its_leader() -> None:
    group = Group(3)
    leader = group.elect(1)
    for id_ in (4, 5):
        group.start(id_, GroupStorage())
    leader.propose_conf_change(
        change((CONF_CHANGE_REMOVE_NODE, 2), (CONF_CHANGE_ADD_NODE, 4), (CONF_CHANGE_ADD_LEARNER_NODE, 5))
    )
    group.settle()
    assert voters(leader) == voters(group.nodes[4]) == "(1 3 4)"
    assert leader.status().config.learners == frozenset({5})


def test_a_joint_configuration_is_left_by_the_next_leader() -> None:
    group = Group(4)
    leader = group.elect(1)
    leader.propose_conf_change(change((CONF_CHANGE_REMOVE_NODE, 4), transition=CONF_CHANGE_TRANSITION_JOINT_IMPLICIT))
    group.drop = lambda m: m.type == MSG_TIMEOUT_NOW
    leader.transfer_leader(2)  # a leader proposes nothing during a transfer
    group.settle()
    assert voters(leader) == voters(group.nodes[2]) == "(1 2 3)&&(1 2 3 4)"
    group.isolate(1)
    assert group.elect_after_timeout(2) is Role.LEADER
    assert voters(group.nodes[2]) == "(1 2 3)"


def test_in_a_joint_configuration_both_majorities_must_agree() -> None:
    group = Group(3)
    leader = group.elect(1)
    joint = change(
        (CONF_CHANGE_REMOVE_NODE, 2),
        (CONF_CHANGE_REMOVE_NODE, 3),
        (CONF_CHANGE_ADD_NODE, 4),
        (CONF_CHANGE_ADD_NODE, 5),
        transition=CONF_CHANGE_TRANSITION_JOINT_EXPLICIT,
    )
    for id_ in (4, 5):
        group.start(id_, GroupStorage())
    leader.propose_conf_change(joint)
    group.settle()
    assert voters(leader) == "(1 4 5)&&(1 2 3)"
    before = group.commit(1)
    for without, enough in (((2, 3), (2,)), ((4, 5), (5,))):
        before = group.commit(1)
        group.isolate(*without)
        leader.propose(b"x")
        group.settle()
        assert group.commit(1) == before
        group.isolate(*enough)
        leader.tick()
        group.settle()
        assert group.commit(1) == before + 1


def test_a_removed_leader_steps_down() -> None:
    group = Group(3)
    leader = group.elect(1)
    leader.propose_conf_change(ConfChange(type=CONF_CHANGE_REMOVE_NODE, node_id=1))
    group.settle()
    assert group.role(1) is Role.FOLLOWER
    with pytest.raises(ProposalDropped):
        leader.propose(b"x")
    group.tick(1, 100)
    assert group.role(1) is Role.FOLLOWER
    assert group.elect_after_timeout(2) is Role.LEADER


def test_a_change_that_does_not_fit_changes_nothing() -> None:
    node = Group(3).nodes[1]
    before = str(node.status().config)
    two = ConfChangeV2(changes=[ConfChangeSingle(type=CONF_CHANGE_REMOVE_NODE, node_id=id_) for id_ in (1, 2, 3)])
    with pytest.raises(ConfChangeError, match="removed all voters"):
        node.apply_conf_change(two)
    with pytest.raises(ConfChangeError, match="non-joint"):
        node.apply_conf_change(ConfChangeV2())
    assert str(node.status().config) == before


def test_a_voided_change_changes_nothing() -> None:
    node = Group(3).nodes[1]
    state = node.apply_conf_change(ConfChange(type=CONF_CHANGE_REMOVE_NODE, node_id=0))
    assert list(state.voters) == [1, 2, 3]


def test_a_learner_is_promoted() -> None:
    group = Group(2, learners=[3])
    leader = group.elect(1)
    leader.propose_conf_change(ConfChange(type=CONF_CHANGE_ADD_NODE, node_id=3))
    group.settle()
    assert voters(group.nodes[3]) == "(1 2 3)"
    group.nodes[3].campaign()
    assert group.role(3) is Role.PRE_CANDIDATE
