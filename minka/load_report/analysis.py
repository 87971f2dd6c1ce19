"""Analyses the history of all nodes: traffic over time, the busiest partitions, the nodes' imbalance. No I/O."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from minka.bulk.load_history import NodeInterval
from minka.wire.history_rows import NO_LATENCY, PartitionInterval, quantile_ms

_MINUTE_MS: Final = 60_000
_STEPS_MS: Final = tuple(minutes * _MINUTE_MS for minutes in (1, 5, 15, 60, 180, 360, 1440))
_MAX_POINTS: Final = 240  # the most points in a plot
HOT: Final = 10  # the number of busiest partitions that are shown
# A replica's size counts for this long after its node has reported it. Every node reports all its sizes at least once
# an hour.
_SIZE_HOLDS_MS: Final = 2 * 60 * _MINUTE_MS


@dataclass(frozen=True, slots=True)
class ClusterPoint:
    """The traffic of all partitions in one step. Rates are per second; a latency is None if nothing was answered."""

    at_ms: int
    reads: float
    writes: float
    bytes_read: float
    bytes_written: float
    read_p50_ms: float | None
    read_p99_ms: float | None
    write_p50_ms: float | None
    write_p99_ms: float | None


@dataclass(frozen=True, slots=True)
class NodePoint:
    """A node in one step: operations a second, the number of processors that its process kept busy, the bytes of its
    replicas at the step's end, and the least free bytes in the step. `room` is the bytes that the node can still take:
    its free bytes, or less if it has a capacity.
    """

    node: str
    at_ms: int
    ops: float
    processors: float
    stored_bytes: int
    free_bytes: int
    room: int


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The imbalance of the nodes in one step: the largest figure of a node, divided by the mean of all nodes. 1 is
    even.
    """

    at_ms: int  # Unix milliseconds
    ops: float | None
    bytes: float | None


@dataclass(frozen=True, slots=True)
class PartitionPoint:
    """A partition at one node in one step: operations a second, and their share of the node's and the cluster's
    operations.
    """

    partition_id: int
    node: str
    at_ms: int
    ops: float
    of_node: float
    of_cluster: float
    read_p99_ms: float | None
    write_p99_ms: float | None


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """A partition's traffic over the whole time of the analysis; `peak` is its busiest step. `bytes` and `keys` are as
    its leader last reported them.
    """

    partition_id: int
    keyspace_id: int
    ops: float  # operations a second, on average over the whole time
    of_cluster: float
    peak: PartitionPoint
    read_p99_ms: float | None
    write_p99_ms: float | None
    bytes: int
    keys: int


@dataclass(frozen=True, slots=True)
class LoadAnalysis:
    """All series are in the order of time; `hot` has the busiest partition first."""

    from_ms: int
    to_ms: int
    step_ms: int
    cluster: list[ClusterPoint] = field(default_factory=list)
    nodes: list[NodePoint] = field(default_factory=list)
    imbalance: list[Imbalance] = field(default_factory=list)
    partitions: dict[int, PartitionLoad] = field(default_factory=dict)
    hot: list[PartitionLoad] = field(default_factory=list)
    hot_points: list[PartitionPoint] = field(default_factory=list)


def step_of(from_ms: int, to_ms: int) -> int:
    """The length of a step, in milliseconds: the first of `_STEPS_MS` with which a plot from `from_ms` to `to_ms` has
    at most 240 points. If none is long enough, it is a day.
    """
    fits = (step for step in _STEPS_MS if (to_ms - from_ms) / step <= _MAX_POINTS)
    return next(fits, _STEPS_MS[-1])


def coarser(intervals: Iterable[NodeInterval], step_ms: int) -> list[NodeInterval]:
    """Add up the intervals of each node in each step. Of free bytes the result has the least; of sizes and capacities,
    the last. The results are in the order of time and node. A step begins at a multiple of `step_ms`, and has the
    intervals that began in it. The intervals of a node must come in the order of time.
    """
    steps: dict[tuple[int, str], NodeInterval] = {}
    rows: dict[tuple[int, str], dict[int, PartitionInterval]] = {}
    for one in intervals:
        place = (one.start_ms - one.start_ms % step_ms, one.node)
        known = steps.get(place)
        if known is None:
            steps[place] = replace(one, start_ms=place[0], partitions=[])
            rows[place] = {row.partition_id: row for row in one.partitions}
            continue
        steps[place] = replace(
            known,
            interval_ms=known.interval_ms + one.interval_ms,
            free_bytes=min(known.free_bytes, one.free_bytes),
            total_bytes=one.total_bytes,
            capacity_bytes=one.capacity_bytes,
            cpu_ms=known.cpu_ms + one.cpu_ms,
        )
        mine = rows[place]
        for row in one.partitions:
            before = mine.get(row.partition_id)
            mine[row.partition_id] = row if before is None else _sum(before, row)
    return [replace(steps[place], partitions=list(rows[place].values())) for place in sorted(steps)]


def _sum(before: PartitionInterval, after: PartitionInterval) -> PartitionInterval:
    return replace(
        after,
        leads=before.leads or after.leads,
        reads=before.reads + after.reads,
        writes=before.writes + after.writes,
        bytes_read=before.bytes_read + after.bytes_read,
        bytes_written=before.bytes_written + after.bytes_written,
        reads_took=_added(before.reads_took, after.reads_took),
        writes_took=_added(before.writes_took, after.writes_took),
    )


def _added(one: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


def analyse(intervals: Sequence[NodeInterval], step_ms: int) -> LoadAnalysis:
    """Analyse intervals that `coarser` has made with the same `step_ms`."""
    if not intervals:
        return LoadAnalysis(0, 0, step_ms)
    found = LoadAnalysis(intervals[0].start_ms, intervals[-1].start_ms + step_ms, step_ms)
    sizes = _Sizes(max(_SIZE_HOLDS_MS, 2 * step_ms))
    totals = _Totals()
    for at_ms, group in groupby(intervals, lambda one: one.start_ms):
        at = list(group)
        found.cluster.append(_cluster_point(at_ms, at))
        points = [_node_point(one, sizes) for one in at]
        found.nodes.extend(points)
        found.imbalance.append(
            Imbalance(at_ms, _unevenness([p.ops for p in points]), _unevenness([p.stored_bytes for p in points]))
        )
        totals.add(at, points)
    found.partitions.update(totals.partitions())
    found.hot.extend(sorted(found.partitions.values(), key=lambda one: -one.peak.ops)[:HOT])
    hot = {one.partition_id for one in found.hot}
    found.hot_points.extend(point for point in totals.points if point.partition_id in hot)
    return found


def _cluster_point(at_ms: int, at: Sequence[NodeInterval]) -> ClusterPoint:
    reads = writes = bytes_read = bytes_written = 0.0
    reads_took, writes_took = list(NO_LATENCY), list(NO_LATENCY)
    for one in at:
        seconds = one.interval_ms / 1000
        for row in one.partitions:
            reads += row.reads / seconds
            writes += row.writes / seconds
            bytes_read += row.bytes_read / seconds
            bytes_written += row.bytes_written / seconds
            if row.ops:
                reads_took = list(_added(reads_took, row.reads_took))
                writes_took = list(_added(writes_took, row.writes_took))
    latencies = [quantile_ms(took, share) for took in (reads_took, writes_took) for share in (0.5, 0.99)]
    return ClusterPoint(at_ms, reads, writes, bytes_read, bytes_written, *latencies)


def _node_point(one: NodeInterval, sizes: "_Sizes") -> NodePoint:
    seconds = one.interval_ms / 1000
    stored = sizes.of(one)
    room = one.free_bytes
    if one.capacity_bytes:
        room = min(room, max(0, one.capacity_bytes - stored))
    return NodePoint(
        one.node,
        one.start_ms,
        sum(row.ops for row in one.partitions) / seconds,
        one.cpu_ms / one.interval_ms,
        stored,
        one.free_bytes,
        room,
    )


def _unevenness(values: Sequence[float]) -> float | None:
    total = sum(values)
    return max(values) * len(values) / total if total else None


class _Sizes:
    """The sizes of each node's replicas, as the node last reported them. A replica that its node has not reported for
    `holds_ms` has moved away.
    """

    def __init__(self, holds_ms: int) -> None:
        self._holds_ms = holds_ms
        self._told: defaultdict[str, dict[int, tuple[int, int]]] = defaultdict(dict)

    def of(self, one: NodeInterval) -> int:
        """The bytes of all replicas of the node together."""
        told = self._told[one.node]
        told.update((row.partition_id, (row.bytes, one.start_ms)) for row in one.partitions)
        kept = {id_: at for id_, at in told.items() if one.start_ms - at[1] <= self._holds_ms}
        self._told[one.node] = kept
        return sum(size for size, _ in kept.values())


class _Totals:
    """Gathers each partition's traffic over all steps."""

    def __init__(self) -> None:
        self.points: list[PartitionPoint] = []
        self._rows: dict[int, PartitionInterval] = {}  # sums of the traffic, and the last sizes
        self._peaks: dict[int, PartitionPoint] = {}
        self._seconds = 0.0

    def add(self, at: Sequence[NodeInterval], nodes: Sequence[NodePoint]) -> None:
        """Add the intervals of one step."""
        cluster = sum(node.ops for node in nodes)
        self._seconds += max(one.interval_ms for one in at) / 1000
        for one, node in zip(at, nodes, strict=True):
            for row in one.partitions:
                known = self._rows.get(row.partition_id)
                if row.leads or known is None:
                    self._rows[row.partition_id] = row if known is None else _sum(known, row)
                elif row.ops:
                    self._rows[row.partition_id] = replace(_sum(known, row), bytes=known.bytes, keys=known.keys)
                if row.ops:
                    self._point(row, node, cluster, one.interval_ms / 1000)

    def _point(self, row: PartitionInterval, node: NodePoint, cluster: float, seconds: float) -> None:
        ops = row.ops / seconds
        point = PartitionPoint(
            row.partition_id,
            node.node,
            node.at_ms,
            ops,
            ops / node.ops,
            ops / cluster,
            quantile_ms(row.reads_took, 0.99),
            quantile_ms(row.writes_took, 0.99),
        )
        self.points.append(point)
        peak = self._peaks.get(row.partition_id)
        if peak is None or ops > peak.ops:
            self._peaks[row.partition_id] = point

    def partitions(self) -> dict[int, PartitionLoad]:
        """The partitions that had operations or data, by id."""
        total = sum(row.ops for row in self._rows.values())
        return {
            id_: PartitionLoad(
                id_,
                row.keyspace_id,
                row.ops / self._seconds,
                row.ops / total if total else 0.0,
                self._peaks.get(id_) or PartitionPoint(id_, "", 0, 0.0, 0.0, 0.0, None, None),
                quantile_ms(row.reads_took, 0.99),
                quantile_ms(row.writes_took, 0.99),
                row.bytes,
                row.keys,
            )
            for id_, row in self._rows.items()
        }
