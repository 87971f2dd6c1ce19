"""Nodes that need a snapshot, and nodes that get a snapshot that they don't need."""

from minka.v1.raft_pb2 import MSG_APP, MSG_APP_RESP, MSG_SNAP, ConfState, Entry, Message, Snapshot, SnapshotMetadata
from minkad.core.raft import ProgressState, SnapshotTemporarilyUnavailable
from tests.unit.raft.group import Group, GroupStorage, bootstrapped


def behind_a_snapshot() -> Group:
    """A group whose leader, node 1, has compacted entries that node 3 lacks. Node 3 hasn't got a snapshot yet."""
    group = Group(3)
    leader = group.elect(1)
    group.isolate(3)
    leader.propose_batch([b"a", b"b", b"c"])
    group.settle()
    storage = group.storages[1]
    storage.create_snapshot(group.commit(1), None, b"abc")
    storage.compact(group.commit(1))
    group.isolate()
    return group


def snapshot_message(index: int, term: int = 1, voters: tuple[int, ...] = (1, 2, 3)) -> Message:
    """A snapshot from node 2 to node 1."""
    metadata = SnapshotMetadata(index=index, term=term, conf_state=ConfState(voters=voters))
    return Message(type=MSG_SNAP, from_id=2, to=1, term=1, snapshot=Snapshot(data=b"s", metadata=metadata))


def answer(group: Group) -> Message:
    """The only answer that node 1 sends now."""
    group.net = []
    group.process(1)
    (message,) = [m for m in group.net if m.type == MSG_APP_RESP]
    return message


def test_a_node_that_lags_gets_a_snapshot() -> None:
    group = behind_a_snapshot()
    leader = group.nodes[1]
    leader.tick()
    group.settle()
    assert group.storages[3].snapshot().data == b"abc"
    assert group.commit(3) == group.commit(1)
    leader.propose(b"d")
    group.settle()
    assert group.data(3) == [b"d"]


def test_a_snapshot_that_was_lost_is_sent_again() -> None:
    group = behind_a_snapshot()
    leader = group.nodes[1]
    group.drop = lambda m: m.type == MSG_SNAP
    leader.tick()
    group.settle()
    progress = leader.status().progress[3]
    assert (progress.state, progress.pending_snapshot) == (ProgressState.SNAPSHOT, group.commit(1))
    leader.tick()
    group.settle()
    assert leader.status().progress[3].state is ProgressState.SNAPSHOT  # the leader waits for the driver's report
    group.isolate()
    leader.report_snapshot(3, ok=False)
    progress = leader.status().progress[3]
    assert (progress.state, progress.next) == (ProgressState.PROBE, progress.match + 1)
    leader.tick()
    group.settle()
    assert group.commit(3) == group.commit(1)


def test_replication_goes_on_after_the_answer_to_a_snapshot_was_lost() -> None:
    group = behind_a_snapshot()
    leader = group.nodes[1]
    group.drop = lambda m: m.type == MSG_APP_RESP and m.from_id == 3 and not m.reject
    leader.tick()
    group.settle()
    group.isolate()
    leader.report_snapshot(3, ok=True)
    progress = leader.status().progress[3]
    assert (progress.state, progress.next, progress.paused()) == (ProgressState.PROBE, group.commit(1) + 1, True)
    leader.tick()
    group.settle()
    assert leader.status().progress[3].state is ProgressState.REPLICATE


def test_a_node_that_does_not_answer_is_sent_no_snapshot() -> None:
    group = Group(3)
    leader = group.elect(1)
    group.isolate(3)
    for _ in range(25):
        group.tick(1)
        group.settle()
    leader.propose(b"a")
    group.settle()
    group.storages[1].create_snapshot(group.commit(1), None, b"a")
    group.storages[1].compact(group.commit(1))
    leader.propose(b"b")
    leader.report_unreachable(3)
    leader.propose(b"c")
    group.drop = lambda _: False
    group.process(1)
    assert not any(m.type == MSG_SNAP for m in group.net)


class BusyStorage(GroupStorage):
    """A storage whose snapshot is still being made."""

    busy = True

    def snapshot(self) -> Snapshot:
        """Return the snapshot. Raises SnapshotTemporarilyUnavailable while it is being made."""
        if self.busy:
            raise SnapshotTemporarilyUnavailable
        return super().snapshot()


def test_a_snapshot_that_is_still_being_made_is_asked_for_again() -> None:
    group = behind_a_snapshot()
    storage = group.storages[1]
    storage.__class__ = BusyStorage
    group.nodes[1].tick()
    group.settle()
    assert group.nodes[1].status().progress[3].state is ProgressState.PROBE
    storage.busy = False  # type: ignore[attr-defined] # the class was set above
    group.nodes[1].tick()
    group.settle()
    assert group.commit(3) == group.commit(1)


def test_an_old_snapshot_is_ignored() -> None:
    group = Group(3)
    group.nodes[1].step(snapshot_message(index=1))
    message = answer(group)
    assert (message.index, message.reject) == (1, False)


def test_a_snapshot_of_a_group_without_the_node_is_ignored() -> None:
    group = Group(3)
    group.nodes[1].step(snapshot_message(index=9, voters=(2, 3)))
    assert answer(group).index == 1
    assert group.storages[1].snapshot().metadata.index == 1


def test_a_snapshot_of_entries_in_the_log_only_raises_the_commit_index() -> None:
    storage = bootstrapped([1, 2, 3])
    storage.append([Entry(term=1, index=index) for index in range(2, 8)])
    group = Group(3)
    group.start(1, storage, applied=1)
    group.nodes[1].step(snapshot_message(index=5))
    assert answer(group).index == 5
    assert (group.commit(1), storage.last_index(), storage.first_index()) == (5, 7, 2)
    assert [entry.index for entry in group.applied[1]] == [2, 3, 4, 5]


def test_a_snapshot_replaces_a_log_that_differs() -> None:
    storage = bootstrapped([1, 2, 3])
    storage.append([Entry(term=1, index=index) for index in range(2, 8)])
    group = Group(3)
    group.start(1, storage, applied=1)
    group.nodes[1].step(snapshot_message(index=5, term=2, voters=(1, 2)))
    assert answer(group).index == 5
    assert (storage.first_index(), storage.last_index()) == (6, 5)
    assert group.nodes[1].status().config.voters.ids() == {1, 2}
    assert group.applied[1] == []


def test_a_snapshot_and_later_entries_come_in_one_ready() -> None:
    group = Group(3)
    node = group.nodes[1]
    node.step(snapshot_message(index=5))
    entry = Entry(term=1, index=6, data=b"x")
    node.step(Message(type=MSG_APP, from_id=2, to=1, term=1, index=5, log_term=1, entries=[entry], commit=6))
    ready = node.ready()
    assert ready.snapshot is not None
    assert (ready.snapshot.metadata.index, ready.entries, ready.committed_entries) == (5, [entry], [])
    group.storages[1].apply_snapshot(ready.snapshot)
    group.storages[1].append(ready.entries)
    node.advance(ready)
    assert node.ready().committed_entries == [entry]


def test_a_node_that_catches_up_otherwise_needs_no_snapshot() -> None:
    """Node 3 never gets the snapshot, but answers that it has all entries. Wherever node 3 got them, the leader
    continues with the later entries.
    """
    group = behind_a_snapshot()
    leader = group.nodes[1]
    group.drop = lambda m: m.type == MSG_SNAP
    leader.tick()
    group.settle()
    leader.step(Message(type=MSG_APP_RESP, from_id=3, to=1, term=1, index=group.commit(1)))
    assert leader.status().progress[3].state is ProgressState.REPLICATE


def test_an_append_of_compacted_entries_is_answered_with_the_commit_index() -> None:
    group = Group(3)
    group.elect(2).propose_batch([b"a", b"b"])
    group.settle()
    group.storages[1].create_snapshot(4, None, b"")
    group.storages[1].compact(4)
    group.nodes[1].step(Message(type=MSG_APP, from_id=2, to=1, term=1, index=2, log_term=1, commit=2))
    message = answer(group)
    assert (message.index, message.reject) == (4, False)


def test_a_snapshot_is_given_to_the_driver_once() -> None:
    node = Group(3).nodes[1]
    node.step(snapshot_message(index=5))
    ready = node.ready()
    assert ready.snapshot is not None
    assert not node.has_ready()
