"""Each replica on a node takes the role that its row gives it."""

import pytest

from minka.errors import Code, MinkaError
from minkad.core.replication.instructions import (
    Changed,
    GiveUp,
    IsrProposal,
    OpenData,
    Reached,
    RowAdopted,
    StartSending,
    StopSending,
    SyncEpoch,
)
from minkad.core.replication.replica_state import Role
from tests.unit.core.replication.bench import Bench, MemoryLog, changed, data_at, leader_of, log_of, row


def test_a_replica_takes_a_newer_row_and_wakes_those_that_wait() -> None:
    bench = Bench()
    replica = bench.host(row(partition_epoch=3))
    bench.take_all()
    newer = changed(replica.row, isr=("athens",))
    was = replica.row
    bench.node.adopt(newer, 0.0)
    assert replica.row == newer
    taken = bench.take_all()
    assert taken[0] == RowAdopted(1, was), "what follows from a row relies on it"
    assert taken[-1] == Changed(1)


def test_older_rows_are_ignored() -> None:
    bench = Bench()
    replica = bench.host(row(partition_epoch=3))
    bench.take_all()
    bench.node.adopt(row(partition_epoch=2, leader="byzantium", leader_epoch=9), 0.0)
    assert (replica.role, replica.row.partition_epoch) == (Role.LEADER, 3)
    assert bench.take_all() == []


def test_a_row_of_a_replica_that_is_not_here_is_ignored() -> None:
    bench = Bench()
    bench.node.adopt(row(7), 0.0)
    assert bench.take_all() == []


def test_the_stored_row_of_a_recovered_replica_is_new_until_the_controller_sends_it() -> None:
    bench = Bench()
    recovered = row(partition_epoch=3)
    replica = bench.host(recovered)
    known = [bench.node.is_new(recovered)]
    replica.role = Role.IDLE
    known.append(bench.node.is_new(recovered))
    known.append(bench.node.is_new(row(partition_epoch=2)))
    known.append(bench.node.is_new(row(partition_epoch=4)))
    assert known == [False, True, False, True]


def test_a_removed_replica_comes_back_only_by_a_newer_row() -> None:
    bench = Bench()
    bench.host(row(partition_epoch=3))
    assert bench.node.is_new(row(2))
    bench.node.remove(bench.hosted(1))
    assert not bench.node.is_new(row(partition_epoch=3))
    assert bench.node.is_new(row(partition_epoch=4))
    assert bench.node.departed(1) == row(partition_epoch=3)
    assert bench.node.replicas == {}


def test_a_node_does_not_host_a_replica_that_is_to_be_removed() -> None:
    node = Bench().node
    assert node.is_to_be_hosted(row())
    assert not node.is_to_be_hosted(row(removing_replicas=("athens",)))
    assert not node.is_to_be_hosted(row(replicas=("byzantium",)))


def test_the_row_that_ends_a_merge_makes_the_right_partition_idle() -> None:
    bench = Bench()
    left = bench.host(row(1, ("athens",), end_key=b"m", merge_from=2))
    right = bench.host(row(2, ("athens",), start_key=b"m", end_key=b"t", merge_into=1))
    left.freshness.newest_at(5.0)
    bench.take_all()
    bench.adopt(left, merge_from=0, end_key=b"t")
    assert (left.role, right.role, right.leader) == (Role.LEADER, Role.IDLE, None)
    assert GiveUp(2, "the node lost the leadership meanwhile") in bench.take_all()
    assert left.freshness.at < 0


def test_the_row_of_a_cancelled_merge_leaves_the_right_partition_as_it_is() -> None:
    bench = Bench()
    left = bench.host(row(1, ("athens",), end_key=b"m", merge_from=2))
    right = bench.host(row(2, ("athens",), start_key=b"m", end_key=b"t", merge_into=1))
    bench.adopt(left, merge_from=0)
    assert right.role is Role.LEADER
    assert left.trim.has_foreign


# Leaders


def test_a_new_leader_is_ready_once_it_has_committed_its_whole_log() -> None:
    bench = Bench()
    first = row(leader_epoch=4)
    replica = bench.host(first, log_of(1, 1), data_at(1))
    assert bench.take_all()[:3] == [RowAdopted(1, first), Reached("replica.lead"), OpenData(1)]
    assert (replica.role, replica.leader, replica.is_ready) == (Role.LEADER, None, False)
    bench.open(replica)
    assert (replica.applied, replica.high_watermark, replica.ready_at) == (1, 1, 2)
    taken = bench.take_all()
    assert [one.progress.node_id for one in taken if isinstance(one, StartSending)] == ["byzantium", "cyrene"]
    assert SyncEpoch(1, 4) in taken


def test_a_new_leader_epoch_starts_the_replication_to_the_followers_again() -> None:
    bench = Bench()
    replica = bench.host(row())
    old = leader_of(replica)
    followers = list(old.progress.values())
    bench.take_all()
    bench.adopt(replica, leader_epoch=2)
    assert [one.progress for one in bench.take(StopSending)] == followers
    assert leader_of(replica) is not old
    assert leader_of(replica).leader_epoch == 2


def test_a_leader_that_becomes_a_follower_gives_up_waiting_requests() -> None:
    bench = Bench()
    replica = bench.host(row())
    bench.take_all()
    bench.adopt(replica, leader="byzantium", leader_epoch=2)
    assert (replica.role, replica.leader) == (Role.FOLLOWER, None)
    assert replica.follower is not None
    assert len(bench.take(GiveUp)) == 1


def test_a_replica_that_stopped_leading_leads_again_only_at_a_newer_leader_epoch() -> None:
    bench = Bench()
    replica = bench.host(row())
    bench.node.stop_leading(0.0)
    roles = [replica.role]
    for leader_epoch in (1, 2):
        bench.adopt(replica, leader_epoch=leader_epoch)
        roles.append(replica.role)
    assert roles == [Role.IDLE, Role.IDLE, Role.LEADER]


def test_an_answer_to_a_proposal_of_an_earlier_leadership_changes_nothing() -> None:
    bench = Bench()
    replica = bench.host(row())
    bench.view.absent = {"cyrene"}
    leader = leader_of(replica)
    leader.shrink()
    [proposal] = bench.take(IsrProposal)
    bench.adopt(replica, leader="byzantium", leader_epoch=2)
    bench.take_all()
    leader.isr_refused(proposal, 0.0)
    assert bench.take_all() == []


def test_a_leader_whose_data_is_damaged_leads_and_serves_nothing() -> None:
    bench = Bench()
    replica = bench.host(row(), log_of(1, base=3))
    assert replica.role is Role.LEADER
    assert not replica.is_ready
    assert [proposal.isr for proposal in bench.take(IsrProposal)] == [("byzantium", "cyrene")]


def test_a_leader_whose_disk_fails_does_not_lead() -> None:
    bench = Bench()
    replica = bench.host(row(), log_of(1), data_at(1))
    assert bench.node.data_failed(bench.hosted(1), MinkaError(Code.STORAGE_FAILED, "the disk fails"), bench.now)
    assert (replica.role, list(bench.shared.failed)) == (Role.IDLE, [1])


def test_a_node_can_not_go_on_if_data_fails_that_has_entries_to_apply() -> None:
    bench = Bench("byzantium")
    replica = bench.host(row(), log_of(1), data_at(1))
    assert bench.node.data_failed(bench.hosted(1), MinkaError(Code.STORAGE_FAILED, "the disk fails"), bench.now)
    replica.high_watermark = 1
    assert not bench.node.data_failed(bench.hosted(1), MinkaError(Code.STORAGE_FAILED, "the disk fails"), bench.now)


def test_a_new_leader_does_not_open_data_that_has_its_whole_log() -> None:
    bench = Bench()
    replica = bench.host(row(), log_of(base=3), data_at(3))
    assert replica.is_ready
    assert bench.take(OpenData) == []


def test_a_new_leader_does_not_open_data_at_rest() -> None:
    bench = Bench()
    data = data_at(1)
    data.was_open = True
    replica = bench.host(row(), log_of(1, 1), data)
    assert (replica.leader is not None, replica.applied, replica.ready_at) == (True, 1, 2)
    assert bench.take(OpenData) == []


def test_a_newer_leader_epoch_may_come_while_the_data_is_being_opened() -> None:
    bench = Bench()
    replica = bench.host(row(), log_of(1, 1), data_at(1))
    bench.adopt(replica, leader="byzantium", leader_epoch=2)
    bench.open(replica)
    assert (replica.role, replica.leader, replica.awaits_data) == (Role.FOLLOWER, None, False)


def test_only_a_leader_appends_to_its_log() -> None:
    replica = Bench("byzantium").host(row())
    with pytest.raises(AssertionError, match="not led here"):
        replica.append(b"")


# The reports of leaders


def test_a_leader_reports_the_lag_of_each_follower_in_entries_and_seconds() -> None:
    bench = Bench()
    replica = bench.host(row(), MemoryLog())
    bench.align(replica, "byzantium", "cyrene")
    leader_of(replica).check(1.0, stalled=False)
    leader_of(replica).epoch_durable()
    bench.write(replica)
    leader_of(replica).check(1.0, stalled=False)
    bench.now = 1.5
    bench.ack(replica, "byzantium")
    assert leader_of(replica).lags(1.5) == {"byzantium": (0, 0.0), "cyrene": (1, 0.5)}


def test_a_leader_reports_the_migrations_to_replicas_that_are_being_added() -> None:
    bench = Bench()
    replica = bench.host(row(isr=("athens", "byzantium"), adding_replicas=("cyrene",)))
    assert [migration.target for migration in leader_of(replica).migrations()] == ["cyrene"]
    bench.adopt(replica, adding_replicas=())
    assert leader_of(replica).migrations() == []
