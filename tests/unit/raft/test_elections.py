"""Elections: which nodes campaign, which candidates get votes, and which leaders step down."""

import pytest

from minka.v1.raft_pb2 import (
    CONF_CHANGE_ADD_NODE,
    ENTRY_CONF_CHANGE,
    MSG_APP,
    MSG_HEARTBEAT,
    MSG_PRE_VOTE,
    MSG_PRE_VOTE_RESP,
    MSG_SNAP,
    MSG_VOTE,
    MSG_VOTE_RESP,
    ConfChange,
    ConfState,
    Entry,
    HardState,
    Message,
    Snapshot,
    SnapshotMetadata,
)
from minkad.core.raft import JointConfig, MajorityConfig, ProposalDropped, RawNode, Role, TrackerConfig
from minkad.core.raft.quorum import VoteResult
from minkad.core.raft.tracker import ProgressTracker
from tests.unit.raft.group import Group, bootstrapped


def vote_answer(node: RawNode) -> Message:
    """The only answer to a vote request in a node's next Ready."""
    ready = node.ready()
    node.advance(ready)
    (message,) = [m for m in ready.messages if m.type in (MSG_VOTE_RESP, MSG_PRE_VOTE_RESP)]
    return message


def vote_request(term: int, candidate: int = 2, index: int = 1, log_term: int = 1) -> Message:
    """A vote request of a candidate whose log ends in (index, log_term)."""
    return Message(type=MSG_VOTE, from_id=candidate, to=1, term=term, index=index, log_term=log_term)


def tick_while_leader(group: Group) -> None:
    """Let time pass for node 1 until it steps down, for two election timeouts at most."""
    for _ in range(20):
        if group.role(1) is Role.LEADER:
            group.tick(1)
            group.settle()


def test_a_learner_does_not_campaign() -> None:
    group = Group(2, learners=[3])
    group.nodes[3].campaign()
    group.tick(3, 100)
    assert not group.nodes[3].has_ready()
    assert group.role(3) is Role.FOLLOWER


def test_a_learners_vote_does_not_count() -> None:
    group = Group(3, learners=[4])
    group.drop = lambda m: m.to in (2, 3)
    group.nodes[1].campaign()
    group.settle()
    group.nodes[1].step(
        Message(type=MSG_PRE_VOTE_RESP, from_id=4, to=1, term=group.term(1) + 1),
    )
    assert group.role(1) is Role.PRE_CANDIDATE


def test_a_learner_votes_when_it_is_asked() -> None:
    """The candidate may know of a change that the learner doesn't know yet, and that makes the learner a voter."""
    group = Group(2, learners=[3])
    group.nodes[3].step(vote_request(term=1, candidate=1))
    assert not vote_answer(group.nodes[3]).reject


def test_a_node_with_a_snapshot_to_install_does_not_campaign() -> None:
    group = Group(3)
    state = ConfState(voters=[1, 2, 3])
    snapshot = Snapshot(metadata=SnapshotMetadata(index=9, term=1, conf_state=state))
    group.nodes[1].step(Message(type=MSG_SNAP, from_id=2, to=1, term=1, snapshot=snapshot))
    group.nodes[1].campaign()
    assert group.role(1) is Role.FOLLOWER


def test_a_node_with_a_configuration_change_to_apply_does_not_campaign() -> None:
    group = Group(3)
    change = ConfChange(type=CONF_CHANGE_ADD_NODE, node_id=4)
    entry = Entry(type=ENTRY_CONF_CHANGE, term=1, index=2, data=change.SerializeToString())
    append = Message(type=MSG_APP, from_id=2, to=1, term=1, index=1, log_term=1, entries=[entry], commit=2)
    group.nodes[1].step(append)
    group.nodes[1].campaign()
    assert group.role(1) is Role.FOLLOWER
    group.process(1)
    group.nodes[1].campaign()
    assert group.role(1) is Role.PRE_CANDIDATE


def test_a_node_campaigns_although_its_log_is_compacted_beyond_the_known_applied_index() -> None:
    group = Group(3)
    group.elect(2).propose(b"x")
    group.settle()
    group.isolate(2)
    node, storage = group.nodes[1], group.storages[1]
    node.step(Message(type=MSG_APP, from_id=2, to=1, term=1, index=3, log_term=1, entries=[Entry(index=4, term=1)]))
    group.process(1)
    node.step(Message(type=MSG_HEARTBEAT, from_id=2, to=1, term=1, commit=4))
    ready = node.ready()
    assert [entry.index for entry in ready.committed_entries] == [4]
    storage.create_snapshot(4, None, b"")
    storage.compact(4)
    node.campaign()
    node.advance(ready)
    assert group.role(1) is Role.PRE_CANDIDATE


def test_a_node_votes_once_in_a_term() -> None:
    node = Group(3).nodes[1]
    node.step(vote_request(term=5, candidate=2))
    assert not vote_answer(node).reject
    node.step(vote_request(term=5, candidate=3))
    assert vote_answer(node).reject
    node.step(vote_request(term=5, candidate=2))
    assert not vote_answer(node).reject


def test_a_restarted_node_remembers_its_vote() -> None:
    group = Group(3)
    group.nodes[1].step(vote_request(term=5, candidate=2))
    group.process(1)
    node = group.start(1, group.storages[1], applied=1)
    assert node.basic_status().term == 5
    node.step(vote_request(term=5, candidate=3))
    assert vote_answer(node).reject


@pytest.mark.parametrize(("index", "log_term", "refused"), [(2, 3, True), (9, 2, True), (3, 3, False), (1, 4, False)])
def test_a_vote_goes_only_to_a_log_with_everything(index: int, log_term: int, refused: bool) -> None:
    storage = bootstrapped([1, 2, 3])
    storage.append([Entry(term=1, index=2), Entry(term=3, index=3)])
    storage.set_hard_state(HardState(term=3, commit=1))
    node = Group(3).start(1, storage, applied=1)
    node.step(vote_request(term=9, index=index, log_term=log_term))
    assert vote_answer(node).reject is refused


def test_a_pre_vote_changes_no_term() -> None:
    group = Group(3)
    group.isolate(1)
    for _ in range(100):
        group.tick(1)
        group.settle()
    assert (group.role(1), group.term(1)) == (Role.PRE_CANDIDATE, 0)
    group.nodes[2].step(Message(type=MSG_PRE_VOTE, from_id=1, to=2, term=7, index=1, log_term=1))
    assert group.term(2) == 0
    assert vote_answer(group.nodes[2]).term == 7


def test_without_pre_vote_the_term_rises() -> None:
    group = Group(3, pre_vote=False)
    group.isolate(1)
    group.tick(1, 100)
    assert group.term(1) == 6


def test_a_node_that_hears_a_leader_ignores_candidates() -> None:
    group = Group(3)
    group.elect(1)
    for type_ in (MSG_VOTE, MSG_PRE_VOTE):
        group.nodes[2].step(Message(type=type_, from_id=3, to=2, term=9, index=99, log_term=9))
        assert not group.nodes[2].has_ready()
    group.tick(2, 10)  # the leader's lease is over
    group.nodes[2].step(Message(type=MSG_VOTE, from_id=3, to=2, term=9, index=99, log_term=9))
    assert not vote_answer(group.nodes[2]).reject


@pytest.mark.parametrize("says", [True, False])
def test_the_refusal_of_a_vote_has_the_commit_index(says: bool) -> None:
    """A candidate may have a change of the voters in its log without knowing that the change is committed. Without the
    commit index in the refusals, the candidate would ask the former voters again and again.
    """
    group = Group(3, commit_by_vote=says)
    leader = group.elect(1)
    leader.propose(b"a")
    group.drop = lambda m: m.to == 2 and m.commit > 2  # node 2 gets entry a, but doesn't learn that a is committed
    group.settle()
    group.drop = lambda m: m.to in (1, 2)  # only node 3 gets entry b, which isn't committed
    leader.propose(b"b")
    group.settle()
    assert [group.commit(n) for n in (1, 2, 3)] == [3, 2, 3]
    group.isolate(1)
    group.tick(3, 10)
    group.nodes[2].campaign()
    group.settle()
    assert group.role(2) is not Role.LEADER, "it lacks b"
    assert group.commit(2) == (3 if says else 2)


def test_nodes_that_forget_a_dead_leader_elect_another_at_once() -> None:
    group = Group(3)
    group.elect(1)
    group.isolate(1)
    group.nodes[2].forget_leader(2)
    group.nodes[3].forget_leader(4)
    group.tick(2, 1)
    assert group.role(2) is Role.FOLLOWER
    group.tick(2, 1)
    group.settle()
    assert (group.role(2), group.role(3)) == (Role.LEADER, Role.FOLLOWER)


def test_a_leader_that_only_one_node_forgets_leads_on() -> None:
    group = Group(3)
    group.elect(1)
    term = group.term(1)
    group.nodes[2].forget_leader(1)
    group.tick(2, 1)
    assert group.role(2) is Role.PRE_CANDIDATE
    group.settle()
    group.tick(1)
    group.settle()
    assert [group.role(n) for n in (1, 2, 3)] == [Role.LEADER, Role.FOLLOWER, Role.FOLLOWER]
    assert group.term(3) == term


def test_a_node_that_forgets_its_leader_does_not_vote_again_in_the_term() -> None:
    group = Group(3)
    group.elect(1)
    group.nodes[2].forget_leader(100)
    group.nodes[2].step(vote_request(group.term(1), candidate=3, index=99, log_term=9))
    assert vote_answer(group.nodes[2]).reject


def test_a_leader_without_a_quorum_steps_down() -> None:
    group = Group(5)
    leader = group.elect(1)
    group.isolate(3, 4, 5)
    tick_while_leader(group)
    status = leader.basic_status()
    assert (status.role, status.term, status.leader_id) == (Role.FOLLOWER, 1, 0)
    with pytest.raises(ProposalDropped):
        leader.propose(b"x")


def test_a_leader_with_a_quorum_leads_on() -> None:
    group = Group(5)
    group.elect(1)
    group.isolate(4, 5)
    for _ in range(100):
        group.tick(1)
        group.settle()
    assert group.role(1) is Role.LEADER


def test_learners_do_not_count_for_the_quorum() -> None:
    group = Group(3, learners=[4, 5, 6])
    group.elect(1)
    group.isolate(2, 3)
    tick_while_leader(group)
    assert group.role(1) is Role.FOLLOWER


def test_a_node_that_was_cut_off_does_not_depose_the_leader_when_it_is_back() -> None:
    group = Group(3)
    group.elect(1)
    group.isolate(3)
    for _ in range(50):
        group.tick(3)
        group.settle()
    group.isolate()
    group.tick(1)
    group.settle()
    assert (group.role(1), group.term(1), group.role(3)) == (Role.LEADER, 1, Role.FOLLOWER)


def test_a_node_with_a_higher_term_than_the_others_is_not_stuck() -> None:
    """With check_quorum, the other nodes ignore vote requests of node 3. But node 3 answers a heartbeat with its higher
    term, and this answer makes the leader step down.
    """
    group = Group(3, pre_vote=False)
    group.elect(1)
    group.isolate(3)
    group.tick(3, 50)
    group.settle()
    ahead = group.term(3)
    group.isolate()
    group.tick(1)
    group.settle()
    assert group.term(1) >= ahead
    for _ in range(200):
        group.tick(2)
        group.settle()
    assert group.role(2) is Role.LEADER


def test_the_election_timeout_comes_from_the_given_random_numbers() -> None:
    asked: list[int] = []

    def draw(n: int) -> int:
        asked.append(n)
        return 7

    group = Group(3, election_tick=10, random=draw)
    group.isolate(1)
    group.tick(1, 16)
    assert group.role(1) is Role.FOLLOWER
    group.tick(1)
    assert group.role(1) is Role.PRE_CANDIDATE
    assert set(asked) == {10}


def test_two_leaders_of_one_term_are_a_bug() -> None:
    group = Group(3)
    group.elect(1)
    heartbeat = Message(type=MSG_HEARTBEAT, from_id=3, term=1)
    for id_ in (1, 2):
        heartbeat.to = id_
        with pytest.raises(AssertionError, match="both lead term 1"):
            group.nodes[id_].step(heartbeat)


def test_a_refused_proposal_names_the_leader() -> None:
    group = Group(3, disable_proposal_forwarding=True)
    group.elect(1)
    with pytest.raises(ProposalDropped) as dropped:
        group.nodes[2].propose(b"x")
    assert dropped.value.leader_id == 1


def test_a_follower_forwards_proposals_to_the_leader() -> None:
    group = Group(3)
    group.elect(1)
    group.nodes[2].propose_batch([b"x", b"y"])
    group.settle()
    assert group.data(3) == [b"x", b"y"]


def test_a_pre_candidate_of_an_older_term_learns_the_newer_one() -> None:
    node = Group(3).nodes[1]
    node.step(Message(type=MSG_HEARTBEAT, from_id=3, to=1, term=7))
    node.step(Message(type=MSG_PRE_VOTE, from_id=2, to=1, term=2, index=9, log_term=1))
    answer = vote_answer(node)
    assert (answer.type, answer.reject, answer.term) == (MSG_PRE_VOTE_RESP, True, 7)


def test_hearing_the_leader_starts_the_timeout_again() -> None:
    group = Group(3)
    group.elect(1)
    for _ in range(5):
        group.tick(2, 14)
        assert group.role(2) is Role.FOLLOWER
        group.tick(1)
        group.settle()
    group.tick(2, 15)
    assert group.role(2) is Role.PRE_CANDIDATE


def test_only_the_first_vote_of_a_voter_counts() -> None:
    tracker = ProgressTracker(1, 1)
    tracker.switch(TrackerConfig(JointConfig(MajorityConfig({1, 2, 3}), MajorityConfig())), {})
    tracker.record_vote(1, True)
    tracker.record_vote(1, False)
    tracker.record_vote(2, True)
    assert tracker.tally() is VoteResult.WON
