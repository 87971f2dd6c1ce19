"""A leader waits for eligible followers before it commits, and proposes to drop those that are gone."""

from typing import Any

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Keyspace
from minkad.core.replication.instructions import IsrProposal, Level, Report
from minkad.core.replication.peer_messages import Standing
from minkad.core.replication.replica import Replica
from tests.unit.core.replication.bench import SETTINGS, Bench, leader_of, log_of, row, sent

BOTH, ALONE, OTHER = ("athens", "byzantium"), ("athens",), ("byzantium",)


def led(isr: tuple[str, ...] = BOTH, **fields: Any) -> tuple[Bench, Replica]:
    """A leader with two entries from before its start; a write to its keyspace needs two replicas in sync."""
    bench = Bench()
    bench.view.keyspaces[1] = Keyspace(id=1, replicas=3, min_insync=2)
    replica = bench.host(row(isr=isr, **fields), log_of(1, 1))
    leader_of(replica).epoch_durable()
    bench.take_all()
    return bench, replica


def alone() -> tuple[Bench, Replica]:
    """A leader that has been alone in sync since its start, while byzantium is eligible."""
    return led(ALONE, eligible=OTHER, eligible_at=1)


def proposed(bench: Bench) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the in-sync sets that the leader has proposed since the last call, each with its eligible replicas."""
    return [(proposal.isr, proposal.eligible) for proposal in bench.take(IsrProposal)]


def test_a_follower_that_leaves_with_everything_is_eligible() -> None:
    bench, replica = led()
    bench.align(replica, "byzantium")
    bench.view.absent = {"byzantium"}
    leader_of(replica).nodes_changed(bench.now)
    assert proposed(bench) == [(ALONE, OTHER)]


def test_a_follower_that_may_lack_something_when_it_leaves_is_not_eligible() -> None:
    """A new leader first has to commit all entries that the former leader may have acknowledged. The new leader waits
    for its eligible followers to have them. If a follower that is gone became eligible, the leader would wait in vain.
    """
    bench, replica = led()
    bench.view.absent = {"byzantium"}
    leader_of(replica).nodes_changed(bench.now)
    assert proposed(bench) == [(ALONE, ())]


def test_no_follower_is_eligible_while_the_in_sync_set_takes_writes() -> None:
    bench, replica = led((*BOTH, "cyrene"))
    bench.align(replica, "byzantium", "cyrene")
    bench.view.absent = {"cyrene"}
    leader_of(replica).nodes_changed(bench.now)
    assert proposed(bench) == [(BOTH, ())]


def test_a_new_leader_commits_nothing_that_an_eligible_replica_lacks() -> None:
    bench, replica = alone()
    assert replica.high_watermark == 0
    sent(bench.stands(replica, "byzantium", log_of(1)))
    bench.ack(replica, "byzantium", 1)
    assert (replica.high_watermark, replica.is_ready) == (1, False)
    bench.ack(replica, "byzantium", 2)
    bench.apply(replica)
    assert (replica.high_watermark, replica.is_ready) == (2, True)


def test_a_new_leader_drops_an_eligible_replica_that_is_gone() -> None:
    bench, replica = alone()
    bench.view.absent = {"byzantium"}
    leader_of(replica).nodes_changed(bench.now)
    taken = bench.take_all()
    assert [(one.isr, one.eligible) for one in taken if isinstance(one, IsrProposal)] == [(ALONE, ())]
    [warning] = [one for one in taken if isinstance(one, Report)]
    assert (warning.level, warning.names["nodes"]) == (Level.WARNING, ["byzantium"])
    assert replica.high_watermark == 0, "nothing is committed before the change is recorded"
    bench.adopt(replica, eligible=(), eligible_at=0)
    assert replica.high_watermark == 2


def test_a_new_leader_drops_an_eligible_replica_that_does_not_catch_up() -> None:
    bench, replica = alone()
    bench.now += SETTINGS.lag_timeout + 0.1
    leader_of(replica).check(bench.now, stalled=False)
    assert proposed(bench) == [(ALONE, ())]


def test_a_serving_leader_keeps_an_eligible_replica_that_is_gone() -> None:
    bench, replica = alone()
    bench.align(replica, "byzantium")
    assert replica.high_watermark == 2
    leader = leader_of(replica)
    leader.disconnected(leader.progress["byzantium"], "reset", bench.now)
    [joining] = bench.take(IsrProposal)
    leader.isr_refused(joining, bench.now)
    bench.view.absent = {"byzantium"}
    bench.now += 2 * SETTINGS.lag_timeout
    leader.nodes_changed(bench.now)
    leader.check(bench.now, stalled=False)
    assert proposed(bench) == []


def test_an_eligible_replica_that_has_lost_something_is_dropped_before_it_gets_a_checkpoint() -> None:
    bench, replica = alone()
    bench.stands(replica, "byzantium", log_of(), Standing.NEEDS_CHECKPOINT)
    assert proposed(bench) == [(ALONE, ())]


def test_a_leader_with_damaged_data_lets_an_eligible_replica_take_over() -> None:
    bench, replica = alone()
    replica.data.condemn(MinkaError(Code.CORRUPT_DATA, "a block is damaged"))
    leader_of(replica).shrink()
    assert proposed(bench) == [(BOTH, ())]
    bench.adopt(replica, isr=BOTH, eligible=(), eligible_at=0)
    assert proposed(bench) == [(OTHER, ())]
