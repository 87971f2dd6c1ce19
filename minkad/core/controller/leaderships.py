"""Moves leaderships without replicas: from nodes that are DRAINING or have low disks, and as operations want."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from operator import is_
from typing import Final

from minka.v1.cluster_pb2 import Partition
from minka.v1.records_pb2 import Record
from minkad.core.controller import drains
from minkad.core.controller.operation_kind import Due
from minkad.core.controller.operation_kinds import kind_of
from minkad.core.controller.partition_change import PartitionChange
from minkad.core.controller.rows import partitions_changed
from minkad.core.controller.selectors import Live
from minkad.core.state import State

AT_ONCE: Final = 64  # under way from one node to another, outside of reassignments
LOOK: Final = 1000  # partitions; they take about two milliseconds


class Leaderships:
    """Looks at all partitions in question in rounds, LOOK partitions at a time: a node may lead tens of thousands of
    partitions that no other node can lead.
    """

    def __init__(self) -> None:
        self.is_through = True  # True if a whole round without changes has found nothing
        self._round: Iterator[Due | None] | None = None  # the rest of the round
        self._begun_at = -1  # the revision of the state when the round began
        self._begun_with: list[object] = []  # the nodes and operations of the round; rows are never mutated
        self._has_found = False  # True if this round has found a leadership to move

    def next_steps(self, state: State, live: Live) -> list[Record]:
        """Appoint successors for the leaders that this look finds, as far as there is room."""
        free = AT_ONCE - len(state.partitions.yielding)
        if free <= 0:
            self.is_through = True
            return []
        now = [live, *state.running_operations()]
        if self._round is None or not _are_same(self._begun_with, now):
            self._round, self._has_found = _due(state, live), False
            self._begun_at, self._begun_with = state.revision, now
        rows: dict[int, Partition] = {}
        looked = 0
        for due in islice(self._round, LOOK):
            looked += 1
            if due is not None and not due[0].successor and not _is_bound(due[0]):
                rows[due[0].id] = PartitionChange(due[0]).appoint(due[1]).row()
                if len(rows) == free:
                    break
        self._has_found |= bool(rows)
        is_over = looked < LOOK and len(rows) < free
        self.is_through = is_over and not self._has_found and self._begun_at == state.revision
        if is_over:
            self._round = None
        return partitions_changed(rows.values())


def _due(state: State, live: Live) -> Iterator[Due | None]:
    wanted = (kind_of(operation).leaderships(state, operation, live) for operation in state.running_operations())
    leaving = (drains.leaderships_to_move(state, node, live) for node in sorted(live.draining))
    return chain.from_iterable(chain(wanted, leaving))


def _are_same(one: Sequence[object], other: Sequence[object]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def _is_bound(partition: Partition) -> bool:
    """True if the partition's leadership is bound to another partition's, by a split or a merge."""
    return bool(partition.splitting or partition.merge_from or partition.merge_into)
