"""Keys outside of a replica's range."""

import pytest

from minka.cluster.key_ranges import KeyRange
from minkad.core.replication.entries import TrimToRange, decode_entry
from minkad.core.replication.instructions import Sync
from minkad.core.replication.trimming import RangeTrim
from tests.unit.core.replication.bench import Bench, MemoryLog, leader_of, row

LOWER = KeyRange(b"", b"m")
ALL = KeyRange(b"", b"")


def trimmed(*, removed_any: bool = True, has_foreign: bool = False) -> RangeTrim:
    trim = RangeTrim()
    trim.has_foreign = has_foreign
    trim.is_announced = True
    trim.applied(LOWER, 5, removed_any=removed_any)
    return trim


def test_what_was_removed_takes_room_until_it_is_compacted() -> None:
    trim = trimmed()
    assert (trim.is_announced, trim.removed_outside) == (False, LOWER)
    assert trim.compacted(LOWER, LOWER, is_changing=False)
    assert trim.removed_outside is None


def test_where_nothing_was_removed_there_is_nothing_to_compact() -> None:
    assert trimmed(removed_any=False).removed_outside is None


def test_after_a_restart_what_was_removed_before_may_still_take_room() -> None:
    assert trimmed(removed_any=False, has_foreign=True).removed_outside == LOWER


@pytest.mark.parametrize(("range_", "is_changing"), [(ALL, False), (LOWER, True)])
def test_of_a_range_that_changes_it_is_not_known_that_nothing_foreign_is_left(
    range_: KeyRange, is_changing: bool
) -> None:
    trim = trimmed(has_foreign=True)
    assert not trim.compacted(LOWER, range_, is_changing=is_changing)
    assert trim.has_foreign


def test_what_a_merge_that_was_given_up_has_left_came_after_its_mark() -> None:
    """The copies come after the mark, so the mark's compaction proves nothing about them, even if it ends later."""
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
def test_the_mark_of_a_merge_says_that_foreign_keys_follow(kept: KeyRange, epoch: int, is_suspected: bool) -> None:
    replica = Bench().host(row(end_key=b"m"))
    replica.trimmed(TrimToRange(*kept, epoch, copies_follow=True), removed_any=True)
    assert replica.trim.has_foreign == is_suspected
    replica.trim.compacted(kept, kept, is_changing=False)
    assert replica.trim.has_foreign == is_suspected
    replica.trimmed(TrimToRange(*kept, epoch + 1), removed_any=True)
    replica.trim.compacted(kept, kept, is_changing=False)
    assert not replica.trim.has_foreign


def test_what_a_merge_has_copied_is_its_own_when_it_ends() -> None:
    bench = Bench()
    replica = bench.host(row(end_key=b"m", merge_from=2))
    replica.trimmed(TrimToRange(*LOWER, 1, copies_follow=True), removed_any=False)
    bench.adopt(replica, end_key=b"t", merge_from=0)
    assert not replica.trim.has_foreign


def test_only_what_is_removed_is_compacted() -> None:
    with pytest.raises(AssertionError, match="is removed"):
        trimmed().compacted(ALL, LOWER, is_changing=False)


def test_a_leader_whose_range_has_shrunk_says_in_its_log_which_keys_stay_once() -> None:
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


def test_a_leader_that_is_not_ready_or_being_split_says_nothing() -> None:
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


def test_what_was_foreign_stays_so_where_the_mark_of_the_merge_never_came() -> None:
    """An unclean election lets a replica lead that had not come to the mark. It still has keys from before a split."""
    bench = Bench()
    replica = bench.host(row(end_key=b"t", leader="byzantium"))
    bench.adopt(replica, end_key=b"m")
    bench.adopt(replica, merge_from=2)
    bench.adopt(replica, end_key=b"p", merge_from=0)
    assert replica.trim.has_foreign
