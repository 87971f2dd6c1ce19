"""The logs that a node keeps for copies of its partitions share its disk, so their total size is limited."""

from minkad.core.replication.copy_logs import NONE
from minkad.core.replication.replica import Replica
from tests.unit.core.replication.bench import Bench, log_of, row

MOST = 1000


def copied(*kept: int) -> tuple[Bench, list[Replica]]:
    """Make a leader for each number in `kept`. It keeps this many bytes of log for a copy of its partition, and may
    keep at most MOST bytes.
    """
    bench = Bench()
    replicas = []
    for id_, size in enumerate(kept, 1):
        replica = bench.host(row(id_, replicas=("athens", "ephesus"), isr=("athens",)), log_of(1, 1, 1))
        bench.shared.copy_logs.keep(replica, "ephesus", 0, MOST)
        replica.retention.applied_bytes += size
        replicas.append(replica)
    return bench, replicas


def still_kept(replicas: list[Replica]) -> list[int]:
    """The partitions whose log is still kept for a copy."""
    return [one.id for one in replicas if one.retention.copy_log("ephesus") is not None]


def test_as_many_copies_as_are_sent_at_a_time_may_reach_their_bounds() -> None:
    bench, replicas = copied(900, 900)
    assert bench.shared.copy_logs.bound(2) == []
    assert still_kept(replicas) == [1, 2]


def test_the_copies_of_a_node_share_a_bound_and_the_largest_logs_are_given_up() -> None:
    bench, replicas = copied(*[500] * 300, 990)
    trimmed = bench.shared.copy_logs.bound(2)
    assert trimmed[0] == 301
    assert len(still_kept(replicas)) == 4
    assert sorted([*trimmed, *still_kept(replicas)]) == list(range(1, 302))
    assert bench.shared.copy_logs.bound(2) == []


def test_a_log_that_is_given_up_can_be_trimmed() -> None:
    bench, replicas = copied(500)
    replicas[0].flushed = 3
    for _ in range(2):
        replicas[0].retention.flushed_to(3, 0, is_alone=False)
    assert bench.shared.copy_logs.bound(NONE) == [1]
    assert not replicas[0].retention.readers
    bench.shared.copy_logs.keep(replicas[0], "ephesus", 3, MOST)
    assert bench.shared.copy_logs.bound(NONE) == [], "the log kept for the new copy has no bytes yet"
