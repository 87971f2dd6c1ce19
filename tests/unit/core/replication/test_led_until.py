"""The age of a leader's or a former leader's data. The age counts from the end of the node's clearance."""

from minkad.core.replication.freshness import NEVER
from minkad.core.replication.gate import Gate
from minkad.core.replication.replica import Replica
from minkad.core.replication.replica_state import Role
from tests.unit.core.replication.bench import Bench, gate_of, log_of, row


def leading(ready: bool = True) -> tuple[Bench, Replica]:
    """A leader with one entry, which is applied if it is `ready`. Its node's clearance ends at 10 s."""
    bench = Bench()
    bench.view.cleared_until = 10.0
    replica = bench.host(row(), log_of(1))
    if ready:
        bench.serve(replica)
    return bench, replica


def test_a_leader_that_another_one_follows_was_up_to_date_until_its_clearance_ended() -> None:
    bench, replica = leading()
    bench.now = 15.0
    bench.adopt(replica, leader="byzantium", leader_epoch=2)
    assert (replica.role, replica.freshness.at) == (Role.FOLLOWER, 10.0)


def test_a_leader_with_clearance_was_up_to_date_until_its_leadership_ended() -> None:
    bench, replica = leading()
    bench.now = 5.0
    bench.adopt(replica, leader="byzantium", leader_epoch=2)
    assert replica.freshness.at == 5.0


def test_a_leader_that_stops_was_up_to_date_until_its_clearance_ended() -> None:
    bench, replica = leading()
    bench.node.stop_leading(12.0)
    assert (replica.role, replica.freshness.at) == (Role.IDLE, 10.0)
    bench.now = 20.0
    bench.view.cleared_until = 25.0  # the node has registered again
    bench.adopt(replica)
    assert replica.freshness.at == 10.0


def test_a_leader_that_has_not_applied_the_log_that_it_began_with_knows_no_age() -> None:
    bench, replica = leading(ready=False)
    bench.node.stop_leading(5.0)
    assert replica.freshness.at == NEVER


def test_a_leader_that_hands_over_was_up_to_date_until_reads_wait() -> None:
    """Once reads wait, the successor may take writes, even while this node still has clearance."""
    bench, replica = leading()
    bench.write(replica)
    bench.sync(replica)
    bench.now = 2.0
    bench.adopt(replica, successor="byzantium")
    bench.now = 3.0
    bench.align(replica, "byzantium", "cyrene")
    bench.apply(replica)
    assert gate_of(replica) is Gate.CLOSED_TO_READS
    bench.now = 4.0
    bench.adopt(replica, leader="byzantium", leader_epoch=2)
    assert replica.freshness.at == 3.0


def test_a_leader_whose_clearance_was_given_up_knows_no_age() -> None:
    """Another replica may have led since then, and this replica doesn't know from when on."""
    bench, replica = leading()
    bench.view.cleared_until = float("-inf")
    bench.node.stop_leading(5.0)
    assert replica.freshness.at == NEVER
