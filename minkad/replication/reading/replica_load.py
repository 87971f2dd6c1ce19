"""The load of each replica: operations a second, a sample of their keys, and the traffic for the history.

Counting costs one addition for each group of a request. Only for a replica that is too busy, this module keeps about a
thousand of the keys and scans of the last ten seconds.
"""

import random
from collections import deque
from collections.abc import Sequence
from typing import Final

from minka.wire.history_rows import BUCKETS, bucket
from minkad.core.load_split import Span

# A key that is read alone takes 5 µs, and so does a page; each row of a page takes 0.5 µs. So a page of 100 rows counts
# as 11 operations.
ROWS_AS_ONE_KEY: Final = 10
_SAMPLED: Final = 1000
_SAMPLED_SECONDS: Final = 10


class Sample:
    """One operation in about `stride`. The choice is random, so that a regular pattern of requests is sampled well."""

    __slots__ = ("_skip", "spans", "stride")

    def __init__(self, stride: int) -> None:
        self.stride = stride
        self.spans: deque[Span] = deque(maxlen=_SAMPLED)  # the newest sampled operations
        self._skip = 0  # this many operations come before the next one to sample

    def add(self, keys: Sequence[bytes]) -> None:
        """Sample the keys of a group; each is one operation."""
        skip = self._skip - len(keys)
        while skip < 0:
            self.spans.append((keys[skip], keys[skip]))
            skip += random.randint(1, 2 * self.stride - 1)
        self._skip = skip

    def add_scan(self, span: Span, operations: int) -> None:
        """Sample a scan that counts as `operations` operations."""
        skip = self._skip - operations
        while skip < 0:
            self.spans.append(span)
            skip += random.randint(1, 2 * self.stride - 1)
        self._skip = skip


def page_operations(rows: int) -> int:
    """The number of operations that a page of a scan counts as."""
    return 1 + rows // ROWS_AS_ONE_KEY


class Traffic:
    """The answered requests of a replica since the history last took its traffic: see `PartitionInterval`. Refused and
    failed requests don't count.
    """

    __slots__ = ("bytes_read", "bytes_written", "reads", "reads_took", "writes", "writes_took")

    def __init__(self) -> None:
        self.reads = self.writes = self.bytes_read = self.bytes_written = 0
        self.reads_took: list[int] = []  # counts by bucket of latency; empty before the first read
        self.writes_took: list[int] = []

    def read(self, operations: int, size: int, seconds: float) -> None:
        """A group was answered with `size` bytes, `seconds` after its request had come."""
        self.reads += operations
        self.bytes_read += size
        if not self.reads_took:
            self.reads_took = [0] * BUCKETS
        self.reads_took[bucket(seconds)] += 1

    def write(self, operations: int, size: int, seconds: float) -> None:
        """A group with `size` bytes was acknowledged, `seconds` after its request had come."""
        self.writes += operations
        self.bytes_written += size
        if not self.writes_took:
            self.writes_took = [0] * BUCKETS
        self.writes_took[bucket(seconds)] += 1


class Load:
    """The load of one replica."""

    __slots__ = (
        "_partition_id",
        "_used",
        "cpu_percent",
        "generation",
        "last",
        "looked_at",
        "not_split",
        "ops",
        "sample",
        "served",
        "traffic",
    )

    def __init__(self, partition_id: int, used: set[int]) -> None:
        """`used`: the partitions used since the meter last looked; each use adds this one."""
        self._partition_id = partition_id
        self._used = used
        self.served = 0  # operations since the last tick
        self.ops = 0.0  # operations a second, smoothed
        self.last = 0.0  # operations a second between the last two ticks
        self.cpu_percent = 0.0  # of one processor: this replica's share of the process's time
        self.sample: Sample | None = None  # while the replica is too busy
        self.looked_at = 0.0  # the time of the last search for a key to split at, or when the replica became too busy
        self.generation = 0  # of the row when the replica became too busy
        self.not_split = ""  # why the partition isn't split although it is too busy
        self.traffic = Traffic()

    def take_traffic(self) -> Traffic | None:
        """The traffic since the last call; None if nothing was answered."""
        taken = self.traffic
        if not (taken.reads_took or taken.writes_took):
            return None
        self.traffic = Traffic()
        return taken

    def count(self, keys: Sequence[bytes]) -> None:
        """Count keys that are read or written."""
        self._serve(len(keys))
        if self.sample is not None:
            self.sample.add(keys)

    def count_page(self, start: bytes, end: bytes, rows: int) -> None:
        """Count a page of a scan, which has read `rows` rows from `start` on, before `end`."""
        operations = page_operations(rows)
        self._serve(operations)
        if self.sample is not None:
            self.sample.add_scan((start, end), operations)

    def _serve(self, operations: int) -> None:
        if not self.served:
            self._used.add(self._partition_id)
        self.served += operations

    @property
    def steady_ops(self) -> float:
        """The operations a second, at most twice those of the last second: a short peak stays in `ops` for a while, but
        not here.
        """
        return min(self.ops, 2 * self.last)

    def begin(self, now: float, generation: int) -> None:
        """The replica is too busy: sample its keys."""
        if self.sample is None or self.generation != generation:
            self.cool()
            self.sample, self.looked_at, self.generation = Sample(1), now, generation
        self.sample.stride = max(1, round(self.ops * _SAMPLED_SECONDS / _SAMPLED))

    def cool(self) -> None:
        """The replica is not too busy: sample nothing."""
        self.sample, self.not_split = None, ""

    def reported(self) -> tuple[int, int, str]:
        """(operations a second, percent of a processor, why it is not split), for `ReplicaStats`."""
        return round(self.ops), round(self.cpu_percent), self.not_split
