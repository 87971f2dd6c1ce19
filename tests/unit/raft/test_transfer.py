"""Transfers of leadership."""

import pytest

from minka.v1.raft_pb2 import (
    CONF_CHANGE_REMOVE_NODE,
    MSG_APP,
    MSG_TIMEOUT_NOW,
    MSG_TRANSFER_LEADER,
    ConfChange,
    Message,
)
from minkad.core.raft import ProposalDropped, Role
from tests.unit.raft.group import Group


def test_leadership_is_transferred_to_a_node_that_is_up_to_date() -> None:
    group = Group(3)
    group.elect(1).transfer_leader(2)
    group.settle()
    assert (group.role(1), group.role(2), group.term(3)) == (Role.FOLLOWER, Role.LEADER, 2)


def test_leadership_is_transferred_after_the_target_has_caught_up() -> None:
    group = Group(3)
    leader = group.elect(1)
    group.drop = lambda m: m.to == 3 and m.type == MSG_APP
    leader.propose(b"x")
    group.settle()
    group.isolate()
    leader.transfer_leader(3)
    assert not any(m.type == MSG_TIMEOUT_NOW for m in group.net)
    leader.tick()
    group.settle()
    assert group.role(3) is Role.LEADER
    assert group.data(3) == [b"x"]


def test_a_follower_forwards_the_request_for_a_transfer() -> None:
    group = Group(3)
    group.elect(1)
    group.nodes[2].transfer_leader(3)
    group.settle()
    assert group.role(3) is Role.LEADER


def test_proposals_are_dropped_during_a_transfer() -> None:
    group = Group(3)
    leader = group.elect(1)
    group.drop = lambda m: m.type == MSG_TIMEOUT_NOW
    leader.transfer_leader(2)
    assert leader.basic_status().lead_transferee == 2
    with pytest.raises(ProposalDropped, match="handed over to 2"):
        leader.propose(b"x")


def test_a_transfer_is_given_up_after_an_election_timeout() -> None:
    group = Group(3)
    leader = group.elect(1)
    group.drop = lambda m: m.type == MSG_TIMEOUT_NOW
    group.tick(1, 5)
    leader.transfer_leader(2)
    for _ in range(9):
        group.tick(1)
        group.settle()
    assert leader.basic_status().lead_transferee == 2
    group.tick(1)
    assert leader.basic_status().lead_transferee == 0
    leader.propose(b"x")
    group.settle()
    assert group.data(2) == [b"x"]


def test_a_second_transfer_replaces_the_first() -> None:
    group = Group(3)
    leader = group.elect(1)
    group.isolate(2)
    leader.transfer_leader(2)
    group.settle()
    leader.transfer_leader(3)
    group.settle()
    assert group.role(3) is Role.LEADER


@pytest.mark.parametrize("target", [1, 4, 9])
def test_no_transfer_goes_to_the_leader_itself_a_learner_or_an_unknown_node(target: int) -> None:
    group = Group(3, learners=[4])
    leader = group.elect(1)
    leader.transfer_leader(target)
    assert leader.basic_status().lead_transferee == 0
    assert not leader.has_ready()


def test_a_transfer_ends_if_its_target_is_removed() -> None:
    group = Group(4)
    leader = group.elect(1)
    leader.propose_conf_change(ConfChange(type=CONF_CHANGE_REMOVE_NODE, node_id=2))
    group.drop = lambda m: m.type == MSG_TIMEOUT_NOW
    leader.transfer_leader(2)
    group.settle()
    assert leader.basic_status().lead_transferee == 0


def test_a_transfer_succeeds_although_all_nodes_hear_the_leader() -> None:
    """With check_quorum a node that hears a leader refuses candidates, unless that leader asked for the election."""
    group = Group(5, check_quorum=True, pre_vote=True)
    group.elect(1).transfer_leader(5)
    group.settle()
    assert group.role(5) is Role.LEADER


def test_a_forwarded_request_for_a_transfer_is_forwarded_again() -> None:
    group = Group(3)
    group.elect(1)
    group.nodes[2].step(Message(type=MSG_TRANSFER_LEADER, from_id=3, to=2, term=1))
    group.settle()
    assert group.role(3) is Role.LEADER
