"""The files of a node's history: their size is limited, and a kill loses at most the block that is being written."""

import resource
import signal
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from minka.bulk.load_history import intervals_of
from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import DiskSpace
from minka.v1.history_pb2 import HistoryBlock
from minka.wire.history_rows import BUCKETS, MAX_ROWS, PartitionInterval, bucket, pack, quantile_ms, unpack, upper_ms
from minkad.history.recorder import HistoryRecorder
from minkad.history.store import HistoryStore
from minkad.storage.disk_space import DiskWatch

MINUTE = 60_000
HOUR = 60 * MINUTE
START = 1_700_000_000_000
GIB = 1 << 30


def blocks(store: HistoryStore, from_ms: int = 0, to_ms: int = 2**60) -> list[HistoryBlock]:
    return [HistoryBlock.FromString(raw) for raw in store.read(from_ms, to_ms)]


def starts(store: HistoryStore, from_ms: int = 0, to_ms: int = 2**60) -> list[int]:
    return [block.start_ms for block in blocks(store, from_ms, to_ms)]


def fill(store: HistoryStore, minutes: int, start: int = START, packed: bytes = b"") -> list[int]:
    """Add a block for each minute; returns the start times of the blocks."""
    begun = [start + minute * MINUTE for minute in range(minutes)]
    for start_ms in begun:
        store.append([HistoryBlock(start_ms=start_ms, packed=packed)], start_ms + MINUTE)
    return begun


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in files(folder))


def test_a_week_is_kept_with_one_file_for_each_hour_and_older_files_are_deleted(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "history", 7 * 24 * HOUR, 64 << 20)
    begun = fill(store, 8 * 24 * 60)
    assert len(files(tmp_path / "history")) in (7 * 24 + 1, 7 * 24 + 2)
    kept = starts(store)
    assert kept == begun[-len(kept) :]
    assert 0 <= begun[-1] - kept[0] - 7 * 24 * HOUR < 2 * HOUR


def test_beyond_the_limit_the_oldest_files_are_deleted_first(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "history", 7 * 24 * HOUR, 1 << 20)
    begun = fill(store, 300, packed=bytes(10_000))
    assert (1 << 20) * 0.8 < size(tmp_path / "history") <= 1 << 20
    kept = starts(store)
    assert kept == begun[-len(kept) :]


def test_a_range_of_time_is_read_across_files(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "history", 7 * 24 * HOUR, 64 << 20)
    begun = fill(store, 600)
    for first, end in ((0, 600), (59, 61), (60, 60), (100, 400), (599, 600)):
        end_ms = START + end * MINUTE
        assert starts(store, begun[first], end_ms) == begun[first:end]
    assert starts(store, begun[-1] + 1) == []


@pytest.mark.parametrize("lost", [1, 7, 9])
def test_a_torn_block_is_skipped_and_later_blocks_are_read(tmp_path: Path, lost: int) -> None:
    folder = tmp_path / "history"
    begun = fill(HistoryStore(folder, 24 * HOUR, 1 << 20), 10)
    (file,) = files(folder)
    file.write_bytes(file.read_bytes()[:-lost])
    store = HistoryStore(folder, 24 * HOUR, 1 << 20)  # the store after a restart
    later = fill(store, 5, START + 20 * MINUTE)
    assert starts(store) == begun[:-1] + later


def test_zeros_at_the_end_and_damaged_bytes_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    store = HistoryStore(folder, 24 * HOUR, 1 << 20)
    begun = fill(store, 10)
    (file,) = files(folder)
    whole = file.read_bytes()
    file.write_bytes(whole + bytes(100))
    assert starts(store) == begun
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    assert starts(store) == begun[:5]
    file.write_bytes(b"\xff" * 100)
    assert starts(store) == []


def test_no_block_is_lost_when_the_clock_is_set_back(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "history", 24 * HOUR, 1 << 20)
    begun = fill(store, 3) + fill(store, 3, START - 5 * HOUR) + fill(store, 3, START + HOUR)
    assert starts(store) == begun


def test_a_partly_written_block_does_not_damage_others(tmp_path: Path) -> None:
    """When the disk is full, the kernel writes only the first bytes of a block."""
    store = HistoryStore(tmp_path / "history", 24 * HOUR, 1 << 20)
    fill(store, 2)
    (file,) = files(tmp_path / "history")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 5, hard))
    try:
        with pytest.raises(OSError, match="in part"):
            store.append([HistoryBlock(start_ms=START + 2 * MINUTE)], START + 3 * MINUTE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    fill(store, 1, START + 3 * MINUTE)
    assert starts(store) == [START, START + MINUTE, START + 3 * MINUTE]


# Rows


def rows(count: int, ops: int = 0) -> list[PartitionInterval]:
    took = [0] * BUCKETS
    took[bucket(0.0003)] = ops
    return [
        PartitionInterval(
            number, 7, number % 2 == 0, ops, ops // 2, ops * 100, ops * 50, number << 30, number * 1000, tuple(took)
        )
        for number in range(1, count + 1)
    ]


@pytest.mark.parametrize("count", [0, 1, 999, MAX_ROWS])
def test_unpacked_rows_equal_the_packed_ones(count: int) -> None:
    assert unpack(pack(rows(count, 12)), count) == rows(count, 12)


def test_bytes_that_are_not_rows_are_refused() -> None:
    packed = pack(rows(10))
    for bad, count in ((packed[:-9], 10), (packed, 9), (b"nothing", 1), (zlib.compress(bytes(10**8)), 10)):
        with pytest.raises(MinkaError) as refused:
            unpack(bad, count)
        assert refused.value.code is Code.CORRUPT_DATA
    with pytest.raises(MinkaError) as refused:
        unpack(packed, 10, layout=99)
    assert refused.value.code is Code.INVALID_ARGUMENT


def test_a_count_that_does_not_fit_is_stored_as_the_greatest_possible() -> None:
    (found,) = unpack(pack([replace(rows(1)[0], reads=2**40)]), 1)
    assert found.reads == 2**32 - 1


def test_latency_is_known_within_half_an_octave() -> None:
    for micros in (20, 100, 333, 1_000, 45_678, 2_000_000):
        upper = upper_ms(bucket(micros / 1e6))
        assert micros / 1000 < upper <= micros / 1000 * 1.42
    assert bucket(0) == bucket(15e-6) == 0
    assert bucket(9.0) == bucket(1e9) == BUCKETS - 1
    took = [0] * BUCKETS
    took[bucket(0.001)], took[bucket(0.1)] = 98, 2
    assert quantile_ms(took, 0.5) == upper_ms(bucket(0.001))
    assert quantile_ms(took, 0.98) == upper_ms(bucket(0.001))
    assert quantile_ms(took, 0.99) == upper_ms(bucket(0.1))
    assert quantile_ms([0] * BUCKETS, 0.5) is None


# The recorder


class Node:
    """A node's time and replicas, as the recorder sees them."""

    def __init__(self, folder: Path, interval: float = 60.0, max_bytes: int = 64 << 20) -> None:
        self.now_ms = START
        self.rows: list[PartitionInterval] = []
        self.whole: list[bool] = []
        self.store = HistoryStore(folder, 7 * 24 * HOUR, max_bytes)
        self.recorder = HistoryRecorder(
            self.store,
            self._take,
            cast("DiskWatch", SimpleNamespace(space=DiskSpace(total_bytes=100 * GIB, free_bytes=40 * GIB))),
            50 * GIB,
            interval,
            lambda: self.now_ms / 1000,
            lambda: self.now_ms,
            lambda: self.now_ms / 2000,
        )

    async def _take(self, *, whole: bool) -> list[PartitionInterval]:
        self.whole.append(whole)
        return self.rows

    async def record(self, times: int) -> None:
        for _ in range(times):
            self.now_ms += MINUTE
            await self.recorder.record()


async def test_each_interval_records_the_node_and_its_partitions(tmp_path: Path) -> None:
    node = Node(tmp_path / "history")
    await node.record(1)
    node.rows = rows(2500, 3)
    await node.record(1)
    found = [HistoryBlock.FromString(raw) async for raw in node.recorder.read(0, 0)]
    assert [(block.start_ms, block.part, block.rows) for block in found] == [
        (START, 0, 0),
        (START + MINUTE, 0, 1000),
        (START + MINUTE, 1, 1000),
        (START + MINUTE, 2, 500),
    ]
    assert {(b.interval_ms, b.cpu_ms, b.free_bytes, b.total_bytes, b.capacity_bytes) for b in found} == {
        (MINUTE, MINUTE // 2, 40 * GIB, 100 * GIB, 50 * GIB)
    }
    assert [row for block in found for row in unpack(block.packed, block.rows)] == node.rows
    first, second = intervals_of("athens", found)
    assert (first.start_ms, first.partitions) == (START, [])
    assert (second.node, second.start_ms, second.partitions) == ("athens", START + MINUTE, node.rows)


async def test_each_file_begins_with_all_partitions(tmp_path: Path) -> None:
    node = Node(tmp_path / "history")
    await node.record(130)
    assert [at for at, whole in enumerate(node.whole) if whole] == [0, 60, 120]


async def test_a_disk_that_refuses_writes_does_not_end_the_recorder(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file where the folder should be")
    node = Node(tmp_path / "history")
    await node.record(2)
    (tmp_path / "history").unlink()
    await node.record(1)
    assert starts(node.store) == [START + 2 * MINUTE]


async def test_the_history_of_a_busy_node_stays_within_its_limit(tmp_path: Path) -> None:
    node = Node(tmp_path / "history", max_bytes=1 << 20)
    node.rows = rows(200, 5)
    await node.record(1000)
    assert size(tmp_path / "history") <= 1 << 20
    assert len(starts(node.store)) > 100
