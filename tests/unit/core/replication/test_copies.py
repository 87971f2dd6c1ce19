"""A copy of a partition begins again only if the leader has trimmed entries that come after the copy's checkpoint. The
new copy states the reason.
"""

from dataclasses import replace

from minkad.core.replication.checkpoints import AWAY, OUTRUN
from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.instructions import Level, Report, SendCheckpoint
from minkad.core.replication.peer_messages import Ack, Standing
from minkad.core.replication.replica import Replica
from tests.unit.core.replication.bench import SETTINGS, Bench, data_at, leader_of, log_of, row, sent

MOST = 1000


def moving() -> tuple[Bench, Replica, Progress, SendCheckpoint]:
    """A leader whose partition is to be copied to ephesus. Its log begins after offset 2, and its data is at 4."""
    bench = Bench()
    bench.shared.settings = replace(SETTINGS, copy_log_bytes=MOST)
    replica = bench.host(
        row(replicas=["athens", "ephesus"], isr=["athens"], adding_replicas=["ephesus"]),
        log_of(1, 1, base=2),
        data_at(4),
    )
    bench.open(replica)
    bench.serve_alone(replica)
    progress = bench.stands(replica, "ephesus", log_of(), Standing.NEEDS_CHECKPOINT)
    [instruction] = bench.take(SendCheckpoint)
    replica.retention.keep_for_copy("ephesus", replica.flushed, MOST)
    return bench, replica, progress, instruction


def write_and_flush(bench: Bench, replica: Replica, flushes: int, size: int) -> None:
    """Do this `flushes` times: write an entry of `size` bytes, flush it, and trim the log."""
    for _ in range(flushes):
        bench.write(replica)
        bench.sync(replica)
        bench.apply(replica)
        replica.retention.applied_bytes += size
        replica.flushed = replica.applied
        replica.trim_log()


def test_the_log_is_kept_while_a_copy_is_sent_and_catches_up() -> None:
    """There is no limit on the time for which the log is kept, only on its bytes."""
    bench, replica, progress, _ = moving()
    leader, settings = leader_of(replica), bench.shared.settings
    write_and_flush(bench, replica, 8, 50)
    bench.now += 2 * settings.lag_timeout
    leader.check(bench.now, stalled=False)
    leader.checkpoint_sent(progress, 4, bench.now)
    bench.now += 2 * settings.lag_timeout
    leader.check(bench.now, stalled=False)
    write_and_flush(bench, replica, 8, 50)
    assert replica.log.base <= 4
    assert replica.retention.copy_log("ephesus") == (800, MOST)
    assert sent(progress)[0].prev_offset == 4
    assert bench.take(SendCheckpoint) == []


def test_entries_that_a_copy_has_are_not_kept_for_it() -> None:
    bench, replica, progress, _ = moving()
    leader_of(replica).checkpoint_sent(progress, 4, bench.now)
    write_and_flush(bench, replica, 8, 50)
    sent(progress)
    bench.ack(replica, "ephesus", 8)
    write_and_flush(bench, replica, 1, 50)
    assert replica.retention.copy_log("ephesus") == (250, MOST)
    assert replica.log.base == 8


def test_a_copy_that_falls_behind_the_writes_begins_again_and_is_reported() -> None:
    bench, replica, progress, first = moving()
    assert (first.tries, first.reason) == (1, "")
    leader_of(replica).checkpoint_sent(progress, 4, bench.now)
    write_and_flush(bench, replica, 12, 100)
    assert replica.retention.copy_log("ephesus") is None
    assert replica.log.base > 4
    bench.take_all()
    bench.stands(replica, "ephesus", log_of(base=4, base_epoch=1))
    taken = bench.take_all()
    [second] = [one for one in taken if isinstance(one, SendCheckpoint)]
    assert (second.tries, second.reason, second.was_outrun) == (2, OUTRUN, True)
    [report] = [one for one in taken if isinstance(one, Report)]
    assert report.level is Level.WARNING
    assert report.names["tries"] == 2
    [migration] = leader_of(replica).migrations()
    assert (migration.tries, migration.restarted_by) == (2, OUTRUN)


def test_a_copy_whose_node_was_away_does_not_count_as_outrun() -> None:
    bench, replica, progress, _ = moving()
    leader = leader_of(replica)
    leader.checkpoint_sent(progress, 4, bench.now)
    leader.disconnected(progress, "reset", bench.now)
    write_and_flush(bench, replica, 8, 50)
    bench.take_all()
    bench.stands(replica, "ephesus", log_of(base=4, base_epoch=1))
    [second] = bench.take(SendCheckpoint)
    assert (second.reason, second.was_outrun) == (AWAY, False)


def test_for_a_replica_in_sync_the_log_is_kept_as_for_others() -> None:
    bench, replica, progress, _ = moving()
    leader_of(replica).checkpoint_sent(progress, 4, bench.now)
    bench.ack(replica, "ephesus", 4)
    bench.adopt(replica, isr=["athens", "ephesus"], adding_replicas=[])
    assert replica.retention.copy_log("ephesus") is None
    assert "ephesus" in replica.retention.readers


def test_no_log_is_kept_for_a_copy_that_waits_for_its_checkpoint() -> None:
    """The wait may be long. The checkpoint is taken after it, so the copy doesn't need the log written meanwhile."""
    bench, replica, progress, _ = moving()
    leader = leader_of(replica)
    leader.checkpoint_sent(progress, 4, bench.now)
    leader.acknowledged(progress, Ack(replica.id, leader.leader_epoch, Standing.NEEDS_CHECKPOINT, 0), bench.now)
    assert bench.take(SendCheckpoint)
    write_and_flush(bench, replica, 8, 50)
    assert replica.log.base == replica.flushed - 1
