"""A leader commits an entry when all replicas that are, or may be, in sync have the entry."""

from typing import Any

from minka.v1.cluster_pb2 import Keyspace
from minkad.core.replication.instructions import Apply, IsrProposal, SendWatermark, SyncEpoch
from minkad.core.replication.replica import Replica
from tests.unit.core.replication.bench import Bench, a_write, leader_of, log_of, row, sent


def three(**fields: Any) -> tuple[Bench, Replica]:
    """A leader and two followers that have all of its log."""
    bench = Bench()
    replica = bench.host(row(**fields), log_of(1))
    bench.align(replica, "byzantium", "cyrene")
    bench.apply(replica)
    leader_of(replica).epoch_durable()
    bench.take_all()
    return bench, replica


def test_a_new_leader_first_makes_durable_that_it_leads() -> None:
    bench = Bench()
    bench.host(row(leader_epoch=7))
    assert bench.take(SyncEpoch) == [SyncEpoch(1, 7)]


def test_committed_is_what_all_in_sync_have() -> None:
    bench, replica = three()
    bench.write(replica, *[a_write()] * 3)
    bench.sync(replica)
    bench.ack(replica, "byzantium")
    assert replica.high_watermark == 1
    sent(leader_of(replica).progress["cyrene"])
    bench.ack(replica, "cyrene", 3)
    assert replica.high_watermark == 3


def test_what_is_committed_is_applied_and_told_to_the_followers() -> None:
    bench, replica = three()
    bench.write(replica)
    bench.sync(replica)
    bench.ack(replica, "byzantium")
    bench.take_all()
    bench.ack(replica, "cyrene")
    assert replica.high_watermark == 2
    told = [SendWatermark(progress) for progress in leader_of(replica).progress.values()]
    assert bench.take_all() == [*told, Apply(1)]


def test_what_only_the_followers_have_stored_is_not_committed() -> None:
    bench, replica = three()
    bench.write(replica)
    bench.ack(replica, "byzantium")
    bench.ack(replica, "cyrene")
    assert replica.high_watermark == 1
    bench.sync(replica)
    assert replica.high_watermark == 2


def test_a_follower_that_is_not_in_sync_is_not_waited_for() -> None:
    bench = Bench()
    replica = bench.host(row(isr=("athens", "byzantium")), log_of(1))
    assert replica.high_watermark == 0
    bench.align(replica, "byzantium")
    assert replica.high_watermark == 1


def test_with_too_few_in_sync_no_more_is_committed_than_a_former_leader_may_have_acknowledged() -> None:
    bench = Bench()
    bench.view.keyspaces[1] = Keyspace(id=1, min_insync=2)
    replica = bench.host(row(isr=("athens",)), log_of(1, 1))
    replica.advance()
    assert (replica.ready_at, replica.high_watermark) == (2, 2)
    bench.write(replica)
    bench.sync(replica)
    assert replica.high_watermark == 2


def test_with_too_few_in_sync_what_one_of_them_lacks_is_not_committed() -> None:
    bench = Bench()
    bench.view.keyspaces[1] = Keyspace(id=1, min_insync=3)
    replica = bench.host(row(isr=("athens", "byzantium")), log_of(1, 1))
    replica.advance()
    assert replica.high_watermark == 0
    bench.align(replica, "byzantium")
    assert replica.high_watermark == 2


def test_as_soon_as_enough_are_in_sync_the_rest_is_committed() -> None:
    bench = Bench()
    bench.view.keyspaces[1] = Keyspace(id=1, min_insync=2)
    replica = bench.host(row(isr=("athens",)), log_of(1))
    bench.write(replica)
    bench.sync(replica)
    bench.align(replica, "byzantium")
    assert replica.high_watermark == 1
    bench.adopt(replica, isr=("athens", "byzantium"))
    assert replica.high_watermark == 2


def test_before_the_keyspace_is_known_a_row_takes_no_more_than_one_replica() -> None:
    bench = Bench()
    bench.view.keyspaces.clear()
    replica = bench.host(row(isr=("athens",)), log_of(1))
    assert (replica.min_insync, replica.is_async) == (0, False)


def test_the_watermark_waits_for_those_about_to_join() -> None:
    bench = Bench()
    replica = bench.host(row(isr=("athens",)), log_of(1))
    leader_of(replica).epoch_durable()
    bench.align(replica, "byzantium")
    assert leader_of(replica).may_be_in_sync() == {"athens", "byzantium"}
    bench.write(replica)
    bench.sync(replica)
    assert replica.high_watermark == 1
    bench.ack(replica, "byzantium")
    assert replica.high_watermark == 2


def test_the_watermark_waits_for_those_about_to_leave_until_the_outcome_is_known() -> None:
    bench, replica = three()
    bench.view.absent = {"cyrene"}
    leader_of(replica).shrink()
    assert [proposal.isr for proposal in bench.take(IsrProposal)] == [("athens", "byzantium")]
    bench.write(replica)
    bench.sync(replica)
    bench.ack(replica, "byzantium")
    assert replica.high_watermark == 1
    bench.adopt(replica, isr=("athens", "byzantium"))
    assert replica.high_watermark == 2


def test_the_watermark_never_falls() -> None:
    bench, replica = three()
    bench.adopt(replica, replicas=("athens", "byzantium", "cyrene", "delos"), isr=("athens", "byzantium", "delos"))
    assert replica.high_watermark == 1


def test_a_leader_is_ready_when_it_has_applied_the_log_it_began_with() -> None:
    bench = Bench()
    replica = bench.host(row(), log_of(1))
    bench.align(replica, "byzantium", "cyrene")
    assert not replica.is_ready
    bench.apply(replica)
    assert replica.is_ready
