"""A follower's answers, its appends and truncations, and the age of its data."""

from typing import Any

import pytest

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Durability, Keyspace
from minkad.core.replication.entries import TrimToRange, encode_mark
from minkad.core.replication.following import Follower, LeaderStream
from minkad.core.replication.freshness import NEVER
from minkad.core.replication.instructions import Answer, Apply, Level, OpenData, Report, Sync
from minkad.core.replication.peer_messages import Ack, Append, Entry, KeptFile, Standing
from minkad.core.replication.replica import Replica
from tests.unit.core.replication.bench import At, Bench, MemoryData, MemoryLog, a_write, log_of, row

WRITE = Entry(1, a_write())


class Following:
    """A follower on byzantium, and the stream from its leader."""

    def __init__(self, log: MemoryLog | None = None, data: MemoryData | None = None, **fields: Any) -> None:
        self.bench = Bench("byzantium")
        if fields.pop("is_async", False):
            self.bench.view.keyspaces[1] = Keyspace(id=1, durability=Durability.DURABILITY_ASYNC)
        self.replica: Replica = self.bench.host(row(**fields), log, data)
        self.stream = LeaderStream()
        self.bench.take_all()

    @property
    def follower(self) -> Follower:
        assert self.replica.follower is not None
        return self.replica.follower

    def probe(self) -> list[Ack]:
        self.follower.probed(self.stream, [])
        return self.answers()

    def append(self, prev: int, *entries: Entry, watermark: int = 0, start: int = 0, **fields: Any) -> None:
        append = Append(1, self.replica.row.leader_epoch, prev, watermark, start, list(entries), **fields)
        self.follower.append(append, fields.pop("stream", self.stream), self.bench.now)

    def answers(self) -> list[Ack]:
        return [answer.ack for answer in self.bench.take(Answer)]


def test_a_follower_answers_a_probe_with_the_leader_epochs_of_its_log() -> None:
    f = Following(log_of(1, 1, 4), leader_epoch=5)
    kept = [KeptFile("000001.sst", 3, 5)]
    f.follower.probed(f.stream, kept)
    ack = Ack(1, 5, Standing.STORED, 3, [(0, 0), (1, 1), (3, 4)], kept)
    assert f.bench.take_all() == [Answer(f.stream, ack)]


def test_a_follower_answers_a_probe_only_once_its_whole_log_is_durable() -> None:
    """If a follower answered earlier, the leader could make it truncate entries that are committed in the meantime."""
    f = Following(log_of(1))
    f.probe()
    f.append(1, WRITE, watermark=2)
    f.answers()
    f.stream = LeaderStream(1)
    assert f.probe() == []
    f.bench.sync(f.replica)
    assert [(ack.offset, ack.lineage) for ack in f.answers()] == [(2, [(0, 0), (1, 1)])]
    assert f.replica.high_watermark == 2, "entries of the older stream are committed meanwhile"
    f.append(2, truncate=True)
    taken = f.bench.take_all()
    assert not any(isinstance(one, Report) for one in taken), "the leader lacks nothing"
    assert Standing.NEEDS_CHECKPOINT not in [one.ack.standing for one in taken if isinstance(one, Answer)]


def test_a_probe_is_not_answered_if_its_stream_ended_before_the_sync() -> None:
    f = Following()
    f.probe()
    f.append(0, WRITE)
    f.probe()
    f.follower.disconnected()
    f.bench.sync(f.replica)
    assert f.answers() == []


def test_a_follower_found_damaged_before_its_answer_asks_for_a_checkpoint() -> None:
    f = Following()
    f.probe()
    f.append(0, WRITE)
    f.probe()
    f.follower.needs_checkpoint()
    f.bench.sync(f.replica)
    assert [ack.standing for ack in f.answers()] == [Standing.NEEDS_CHECKPOINT]


def test_a_follower_whose_data_is_gone_asks_for_a_checkpoint() -> None:
    f = Following(log_of(1, base=3))
    assert [ack.standing for ack in f.probe()] == [Standing.NEEDS_CHECKPOINT]
    assert f.replica.damage is not None


def test_a_follower_acknowledges_entries_once_they_are_synced() -> None:
    f = Following()
    f.probe()
    f.append(0, WRITE, WRITE)
    assert f.bench.take_all() == [Sync(1, on_disk=False)]
    f.bench.sync(f.replica)
    assert f.answers() == [Ack(1, 1, Standing.STORED, 2)]


def test_in_an_async_keyspace_a_mark_must_be_on_the_disk() -> None:
    f = Following(log_of(1), is_async=True)
    f.probe()
    f.append(1, WRITE)
    f.append(2, Entry(1, encode_mark(TrimToRange(b"", b""))))
    assert f.bench.take(Sync) == [Sync(1, on_disk=False), Sync(1, on_disk=True)]
    f.replica.log_stored(3, 0, 0.0, on_disk=False)
    assert [ack.offset for ack in f.answers()] == [1]
    f.bench.sync(f.replica)
    assert [ack.offset for ack in f.answers()] == [3]


def test_in_an_async_keyspace_a_followers_first_entry_must_be_on_the_disk() -> None:
    """When the follower applies the entry, it makes the data's folder. A power cut must not leave this folder and
    remove the log, which shows that the node has the replica.
    """
    f = Following(is_async=True)
    f.probe()
    f.append(0, WRITE)
    assert f.bench.take(Sync) == [Sync(1, on_disk=True)]
    f.replica.log_stored(1, 0, 0.0, on_disk=False)
    assert f.replica.durable == 0
    f.bench.sync(f.replica)
    f.append(1, WRITE)
    assert f.bench.take(Sync) == [Sync(1, on_disk=False)]
    f.replica.log_stored(2, 0, 0.0, on_disk=False)
    assert f.replica.durable == 2


def test_in_an_async_keyspace_a_leaders_first_entry_must_be_on_the_disk_too() -> None:
    bench = Bench("athens")
    bench.view.keyspaces[1] = Keyspace(id=1, durability=Durability.DURABILITY_ASYNC)
    replica = bench.host(row(leader="athens"))
    bench.take_all()
    bench.write(replica)
    assert bench.take(Sync) == [Sync(1, on_disk=True)]
    bench.sync(replica)
    bench.write(replica)
    assert bench.take(Sync) == [Sync(1, on_disk=False)]


@pytest.mark.parametrize("prev", [0, 2])
def test_an_append_that_does_not_follow_the_log_is_an_internal_error(prev: int) -> None:
    f = Following(log_of(1))
    f.probe()
    with pytest.raises(MinkaError) as caught:
        f.append(prev, WRITE)
    assert caught.value.code is Code.INTERNAL
    assert f.replica.log.end == 1


def test_a_follower_truncates_entries_that_the_leader_lacks() -> None:
    f = Following(log_of(1, 1, 1))
    f.probe()
    f.append(1, truncate=True)
    assert (f.replica.log.end, f.replica.durable) == (1, 1)
    assert f.bench.take(Sync) == [Sync(1, on_disk=False)]
    f.bench.sync(f.replica)
    assert f.answers() == [Ack(1, 1, Standing.STORED, 1)]


@pytest.mark.parametrize(
    ("epochs", "end", "level", "text"),
    [
        ((1, 1, 1), 1, Level.WARNING, "the leader lacks the end of this log"),
        ((1, 3, 3), 1, Level.ERROR, "the table was set back"),
        ((1, 1, 1), 3, Level.INFO, "a log is truncated"),
    ],
    ids=["an older leadership's", "not older than the leader's", "sent again"],
)
def test_the_log_says_how_many_entries_are_truncated(
    epochs: tuple[int, ...], end: int, level: Level, text: str
) -> None:
    f = Following(log_of(*epochs), leader_epoch=2)
    f.probe()
    more = Entry(epochs[-1], a_write())
    f.append(3, more, more)
    f.append(end, truncate=True)
    (report,) = f.bench.take(Report)
    assert report.level is level
    assert text in report.text
    assert report.names == {"partition": 1, "at": end, "end": 5, "lacking": 3 - end}


def test_a_follower_asks_for_a_checkpoint_instead_of_truncating_committed_entries() -> None:
    f = Following(log_of(1, 1, 1))
    f.probe()
    f.append(3, watermark=2)
    f.probe()
    f.append(1, WRITE, truncate=True)
    assert f.answers() == [Ack(1, 1, Standing.NEEDS_CHECKPOINT, 3)]
    assert (f.replica.log.end, f.replica.log.truncations) == (3, 0)


def test_entries_sent_before_the_request_for_a_checkpoint_are_ignored() -> None:
    """The follower has refused a truncation, and asks for a checkpoint. Entries that the leader sent after the
    truncation still come: the stream goes on, since it also serves other partitions.
    """
    f = Following(log_of(1, 1, 1))
    f.probe()
    f.append(3, watermark=2)
    f.probe()
    f.append(1, WRITE, truncate=True)
    f.append(2, WRITE)
    assert f.replica.log.end == 3
    f.append(3, WRITE, truncate=True)
    assert f.replica.log.end == 4


def test_applied_entries_count_as_committed_before_the_leader_says_so() -> None:
    f = Following(log_of(1, 1, 1), MemoryData(is_there=True))
    data = f.replica.data
    assert isinstance(data, MemoryData)
    data.applied.offset = 2
    f.probe()
    f.bench.take_all()
    f.append(1, WRITE, truncate=True)
    f.append(2, WRITE)
    assert f.bench.take_all() == [OpenData(1)], "entries wait until the data is open and its offset is known"
    f.bench.open(f.replica)
    assert f.answers() == [Ack(1, 1, Standing.NEEDS_CHECKPOINT, 3)]
    assert f.replica.log.end == 3


def test_entries_that_come_while_the_data_is_being_opened_are_appended_in_order() -> None:
    f = Following(log_of(1, 1, 1), MemoryData(At(1, 1), is_there=True))
    f.probe()
    f.append(1, WRITE, truncate=True)
    f.append(2, WRITE)
    assert f.replica.log.end == 3
    f.bench.open(f.replica)
    assert (f.replica.log.end, f.replica.log.truncations) == (3, 1)
    f.append(3, WRITE)
    assert f.replica.log.end == 4


def test_entries_that_wait_for_the_data_are_dropped_at_the_next_probe() -> None:
    f = Following(log_of(1, 1, 1), MemoryData(At(1, 1), is_there=True))
    f.probe()
    f.append(1, WRITE, truncate=True)
    f.probe()
    f.bench.open(f.replica)
    assert (f.replica.log.end, f.replica.log.truncations) == (3, 0)


def test_a_followers_watermark_is_the_leaders_up_to_its_durable_offset() -> None:
    f = Following()
    f.probe()
    f.append(0, WRITE, WRITE, watermark=1)
    f.bench.take_all()
    assert f.replica.high_watermark == 0
    f.bench.sync(f.replica)
    assert f.replica.high_watermark == 1
    assert Apply(1) in f.bench.take_all()
    f.append(2, watermark=9)
    assert f.replica.high_watermark == 2


def test_a_watermark_without_entries_counts_at_once() -> None:
    f = Following(log_of(1, 1))
    f.probe()
    f.append(2, watermark=2)
    assert f.bench.take_all() == [Apply(1)]
    assert f.replica.high_watermark == 2


def test_a_follower_acknowledges_nothing_before_the_leader_has_said_where_the_logs_diverge() -> None:
    f = Following(log_of(1, 1))
    f.probe()
    f.bench.sync(f.replica)
    assert f.answers() == []
    f.append(2, truncate=True)
    f.bench.sync(f.replica)
    assert [ack.offset for ack in f.answers()] == [2]
    f.probe()
    f.bench.sync(f.replica)
    assert f.answers() == []


def test_a_copy_that_fails_during_a_probe_names_the_files_that_it_keeps() -> None:
    """If the follower didn't name the files, the leader would send all files of the broken checkpoint again."""
    f = Following(log_of(1))
    f.probe()
    f.append(1, WRITE, watermark=2)
    f.stream = LeaderStream(1)
    kept = [KeptFile("000001.sst", 3, 5)]
    f.follower.probed(f.stream, kept)
    assert f.answers() == []
    f.replica.data.condemn(MinkaError(Code.CORRUPT_DATA, "a block is damaged"))
    f.follower.needs_checkpoint()
    f.bench.sync(f.replica)
    [ack] = f.answers()
    assert (ack.standing, ack.kept, ack.lineage is not None) == (Standing.NEEDS_CHECKPOINT, kept, True)


def test_entries_on_a_stream_other_than_the_last_one_with_a_probe_are_ignored() -> None:
    f = Following()
    old, f.stream = f.stream, LeaderStream()
    f.probe()
    f.follower.append(Append(1, 1, 0, 0, 0, [WRITE]), old, 0.0)
    assert f.replica.log.end == 0


def test_a_probe_on_an_older_stream_is_ignored() -> None:
    f = Following()
    old, f.stream = LeaderStream(1), LeaderStream(2)
    f.probe()
    f.follower.probed(old, [])
    assert f.answers() == []
    f.append(0, WRITE)
    f.bench.sync(f.replica)
    assert [ack.offset for ack in f.answers()] == [1]
    f.follower.disconnected()
    f.follower.probed(LeaderStream(3), [])
    assert [ack.offset for ack in f.answers()] == [1]


def test_a_follower_sends_no_answer_on_a_closed_stream() -> None:
    f = Following()
    f.probe()
    f.append(0, WRITE)
    f.follower.disconnected()
    f.bench.take_all()
    f.bench.sync(f.replica)
    f.follower.needs_checkpoint()
    assert f.answers() == []


def test_entries_are_ignored_while_a_checkpoint_comes() -> None:
    f = Following()
    f.probe()
    f.replica.begin_receiving()
    f.append(0, WRITE)
    f.append(7, WRITE)
    assert f.replica.log.end == 0
    assert [ack.standing for ack in f.probe()] == [Standing.NEEDS_CHECKPOINT]
    f.replica.end_receiving()
    assert [ack.standing for ack in f.probe()] == [Standing.STORED]


def test_the_data_is_as_new_as_the_leaders_watermark_once_that_is_applied() -> None:
    f = Following(log_of(1, 1))
    f.probe()
    f.bench.now = 5.0
    f.append(2, watermark=2)
    f.follower.refresh()
    assert f.replica.freshness.at == NEVER
    f.bench.apply(f.replica)
    f.follower.refresh()
    assert f.replica.freshness.at == 5.0


def test_a_follower_that_has_applied_the_last_watermark_is_as_new_as_its_stream() -> None:
    f = Following(log_of(1))
    f.probe()
    f.append(1, watermark=1)
    f.bench.apply(f.replica)
    f.stream.known_at = 8.0
    f.follower.refresh()
    assert f.replica.freshness.at == 8.0


def test_a_follower_whose_row_is_older_than_a_split_does_not_call_its_data_new() -> None:
    """By this row, the follower's range still has the keys that the split gave to the child. But the parent's log lacks
    later writes to these keys, so the follower's data for them may be old.
    """
    f = Following(log_of(1), generation=1)
    f.probe()
    f.append(1, watermark=1, generation=1)
    f.bench.apply(f.replica)
    f.stream.known_at = 8.0
    f.follower.refresh()
    f.append(1, WRITE, watermark=1, generation=2)
    f.stream.known_at = 9.0
    f.follower.refresh()
    assert f.replica.freshness.at == 8.0
    f.bench.adopt(f.replica, generation=2)
    f.follower.refresh()
    assert f.replica.freshness.at == 9.0


def test_the_age_of_the_data_is_unknown_before_the_start_of_the_epoch_is_applied() -> None:
    f = Following(log_of(1, 1))
    f.probe()
    f.append(2, watermark=1, start=2)
    f.bench.apply(f.replica)
    f.stream.known_at = 8.0
    f.follower.refresh()
    assert f.replica.freshness.at == NEVER


def test_after_a_new_probe_the_age_of_the_data_no_longer_follows_the_stream() -> None:
    f = Following(log_of(1))
    f.probe()
    f.append(1, watermark=1)
    f.bench.apply(f.replica)
    f.follower.refresh()
    f.probe()
    f.stream.known_at = 8.0
    f.follower.refresh()
    assert f.replica.freshness.at == 0.0
