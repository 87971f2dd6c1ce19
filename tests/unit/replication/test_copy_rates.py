"""The check whether a copy can end: the rate of the copy is compared with the rate at which clients write."""

from types import SimpleNamespace
from typing import cast

import pytest

from minka.v1.cluster_pb2 import Operation
from minka.v1.coordinator_pb2 import MigrationProgress
from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.retention import CopyLog, Retention
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.sending.copy_rates import CopyRates
from minkad.storage.size_estimate import Size

MB = 1_000_000


class Copied:
    """A partition of 1 GB and its copy. The log kept for a copy may be as large as the partition, or as large as the
    setting (100 MB) if this is more. So here up to 1 GB of log is kept.
    """

    def __init__(self, limit: int | None = None, size: int = 1000 * MB) -> None:
        self.now = 0.0
        self.operation = None if limit is None else Operation(id=7, rate_limit=limit)
        self.retention = Retention(0)
        data = SimpleNamespace(size=lambda: Size(size, 1))
        replica = cast(
            "HostedReplica", SimpleNamespace(id=1, data=data, state=SimpleNamespace(retention=self.retention))
        )
        self.rates = CopyRates(replica, "ephesus", 100 * MB, lambda: self.now, lambda _: self.operation)
        self.copied = 0

    def run(self, seconds: int, writes: int, copies: int = 0) -> None:
        """For these seconds, write and copy this many bytes a second."""
        for _ in range(seconds):
            self.rates.look(self.copied)
            self.now += 1
            self.retention.applied_bytes += writes
            self.copied += copies
        self.rates.look(self.copied)


def test_without_a_limit_a_copy_begins_at_once() -> None:
    assert not Copied().rates.waits_for_writes
    assert not Copied(0).rates.waits_for_writes


def test_a_sufficient_limit_does_not_delay_the_copy() -> None:
    c = Copied(30 * MB)
    c.run(3, 20 * MB)
    assert c.rates.waits_for_writes
    assert c.rates.obstacle() == ("", "")


def test_an_insufficient_limit_is_reported_with_both_rates_and_a_remedy() -> None:
    c = Copied(10 * MB)
    c.run(3, 20 * MB)
    reason, remedy = c.rates.obstacle()
    assert reason == (
        "it is written at 20.0 MB/s, and a copy of 1.0 GB at 10.0 MB/s would be outrun: at most 1.0 GB of the log that "
        "comes meanwhile are kept"
    )
    assert remedy == "minkactl operations limit 7 24MiB (0: no limit), or minkactl operations cancel 7"
    c.operation = Operation(id=7)
    assert c.rates.obstacle() == ("", ""), "the limit was lifted"


def test_a_small_partition_may_be_copied_at_less_than_the_rate_of_writes() -> None:
    """The setting (100 MB) is more than the partition's size (10 MB), so up to 100 MB of log are kept for the copy."""
    c = Copied(5 * MB, size=10 * MB)
    c.run(3, 20 * MB)
    assert c.rates.obstacle() == ("", "")


def test_after_an_outrun_copy_the_next_one_waits_for_fewer_writes_or_a_minute() -> None:
    c = Copied(0)
    c.run(5, 40 * MB, 7 * MB)
    c.rates.note_outrun()
    assert c.rates.why_outrun() == (
        "writes at 40.0 MB/s have outrun the copy at 7.0 MB/s: of the log since its checkpoint at most 1.0 GB are "
        "kept, and less with many copies or a low disk"
    )
    assert c.rates.waits_for_writes
    reason, remedy = c.rates.obstacle()
    assert "written at 40.0 MB/s" in reason
    assert "at 7.0 MB/s" in reason
    assert remedy == "write less, or minkactl operations cancel 7"
    c.run(20, 1 * MB)
    assert c.rates.obstacle() == ("", "")
    c.run(5, 40 * MB)
    assert c.rates.obstacle() != ("", "")
    c.now += 60
    assert c.rates.obstacle() == ("", "")


def test_a_copy_outrun_while_it_followed_the_log_waits_for_fewer_writes() -> None:
    """The last copy got its checkpoint, but then couldn't follow the log. So the next copy waits, even if the
    partition is small.
    """
    c = Copied(0, size=1 * MB)
    c.run(5, 40 * MB, 30 * MB)
    c.rates.note_outrun(following=True)
    assert "written at 40.0 MB/s" in c.rates.obstacle()[0]
    c.run(20, 20 * MB)
    assert c.rates.obstacle() == ("", "")


def test_a_follower_that_takes_the_log_too_slowly_is_named_before_its_log_is_given_up() -> None:
    c = Copied(0)
    c.retention.keep_for_copy("ephesus", 0, 100 * MB)
    progress = cast("Progress", SimpleNamespace(node_id="ephesus"))
    migration = MigrationProgress()
    for seconds in range(60):
        c.now += 1
        c.retention.applied_bytes += 1 * MB
        migration = MigrationProgress()
        c.rates.describe_following(progress, migration)
        assert bool(migration.remedy) is (seconds > 49), seconds
    assert "it is written at 1.0 MB/s, and ephesus takes the log at 0.0 MB/s" in migration.blocked_by


def test_the_wait_after_an_outrun_copy_doubles_each_time_up_to_an_hour() -> None:
    c = Copied(0)
    waited = []
    for _ in range(9):
        c.run(5, 40 * MB, 7 * MB)
        c.rates.note_outrun()
        outrun_at = c.now
        while c.rates.waits_for_writes:
            c.now += 10
        waited.append(c.now - outrun_at)
    assert waited == [70, 130, 250, 490, 970, 1930, 3610, 3610, 3610]
    c.run(5, 40 * MB, 7 * MB)
    c.operation = Operation(id=7, rate_limit=100 * MB)
    c.rates.note_outrun()
    c.now += 61
    assert c.rates.obstacle() == ("", "")


def test_a_copy_near_its_bound_demands_at_most_a_rate_that_it_can_reach() -> None:
    c = Copied()
    c.run(2, 20 * MB, 30 * MB)
    assert c.rates.wanted(500 * MB, CopyLog(0, 1000 * MB)) == 12.5 * MB
    assert c.rates.wanted(500 * MB, CopyLog(1000 * MB - 1, 1000 * MB)) == 60 * MB
    slow = Copied()
    slow.run(2, 20 * MB, 1 * MB)
    assert slow.rates.wanted(500 * MB, CopyLog(1000 * MB - 1, 1000 * MB)) == 16 * MB, (
        "even a slow copy may ask for 16 MB/s: perhaps it was held back so far"
    )


@pytest.mark.parametrize(("copies", "kept", "ends"), [(5, 600, True), (5, 400, False), (30, 600, False)])
def test_a_copy_that_is_far_too_slow_is_given_up_once_half_of_its_log_is_used(
    copies: int, kept: int, ends: bool
) -> None:
    """To give a copy its rate, the leader makes clients wait. If the copy can't end, they would wait in vain."""
    c = Copied()
    asked = []
    for second in range(8):
        c.run(1, 20 * MB, copies * MB)
        asked.append(c.rates.wanted(500 * MB, CopyLog((kept + second) * MB, 1000 * MB)))
    assert (None in asked) is ends
