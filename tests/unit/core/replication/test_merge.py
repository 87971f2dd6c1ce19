"""A merge copies the rows of the right partition through the log of the left one."""

from typing import Any

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.wire.kv_frames import StoredWrite, WriteBody, encode
from minka.wire.stored_values import LOADED, head, version_at
from minkad.core.replication.entries import SnapshotMark, TrimToRange, encode_mark
from minkad.core.replication.gate import Gate
from minkad.core.replication.instructions import MakeRoom, OpenData, Reached, WakeAt
from tests.unit.core.replication.bench import SETTINGS, VERSION, MemoryData, a_write, gate_of
from tests.unit.core.replication.merging import LEFT, RIGHT, UNKNOWN, Merging, asked_to_end, request

# The copy of the rows


def test_the_left_log_first_gets_a_mark_and_then_the_rows() -> None:
    m = Merging(b"n", b"o")
    m.begin()
    assert Reached("merge.copy") in m.bench.take_all()
    rows: list[bytes | None] = [head(VERSION) + b"v"] * 2
    assert m.copied() == [TrimToRange(b"", b"m", 2, True), StoredWrite([b"n", b"o"], rows, m.right.applied)]


def test_rows_are_copied_a_page_at_a_time_with_turns_for_other_work_in_between() -> None:
    m = Merging()
    data = m.right.data
    assert isinstance(data, MemoryData)
    data.rows = {b"n%04d" % number: b"v" for number in range(600)}
    m.begin()
    sizes = [len(m.copied_keys())]
    assert WakeAt(LEFT, 0.0) in m.bench.take_all()
    for _ in range(2):
        m.tick(0.0)
        sizes.append(len(m.copied_keys()))
    assert sizes == [250, 500, 600]
    assert m.copied_keys() == sorted(data.rows)


def test_closed_data_of_the_right_partition_is_opened_first() -> None:
    m = Merging(b"n")
    data = m.right.data
    assert isinstance(data, MemoryData)
    data.is_there, data.is_open = True, False
    m.begin()
    assert OpenData(RIGHT) in m.bench.take_all()
    assert m.copied() == []
    m.bench.open(m.right)
    assert m.copied_keys() == [b"n"]


def test_writes_made_during_the_copy_of_the_rows_are_copied_once() -> None:
    m = Merging(b"n")
    m.right.append(a_write(b"p"))  # the entry is not applied when the copy begins
    m.begin()
    assert m.copied_keys() == [b"n"]
    m.settle(m.right)
    m.run()
    assert m.copied_keys() == [b"n", b"p"]


def test_only_writes_are_copied_from_the_right_log() -> None:
    m = Merging(b"n")
    m.right.append(encode_mark(SnapshotMark("s", 0, b"", b"")))
    m.begin()
    m.settle(m.right)
    [ask] = m.run()
    assert ask == request()
    assert m.copied() == [TrimToRange(b"", b"m", 2, True), StoredWrite([b"n"], [head(VERSION) + b"v"], 1)]


def test_copied_rows_keep_their_versions() -> None:
    m = Merging(b"n")
    assert isinstance(m.right.data, MemoryData)
    m.right.data.version_base = 100
    deleted = StoredWrite([b"o", b"p"], [None, head(77, 5000) + b"v"])
    m.right.append(a_write(b"o"))
    m.right.append(encode(deleted))
    m.begin()
    m.settle(m.right)
    m.run()
    assert m.copied()[1:] == [
        StoredWrite([b"n"], [head(VERSION) + b"v"], 101),
        StoredWrite([b"o", *deleted.keys], [head(version_at(102)) + b"v", *deleted.values], 103),
    ]


def test_copied_rows_raise_the_versions_of_later_writes_to_the_left_partition() -> None:
    m = Merging(b"n")
    assert isinstance(m.right.data, MemoryData)
    assert isinstance(m.left.data, MemoryData)
    m.right.data.version_base = 100
    m.begin()
    copied = m.left.log.end
    assert [m.left.version_base(offset) for offset in (copied, copied + 1)] == [0, 101 - copied]
    m.left.data.version_base = 200
    assert m.left.version_base(copied + 1) == 200
    m.left.data.version_base = 0
    m.bench.adopt(m.left, leader_epoch=2)
    assert m.left.version_base(copied + 1) == 0


def test_copies_of_copied_rows_keep_their_versions() -> None:
    """An earlier merge may have copied rows into the partition that is now the right one."""
    m = Merging(b"n")
    m.right.append(encode(StoredWrite([b"o"], [head(VERSION) + b"v"], 500)))
    m.right.append(a_write(b"p"))
    m.begin()
    m.settle(m.right)
    m.run()
    assert m.copied()[-1] == StoredWrite([b"o", b"p"], [head(VERSION) + b"v", head(version_at(501)) + b"v"], 501)


def test_later_versions_are_above_those_of_rows_that_were_deleted() -> None:
    m = Merging(b"n")
    m.bench.write(m.right, encode(WriteBody([b"n"], [None])))
    m.settle(m.right)
    m.begin()
    m.run()
    assert m.copied()[1:] == [StoredWrite([], [], 2)]


def test_loaded_rows_keep_the_version_of_the_right_partition() -> None:
    m = Merging()
    assert isinstance(m.right.data, MemoryData)
    m.right.data.rows, m.right.data.head = {b"n": b"v"}, LOADED
    m.begin()
    assert m.copied()[1:] == [StoredWrite([b"n"], [head(m.right.data.loaded_version) + b"v"], 0)]


LARGE = bytes(40 * 1024)  # two such values don't fit into one entry


def large(m: Merging, count: int) -> None:
    """Append `count` writes to the right partition's log. They are so large that each copy takes a whole entry."""
    for _ in range(count):
        m.right.append(encode(WriteBody([b"n"], [LARGE])))


def test_writes_made_during_the_copy_share_an_entry() -> None:
    """The entry has all values of the key, in the order of the writes."""
    m = Merging()
    for value in range(30):
        m.right.append(encode(WriteBody([b"n"], [b"%d" % value])))
    m.begin()
    m.settle(m.right)
    m.run()
    [write] = m.copied()[2:]
    assert write == StoredWrite([b"n"] * 30, [head(version_at(n + 1)) + b"%d" % n for n in range(30)], 30)


def test_at_most_four_copied_entries_wait_to_be_applied() -> None:
    m = Merging()
    large(m, 10)
    m.begin()
    m.settle(m.right)
    m.tick(0.0)
    assert len(m.copied_keys()) == 3  # the first of four entries is a page, which has no rows
    m.settle(m.left)  # the left partition applies them one after the other
    assert len(m.copied_keys()) == 7
    m.run()
    assert len(m.copied_keys()) == 10


def test_the_right_log_is_kept_from_the_first_entry_that_is_not_copied() -> None:
    m = Merging(b"n", b"o")
    large(m, 10)
    m.begin()
    m.settle(m.right)
    m.tick(0.0)
    assert list(m.right.retention.readers) == [f"merge into {LEFT}"]
    # The page has the first two entries, and three more are copied.
    assert m.right.retention.flushed_to(m.right.applied, 0, is_alone=True) == 2 + 3


def test_nothing_is_copied_while_one_of_the_partitions_is_being_handed_over() -> None:
    for number in (LEFT, RIGHT):
        m = Merging(b"n")
        m.bench.replica(number).gate.close()
        m.begin()
        m.run()
        assert m.copied() == []
        m.bench.replica(number).gate.open()
        m.tick(0.0)
        assert m.copied_keys() == [b"n"]


# Deleted keys that delay the copy


def test_many_deleted_keys_in_the_way_are_cleared_first() -> None:
    m = Merging(b"n")
    data = m.right.data
    assert isinstance(data, MemoryData)
    data.deleted_ahead = True
    m.begin()
    assert m.bench.take(MakeRoom) == [MakeRoom(LEFT, RIGHT, KeyRange(b"m", b"t"))]
    m.tick(0.0)
    assert m.bench.take(MakeRoom) == []
    data.deleted_ahead = False
    m.bench.node.room_made(LEFT, None, 0.0)
    assert m.copied_keys() == [b"n"]


def test_if_deleted_keys_can_not_be_cleared_the_copy_begins_again_after_a_pause() -> None:
    m = Merging(b"n")
    data = m.right.data
    assert isinstance(data, MemoryData)
    data.deleted_ahead = True
    m.begin()
    m.bench.node.room_made(LEFT, UNKNOWN, 0.0)
    m.bench.take_all()
    m.tick(0.04)
    assert m.bench.take(MakeRoom) == []
    m.tick(0.05)
    assert m.bench.take(MakeRoom) == [MakeRoom(LEFT, RIGHT, KeyRange(b"m", b"t"))]


def test_the_end_of_a_clearing_for_an_earlier_merge_is_ignored() -> None:
    m, _ = asked_to_end(b"n")
    end = m.left.log.end
    m.bench.node.room_made(LEFT, UNKNOWN, 0.0)
    for now in (0.1, 0.1 + SETTINGS.write_pause_timeout):
        m.tick(now)
    # The controller may already have recorded the merge: a write that the right partition accepted now would be lost.
    assert (gate_of(m.right), m.left.log.end) == (Gate.FROZEN, end)


def test_after_an_error_the_copy_begins_again_from_the_first_key() -> None:
    m = Merging(b"n")
    m.right.append(a_write(b"p"))
    m.begin()
    data = m.right.data
    assert isinstance(data, MemoryData)
    log, read = m.right.log, m.right.log.read

    def broken(start: int, end: int, max_bytes: int) -> Any:
        raise MinkaError(Code.STORAGE_FAILED, "the disk fails")

    log.read = broken  # type: ignore[method-assign]
    m.right.high_watermark = m.right.applied = 2
    m.tick(0.0)
    log.read = read  # type: ignore[method-assign]
    assert gate_of(m.right) is Gate.OPEN
    data.rows[b"p"] = b"v"
    m.tick(0.05)
    assert m.copied_keys() == [b"n", b"n", b"p"]
