"""A leader replicates to one follower: it sends a probe, gets the follower's answer, and then sends entries."""

import pytest

from minka.errors import Code, MinkaError
from minkad.core.replication.follower_progress import Progress, Reaction, Stage
from minkad.core.replication.instructions import Send, SendCheckpoint, StartSending
from minkad.core.replication.peer_messages import Ack, Append, Entry, Standing
from tests.unit.core.replication.bench import Bench, MemoryLog, a_write, leader_of, log_of, row, sent

BODY = a_write()


def two(log: MemoryLog | None = None, leader_epoch: int = 2) -> tuple[Bench, Progress]:
    """A leader with one follower."""
    bench = Bench()
    replica = bench.host(row(replicas=("athens", "byzantium"), isr=("athens",), leader_epoch=leader_epoch), log)
    return bench, leader_of(replica).progress["byzantium"]


def test_a_follower_is_probed_first_and_gets_nothing_before_its_answer() -> None:
    bench, progress = two(log_of(1))
    assert bench.take(StartSending) == [StartSending(progress)]
    assert progress.next_append(1) == Append(1, 2, 0, 0, 0, [], probe=True)
    assert progress.next_append(1) is None


def test_after_a_row_that_is_not_the_next_one_a_follower_is_probed_again_unless_it_is_in_sync() -> None:
    """A row between may have removed the follower. Then its node has another copy now, which knows of no probe."""
    bench, progress = two(log_of(1))
    replica = bench.replica(1)

    def stage() -> Stage:
        return progress.stage

    bench.stands(replica, "byzantium", log_of(1))
    assert stage() is Stage.REPLICATE
    bench.adopt(replica)
    assert stage() is Stage.REPLICATE
    bench.adopt(replica, partition_epoch=replica.row.partition_epoch + 2)
    assert stage() is Stage.PROBE
    bench.stands(replica, "byzantium", log_of(1))
    bench.adopt(replica, partition_epoch=replica.row.partition_epoch + 2, isr=["athens", "byzantium"])
    assert stage() is Stage.REPLICATE


def test_entries_are_sent_from_the_common_end_and_the_first_message_truncates() -> None:
    bench, progress = two(log_of(1, 1, 2))
    bench.take_all()
    bench.stands(bench.replica(1), "byzantium", log_of(1, 1, 1, 1))
    assert bench.take(Send) == [Send(progress)]
    assert progress.next_append(1) == Append(1, 2, 2, 3, 3, [Entry(2, BODY)], truncate=True)
    bench.write(bench.replica(1))
    leader_of(bench.replica(1)).epoch_durable()
    assert progress.next_append(1) == Append(1, 2, 3, 3, 3, [Entry(2, BODY)], truncate=False)


def test_a_follower_with_all_entries_is_still_told_to_truncate() -> None:
    bench, progress = two(log_of(1))
    bench.stands(bench.replica(1), "byzantium", log_of(1, 1))
    assert progress.wants_sending is False  # the sender is already about to send
    assert sent(progress) == [Append(1, 2, 1, 1, 1, [], truncate=True)]


def test_a_followers_entries_count_only_up_to_the_common_end() -> None:
    bench, progress = two(log_of(1, 1, 2))
    bench.stands(bench.replica(1), "byzantium", log_of(1, 1, 1, 1))
    assert (progress.matched, progress.next, progress.lag) == (2, 3, 1)
    assert not progress.is_aligned
    bench.ack(bench.replica(1), "byzantium", 2)
    assert progress.is_aligned


def test_a_follower_whose_log_has_no_common_end_gets_a_checkpoint() -> None:
    log = log_of(1, 1, 1, 1)
    log.trim(3)
    bench = Bench()
    replica = bench.host(row(replicas=("athens", "byzantium"), isr=("athens",)), log)
    bench.take_all()
    progress = bench.stands(replica, "byzantium", log_of(1))
    assert bench.take(SendCheckpoint) == [SendCheckpoint(progress, [])]
    assert sent(progress) == []


def test_an_empty_follower_gets_a_short_log_or_a_checkpoint_instead_of_a_long_one() -> None:
    bench, progress = two(log_of(1, 1))
    bench.stands(bench.replica(1), "byzantium", log_of())
    assert [len(append.entries) for append in sent(progress)] == [2]

    long = log_of(1)
    long.append(1, a_write(b"k", b"v" * 300_000))
    bench, progress = two(long)
    bench.stands(bench.replica(1), "byzantium", log_of())
    assert bench.take(SendCheckpoint) == [SendCheckpoint(progress, [])]


def test_after_a_checkpoint_entries_are_sent_from_its_offset() -> None:
    bench, progress = two(log_of(1, 1, 1))
    replica = bench.replica(1)
    bench.stands(replica, "byzantium", log_of(), Standing.NEEDS_CHECKPOINT)
    leader_of(replica).checkpoint_sent(progress, 2, bench.now)
    assert sent(progress) == [Append(1, 2, 2, 3, 3, [Entry(1, BODY)], truncate=True)]


def test_if_the_stream_breaks_during_a_checkpoint_the_follower_is_probed_afterwards() -> None:
    """The leader has to begin a new stream with a probe, since the follower ignores entries before the probe."""
    bench, progress = two(log_of(1, 1, 1))
    replica = bench.replica(1)
    bench.stands(replica, "byzantium", log_of(), Standing.NEEDS_CHECKPOINT)
    leader_of(replica).disconnected(progress, "it broke", bench.now)
    leader_of(replica).checkpoint_sent(progress, 2, bench.now)
    assert [append.probe for append in sent(progress)] == [True]
    leader_of(replica).acknowledged(progress, Ack(1, 2, Standing.STORED, 2, [(0, 1)]), bench.now)
    assert sent(progress) == [Append(1, 2, 2, 3, 3, [Entry(1, BODY)], truncate=True)]


def test_after_a_failed_checkpoint_the_follower_is_probed_again_after_a_pause() -> None:
    bench, progress = two(log_of(1))
    leader = leader_of(bench.replica(1))
    bench.stands(bench.replica(1), "byzantium", log_of(), Standing.NEEDS_CHECKPOINT)
    leader.checkpoint_failed(progress, "no room", 1.0)
    leader.tick(1.04)
    assert sent(progress) == []
    leader.tick(1.05)
    assert sent(progress) == [Append(1, 2, 0, 0, 0, [], probe=True)]


def test_unacknowledged_bytes_are_limited() -> None:
    bench, progress = two()
    replica = bench.replica(1)
    bench.align(replica, "byzantium")
    leader_of(replica).epoch_durable()
    bench.write(replica, *[a_write(b"k", b"v" * 250_000)] * 40)
    assert len(sent(progress)) == 17  # messages of 250 kB; the last one begins below 4 MB
    assert not progress.has_more
    bench.ack(replica, "byzantium", 3)
    assert len(sent(progress)) == 3


def test_unsynced_entries_are_sent_once_the_epoch_is_durable() -> None:
    bench, progress = two()
    replica = bench.replica(1)
    bench.align(replica, "byzantium")
    bench.write(replica)
    assert sent(progress) == []
    leader_of(replica).epoch_durable()
    assert sent(progress) == [Append(1, 2, 0, 0, 0, [Entry(2, BODY)])]


def test_synced_entries_are_sent_even_before_the_epoch_is_durable() -> None:
    bench, progress = two()
    replica = bench.replica(1)
    bench.align(replica, "byzantium")
    bench.write(replica)
    bench.sync(replica)
    assert [append.prev_offset for append in sent(progress)] == [0]


def test_a_new_watermark_is_sent_once() -> None:
    bench, progress = two()
    replica = bench.replica(1)
    bench.align(replica, "byzantium")
    bench.write(replica)
    bench.sync(replica)
    assert sent(progress)[0].high_watermark == 0
    assert progress.next_watermark() is None
    bench.ack(replica, "byzantium")
    assert progress.next_watermark() == Append(1, 2, 1, 1, 0, [])
    assert progress.next_watermark() is None


def test_an_answer_of_another_epoch_changes_nothing() -> None:
    bench, progress = two(log_of(1, 1))
    bench.stands(bench.replica(1), "byzantium", log_of(1))
    assert progress.acknowledged(Ack(1, 1, Standing.STORED, 2)) is Reaction.NONE
    assert progress.acknowledged(Ack(1, 1, Standing.NEEDS_CHECKPOINT, 0)) is Reaction.NONE
    assert (progress.matched, progress.stage) == (1, Stage.REPLICATE)


def test_an_answer_to_a_probe_that_is_not_open_changes_nothing() -> None:
    bench, progress = two(log_of(1, 1))
    bench.stands(bench.replica(1), "byzantium", log_of(1))
    assert progress.acknowledged(Ack(1, 2, Standing.STORED, 0, [(0, 0)])) is Reaction.NONE
    assert progress.stage is Stage.REPLICATE


def test_an_acknowledgement_during_a_probe_changes_nothing() -> None:
    _, progress = two(log_of(1, 1))
    assert progress.acknowledged(Ack(1, 2, Standing.STORED, 2)) is Reaction.NONE
    assert progress.matched == 0


def test_an_answer_to_an_older_progress_changes_nothing() -> None:
    bench, progress = two(log_of(1, 1))
    replica = bench.replica(1)
    bench.stands(replica, "byzantium", log_of(1))
    sent(progress)
    old = progress
    bench.adopt(replica, replicas=("athens",))
    bench.adopt(replica, replicas=("athens", "byzantium"))
    leader_of(replica).acknowledged(old, Ack(1, 2, Standing.STORED, 2), bench.now)
    leader_of(replica).acknowledged(old, Ack(1, 2, Standing.NEEDS_CHECKPOINT, 0), bench.now)
    leader_of(replica).checkpoint_sent(old, 2, bench.now)
    leader_of(replica).checkpoint_failed(old, "late", bench.now)
    assert leader_of(replica).progress["byzantium"].stage is Stage.PROBE
    assert old.matched == 1
    assert bench.take(SendCheckpoint) == []


def test_an_acknowledgement_of_entries_never_sent_is_an_internal_error() -> None:
    bench, progress = two(log_of(1, 1))
    bench.stands(bench.replica(1), "byzantium", log_of(1))
    with pytest.raises(MinkaError) as caught:
        progress.acknowledged(Ack(1, 2, Standing.STORED, 2))
    assert caught.value.code is Code.INTERNAL


def test_a_follower_is_probed_again_after_a_broken_stream() -> None:
    bench, progress = two(log_of(1, 1))
    replica = bench.replica(1)
    bench.align(replica, "byzantium")
    leader_of(replica).disconnected(progress, "reset", bench.now)
    assert (progress.stage, progress.error, progress.unacknowledged) == (Stage.PROBE, "reset", 0)
    assert progress.matched == 2  # the entries that the follower has stored still count


def test_a_follower_whose_next_entries_were_trimmed_is_probed_again() -> None:
    bench, progress = two(log_of(1, 1, 1))
    bench.stands(bench.replica(1), "byzantium", log_of(1))
    bench.replica(1).log.trim(2)
    assert sent(progress) == [Append(1, 2, 0, 0, 0, [], probe=True)]


def test_a_follower_out_of_sync_and_without_room_gets_nothing() -> None:
    bench, progress = two(log_of(1, 1))
    replica = bench.replica(1)
    bench.stands(replica, "byzantium", log_of(1))
    bench.view.low = {"byzantium"}
    leader_of(replica).check(bench.now, stalled=False)
    assert sent(progress) == []
    bench.view.low = set()
    leader_of(replica).check(bench.now, stalled=False)
    assert len(sent(progress)) == 1
