"""Most voters restart without entries that they had acknowledged. A node that still has these entries keeps them, and
refuses to follow those voters.
"""

import pytest

from minka.v1.raft_pb2 import (
    MSG_APP,
    MSG_APP_RESP,
    MSG_HEARTBEAT,
    MSG_HEARTBEAT_RESP,
    MSG_PRE_VOTE,
    MSG_SNAP,
    ConfState,
    Entry,
    HardState,
    Message,
    Snapshot,
    SnapshotMetadata,
)
from minkad.core.raft import QuorumRolledBack
from minkad.core.raft.types import NO_LIMIT
from tests.unit.raft.group import Group, GroupStorage, bootstrapped

Log = list[tuple[int, bytes]]  # the term and data of each entry, from index 2 on


def entries(log: Log) -> list[Entry]:
    """The log as entries."""
    return [Entry(term=term, index=2 + place, data=data) for place, (term, data) in enumerate(log)]


def stored(log: Log, term: int, commit: int) -> GroupStorage:
    """A storage with this log, term and commit index."""
    storage = bootstrapped([1, 2, 3])
    storage.append(entries(log))
    storage.set_hard_state(HardState(term=term, commit=commit))
    return storage


COMMON: Log = [(2, b"a"), (2, b"b")]
# Each leader begins its term with an empty entry. So a leader that lost entry d, and leads again in term 3, has
# (3, b"") as well: only the lack of d proves the loss.
WITHOUT_PROOF: Log = [*COMMON, (3, b""), (3, b"d")]


@pytest.mark.parametrize(
    ("term", "others", "own", "proof"),
    [
        (2, COMMON, WITHOUT_PROOF, "entries up to 5 are committed here, and the leader's log ended at 4"),
        (2, COMMON, [*COMMON, (3, b"c"), (3, b"d")], "another entry 4 than the one of term 3"),
        (5, COMMON, [*COMMON, (4, b"c")], "another entry 4 than the one of term 4"),
        (5, [*COMMON, (5, b"e"), (5, b"f"), (5, b"g")], [*COMMON, (4, b"c")], "another entry 4 than the one of term 4"),
        (5, [*COMMON, (4, b"e"), (5, b"f")], [*COMMON, (4, b"c")], "another entry 4 than the one of term 4"),
        (5, [*COMMON, (2, b"e"), (2, b"f")], [*COMMON, (4, b"c")], "number 4 in term 4, and the leader has entry 5"),
    ],
    ids=["ends earlier", "the same term again", "another term", "longer", "longer, the same term", "an older term"],
)
def test_a_node_follows_no_quorum_without_its_committed_entries(term: int, others: Log, own: Log, proof: str) -> None:
    """Nodes 1 and 2 have lost entries: their log is `others`, and their term is `term`. Node 3 still has its log,
    `own`.
    """
    group = Group(3)
    group.start(1, stored(others, term, commit=3), applied=1)
    group.start(2, stored(others, term, commit=3), applied=1)
    last = len(own) + 1
    group.start(3, stored(own, own[-1][0], commit=last), applied=last)
    group.nodes[1].campaign()
    with pytest.raises(QuorumRolledBack, match=proof):
        group.settle()
    group.process(3)
    assert group.storages[3].entries(2, last + 1, NO_LIMIT) == entries(own)
    assert group.commit(3) == last


def test_a_node_takes_no_snapshot_without_its_committed_entries() -> None:
    node = Group(3).start(3, stored([(4, b"c"), (4, b"d")], term=4, commit=3), applied=3)
    voters = ConfState(voters=[1, 2, 3])
    for index, term in ((2, 3), (9, 3)):
        snapshot = Snapshot(metadata=SnapshotMetadata(index=index, term=term, conf_state=voters))
        with pytest.raises(QuorumRolledBack, match="entries up to 3 are committed here"):
            node.step(Message(from_id=1, to=3, term=5, type=MSG_SNAP, snapshot=snapshot))


def test_a_leader_rejects_acknowledgements_beyond_its_log_once_a_heartbeat() -> None:
    said: list[str] = []
    group = Group(3, logger=lambda level, text: said.append(text) if level == "ERROR" else None)
    leader = group.elect(1)
    group.isolate(3)
    group.settle()
    ahead = Message(type=MSG_APP_RESP, from_id=3, to=1, term=group.term(1), index=99)
    for _ in range(3):
        leader.step(ahead)
        leader.step(Message(type=MSG_HEARTBEAT_RESP, from_id=3, to=1, term=group.term(1)))
    assert len(said) == 1
    assert said[0].startswith("node 3 has committed entries up to 99, and the log of its leader 1 ends at 2")
    assert leader.match()[3] <= 2
    group.isolate()
    group.process(1)
    assert [(m.type, m.reject, m.index) for m in group.net if m.to == 3] == [(MSG_HEARTBEAT, True, 2)]
    with pytest.raises(QuorumRolledBack, match="the leader's log ended at 2"):
        group.deliver()
    group.net.clear()
    group.tick(1)
    group.process(1)
    assert [m.reject for m in group.net if m.to == 3] == [True], "a message may be lost"


def test_a_late_append_does_not_prove_a_loss() -> None:
    group = Group(3)
    leader = group.elect(1)
    group.drop = lambda m: m.to == 3 and m.type == MSG_APP
    leader.propose(b"a")
    group.process(1)
    late = Message(type=MSG_APP, from_id=1, to=3, term=group.term(1), index=2, log_term=1, commit=2)
    late.entries.extend(group.storages[1].entries(3, 4, NO_LIMIT))
    group.drop = lambda _: False
    for data in (b"b", b"c"):
        leader.propose(data)
        group.settle()
        leader.tick()
        group.settle()
    committed = group.commit(3)
    assert committed == group.commit(1) == 5
    group.nodes[3].step(late)
    ready = group.process(3)
    assert ready is not None
    assert [(m.type, m.index) for m in ready.messages] == [(MSG_APP_RESP, committed)]


def test_a_commit_learned_from_a_later_term_counts_only_in_that_term() -> None:
    """Node 2 learns in term 5 that its entry is committed. The leader of term 4 may lack this entry, and a late message
    of this leader may ask node 2 to replace it. Such a message doesn't prove that the voters have lost the entry.
    """
    node = Group(3, commit_by_vote=True).start(2, stored([(3, b"a")], term=4, commit=1), applied=1)
    stale = Message(type=MSG_APP, from_id=3, to=2, term=4, index=1, log_term=1, entries=[Entry(index=2, term=4)])
    news = Message(type=MSG_PRE_VOTE, from_id=1, to=2, term=6, index=3, log_term=5, commit=2, commit_term=3)
    node.step(news)
    status = node.basic_status()
    assert (status.term, status.commit) == (5, 2)
    node.step(stale)
    assert node.basic_status().commit == 2
