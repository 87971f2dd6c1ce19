"""The trimming of a replica's log, and the readers, copies and followers for which entries are kept."""

from hypothesis import given
from hypothesis import strategies as st

from minkad.core.replication.retention import Retention
from tests.unit.core.replication.bench import Bench, leader_of, log_of, row


def flushed(retention: Retention, *offsets: int) -> list[int]:
    """Flush at each of these offsets. Returns, for each flush, the offset up to which the log may be trimmed."""
    return [retention.flushed_to(offset, 0, is_alone=False) for offset in offsets]


def test_a_replica_that_is_alone_keeps_no_flushed_entries() -> None:
    assert Retention(0).flushed_to(5, 0, is_alone=True) == 5


def test_replicas_keep_the_log_since_the_flush_before_the_last() -> None:
    assert flushed(Retention(0), 5, 7, 9, 9, 12) == [0, 5, 7, 7, 9]


def test_the_log_is_kept_for_a_reader_that_needs_it() -> None:
    retention = Retention(0)
    retention.keep_for("byzantium", 3)
    assert flushed(retention, 5, 7, 9, 11, 13, 15) == [0, 3, 3, 3, 3, 3]
    retention.keep_for("byzantium", 14)
    assert flushed(retention, 15) == [13]
    retention.keep_for("byzantium", 2)
    retention.release("byzantium")
    assert flushed(retention, 15) == [13]


def test_the_log_is_kept_for_a_late_reader_for_a_few_flushes() -> None:
    retention = Retention(0)
    retention.keep_for("byzantium", 3)
    retention.late("byzantium")
    assert flushed(retention, 5, 7, 9, 11) == [0, 3, 3, 9]
    assert list(retention.readers) == []


def test_the_log_is_kept_for_a_late_reader_that_is_in_time_again() -> None:
    retention = Retention(0)
    retention.keep_for("byzantium", 3)
    retention.late("byzantium")
    retention.in_time("byzantium")
    assert flushed(retention, 5, 7, 9, 11, 13) == [0, 3, 3, 3, 3]


def test_the_log_is_kept_for_a_late_reader_that_is_not_far_behind() -> None:
    retention = Retention(0)
    retention.keep_for("byzantium", 6)
    retention.late("byzantium")
    assert flushed(retention, 5, 7, 9, 11, 13) == [0, 5, 6, 6, 11]


def test_a_reader_that_needs_nothing_is_never_late() -> None:
    retention = Retention(0)
    retention.late("byzantium")
    retention.keep_for("byzantium", 3)
    assert flushed(retention, 5, 7, 9, 11, 13) == [0, 3, 3, 3, 3]


def test_nothing_is_trimmed_while_the_data_is_made_again() -> None:
    retention = Retention(0)
    flushed(retention, 5, 7)
    retention.begin_again()
    assert flushed(retention, 2) == [0]


def test_the_newest_bytes_are_kept_for_readers_of_changes() -> None:
    retention = Retention(100)
    bases = []
    for flush in (10, 20, 30, 40):
        bases.append(retention.flushed_to(flush, 0, is_alone=True))
        retention.applied_bytes += 60
    assert bases == [0, 0, 10, 20]


def test_a_follower_is_late_after_a_broken_stream_and_in_time_after_its_answer() -> None:
    bench = Bench()
    replica = bench.host(row(replicas=("athens", "byzantium")), log_of(1, 1, 1, 1))
    bench.align(replica, "byzantium")
    leader_of(replica).disconnected(leader_of(replica).progress["byzantium"], "reset", 0.0)
    bench.stands(replica, "byzantium", log_of(1, 1, 1, 1))
    bench.write(replica, *[b"\x92\x90\x90"] * 6)
    assert [replica.retention.flushed_to(offset, 0, is_alone=False) for offset in (5, 6, 7, 8, 9)] == [0, 4, 4, 4, 4]


def test_a_replica_trims_entries_that_no_reader_needs() -> None:
    bench = Bench()
    replica = bench.host(row(replicas=("athens",)), log_of(1, 1, 1))
    replica.flushed = 2
    replica.trim_log()
    assert replica.log.base == 2
    assert replica.trim_log() is False


readers = st.sampled_from(["byzantium", "cyrene", "merge"])
events = st.lists(
    st.one_of(
        st.tuples(st.just("flush"), st.just(""), st.integers(0, 5)),
        st.tuples(st.just("keep"), readers, st.integers(0, 9)),
        st.tuples(st.just("release"), readers, st.just(0)),
        st.tuples(st.just("late"), readers, st.just(0)),
        st.tuples(st.just("in_time"), readers, st.just(0)),
    ),
    max_size=60,
)


@given(events, st.sampled_from([0, 3]), st.booleans())
def test_entries_that_are_unflushed_or_needed_by_a_timely_reader_are_never_trimmed(
    events: list[tuple[str, str, int]], change_bytes: int, is_alone: bool
) -> None:
    retention = Retention(change_bytes)
    needed: dict[str, int] = {}
    late: set[str] = set()
    at = base = 0
    for kind, reader, value in events:
        if kind == "flush":
            at += value
            retention.applied_bytes += value
            trimmed = retention.flushed_to(at, base, is_alone=is_alone)
            base = max(base, trimmed)
            assert trimmed <= min([at, *(needs for name, needs in needed.items() if name not in late)])
        elif kind == "keep":  # a reader can't request trimmed entries
            needed[reader] = max(base, needed.get(reader, base)) + value
            retention.keep_for(reader, needed[reader])
        elif kind == "release":
            needed.pop(reader, None)
            late.discard(reader)
            retention.release(reader)
        elif kind == "late":
            late |= {reader} & needed.keys()
            retention.late(reader)
        else:
            late.discard(reader)
            retention.in_time(reader)
            if reader in needed and reader not in retention.readers:
                del needed[reader]  # the reader was late for too long; it will be probed


def test_asking_for_a_copys_log_changes_nothing_and_flushes_without_progress_are_not_noted() -> None:
    retention = Retention(0)
    retention.keep_for_copy("byzantium", 3, 1000)
    for offset in (4, 4, 4, 8):
        retention.applied_bytes += 10
        retention.flushed_to(offset, 0, is_alone=False)
    assert [retention.copy_log("byzantium") for _ in range(2)] == [(40, 1000)] * 2
    retention.keep_for("byzantium", 5)
    assert retention.copy_log("byzantium") == (30, 1000)
    retention.keep_for("byzantium", 4)
    assert retention.copy_log("byzantium") == (30, 1000)
    assert retention._copies["byzantium"].flushes == [(3, 0), (4, 10), (8, 40)]
