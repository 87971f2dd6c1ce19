"""Proposals: partitions to split, and replicas to move away from nodes that are too busy or fill up.

This module does no I/O. Proposals are based on the last quarter of the history, and on the present table. Each proposal
has a reason with figures. A partition gets at most one proposal, and none if an operation is changing it already.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median_low
from typing import Final

from minka.bulk.load_history import NodeInterval
from minka.cluster.key_ranges import is_by_ranges
from minka.load_report.analysis import LoadAnalysis, NodePoint
from minka.load_report.forecast import FullForecast
from minka.v1.cluster_pb2 import Keyspace, NodeState, Partition, PartitionState, PartitionTable

_RECENT: Final = 4  # the recent time is the last quarter of the history
_LEAST_OPS: Final = 500  # operations a second; a node or partition with fewer isn't busy
_UNEVEN: Final = 1.25  # a node with more than this times the mean of all nodes is too busy
_EVEN: Final = 1.1  # moves go on until the busiest node has at most this times the mean
_LARGE: Final = 4  # a partition of at least this times its keyspace's median size is large
_LEAST_LARGE: Final = 256 << 20
_MAX_PARTS: Final = 16
_MAX_MOVES: Final = 50  # because of traffic, or to make room on one node; people wouldn't read more
_FULL_SOON_MS: Final = 14 * 86_400_000
_LITTLE_ROOM: Final = 0.1  # a node is filling up if a smaller part of its file system is free


@dataclass(frozen=True, slots=True)
class ProposedSplit:
    """A split of a partition into `parts` parts of about equal size."""

    partition_id: int
    partition: str  # "authors/7"
    keyspace: str
    generation: int
    leader: str
    parts: int
    bytes: int  # of the whole partition
    reason: str


@dataclass(frozen=True, slots=True)
class ProposedMove:
    """A change of a partition's replicas. The preferred leader comes first; a change of the order alone moves
    no data.
    """

    partition_id: int
    partition: str
    replicas: list[str]  # before the move
    target_replicas: list[str]
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Proposals:
    """The proposed splits and moves. `notes` are sentences on problems that no split or move can remedy."""

    splits: list[ProposedSplit] = field(default_factory=list)
    moves: list[ProposedMove] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def propose(
    intervals: Sequence[NodeInterval],
    analysis: LoadAnalysis,
    forecasts: Iterable[FullForecast],
    table: PartitionTable,
) -> Proposals:
    """Propose splits and moves. `analysis` was made of these `intervals`."""
    found = Proposals()
    if not intervals:
        return found
    view = _View(table, intervals, analysis)
    for id_, row in view.settled.items():
        _look_at(view, id_, row, found)
    taken = {split.partition_id for split in found.splits}
    found.moves.extend(_even_out(view, taken))
    taken |= {move.partition_id for move in found.moves}
    for forecast in forecasts:
        found.moves.extend(_make_room(view, forecast, taken, found.notes))
    return found


class _View:
    """The table and the recent traffic, as they will be after the proposals so far."""

    def __init__(self, table: PartitionTable, intervals: Sequence[NodeInterval], analysis: LoadAnalysis) -> None:
        self.keyspaces: Mapping[int, Keyspace] = {one.id: one for one in table.keyspaces}
        self.zones = {node.id: node.zone for node in table.nodes}
        self.live = sorted(node.id for node in table.nodes if node.state == NodeState.NODE_STATE_LIVE)
        self.settled = {row.id: row for row in table.partitions if _is_settled(row)}
        self.replicas = {id_: list(row.replicas) for id_, row in self.settled.items()}
        self.loads = analysis.partitions
        since = analysis.to_ms - (analysis.to_ms - analysis.from_ms) // _RECENT
        self.served = _recent_ops(intervals, min(since, intervals[-1].start_ms))
        self.ops: defaultdict[int, float] = defaultdict(float)  # by partition: operations a second at all nodes
        self.node_ops = dict.fromkeys(self.live, 0.0)
        for (node, id_), ops in self.served.items():
            self.ops[id_] += ops
            if node in self.node_ops:
                self.node_ops[node] += ops
        self.usual_bytes = self._usual_bytes()
        last: dict[str, NodePoint] = {point.node: point for point in analysis.nodes}
        self.room = {node: last[node].room for node in self.live if node in last}
        self.free_share = {one.node: one.free_bytes / one.total_bytes for one in intervals if one.total_bytes}

    def _usual_bytes(self) -> dict[int, int]:
        """The median size of partitions with data, by keyspace id. Of two middle sizes, this is the smaller one."""
        sizes: defaultdict[int, list[int]] = defaultdict(list)
        for id_, row in self.settled.items():
            if size := self.bytes(id_):
                sizes[row.keyspace_id].append(size)
        return {keyspace: median_low(found) for keyspace, found in sizes.items()}

    def name(self, row: Partition) -> str:
        """The partition's name, such as flights/7."""
        return f"{self.keyspaces[row.keyspace_id].name}/{row.slot}"

    def bytes(self, id_: int) -> int:
        """The bytes of one replica."""
        return self.loads[id_].bytes if id_ in self.loads else 0

    def may_take(self, id_: int, source: str) -> Iterator[str]:
        """The nodes that could have this replica instead of `source`: they have room, and aren't in the zone of another
        replica, unless `source` is in that zone, too.
        """
        others = [node for node in self.replicas[id_] if node != source]
        zones = {self.zones[node] for node in others if self.zones.get(node)} - {self.zones.get(source)}
        for node in self.live:
            has_room = self.room.get(node, 0) > 2 * self.bytes(id_)
            if node != source and node not in others and has_room and self.zones[node] not in zones:
                yield node


def _is_settled(row: Partition) -> bool:
    is_changing = row.adding_replicas or row.removing_replicas or row.target_replicas or row.splitting or row.successor
    is_merging = row.merge_from or row.merge_into
    return row.state == PartitionState.PARTITION_STATE_ONLINE and not is_changing and not is_merging


def _recent_ops(intervals: Sequence[NodeInterval], since_ms: int) -> dict[tuple[str, int], float]:
    """The operations a second since `since_ms`, by node and partition."""
    counted: defaultdict[tuple[str, int], int] = defaultdict(int)
    seconds: defaultdict[str, float] = defaultdict(float)
    for one in intervals:
        if one.start_ms >= since_ms:
            seconds[one.node] += one.interval_ms / 1000
            for row in one.partitions:
                counted[one.node, row.partition_id] += row.ops
    return {place: ops / seconds[place[0]] for place, ops in counted.items() if ops}


# Splits


def _look_at(view: _View, id_: int, row: Partition, found: Proposals) -> None:
    """Propose to split a partition that is so busy or so large that moving it as a whole can't even out the nodes."""
    ops, mean = view.ops[id_], fmean(view.node_ops.values()) if view.node_ops else 0.0
    parts, reasons = 1, []
    if len(view.live) > 1 and ops >= _LEAST_OPS and ops >= _UNEVEN * mean > 0:
        parts = math.ceil(2 * ops / mean)
        reasons.append(f"hot: {ops:,.0f} operations/s, and a node's even share of all is {mean:,.0f}")
    usual, size = view.usual_bytes.get(row.keyspace_id, 0), view.bytes(id_)
    if size >= _LEAST_LARGE and size >= _LARGE * usual > 0:
        parts = max(parts, round(size / usual))
        reasons.append(f"large: {_mib(size)}, and the median of its keyspace is {_mib(usual)}")
    if not reasons:
        return
    name, keyspace = view.name(row), view.keyspaces[row.keyspace_id]
    if not is_by_ranges(keyspace):
        found.notes.append(f"{name} can't be split, as its keyspace is not by ranges; it is {'; '.join(reasons)}")
        return
    parts = min(max(parts, 2), _MAX_PARTS)
    found.splits.append(
        ProposedSplit(id_, name, keyspace.name, row.generation, row.leader, parts, size, "; ".join(reasons))
    )


# Moves because of traffic


def _even_out(view: _View, taken: set[int]) -> list[ProposedMove]:
    """Moves that even out the traffic. Each step takes a partition from the node that is then the busiest, and chooses
    the move after which the two nodes are most even.
    """
    load = view.node_ops
    mean = fmean(load.values()) if load else 0.0
    if not load or max(load.values()) < max(_UNEVEN * mean, _LEAST_OPS):
        return []
    moved: dict[int, ProposedMove] = {}
    while len(moved) < _MAX_MOVES:
        source = max(load, key=lambda node: load[node])
        best: tuple[float, bool, float, int, str] | None = None
        for id_ in _led_by(view, source, taken | moved.keys()):
            ops = view.served[source, id_]
            for target in (*view.replicas[id_], *view.may_take(id_, source)):
                if target == source or target not in load:
                    continue
                worst = max(load[source] - ops, load[target] + ops)
                copies = target not in view.replicas[id_]
                if worst < load[source] and (best is None or (worst, copies, load[target]) < best[:3]):
                    best = worst, copies, load[target], id_, target
        if load[source] <= _EVEN * mean or best is None:
            break
        _, copies, _, id_, target = best
        ops = view.served[source, id_]
        reason = (
            f"{source} does {load[source]:,.0f} operations/s and {target} {load[target]:,.0f}; the mean is {mean:,.0f}"
        )
        reason += f"; {ops:,.0f} of {source}'s are for this partition" + ("" if copies else "; no data moves")
        moved[id_] = _move(view, id_, source, target, reason)
        load[source] -= ops
        load[target] += ops
    return list(moved.values())


def _led_by(view: _View, node: str, but: set[int]) -> list[int]:
    """Partitions that the node leads as their preferred leader, and that have operations there."""
    return [
        id_
        for id_, row in view.settled.items()
        if row.leader == node and view.replicas[id_][0] == node and id_ not in but and (node, id_) in view.served
    ]


# Moves because of room


def _make_room(view: _View, forecast: FullForecast, taken: set[int], notes: list[str]) -> list[ProposedMove]:
    """Moves of the node's largest replicas to the nodes with most room, until the node has as much room as
    the average.
    """
    source = forecast.node
    if source not in view.room or not _is_filling(view, forecast):
        return []
    moves: list[ProposedMove] = []
    held = [id_ for id_ in view.settled if source in view.replicas[id_] and id_ not in taken]
    enough, short = fmean(view.room.values()), f"{source} runs short of room (full: {forecast.said})"
    for id_ in sorted(held, key=lambda id_: (-view.bytes(id_), id_)):
        size = view.bytes(id_)
        target = max(view.may_take(id_, source), key=lambda node: view.room[node], default=None)
        if view.room[source] >= enough or len(moves) == _MAX_MOVES or not size:
            break
        if target is None or view.room[target] - size < view.room[source] + size:
            continue
        room = f"{source} has room for {_mib(view.room[source])}, {target} for {_mib(view.room[target])}"
        moves.append(_move(view, id_, source, target, f"{room}; {short}"))
        taken.add(id_)
    if not moves:
        notes.append(f"{short}, and no other node has room for its replicas: add a node")
    return moves


def _is_filling(view: _View, forecast: FullForecast) -> bool:
    is_soon = forecast.full_ms is not None and forecast.full_ms - forecast.at_ms <= _FULL_SOON_MS
    return is_soon or view.free_share.get(forecast.node, 1.0) < _LITTLE_ROOM or forecast.room == 0


def _move(view: _View, id_: int, source: str, target: str, reason: str) -> ProposedMove:
    before = list(view.replicas[id_])
    if target in before:  # the target becomes the leader, and the former leader takes its place
        after = [{source: target, target: source}.get(node, node) for node in before]
        size = 0
    else:
        after = [target if node == source else node for node in before]
        size = view.bytes(id_)
        view.room[target] = view.room.get(target, 0) - size
        view.room[source] = view.room.get(source, 0) + size
    view.replicas[id_] = after
    return ProposedMove(id_, view.name(view.settled[id_]), before, after, size, reason)


def _mib(size: float) -> str:
    return f"{size / (1 << 20):,.1f} MiB" if size < 1 << 30 else f"{size / (1 << 30):,.1f} GiB"
