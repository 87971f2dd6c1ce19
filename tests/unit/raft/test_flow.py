"""Limits on the bytes and messages that are under way to a node, handed to the application, or uncommitted."""

import pytest

from minka.v1.raft_pb2 import MSG_APP, MSG_APP_RESP, MSG_HEARTBEAT_RESP, Entry, Message
from minkad.core.raft import NO_LIMIT, Progress, ProgressState, ProposalDropped
from minkad.core.raft.storage import limit_size
from minkad.core.raft.tracker import Inflights
from tests.unit.raft.group import Group


def appends(group: Group, to: int) -> list[Message]:
    """The messages with entries (MSG_APP) that are under way to a node."""
    return [m for m in group.net if m.type == MSG_APP and m.to == to and m.entries]


def test_a_batch_is_sent_as_one_message_to_each_follower() -> None:
    group = Group(3)
    leader = group.elect(1)
    leader.propose_batch([b"%d" % number for number in range(1_000)])
    group.process(1)
    assert [len(m.entries) for m in appends(group, 2)] == [1_000]
    assert [len(m.entries) for m in appends(group, 3)] == [1_000]
    group.settle()
    assert group.data(1) == group.data(2) == group.data(3) == [b"%d" % number for number in range(1_000)]


def test_an_empty_batch_is_not_proposed() -> None:
    group = Group(1)
    leader = group.elect(1)
    leader.propose_batch([])
    assert not leader.has_ready()


def test_in_flight_messages_are_limited() -> None:
    group = Group(3, max_inflight_msgs=2)
    leader = group.elect(1)
    for number in range(5):
        leader.propose(b"%d" % number)
    group.process(1)
    assert len(appends(group, 2)) == 2
    assert leader.status().progress[2].paused()
    group.settle()
    assert group.data(2) == [b"0", b"1", b"2", b"3", b"4"]


def test_in_flight_bytes_are_limited() -> None:
    group = Group(3, max_inflight_bytes=100, max_size_per_msg=100)
    leader = group.elect(1)
    for _ in range(5):
        leader.propose(b"x" * 60)
    group.process(1)
    assert len(appends(group, 2)) == 2  # the first message has 60 bytes, less than the limit, so a second one is sent
    assert leader.status().progress[2].inflights.bytes == 120
    group.settle()
    assert len(group.data(2)) == 5


def test_a_message_larger_than_the_window_is_sent_alone() -> None:
    group = Group(3, max_inflight_bytes=10, max_size_per_msg=10)
    group.elect(1).propose(b"x" * 1_000)
    group.settle()
    assert group.data(3) == [b"x" * 1_000]


def test_replication_goes_on_after_all_messages_of_a_full_window_were_lost() -> None:
    group = Group(3, max_inflight_msgs=2)
    leader = group.elect(1)
    group.isolate(3)
    for number in range(5):
        leader.propose(b"%d" % number)
    group.settle()
    group.isolate()
    assert leader.status().progress[3].inflights.full()
    leader.tick()
    group.settle()
    assert len(group.data(3)) == 5


def test_messages_are_limited_in_size() -> None:
    group = Group(3, max_size_per_msg=250)
    leader = group.elect(1)
    leader.propose_batch([b"x" * 100] * 10)
    group.settle()
    assert len(group.data(2)) == 10
    group.isolate(2)
    leader.propose_batch([b"y" * 100] * 4)
    group.settle()
    group.isolate()
    leader.report_unreachable(2)
    leader.tick()
    group.process(1)
    group.deliver()
    group.process(2)
    group.deliver(MSG_HEARTBEAT_RESP)
    group.process(1)
    assert [len(m.entries) for m in appends(group, 2)] == [2]  # the leader probes, with one message
    group.settle()
    assert len(group.data(2)) == 14


def test_the_size_of_the_entries_to_apply_is_limited() -> None:
    group = Group(1, max_committed_size_per_ready=250)
    leader = group.elect(1)
    leader.propose_batch([b"x" * 100] * 5)
    group.process(1)
    sizes = []
    while leader.has_ready():
        ready = group.process(1)
        assert ready is not None
        sizes.append(len(ready.committed_entries))
    assert sizes == [2, 2, 1]


def test_uncommitted_entries_are_limited() -> None:
    group = Group(3, max_uncommitted_entries_size=100)
    leader = group.elect(1)
    group.isolate(1)
    leader.propose(b"x" * 60)
    leader.propose(b"x" * 40)
    with pytest.raises(ProposalDropped, match="uncommitted") as dropped:
        leader.propose(b"x")
    assert dropped.value.leader_id == 1
    leader.propose(b"")  # an empty entry has no size
    group.settle()
    group.isolate()
    leader.tick()
    group.settle()
    leader.propose(b"y")
    group.settle()
    assert group.data(2)[-1] == b"y"


def test_a_proposal_over_the_limit_is_accepted_if_nothing_is_uncommitted() -> None:
    group = Group(3, max_uncommitted_entries_size=10)
    leader = group.elect(1)
    leader.propose(b"x" * 1_000)
    with pytest.raises(ProposalDropped):
        leader.propose(b"x")
    group.settle()
    assert group.data(3) == [b"x" * 1_000]


def test_a_batch_is_dropped_as_a_whole() -> None:
    group = Group(1, max_uncommitted_entries_size=10)
    leader = group.elect(1)
    leader.propose(b"x" * 8)
    with pytest.raises(ProposalDropped):
        leader.propose_batch([b"y"] * 3)
    group.settle()
    assert group.data(1) == [b"x" * 8]


def test_an_unreachable_node_is_probed() -> None:
    group = Group(3)
    leader = group.elect(1)
    group.isolate(2)
    leader.propose(b"x")
    group.process(1)
    leader.report_unreachable(2)
    assert leader.status().progress[2].state is ProgressState.PROBE
    leader.propose(b"y")
    leader.propose(b"z")
    group.isolate()
    group.process(1)
    assert len(appends(group, 2)) == 1  # the leader sends one probe, and no other message until the answer comes
    group.settle()
    assert group.data(2) == [b"x", b"y", b"z"]


def test_a_late_answer_does_not_change_the_progress() -> None:
    group = Group(3)
    leader = group.elect(1)
    leader.propose(b"x")
    group.settle()
    before = leader.status().progress[2]
    leader.step(Message(type=MSG_APP_RESP, from_id=2, to=1, term=group.term(1), index=2))
    leader.step(Message(type=MSG_APP_RESP, from_id=2, to=1, term=group.term(1), index=2, reject=True, reject_hint=1))
    assert str(leader.status().progress[2]) == str(before)


def test_the_window_of_messages_in_flight() -> None:
    window = Inflights(3, 100)
    window.add(5, 10)
    window.add(7, 80)
    assert not window.full()
    window.add(9, 0)
    assert window.full()
    window.free_to(6)
    assert (len(window), window.bytes, window.full()) == (2, 80, False)
    window.add(10, 20)
    window.free_to(10)
    assert (len(window), window.bytes) == (0, 0)
    window.add(11, 100)
    assert window.full()
    with pytest.raises(AssertionError):
        window.add(12, 1)


def test_limit_size_keeps_at_least_one_entry() -> None:
    entries = [Entry(index=index, data=b"x" * 10) for index in range(1, 6)]
    size = entries[0].ByteSize()
    assert limit_size(entries, 0) == entries[:1]
    assert limit_size(entries, 2 * size) == entries[:2]
    assert limit_size(entries, 3 * size - 1) == entries[:2]
    assert limit_size(entries, NO_LIMIT) == entries
    assert limit_size([], 0) == []


def progress(state: ProgressState, match: int, following: int) -> Progress:
    """The progress of a follower in this state, as its leader knows it."""
    return Progress(next=following, inflights=Inflights(8, NO_LIMIT), match=match, state=state)


def test_the_answer_to_a_probe_counts_once() -> None:
    node = progress(ProgressState.PROBE, 2, 9)
    assert not node.maybe_decrease(7, 5)  # an old answer: the last probe was about 8, not about 7
    assert node.next == 9
    assert node.maybe_decrease(8, 5)
    assert node.next == 6


def test_the_commit_index_is_sent_if_the_node_can_use_it() -> None:
    node = progress(ProgressState.REPLICATE, 5, 9)
    assert node.can_bump_commit(6)
    node.sent_commit = 8
    assert not node.can_bump_commit(20)  # the node can't commit entries that it wasn't sent
    assert node.maybe_decrease(8, 5)
    assert node.sent_commit == 5  # the node refused the message, so it may not know the commit index 8
    assert not node.can_bump_commit(20)
    node.sent_entries(3, 30)
    assert node.can_bump_commit(6)


def test_learners_get_entries_as_early_as_voters() -> None:
    group = Group(2, learners=[3])
    leader = group.elect(1)
    leader.propose(b"x")
    group.process(1)
    assert len(appends(group, 2)) == len(appends(group, 3)) == 1
