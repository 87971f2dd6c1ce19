"""Finds the one move that evens the nodes' loads most, by the reports of the partitions' leaders.

Only partitions of keyspaces with `max_ops` move, and only if the move makes a difference. A leadership moves to a
replica in sync at no cost, so a replica is copied only if the move of a leadership doesn't help.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from minka.v1.cluster_pb2 import NodeState, Partition, PartitionState
from minka.v1.coordinator_pb2 import DiskSpace
from minkad.core.placement.layout import NO_DISKS, Layout
from minkad.core.state import State, holders, partition_name

MAX_SKEW: Final = 1.25  # the highest load divided by the mean; up to here, the loads count as even
_LEAST_GAIN: Final = 0.1  # of the mean load; the move must lower the load of the busier node by this


@dataclass(frozen=True, slots=True)
class Shift:
    """A move: the first of `target_replicas` is to lead the partition. The replica on `source` moves to `target`; both
    are "" if only the leadership moves.
    """

    partition_id: int
    target_replicas: tuple[str, ...]
    source: str
    target: str
    reason: str
    busier: float  # the load of the busier of the two nodes afterwards


class NodeLoads:
    """Operations a second that the LIVE nodes serve as leaders. A node's load is this number divided by its weight."""

    def __init__(self, state: State, ops: Mapping[int, int]) -> None:
        live = [node for node in state.nodes.values() if node.state == NodeState.NODE_STATE_LIVE]
        self.weights = {node.id: float(node.weight or 1) for node in live}
        self.ops = dict.fromkeys(self.weights, 0)
        for row, count in _asked_for(state, ops):
            if row.leader in self.ops:
                self.ops[row.leader] += count
        self.mean = sum(self.ops.values()) / max(1.0, sum(self.weights.values()))

    def of(self, node: str, more: int = 0) -> float:
        """The node's load with `more` operations a second."""
        return (self.ops[node] + more) / self.weights[node]

    @property
    def skew(self) -> float:
        """The highest load divided by the mean; 1 if there is none."""
        return max(map(self.of, self.ops)) / self.mean if self.mean else 1.0

    def too_busy(self) -> list[str]:
        """The nodes that are over MAX_SKEW, the busiest first."""
        over = [node for node in self.ops if self.of(node) > MAX_SKEW * self.mean]
        return sorted(over, key=lambda node: (-self.of(node), node))


def best_shift(
    state: State, ops: Mapping[int, int], sizes: Mapping[int, int], disks: Mapping[str, DiskSpace] = NO_DISKS
) -> Shift | None:
    """The best move for the busiest node that a move can relieve; None if no move relieves any busy node.

    `ops`: operations a second, and `sizes`: bytes; both by partition id. `disks`: by node.
    """
    loads = NodeLoads(state, ops)
    busy = loads.too_busy()
    if not busy:
        return None
    movable = [row for row in _movable(state, ops) if row.leader in busy]
    layout = Layout(state, sizes, disks)
    for node in busy:
        mine = [row for row in movable if row.leader == node]
        if not mine:
            continue
        for shifts in (_leaderships(state, loads, mine, ops), _copies(state, loads, mine, ops, layout)):
            best = min(shifts, key=lambda s: (s.busier, sizes.get(s.partition_id, 0), s.partition_id), default=None)
            if best is not None:
                return best
    return None


def _movable(state: State, ops: Mapping[int, int]) -> Iterator[Partition]:
    """The partitions that have operations and aren't being changed, of keyspaces with at least `max_ops` operations a
    second (the most that one partition should have).
    """
    totals = dict.fromkeys((k.id for k in state.keyspaces.values() if k.max_ops), 0)
    for row, count in _asked_for(state, ops):
        if row.keyspace_id in totals:
            totals[row.keyspace_id] += count
    busy = {id_ for id_, total in totals.items() if total >= state.keyspaces[id_].max_ops}
    for row, _ in _asked_for(state, ops):
        if row.keyspace_id in busy and _has_settled(row):
            yield row


def _asked_for(state: State, ops: Mapping[int, int]) -> Iterator[tuple[Partition, int]]:
    return ((state.partitions[id_], count) for id_, count in ops.items() if count and id_ in state.partitions)


def _has_settled(row: Partition) -> bool:
    changing = row.splitting or row.merge_from or row.merge_into or row.target_replicas or row.removing_replicas
    return row.state == PartitionState.PARTITION_STATE_ONLINE and not changing and not row.successor


def _leaderships(state: State, loads: NodeLoads, rows: list[Partition], ops: Mapping[int, int]) -> Iterator[Shift]:
    """The shifts of a leadership to a replica in sync."""
    for row in rows:
        for node in row.replicas:
            if node in row.isr and node != row.leader and node in loads.ops:
                others = [replica for replica in row.replicas if replica != node]
                yield from _worthwhile(state, loads, row, ops[row.id], (node, *others), "", "")


def _copies(
    state: State, loads: NodeLoads, rows: list[Partition], ops: Mapping[int, int], layout: Layout
) -> Iterator[Shift]:
    """The shifts of the leader's replica to a node that may get a replica of the partition."""
    for row in rows:
        others = [replica for replica in holders(row) if replica != row.leader]
        for node in loads.ops:
            if layout.fits(row, row.leader, node):
                yield from _worthwhile(state, loads, row, ops[row.id], (node, *others), row.leader, node)


def _worthwhile(
    state: State, loads: NodeLoads, row: Partition, ops: int, target: tuple[str, ...], source: str, copy_to: str
) -> Iterator[Shift]:
    """The shift, if it makes a difference."""
    old, new = row.leader, target[0]
    busier = max(loads.of(old, -ops), loads.of(new, ops))
    if loads.of(old) - busier >= _LEAST_GAIN * loads.mean:
        name = partition_name(state.keyspaces, row)
        reason = (
            f"{name} has {ops:,} operations a second, {old} {loads.ops[old]:,}, {new} {loads.ops[new]:,}, "
            f"and a node {loads.mean:,.0f} on average"
        )
        yield Shift(row.id, target, source, copy_to, reason, busier)
