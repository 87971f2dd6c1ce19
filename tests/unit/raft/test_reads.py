"""Linearizable reads: confirmed by a quorum, or answered under the leader's lease (with check_quorum)."""

from itertools import chain

import pytest

from minka.v1.raft_pb2 import (
    CONF_CHANGE_REMOVE_NODE,
    MSG_APP_RESP,
    MSG_HEARTBEAT,
    MSG_HEARTBEAT_RESP,
    MSG_TIMEOUT_NOW,
    ConfChange,
    Entry,
    Message,
)
from minkad.core.raft import Config, ProposalDropped, RawNode, ReadOnlyOption, ReadState, Role
from minkad.core.raft import read_only as read_only_module
from minkad.core.raft.quorum import JointConfig, MajorityConfig
from minkad.core.raft.read_only import ReadOnly
from tests.unit.raft.group import Group
from tests.vectors.memory_storage import MemoryStorage


def test_a_read_waits_for_a_quorum() -> None:
    group = Group(3)
    leader = group.elect(1)
    leader.propose(b"x")
    group.settle()
    leader.read_index(b"r")
    group.process(1)
    assert group.reads[1] == []
    group.settle()
    assert group.reads[1] == [ReadState(group.commit(1), b"r")]


def test_a_leader_without_quorum_answers_no_read() -> None:
    group = Group(3)
    leader = group.elect(1)
    group.isolate(1)
    leader.read_index(b"r")
    group.settle()
    assert group.reads[1] == []


def test_one_round_confirms_all_reads_before_it() -> None:
    group = Group(5)
    leader = group.elect(1)
    for number in range(10):
        leader.read_index(b"%d" % number)
    group.process(1)
    newest = {m.to: m for m in group.net if m.type == MSG_HEARTBEAT}
    group.net = [newest[2], newest[3]]
    group.settle()
    assert [read.context for read in group.reads[1]] == [b"%d" % number for number in range(10)]


def test_an_older_heartbeat_does_not_confirm_a_newer_read() -> None:
    group = Group(3)
    leader = group.elect(1)
    leader.read_index(b"old")
    group.process(1)
    old = [m for m in group.net if m.type == MSG_HEARTBEAT and m.to == 2]
    leader.read_index(b"new")
    group.process(1)
    group.net = old
    group.settle()
    assert [read.context for read in group.reads[1]] == [b"old"]


def test_two_reads_with_equal_contexts_are_both_answered() -> None:
    group = Group(3)
    leader = group.elect(1)
    leader.read_index(b"same")
    leader.read_index(b"same")
    group.settle()
    assert len(group.reads[1]) == 2


def test_a_new_leader_answers_after_it_has_committed_in_its_term() -> None:
    group = Group(3, check_quorum=False)
    group.elect(1).propose(b"x")
    group.settle()
    group.nodes[2].campaign()
    group.settle_until_leader(2)
    group.nodes[2].read_index(b"r")
    group.process(2)
    assert group.reads[2] == []
    group.settle()
    assert group.reads[2] == [ReadState(group.commit(2), b"r")]


def test_a_follower_forwards_reads_to_the_leader() -> None:
    group = Group(3)
    group.elect(1)
    group.nodes[2].read_index(b"r")
    group.settle()
    assert group.reads[2] == [ReadState(group.commit(1), b"r")]
    assert group.reads[1] == []


def test_the_only_voter_answers_at_once() -> None:
    group = Group(1, learners=[2])
    leader = group.elect(1)
    leader.read_index(b"r")
    group.process(1)
    assert group.reads[1] == [ReadState(group.commit(1), b"r")]


def test_a_removed_leader_does_not_answer_alone() -> None:
    """The removed leader is no longer a voter. Node 2, the only voter left, may have become the leader meanwhile."""
    group = Group(2, step_down_on_removal=False)
    leader = group.elect(1)
    leader.propose_conf_change(ConfChange(type=CONF_CHANGE_REMOVE_NODE, node_id=1))
    group.settle()
    assert leader.status().config.voters.ids() == {2}
    group.isolate(1)
    leader.read_index(b"r")
    group.settle()
    assert group.reads[1] == []


def test_without_a_leader_a_read_is_dropped() -> None:
    group = Group(3)
    with pytest.raises(ProposalDropped) as dropped:
        group.nodes[1].read_index(b"r")
    assert dropped.value.leader_id == 0


def test_under_a_lease_a_read_is_answered_at_once() -> None:
    group = Group(3, read_only_option=ReadOnlyOption.LEASE_BASED)
    leader = group.elect(1)
    leader.read_index(b"r")
    group.process(1)
    assert group.reads[1] == [ReadState(group.commit(1), b"r")]


def test_a_lease_does_not_count_during_a_transfer_of_leadership() -> None:
    group = Group(3, read_only_option=ReadOnlyOption.LEASE_BASED)
    leader = group.elect(1)
    group.drop = lambda m: m.type == MSG_TIMEOUT_NOW
    leader.transfer_leader(2)
    leader.read_index(b"r")
    group.process(1)
    assert group.reads[1] == []
    group.settle()
    assert [read.context for read in group.reads[1]] == [b"r"]


def test_a_lease_needs_check_quorum() -> None:
    with pytest.raises(ValueError, match="check_quorum"):
        RawNode(
            Config(
                id=1,
                storage=MemoryStorage(),
                random=lambda _: 0,
                check_quorum=False,
                read_only_option=ReadOnlyOption.LEASE_BASED,
            )
        )


def test_the_number_of_waiting_reads_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_only_module, "MAX_WAITING_READS", 3)
    group = Group(3)
    leader = group.elect(1)
    group.isolate(1)
    for _ in range(3):
        leader.read_index(b"r")
    with pytest.raises(ProposalDropped, match="too many"):
        leader.read_index(b"r")


def test_an_answer_to_another_leaders_heartbeat_confirms_nothing() -> None:
    reads = ReadOnly()
    reads.add(Message(entries=[Entry(data=b"r")]), 7)
    reads.ack(1, reads.heartbeat_context())
    reads.ack(2, (1_000).to_bytes(8, "little"))
    reads.ack(2, b"nonsense!")
    assert reads.advance(JointConfig(MajorityConfig({1, 2, 3}), MajorityConfig())) == []


def test_reads_are_dropped_with_the_leadership() -> None:
    group = Group(3)
    leader = group.elect(1)
    leader.read_index(b"r")
    group.process(1)
    assert group.deliver(MSG_HEARTBEAT)
    for id_ in (2, 3):
        group.process(id_)
    late = [m for m in group.net if m.type == MSG_HEARTBEAT_RESP]
    leader.step(Message(type=MSG_APP_RESP, from_id=2, to=1, term=group.term(1) + 1))
    group.net = late
    group.settle()
    assert group.reads[1] == []


def test_a_read_of_an_earlier_leadership_is_not_answered_in_a_later_one() -> None:
    """Between the two leaderships, another leader may have committed entries that the earlier answer would lack."""
    group = Group(3, check_quorum=False)
    leader = group.elect(1)
    group.isolate(1)
    leader.read_index(b"old")
    group.settle()
    group.elect(2).propose(b"x")
    group.settle()
    group.isolate()
    group.nodes[2].transfer_leader(1)
    for _ in range(3):
        group.tick(2)
        group.settle()
    assert group.role(1) is Role.LEADER
    leader.read_index(b"new")
    group.settle()
    assert [read.context for read in group.reads[1]] == [b"new"]


def test_acknowledgements_come_in_any_order() -> None:
    reads = ReadOnly()
    contexts = []
    for data in (b"a", b"b"):
        reads.add(Message(entries=[Entry(data=data)]), 7)
        contexts.append(reads.heartbeat_context())
    for voter, context in ((1, contexts[1]), (2, contexts[1]), (2, contexts[0]), (3, contexts[1])):
        reads.ack(voter, context)
    five = JointConfig(MajorityConfig({1, 2, 3, 4, 5}), MajorityConfig())
    assert [request.entries[0].data for request, _ in reads.advance(five)] == [b"a", b"b"]
    assert reads.advance(five) == []


def test_the_only_voter_answers_after_it_has_committed_in_its_term_too() -> None:
    """Before its restart, the voter may have committed more entries than its stored commit index shows, and clients may
    have read them.
    """
    group = Group(1)
    group.elect(1).propose(b"x")
    group.process(1)
    leader = group.start(1, group.storages[1], applied=1)  # the stored commit index does not cover x
    group.nodes[1].campaign()
    group.settle_until_leader(1)
    leader.read_index(b"r")
    assert leader.basic_status().commit < 4
    group.settle()
    assert group.reads[1] == [ReadState(group.commit(1), b"r")]
    assert group.commit(1) == 4


def test_heartbeats_with_reads_are_frugal() -> None:
    """For a read, the leader sends heartbeats only to the voters, and leaves them out of its next regular heartbeats.
    A regular heartbeat goes only to some of the learners, and the next one to others.
    """
    group = Group(3, learners=[4, 5, 6], learners_a_beat=2)
    leader = group.elect(1)
    group.settle()

    def told() -> list[int]:
        group.process(1)
        to = [message.to for message in group.net if message.type == MSG_HEARTBEAT]
        group.settle()
        return to

    leader.read_index(b"r")
    assert told() == [2, 3]
    assert group.reads[1] == [ReadState(group.commit(1), b"r")]
    beats = []
    for _ in range(4):
        leader.tick()
        beats.append(told())
    voters, learners = ([[id_ for id_ in to if (id_ > 3) is high] for to in beats] for high in (False, True))
    assert voters == [[], [2, 3], [2, 3], [2, 3]]
    assert sorted(chain.from_iterable(learners)) == [4, 5, 6], "in four rounds of heartbeats, each learner gets one"
    assert max(map(len, learners)) == 1
