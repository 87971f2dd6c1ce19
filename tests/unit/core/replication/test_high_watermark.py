"""A leader commits an entry when all replicas that are, or may be, in sync have the entry."""

from typing import Any

from minka.v1.cluster_pb2 import Keyspace
from minkad.core.replication.instructions import Apply, IsrProposal, SendWatermark, SyncEpoch
from minkad.core.replication.replica import Replica
from tests.unit.core.replication.bench import Bench, a_write, leader_of, log_of, row, sent


def three(**fields: Any) -> tuple[Bench, Replica]:
    """Make a leader and two followers, which have its whole log."""
    bench = Bench()
    replica = bench.host(row(**fields), log_of(1))
    bench.align(replica, "byzantium", "cyrene")
    bench.apply(replica)
    leader_of(replica).epoch_durable()
    bench.take_all()
    return bench, replica


def test_a_new_leader_first_syncs_its_epoch() -> None:
    bench = Bench()
    bench.host(row(leader_epoch=7))
    assert bench.take(SyncEpoch) == [SyncEpoch(1, 7)]


def test_entries_that_all_replicas_in_sync_have_are_committed() -> None:
    bench, replica = three()
    bench.write(replica, *[a_write()] * 3)
    bench.sync(replica)
    bench.ack(replica, "byzantium")
    assert replica.high_watermark == 1
    sent(leader_of(replica).progress["cyrene"])
    bench.ack(replica, "cyrene", 3)
    assert replica.high_watermark == 3


def test_committed_entries_are_applied_and_followers_are_told() -> None:
    bench, replica = three()
    bench.write(replica)
    bench.sync(replica)
    bench.ack(replica, "byzantium")
    bench.take_all()
    bench.ack(replica, "cyrene")
    assert replica.high_watermark == 2
    told = [SendWatermark(progress) for progress in leader_of(replica).progress.values()]
    assert bench.take_all() == [*told, Apply(1)]


def test_an_entry_that_the_leader_has_not_stored_is_not_committed() -> None:
    bench, replica = three()
    bench.write(replica)
    bench.ack(replica, "byzantium")
    bench.ack(replica, "cyrene")
    assert replica.high_watermark == 1
    bench.sync(replica)
    assert replica.high_watermark == 2


def test_the_watermark_does_not_wait_for_a_follower_that_is_not_in_sync() -> None:
    bench = Bench()
    replica = bench.host(row(isr=("athens", "byzantium")), log_of(1))
    assert replica.high_watermark == 0
    bench.align(replica, "byzantium")
    assert replica.high_watermark == 1


def test_with_too_few_in_sync_only_entries_of_former_leaders_are_committed() -> None:
    bench = Bench()
    bench.view.keyspaces[1] = Keyspace(id=1, min_insync=2)
    replica = bench.host(row(isr=("athens",)), log_of(1, 1))
    replica.advance()
    assert (replica.ready_at, replica.high_watermark) == (2, 2)
    bench.write(replica)
    bench.sync(replica)
    assert replica.high_watermark == 2


def test_with_too_few_in_sync_entries_that_one_of_them_lacks_are_not_committed() -> None:
    bench = Bench()
    bench.view.keyspaces[1] = Keyspace(id=1, min_insync=3)
    replica = bench.host(row(isr=("athens", "byzantium")), log_of(1, 1))
    replica.advance()
    assert replica.high_watermark == 0
    bench.align(replica, "byzantium")
    assert replica.high_watermark == 2


def test_the_rest_is_committed_as_soon_as_enough_are_in_sync() -> None:
    bench = Bench()
    bench.view.keyspaces[1] = Keyspace(id=1, min_insync=2)
    replica = bench.host(row(isr=("athens",)), log_of(1))
    bench.write(replica)
    bench.sync(replica)
    bench.align(replica, "byzantium")
    assert replica.high_watermark == 1
    bench.adopt(replica, isr=("athens", "byzantium"))
    assert replica.high_watermark == 2


def test_before_the_keyspace_is_known_a_write_needs_only_one_replica() -> None:
    bench = Bench()
    bench.view.keyspaces.clear()
    replica = bench.host(row(isr=("athens",)), log_of(1))
    assert (replica.min_insync, replica.is_async) == (0, False)


def test_the_watermark_waits_for_followers_that_are_about_to_join() -> None:
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


def test_the_watermark_waits_for_a_leaving_follower_until_its_leaving_is_recorded() -> None:
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
