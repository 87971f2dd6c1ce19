"""A replica removes keys outside of its range ("foreign" keys), and then frees the disk space that they took."""

import pytest

from minka.cluster.key_ranges import KeyRange
from minkad.core.replication.entries import TrimToRange, decode_entry
from minkad.core.replication.instructions import Sync
from minkad.core.replication.range_trim import RangeTrim
from tests.unit.core.replication.bench import Bench, MemoryLog, leader_of, row

LOWER = KeyRange(b"", b"m")
ALL = KeyRange(b"", b"")


def trimmed(*, removed_any: bool = True, has_foreign: bool = False) -> RangeTrim:
    trim = RangeTrim()
    trim.has_foreign = has_foreign
    trim.is_announced = True
    trim.applied(LOWER, 5, removed_any=removed_any)
    return trim


def test_removed_keys_take_room_until_a_compaction() -> None:
    trim = trimmed()
    assert (trim.is_announced, trim.removed_outside) == (False, LOWER)
    assert trim.compacted(LOWER, LOWER, is_changing=False)
    assert trim.removed_outside is None


def test_if_no_keys_were_removed_there_is_nothing_to_compact() -> None:
    assert trimmed(removed_any=False).removed_outside is None


def test_after_a_restart_keys_removed_before_may_still_take_room() -> None:
    assert trimmed(removed_any=False, has_foreign=True).removed_outside == LOWER


@pytest.mark.parametrize(("range_", "is_changing"), [(ALL, False), (LOWER, True)])
def test_a_compaction_proves_nothing_if_the_range_changes_meanwhile(range_: KeyRange, is_changing: bool) -> None:
    trim = trimmed(has_foreign=True)
    assert not trim.compacted(LOWER, range_, is_changing=is_changing)
    assert trim.has_foreign


def test_the_compaction_of_a_merges_mark_does_not_remove_its_later_copies() -> None:
    """A merge writes its mark, and then copies rows. If the merge is cancelled, these rows are foreign, but the
    compaction for the mark doesn't remove them.
    """
    trim = trimmed()
    trim.suspect(since=6)
    assert not trim.compacted(LOWER, LOWER, is_changing=False)
    assert trim.has_foreign
    trim.applied(LOWER, 6, removed_any=True)
    assert trim.compacted(LOWER, LOWER, is_changing=False)
    assert not trim.has_foreign


@pytest.mark.parametrize(
    ("kept", "epoch", "is_suspected"),
    [(LOWER, 1, True), (KeyRange(b"", b"z"), 1, True), (KeyRange(b"", b"c"), 1, False)],
    ids=["it is not over, or was given up", "the range has shrunk since", "the range has grown since"],
)
def test_the_mark_of_a_merge_announces_foreign_keys(kept: KeyRange, epoch: int, is_suspected: bool) -> None:
    replica = Bench().host(row(end_key=b"m"))
    replica.trimmed(TrimToRange(*kept, epoch, copies_follow=True), removed_any=True)
    assert replica.trim.has_foreign == is_suspected
    replica.trim.compacted(kept, kept, is_changing=False)
    assert replica.trim.has_foreign == is_suspected
    replica.trimmed(TrimToRange(*kept, epoch + 1), removed_any=True)
    replica.trim.compacted(kept, kept, is_changing=False)
    assert not replica.trim.has_foreign


def test_copied_keys_are_no_longer_foreign_when_the_merge_ends() -> None:
    bench = Bench()
    replica = bench.host(row(end_key=b"m", merge_from=2))
    replica.trimmed(TrimToRange(*LOWER, 1, copies_follow=True), removed_any=False)
    bench.adopt(replica, end_key=b"t", merge_from=0)
    assert not replica.trim.has_foreign


def test_only_the_removed_range_is_compacted() -> None:
    with pytest.raises(AssertionError, match="is removed"):
        trimmed().compacted(ALL, LOWER, is_changing=False)


def test_a_leader_whose_range_has_shrunk_appends_one_mark_with_the_range() -> None:
    bench = Bench()
    replica = bench.host(row(replicas=("athens",)), MemoryLog())
    bench.take_all()
    bench.adopt(replica, end_key=b"m")
    assert [decode_entry(entry.body) for entry in replica.log.read(1, 1, 1)] == [
        TrimToRange(b"", b"m", replica.row.partition_epoch)
    ]
    assert bench.take(Sync) == [Sync(1, on_disk=True)]
    bench.tick(replica, 1.0)
    assert replica.log.end == 1


def test_a_leader_that_is_not_ready_or_is_merging_appends_no_mark() -> None:
    bench = Bench()
    replica = bench.host(row(), MemoryLog())
    replica.trim.has_foreign = True
    replica.ready_at = 1
    bench.tick(replica, 1.0)
    assert replica.log.end == 0
    assert leader_of(replica).marked_split == 0
    replica.ready_at = 0
    bench.adopt(replica, merge_from=2)
    assert replica.log.end == 0


def test_foreign_keys_remain_on_a_replica_that_never_got_the_mark_of_the_merge() -> None:
    """The replica still has keys that a split gave to the other half. The mark of the merge would remove these keys,
    but a leader by an unclean election may lack the mark.
    """
    bench = Bench()
    replica = bench.host(row(end_key=b"t", leader="byzantium"))
    bench.adopt(replica, end_key=b"m")
    bench.adopt(replica, merge_from=2)
    bench.adopt(replica, end_key=b"p", merge_from=0)
    assert replica.trim.has_foreign
