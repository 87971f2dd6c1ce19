"""Logs that differ, entries of earlier terms, and the storage in memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minka.v1.raft_pb2 import MSG_APP, MSG_APP_RESP, MSG_HEARTBEAT, ConfState, Entry, HardState, Message
from minkad.core.raft import Compacted, Role, SnapOutOfDate, Unavailable
from minkad.core.raft.log import RaftLog
from minkad.core.raft.types import NO_LIMIT
from minkad.core.raft.unstable import Unstable
from tests.unit.raft.group import Group, bootstrapped
from tests.vectors.memory_storage import MemoryStorage


def stored(terms: list[int], first: int = 2) -> list[Entry]:
    """Entries of these terms, at consecutive indexes."""
    return [Entry(term=term, index=first + offset) for offset, term in enumerate(terms)]


def group_with_logs(mine: list[int], theirs: list[int]) -> Group:
    """A group in which nodes 1 and 3 have entries of the terms `mine`, and node 2 has entries of the terms `theirs`."""
    group = Group(3)
    for id_, terms in ((1, mine), (2, theirs), (3, mine)):
        storage = bootstrapped([1, 2, 3])
        storage.append(stored(terms))
        storage.set_hard_state(HardState(term=max([1, *mine, *theirs]), commit=1))
        group.start(id_, storage, applied=1)
    return group


def terms(storage: MemoryStorage) -> list[int]:
    """The terms of the entries in a log."""
    return [entry.term for entry in storage.entries(2, storage.last_index() + 1, NO_LIMIT)]


COMMON = st.lists(st.sampled_from([1, 2, 3]), max_size=6).map(sorted)
TAILS = [st.lists(st.sampled_from(own), max_size=8).map(sorted) for own in ([4, 6, 8], [5, 7, 9])]


@given(COMMON, *TAILS)
def test_logs_become_equal_with_at_most_one_probe_a_term(common: list[int], one: list[int], other: list[int]) -> None:
    """The two logs begin with the same entries. After these, they have entries of different leaders, in different
    terms.
    """
    theirs, mine = sorted([[*common, *one], [*common, *other]], key=lambda log: (log[-1:], len(log)))
    group = group_with_logs(mine, theirs)
    group.nodes[1].campaign()
    probes = 0
    for _ in range(200):
        readys = [group.process(id_) for id_ in group.nodes]
        sent = group.deliver()
        probes += sum(1 for m in sent if m.type == MSG_APP_RESP and m.from_id == 2 and m.reject)
        if not sent and not any(readys):
            break
    assert terms(group.storages[2]) == terms(group.storages[1]) == [*mine, group.term(1)]
    assert group.commit(2) == group.commit(1) == len(mine) + 2
    assert probes <= len({*mine, *theirs}) + 1


def test_an_entry_of_an_older_term_commits_only_with_one_of_the_present_term() -> None:
    """A majority has the older entry, but another leader might still replace this entry. Source: Raft, figure 8."""
    group = Group(3)
    leader = group.elect(1)
    group.drop = lambda m: m.type == MSG_APP
    leader.propose(b"x")
    group.settle()
    restarted = group.start(1, group.storages[1], applied=1)
    old = group.storages[1].last_index()
    assert group.elect_after_timeout(1) is Role.LEADER
    assert group.term(1) == 2
    before = group.commit(1)
    restarted.step(Message(type=MSG_APP_RESP, from_id=2, to=1, term=2, index=old))
    assert group.commit(1) == before
    restarted.step(Message(type=MSG_APP_RESP, from_id=2, to=1, term=2, index=old + 1))
    assert group.commit(1) == old + 1


def test_committed_entries_are_never_replaced() -> None:
    group = Group(3)
    group.elect(1).propose(b"x")
    group.settle()
    log = RaftLog(group.storages[1], NO_LIMIT, lambda _level, _text: None)
    log.commit_to(3)
    with pytest.raises(AssertionError, match="cannot be replaced"):
        log.maybe_append(2, 1, [Entry(term=9, index=3)], 0)


def test_a_commit_index_beyond_the_log_is_a_bug() -> None:
    node = Group(3).nodes[1]
    with pytest.raises(AssertionError, match="was it truncated, damaged or lost"):
        node.step(Message(type=MSG_HEARTBEAT, from_id=2, to=1, term=1, commit=99))


def test_a_hard_state_beyond_the_log_is_a_bug_at_the_start() -> None:
    storage = bootstrapped([1])
    storage.set_hard_state(HardState(term=1, commit=7))
    with pytest.raises(AssertionError, match="was the log truncated or lost"):
        Group(1).start(1, storage)


def test_entries_that_replace_ones_under_way_do_not_count_as_stable() -> None:
    """A new leader replaces the entries of a former leader while the driver writes the former entries to the disk."""
    group = Group(3)
    node, storage = group.nodes[1], group.storages[1]
    node.step(Message(type=MSG_APP, from_id=2, to=1, term=1, index=1, log_term=1, entries=stored([1, 1, 1])))
    old = node.ready()
    node.step(Message(type=MSG_APP, from_id=3, to=1, term=2, index=2, log_term=1, entries=stored([2], first=3)))
    storage.append(old.entries)
    node.advance(old)
    new = node.ready()
    assert [(entry.index, entry.term) for entry in new.entries] == [(3, 2)]
    storage.append(new.entries)
    node.advance(new)
    assert terms(storage) == [1, 2]
    assert not node.has_ready()


def test_entries_can_be_proposed_while_others_are_written() -> None:
    group = Group(1)
    leader = group.elect(1)
    leader.propose(b"a")
    first = leader.ready()
    leader.propose(b"b")
    group.storages[1].append(first.entries)
    leader.advance(first)
    group.settle()
    assert [entry.data for entry in group.storages[1].entries(3, 5, NO_LIMIT)] == [b"a", b"b"]
    assert group.data(1) == [b"a", b"b"]


def test_the_storage_in_memory() -> None:
    storage = bootstrapped([1, 2, 3])
    assert (storage.first_index(), storage.last_index(), storage.term(1)) == (2, 1, 1)
    storage.append(stored([1, 1, 2, 2]))
    assert [entry.index for entry in storage.entries(3, 5, NO_LIMIT)] == [3, 4]
    assert len(storage.entries(2, 6, 0)) == 1
    storage.append(stored([3], first=4))
    assert (storage.last_index(), storage.term(4)) == (4, 3)
    with pytest.raises(Unavailable):
        storage.term(5)
    with pytest.raises(Unavailable):
        storage.entries(2, 6, NO_LIMIT)
    with pytest.raises(AssertionError, match="gap"):
        storage.append(stored([3], first=6))


def test_the_storage_in_memory_compacts() -> None:
    storage = bootstrapped([1, 2, 3])
    storage.append(stored([1, 1, 2, 2]))
    snapshot = storage.create_snapshot(4, ConfState(voters=[1]), b"s")
    assert (snapshot.metadata.term, list(snapshot.metadata.conf_state.voters)) == (2, [1])
    assert storage.first_index() == 2  # a snapshot alone removes no entries
    storage.compact(3)
    assert (storage.first_index(), storage.term(3)) == (4, 1)
    with pytest.raises(Compacted):
        storage.entries(3, 5, NO_LIMIT)
    with pytest.raises(Compacted):
        storage.term(2)
    with pytest.raises(Compacted):
        storage.compact(3)
    with pytest.raises(SnapOutOfDate):
        storage.create_snapshot(4, None, b"")
    with pytest.raises(SnapOutOfDate):
        storage.apply_snapshot(snapshot)
    storage.append(stored([1, 1, 2, 2]))  # the storage skips the compacted ones of these entries
    assert storage.last_index() == 5


def test_a_commit_index_counts_only_up_to_the_last_matching_entry() -> None:
    """After the entries of the leader's message, the node's log may still have entries of another leader. These may
    differ from the committed entries.
    """
    storage = bootstrapped([1, 2, 3])
    storage.append(stored([1, 1, 1, 1]))
    group = Group(3)
    node = group.start(1, storage, applied=1)
    entry = Entry(term=1, index=3)
    node.step(Message(type=MSG_APP, from_id=2, to=1, term=2, index=2, log_term=1, entries=[entry], commit=5))
    assert group.commit(1) == 3


def test_a_read_across_storage_and_memory_has_no_gap() -> None:
    storage = bootstrapped([1])
    storage.append([Entry(term=1, index=index, data=b"x" * 100) for index in (2, 3, 4)])
    log = RaftLog(storage, NO_LIMIT, lambda _level, _text: None)
    log.append([Entry(term=1, index=index) for index in (5, 6)])
    for limit in range(0, 400, 10):
        indexes = [entry.index for entry in log.slice(2, 7, limit)]
        assert indexes == list(range(2, 2 + len(indexes)))
    assert len(log.slice(2, 7, NO_LIMIT)) == 5
    assert [entry.index for entry in log.scan(2, 7, 0)] == [2, 3, 4, 5, 6]


def test_only_the_entries_that_were_written_become_stable() -> None:
    unstable = Unstable(2)
    unstable.truncate_and_append(stored([1, 1]))
    unstable.accept_in_progress()
    unstable.truncate_and_append(stored([2], first=3))
    unstable.stable_to(3, 1)
    assert [(entry.index, entry.term) for entry in unstable.entries] == [(2, 1), (3, 2)]
    assert [entry.index for entry in unstable.next_entries()] == [3]
    unstable.stable_to(9, 2)
    unstable.stable_to(1, 1)
    assert len(unstable.entries) == 2
    unstable.stable_to(3, 2)
    assert (unstable.entries, unstable.offset) == ([], 4)
