"""The counters of a node at work: plain numbers that any layer may increase and `minkad.http.metrics` exposes.

The daemon makes them once and hands them down. One thread writes each number: the event loop's thread, or for
`log_sync` the thread that syncs the log.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import product
from typing import Literal, get_args

Operation = Literal["read", "write"]
Outcome = Literal["ok", "refused", "failed"]
"""ok; refused before anything was done (the client tries elsewhere); failed, or its outcome is unknown."""

# Seconds. A sync takes 0.2 ms on a good disk and 1 s on a dying disk; a request takes a sync, and its time in queues.
LATENCY_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
PAUSE_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Histogram:
    """Counts of values in fixed buckets: `counts[i]` is for values above bounds[i-1] and up to bounds[i], not
    cumulative.
    """

    __slots__ = ("bounds", "counts", "most", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        assert list(bounds) == sorted(set(bounds)), "bounds must rise"
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.most = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value: once, or once for each of the operations that took the time together (a batch)."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times
        self.most = max(self.most, value)

    @property
    def count(self) -> int:
        """The number of observed values."""
        return sum(self.counts)


LOOP_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@dataclass(slots=True)
class RowCacheUse:
    """The use of the rows in memory."""

    looked_up: int = 0
    """Rows to read."""
    missed: int = 0
    """Rows that were not in memory."""
    bytes: int = 0
    """An upper bound of the memory of the rows."""


def _latency() -> Histogram:
    return Histogram(LATENCY_BOUNDS)


@dataclass(slots=True)
class Telemetry:
    """The counters of one node since its start."""

    log_sync: Histogram = field(default_factory=_latency)
    """Seconds of each sync of the log database; its count is the number of syncs."""
    # Every series exists from the start, at 0, so that a rate over its first change is right.
    kv_batches: dict[tuple[Operation, Outcome], int] = field(
        default_factory=lambda: dict.fromkeys(product(get_args(Operation), get_args(Outcome)), 0)
    )
    kv_seconds: dict[Operation, Histogram] = field(
        default_factory=lambda: {operation: _latency() for operation in get_args(Operation)}
    )
    """Seconds from a batch's arrival at this node to its answer, for batches that ended ok."""
    isr_shrinks: int = 0
    isr_expands: int = 0
    """Changes of in-sync sets of partitions that this node leads; one change may be both."""
    row_cache: RowCacheUse = field(default_factory=RowCacheUse)
    clients_memory: Callable[[], int] = lambda: 0
    """Bytes of clients' requests, and of answers that they have not taken."""
    clients_ended: Callable[[], int] = lambda: 0
    """Streams of clients that were ended because their answers were not taken."""
    damages: int = 0
    """Copies that were found damaged."""
    migration_bytes_sent: int = 0
    migration_bytes_received: int = 0
    migration_write_pause: Histogram = field(default_factory=lambda: Histogram(PAUSE_BOUNDS))
    """Seconds for which a hand-over held writes, measured at the source."""

    loop_late: Histogram = field(default_factory=lambda: Histogram(LOOP_BOUNDS))
    """Seconds by which the event loop was late."""
    loop_work: Histogram = field(default_factory=lambda: Histogram(LOOP_BOUNDS))
    """Seconds of the event loop's delays for which its own work may account: see `LoopLag`."""

    def client_seconds(self) -> tuple[float, int]:
        """The total seconds of clients' batches that ended ok, and their number."""
        return sum(one.total for one in self.kv_seconds.values()), sum(one.count for one in self.kv_seconds.values())

    def waits(self) -> list[tuple[float, int]]:
        """The totals and numbers of clients' batches and of the loop's delays: see `client_seconds`."""
        return [self.client_seconds(), (self.loop_late.total, self.loop_late.count)]

    def writes_waited(self, seconds: float) -> None:
        """Writes to a partition waited `seconds` for a hand-over."""
        self.migration_write_pause.observe(seconds)

    def isr_changed(self, old: Collection[str], new: Collection[str]) -> None:
        """Count a change of a partition's in-sync set."""
        self.isr_shrinks += not set(old) <= set(new)
        self.isr_expands += not set(new) <= set(old)

    def damage_found(self) -> None:
        """Count a copy that was found damaged."""
        self.damages += 1

    def kv(self, operation: Operation, outcome: Outcome, seconds: float, times: int = 1) -> None:
        """Count a batch (one client's requests to one partition at once) that ended `seconds` after it came; or `times`
        batches that were done together.
        """
        self.kv_batches[operation, outcome] += times
        if outcome == "ok":
            self.kv_seconds[operation].observe(seconds, times)
