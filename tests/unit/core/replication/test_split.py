"""The steps of a split that its leader carries out: the marker, the end, and the same in-sync set for both halves."""

from typing import Any

from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import FinishSplitRequest
from minkad.core.replication.entries import SplitMarker, decode_entry
from minkad.core.replication.following import LeaderStream
from minkad.core.replication.instructions import Answer, Apply, AskFinishSplit, IsrProposal, WakeAt
from minkad.core.replication.peer_messages import Append
from minkad.core.replication.replica import Replica
from minkad.core.replication.replica_state import Applying, Role
from minkad.core.replication.split import awaits_child, marker_due, provisional_row
from tests.unit.core.replication.bench import NODES, Bench, MemoryData, MemoryLog, data_at, leader_of, log_of, row

REFUSED = MinkaError(Code.STALE_EPOCH, "the row has changed")
PARENT, CHILD = 1, 2


def parent_row(**fields: Any) -> Any:
    return row(PARENT, splitting=True, split_to=CHILD, end_key=b"m", **fields)


def child_row(**fields: Any) -> Any:
    return row(CHILD, splitting=True, split_from=PARENT, start_key=b"m", **fields)


def made(bench: Bench, **fields: Any) -> Replica:
    """Host the child as if this node had just made it from the parent's data. Returns the replica of the child."""
    return bench.host(child_row(**fields), MemoryLog(4, 1), data_at(4))


def data_of(replica: Replica) -> MemoryData:
    assert isinstance(replica.data, MemoryData)
    return replica.data


# The marker of the split


def test_the_leader_appends_the_marker_once() -> None:
    bench = Bench()
    parent = bench.host(parent_row(partition_epoch=5))
    assert [decode_entry(entry.body) for entry in parent.log.read(1, 1, 1)] == [SplitMarker(CHILD, 5)]
    bench.tick(parent, 1.0)
    bench.adopt(parent)
    assert parent.log.end == 1


def test_a_new_leader_appends_the_marker_only_after_it_has_applied_its_log() -> None:
    bench = Bench()
    parent = bench.host(parent_row(), log_of(1))
    assert marker_due(bench.shared, leader_of(parent)) is None
    assert parent.log.end == 1
    bench.align(parent, "byzantium", "cyrene")
    bench.apply(parent)
    assert parent.log.end == 2
    assert leader_of(parent).marked_split == CHILD


def test_a_leader_whose_child_is_made_appends_no_marker() -> None:
    bench = Bench()
    made(bench)
    parent = bench.host(parent_row())
    assert parent.log.end == 0


def test_the_leader_of_a_partition_that_is_not_split_appends_no_marker() -> None:
    bench = Bench()
    assert marker_due(bench.shared, leader_of(bench.host(row()))) is None
    assert marker_due(bench.shared, leader_of(bench.host(row(CHILD, split_to=9)))) is None


def test_a_replica_that_applies_the_marker_makes_the_child_of_that_split_only() -> None:
    assert awaits_child(parent_row(), SplitMarker(CHILD, 1))
    assert not awaits_child(parent_row(), SplitMarker(9, 1))
    assert not awaits_child(row(split_to=CHILD), SplitMarker(CHILD, 1))


def test_the_provisional_row_of_a_child_has_the_upper_half_and_no_leader() -> None:
    provisional = provisional_row(parent_row(keyspace_id=7), CHILD)
    assert (provisional.start_key, provisional.split_from, provisional.leader) == (b"m", PARENT, "")
    assert provisional.splitting


def test_a_child_that_is_yet_to_be_made_does_nothing() -> None:
    bench = Bench()
    child = bench.host(child_row())
    assert (child.role, child.awaits_split) == (Role.IDLE, True)


# The end of the split


def finish(partition_epoch: int = 1) -> FinishSplitRequest:
    return FinishSplitRequest(node_id="athens", partition_id=CHILD, leader_epoch=1, partition_epoch=partition_epoch)


def test_the_controller_is_asked_once_all_in_sync_have_made_the_child() -> None:
    bench = Bench()
    child = made(bench)
    bench.tick(child, 0.0)
    bench.align(child, "byzantium")
    bench.tick(child, 0.0)
    assert bench.take(AskFinishSplit) == []
    bench.align(child, "cyrene")
    assert WakeAt(CHILD, 0.0) in bench.take_all()
    bench.tick(child, 0.0)
    assert bench.take(AskFinishSplit) == [AskFinishSplit(finish())]
    bench.tick(child, 0.0)
    assert bench.take(AskFinishSplit) == []


def test_the_split_does_not_wait_for_a_replica_that_is_not_in_sync() -> None:
    bench = Bench()
    made(bench, isr=("athens",))
    assert bench.take(AskFinishSplit) == [AskFinishSplit(finish())]


def test_the_split_waits_for_a_replica_in_sync_whose_stream_is_broken() -> None:
    bench = Bench()
    child = made(bench)
    bench.align(child, "byzantium", "cyrene")
    leader_of(child).disconnected(leader_of(child).progress["cyrene"], "reset", 0.0)
    bench.tick(child, 0.0)
    assert bench.take(AskFinishSplit) == []


def test_the_split_waits_until_the_child_has_its_databases() -> None:
    """Each replica in sync, the leader's included, needs a database that has only the child's rows."""
    bench = Bench()
    child = made(bench)
    data = data_of(child)
    data.is_attached = True
    bench.align(child, "byzantium", "cyrene")
    bench.ack(child, "cyrene", attached=True)
    bench.tick(child, 0.0)
    assert bench.take(AskFinishSplit) == []
    data.is_attached = False
    bench.node.detached(bench.hosted(CHILD), PARENT, 0.0)
    assert bench.take(AskFinishSplit) == []
    bench.ack(child, "cyrene")  # cyrene has no new entries, but its own database now
    assert WakeAt(CHILD, 0.0) in bench.take_all()
    bench.tick(child, 0.0)
    assert bench.take(AskFinishSplit) == [AskFinishSplit(finish())]


def test_the_split_ends_when_the_leaders_own_database_is_made() -> None:
    bench = Bench()
    data = data_at(4)
    data.is_attached = True
    bench.host(child_row(isr=("athens",)), MemoryLog(4, 1), data)
    assert bench.take(AskFinishSplit) == []
    data.is_attached = False
    bench.node.detached(bench.hosted(CHILD), PARENT, 0.0)
    assert bench.take(AskFinishSplit) == [AskFinishSplit(finish())]


def test_a_follower_says_whether_its_data_is_attached() -> None:
    bench = Bench("byzantium")
    data = data_at(4)
    data.is_attached = True
    child = bench.host(child_row(), MemoryLog(4, 1), data)
    assert child.follower is not None
    stream = LeaderStream(1)
    child.follower.probed(stream, [])
    child.follower.append(Append(CHILD, 1, 4, 4, 4, [], truncate=True), stream, 0.0)
    bench.sync(child)
    assert [answer.ack.attached for answer in bench.take(Answer)] == [True, True]
    data.is_attached = False
    bench.node.detached(bench.hosted(CHILD), PARENT, 0.0)
    assert [(answer.ack.attached, answer.ack.offset) for answer in bench.take(Answer)] == [(False, 4)]


def test_a_replica_of_the_child_joins_once_its_database_is_made() -> None:
    bench = Bench()
    child = bench.host(row(CHILD, isr=("athens", "byzantium")), MemoryLog(4, 1), data_at(4))
    bench.align(child, "byzantium")
    bench.stands(child, "cyrene", MemoryLog(4, 1))
    bench.ack(child, "cyrene", 4, attached=True)
    assert bench.take(IsrProposal) == []
    bench.ack(child, "cyrene", 4)
    assert [proposal.isr for proposal in bench.take(IsrProposal)] == [("athens", "byzantium", "cyrene")]


def test_the_parent_goes_on_applying_when_the_child_is_detached() -> None:
    """The parent could not apply its next mark while the child was attached."""
    bench = Bench()
    parent = bench.host(parent_row(), log_of(1))
    made(bench)
    parent.high_watermark = parent.log.end
    parent.applying = Applying.IDLE
    bench.take_all()
    bench.node.detached(bench.hosted(CHILD), PARENT, 0.0)
    assert Apply(PARENT) in bench.take_all()


def test_after_a_refusal_the_leader_asks_again_with_its_present_row() -> None:
    bench = Bench()
    child = made(bench, isr=("athens",))
    [ask] = bench.take(AskFinishSplit)
    assert child.split_end is not None
    child.split_end.answered(ask.request, REFUSED, 0.0)
    assert bench.take(WakeAt) == [WakeAt(CHILD, 0.05)]
    bench.adopt(child)
    assert bench.take(AskFinishSplit) == []
    bench.tick(child, 0.05)
    assert bench.take(AskFinishSplit) == [AskFinishSplit(finish(partition_epoch=2))]


def test_late_answers_about_the_end_of_a_split_are_ignored() -> None:
    bench = Bench()
    child = made(bench, isr=("athens",))
    bench.take_all()
    assert child.split_end is not None
    child.split_end.answered(finish(), None, 0.0)
    assert bench.take_all() == []


def test_the_controller_is_not_asked_after_the_end_of_the_split() -> None:
    bench = Bench()
    child = made(bench)
    bench.align(child, "byzantium", "cyrene")
    bench.adopt(child, splitting=False)
    bench.tick(child, 1.0)
    assert bench.take(AskFinishSplit) == []


# Both halves of a split have the same in-sync set


def halves(*joining: str, isr: tuple[str, ...] = ("athens",)) -> tuple[Bench, Replica, Replica]:
    """Both halves, led by this node. The replicas `joining` were about to join the parent when the child was made."""
    bench = Bench()
    parent = bench.host(parent_row(isr=isr))
    leader_of(parent).epoch_durable()
    bench.align(parent, *joining)
    child = made(bench, isr=isr)
    leader_of(child).epoch_durable()
    return bench, parent, child


def test_a_replica_about_to_join_the_parent_counts_for_the_child() -> None:
    bench, parent, child = halves("byzantium")
    assert leader_of(parent).may_be_in_sync() == {"athens", "byzantium"}
    bench.write(child)
    bench.sync(child)
    assert child.high_watermark == 4
    bench.align(child, "byzantium")
    assert child.high_watermark == 5


def test_the_split_does_not_end_before_a_joining_replica_has_made_the_child() -> None:
    bench, _, child = halves("byzantium")
    bench.tick(child, 0.0)
    assert bench.take(AskFinishSplit) == []
    bench.align(child, "byzantium")
    bench.tick(child, 0.0)
    assert len(bench.take(AskFinishSplit)) == 1


def test_a_replica_that_joined_the_parent_counts_for_the_child_before_the_childs_row_comes() -> None:
    bench, parent, child = halves()
    bench.adopt(parent, isr=("athens", "byzantium"))
    bench.write(child)
    bench.sync(child)
    assert child.high_watermark == 4


def test_a_replica_whose_joining_of_the_parent_is_refused_counts_no_longer() -> None:
    bench, parent, child = halves("byzantium")
    [proposal] = bench.take(IsrProposal)
    bench.write(child)
    bench.sync(child)
    leader_of(parent).isr_refused(proposal, 0.0)
    assert child.high_watermark == 5


def test_a_replica_counts_while_the_outcome_of_its_joining_of_the_parent_is_unknown() -> None:
    bench, parent, child = halves("byzantium")
    [proposal] = bench.take(IsrProposal)
    bench.write(child)
    bench.sync(child)
    leader_of(parent).isr_in_doubt(proposal)
    [proposal] = bench.take(IsrProposal)
    leader_of(parent).isr_refused(proposal, 0.0)
    assert child.high_watermark == 4


def test_after_the_split_each_half_counts_only_its_own_replicas() -> None:
    bench, _, child = halves("byzantium")
    bench.adopt(child, splitting=False)
    bench.write(child)
    bench.sync(child)
    assert child.high_watermark == 5


def test_no_replica_joins_before_it_is_certain_that_it_can_make_the_child() -> None:
    bench, parent, child = halves()
    bench.align(child, "byzantium")
    bench.align(parent, "byzantium")
    assert leader_of(child).may_be_in_sync() == leader_of(parent).may_be_in_sync() == {"athens"}


def test_a_node_stops_leading_both_halves_together() -> None:
    bench, parent, child = halves(isr=NODES)
    assert set(bench.shared.in_sync_sets) == {PARENT, CHILD}
    bench.node.stop_leading(0.0)
    assert bench.shared.in_sync_sets == {}
    assert (parent.role, child.role) == (Role.IDLE, Role.IDLE)
