"""The leader's part in eligibility: it waits for eligible followers, and names the ones for which it can't wait."""

from typing import Any

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Keyspace
from minkad.core.replication.instructions import IsrProposal, Level, Report
from minkad.core.replication.messages import Standing
from minkad.core.replication.replica import Replica
from tests.unit.core.replication.bench import SETTINGS, Bench, leader_of, log_of, row, sent

BOTH, ALONE, OTHER = ("athens", "byzantium"), ("athens",), ("byzantium",)


def led(isr: tuple[str, ...] = BOTH, **fields: Any) -> tuple[Bench, Replica]:
    """A leader with two entries from before its start, whose keyspace wants two in sync for a write."""
    bench = Bench()
    bench.view.keyspaces[1] = Keyspace(id=1, replicas=3, min_insync=2)
    replica = bench.host(row(isr=isr, **fields), log_of(1, 1))
    leader_of(replica).epoch_durable()
    bench.take_all()
    return bench, replica


def alone() -> tuple[Bench, Replica]:
    """A leader that is alone in sync since its start, while byzantium is eligible."""
    return led(ALONE, eligible=OTHER, eligible_at=1)


def proposed(bench: Bench) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The in-sync sets proposed since the last call, each with its eligible replicas."""
    return [(proposal.isr, proposal.eligible) for proposal in bench.take(IsrProposal)]


def test_who_leaves_with_everything_is_eligible() -> None:
    bench, replica = led()
    bench.align(replica, "byzantium")
    bench.view.absent = {"byzantium"}
    leader_of(replica).nodes_changed(bench.now)
    assert proposed(bench) == [(ALONE, OTHER)]


def test_who_leaves_before_it_is_known_to_have_everything_is_not() -> None:
    """The leader can't wait for the follower: it serves only after it has committed all that a former one may have
    acknowledged.
    """
    bench, replica = led()
    bench.view.absent = {"byzantium"}
    leader_of(replica).nodes_changed(bench.now)
    assert proposed(bench) == [(ALONE, ())]


def test_nobody_is_eligible_beside_a_set_that_takes_writes() -> None:
    bench, replica = led((*BOTH, "cyrene"))
    bench.align(replica, "byzantium", "cyrene")
    bench.view.absent = {"cyrene"}
    leader_of(replica).nodes_changed(bench.now)
    assert proposed(bench) == [(BOTH, ())]


def test_nothing_is_committed_that_an_eligible_replica_lacks() -> None:
    bench, replica = alone()
    assert replica.high_watermark == 0
    sent(bench.stands(replica, "byzantium", log_of(1)))
    bench.ack(replica, "byzantium", 1)
    assert (replica.high_watermark, replica.is_ready) == (1, False)
    bench.ack(replica, "byzantium", 2)
    bench.apply(replica)
    assert (replica.high_watermark, replica.is_ready) == (2, True)


def test_a_leader_that_needs_an_eligible_replica_that_is_gone_serves_without_it() -> None:
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


def test_or_one_that_does_not_catch_up() -> None:
    bench, replica = alone()
    bench.now += SETTINGS.lag_timeout + 0.1
    leader_of(replica).check(bench.now, stalled=False)
    assert proposed(bench) == [(ALONE, ())]


def test_one_that_serves_keeps_who_is_gone() -> None:
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


def test_one_that_has_lost_something_leaves_before_it_is_sent_a_checkpoint() -> None:
    bench, replica = alone()
    bench.stands(replica, "byzantium", log_of(), Standing.NEEDS_CHECKPOINT)
    assert proposed(bench) == [(ALONE, ())]


def test_a_leader_whose_data_is_damaged_lets_the_eligible_come_back() -> None:
    bench, replica = alone()
    replica.data.condemn(MinkaError(Code.CORRUPT_DATA, "a block"))
    leader_of(replica).shrink()
    assert proposed(bench) == [(BOTH, ())]
    bench.adopt(replica, isr=BOTH, eligible=(), eligible_at=0)
    assert proposed(bench) == [(OTHER, ())]
