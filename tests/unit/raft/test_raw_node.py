"""The contract between the Raft core and its driver."""

import pytest

from minka.v1.raft_pb2 import (
    MSG_APP_RESP,
    MSG_BEAT,
    MSG_CHECK_QUORUM,
    MSG_HUP,
    MSG_SNAP_STATUS,
    MSG_UNREACHABLE,
    MSG_VOTE,
    Message,
    MessageType,
)
from minkad.core.raft import Config, LocalMessage, PeerNotFound, RawNode, Role
from tests.unit.raft.group import Group
from tests.vectors.memory_storage import MemoryStorage


def test_the_driver_must_call_advance_between_two_readys() -> None:
    group = Group(1)
    node = group.nodes[1]
    node.campaign()
    ready = node.ready()
    with pytest.raises(AssertionError):
        node.ready()
    node.advance(ready)
    with pytest.raises(AssertionError):
        node.advance(ready)


@pytest.mark.parametrize("type_", [MSG_HUP, MSG_BEAT, MSG_UNREACHABLE, MSG_SNAP_STATUS, MSG_CHECK_QUORUM])
def test_local_messages_from_outside_are_refused(type_: MessageType.ValueType) -> None:
    with pytest.raises(LocalMessage):
        Group(3).nodes[1].step(Message(type=type_, from_id=2, to=1))


def test_an_answer_from_an_unknown_node_is_refused() -> None:
    with pytest.raises(PeerNotFound):
        Group(3).nodes[1].step(Message(type=MSG_APP_RESP, from_id=9, to=1, term=5))
    assert Group(3).nodes[1].basic_status().term == 0


def test_a_vote_leaves_only_after_the_hard_state_is_durable() -> None:
    """The vote is in the same Ready as the hard state, which must be synced before the vote is sent."""
    node = Group(3).nodes[1]
    node.step(Message(type=MSG_VOTE, from_id=2, to=1, term=1, index=1, log_term=1))
    ready = node.ready()
    assert ready.must_sync
    assert ready.hard_state is not None
    assert (ready.hard_state.term, ready.hard_state.vote) == (1, 2)
    assert len(ready.messages) == 1


def test_a_commit_alone_needs_no_sync() -> None:
    group = Group(1)
    leader = group.elect(1)
    leader.propose(b"x")
    first = group.process(1)
    second = group.process(1)
    assert first is not None
    assert second is not None
    assert (first.must_sync, first.committed_entries) == (True, [])
    assert (second.must_sync, [entry.data for entry in second.committed_entries]) == (False, [b"x"])


def test_a_leader_counts_itself_only_once_its_entry_is_durable() -> None:
    group = Group(1)
    leader = group.elect(1)
    before = group.commit(1)
    leader.propose(b"x")
    ready = leader.ready()
    assert group.commit(1) == before
    group.storages[1].append(ready.entries)
    leader.advance(ready)
    assert group.commit(1) == before + 1


def test_a_restarted_node_applies_only_entries_after_the_applied_ones() -> None:
    group = Group(3)
    group.elect(1).propose_batch([b"a", b"b"])
    group.settle()
    applied = group.commit(2) - 1
    node = group.start(2, group.storages[2], applied=applied)
    status = node.basic_status()
    assert (status.role, status.term, status.commit, status.applied) == (Role.FOLLOWER, 1, applied + 1, applied)
    group.settle()
    assert group.data(2) == [b"b"]


def test_the_core_is_deterministic() -> None:
    def run() -> list[str]:
        group = Group(3, random=lambda n: n // 2)
        seen: list[str] = []
        for step in range(60):
            for id_ in group.nodes:
                group.tick(id_)
                ready = group.process(id_)
                seen.append(str(ready))
            group.deliver()
            if step > 30 and group.role(1) is Role.LEADER:
                group.nodes[1].propose(b"%d" % step)
        return seen

    assert run() == run()


def test_the_status_of_a_node() -> None:
    group = Group(3, learners=[4])
    leader = group.elect(1)
    status = leader.status()
    assert (status.basic.id, status.basic.role, status.basic.leader_id, status.basic.vote) == (1, Role.LEADER, 1, 1)
    assert sorted(status.progress) == [1, 2, 3, 4]
    assert status.progress[4].is_learner
    status.progress[2].match = 0
    status.progress[2].inflights.add(99, 1)
    assert leader.status().progress[2].match == group.commit(1)
    assert group.nodes[2].status().progress == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": 0},
        {"heartbeat_tick": 0},
        {"election_tick": 1},
        {"max_size_per_msg": -1},
        {"max_committed_size_per_ready": 0},
        {"max_uncommitted_entries_size": 0},
        {"max_inflight_msgs": 0},
        {"max_inflight_bytes": 10, "max_size_per_msg": 11},
    ],
)
def test_contradictory_settings_are_refused(wrong: dict[str, int]) -> None:
    config = Config(id=1, storage=MemoryStorage(), random=lambda _: 0)
    for name, value in wrong.items():
        setattr(config, name, value)
    with pytest.raises(ValueError, match="must"):
        RawNode(config)


def test_log_lines_go_to_the_given_logger() -> None:
    lines: list[tuple[str, str]] = []
    group = Group(1, logger=lambda level, text: lines.append((level, text)))
    group.elect(1)
    assert ("INFO", "node 1 is the leader in term 1") in lines
