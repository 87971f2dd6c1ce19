"""A leader sends some messages before its own write is durable. Other messages, and decisions, wait for the write."""

from minka.v1.raft_pb2 import (
    MSG_APP,
    MSG_APP_RESP,
    MSG_HEARTBEAT,
    MSG_VOTE_RESP,
    Entry,
    Message,
)
from minkad.core.raft import RawNode, Ready, Role
from tests.unit.raft.group import Group


def proposed(group: Group) -> tuple[RawNode, Ready, int]:
    """Let node 1 lead and begin to write a new entry. Returns the node, its Ready, and the index of the entry."""
    leader = group.elect(1)
    leader.propose(b"x")
    return leader, leader.ready(), leader.last_index()


def persist(group: Group, ready: Ready) -> None:
    """Store the Ready of node 1, as if its write were now done."""
    if ready.hard_state:
        group.storages[1].set_hard_state(ready.hard_state)
    group.storages[1].append(ready.entries)


def acknowledge(leader: RawNode, id_: int, index: int) -> None:
    """Let a follower acknowledge all entries up to `index`."""
    leader.step(Message(type=MSG_APP_RESP, from_id=id_, to=1, term=1, index=index))


def test_a_leaders_entries_leave_at_once() -> None:
    _, ready, index = proposed(Group(3))
    assert ready.must_sync
    sent = [(m.type, m.to, m.entries[0].index) for m in ready.messages_at_once]
    assert sent == [(MSG_APP, 2, index), (MSG_APP, 3, index)]
    assert ready.messages == []


def test_requests_for_votes_wait_for_the_sync() -> None:
    node = Group(3, pre_vote=False).nodes[1]
    node.campaign()
    ready = node.ready()
    assert (len(ready.messages_at_once), len(ready.messages)) == (0, 2)


def test_acknowledgements_wait_for_the_sync() -> None:
    group = Group(3)
    group.elect(1).propose(b"x")
    group.process(1)
    group.deliver()
    ready = group.nodes[2].ready()
    assert (ready.messages_at_once, [m.type for m in ready.messages]) == ([], [MSG_APP_RESP])


def test_a_new_leaders_messages_wait_until_its_term_is_durable() -> None:
    node = Group(3, pre_vote=False).nodes[1]
    node.campaign()
    for voter in (2, 3):
        node.step(Message(type=MSG_VOTE_RESP, from_id=voter, to=1, term=1))
    assert node.basic_status().role is Role.LEADER
    ready = node.ready()
    assert ready.hard_state is not None
    assert (ready.hard_state.term, ready.hard_state.vote) == (1, 1)
    assert (ready.messages_at_once, [m.to for m in ready.messages if m.type == MSG_APP]) == ([], [2, 3])


def test_a_leader_does_not_count_for_the_quorum_before_its_sync() -> None:
    group = Group(3)
    leader, ready, index = proposed(group)
    acknowledge(leader, 2, index)
    assert (group.commit(1), leader.match()) == (index - 1, {1: index - 1, 2: index, 3: index - 1})
    persist(group, ready)
    leader.advance(ready)
    assert (group.commit(1), leader.match()[1]) == (index, index)


def test_a_quorum_without_the_leader_commits_an_entry() -> None:
    group = Group(3)
    leader, ready, index = proposed(group)
    acknowledge(leader, 2, index)
    acknowledge(leader, 3, index)
    assert group.commit(1) == index
    assert leader.match()[1] == index - 1
    persist(group, ready)
    leader.advance(ready)
    assert [entry.data for entry in leader.ready().committed_entries] == [b"x"]


def test_acknowledgements_to_a_former_leader_do_not_count() -> None:
    group = Group(3)
    leader, ready, index = proposed(group)
    leader.step(Message(type=MSG_HEARTBEAT, from_id=2, to=1, term=2, commit=index - 1))
    persist(group, ready)
    leader.advance(ready)
    acknowledge(leader, 2, index)
    acknowledge(leader, 3, index)
    assert (group.role(1), group.commit(1)) == (Role.FOLLOWER, index - 1)


def test_an_entry_that_replaced_one_under_way_is_still_to_be_written() -> None:
    group = Group(3)
    leader, ready, index = proposed(group)
    other = Entry(index=index, term=2, data=b"y")
    leader.step(Message(type=MSG_APP, from_id=2, to=1, term=2, index=index - 1, log_term=1, entries=[other]))
    persist(group, ready)
    leader.advance(ready)
    ready = leader.ready()
    assert [(entry.index, entry.term, entry.data) for entry in ready.entries] == [(index, 2, b"y")]
    assert ready.messages_at_once == []
    assert [(m.type, m.term, m.index) for m in ready.messages if m.to == 2] == [(MSG_APP_RESP, 2, index)]


def test_after_a_crash_before_its_sync_a_leader_gets_the_entry_from_the_others() -> None:
    group = Group(3)
    leader, ready, index = proposed(group)
    group.net += ready.messages_at_once
    group.deliver()
    node = group.start(1, group.storages[1], applied=index - 1)
    assert (node.last_index(), group.term(1)) == (index - 1, 1)
    group.settle()
    assert group.commit(2) == index - 1
    assert group.elect_after_timeout(2) is Role.LEADER
    assert [group.data(id_) for id_ in (1, 2, 3)] == [[b"x"]] * 3
    assert leader is not node


def test_an_entry_with_the_same_index_of_another_term_is_still_to_be_written() -> None:
    group = Group(3)
    leader = group.elect(1)
    leader.propose(b"x")
    index = leader.last_index()
    leader.step(Message(type=MSG_HEARTBEAT, from_id=2, to=1, term=2, commit=index - 1))
    ready = leader.ready()
    other = Entry(index=index, term=2, data=b"y")
    leader.step(Message(type=MSG_APP, from_id=2, to=1, term=2, index=index - 1, log_term=1, entries=[other]))
    persist(group, ready)
    leader.advance(ready)
    assert [(entry.term, entry.data) for entry in leader.ready().entries] == [(2, b"y")]
