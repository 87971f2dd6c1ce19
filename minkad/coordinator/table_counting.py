"""Counts the table on demand, and regularly at the active controller: in pieces, only the changes since the last."""

import asyncio
import time
from collections.abc import Callable, Collection
from itertools import chain
from typing import Final

from minka.v1.admin_pb2 import TableSummary, Unserved
from minkad.coordinator.coordinator import Coordinator
from minkad.coordinator.node_reports import NodeReports
from minkad.core.state import ROWS_A_PIECE, State, partition_name, slices
from minkad.core.table_counts import TableCounts
from minkad.core.unserved import UnservedCounts
from minkad.process.turns import turn

_EVERY_S: Final = 2.0
UNCONFIRMED_S: Final = 3.0  # a healthy leader confirms within a moment that it leads


class TableCounting:
    """The counts of this node's copy of the table, with the sizes while it is the active controller."""

    def __init__(self, coordinator: Coordinator, clock: Callable[[], float] = time.monotonic) -> None:
        self._coordinator = coordinator
        self._clock = clock
        # While this node is active, by partition and leader_epoch: when the leadership was first seen unconfirmed.
        self._unconfirmed_since: dict[tuple[int, int], float] = {}
        self._counts: Final = TableCounts()
        self._reports: NodeReports | None = None  # the reports whose sizes are counted
        self._counting: Final = asyncio.Lock()

    @property
    def counts(self) -> TableCounts:
        """The counts as of the last call of `count`."""
        return self._counts

    async def run(self) -> None:
        """Count regularly, so that the active controller never has much to count when somebody asks."""
        while True:
            await asyncio.sleep(_EVERY_S)
            if self._coordinator.active is not None:
                await self.count()

    async def count(self) -> None:
        """Bring the counts up to date. While rows keep changing, the counts may lag by some pieces."""
        async with self._counting:
            state = self._coordinator.state
            for _ in self._counts.place({node.id: node.zone for node in state.nodes.values()}):
                await turn()
            changed = await self._count_rows(state)
            active = self._coordinator.active
            reports, known = active.reports if active is not None else None, self._reports
            self._reports = None  # until all is counted: a caller may give up in the middle
            await self._count_sizes(reports, changed if reports is known else list(state.partitions))
            self._reports = reports
            since, now = self._unconfirmed_since, self._clock()
            waiting = self._counts.unconfirmed if active is not None else ()
            self._unconfirmed_since = {leadership: since.get(leadership, now) for leadership in waiting}

    async def summary(self, silent: Collection[str]) -> TableSummary:
        """The counts as a message; `silent`: see TableSummary.only_on_silent."""
        await self.count()
        state = self._coordinator.state
        whole = [keyspace for keyspace in state.keyspaces.values() if keyspace.id not in state.incomplete]
        summary = self._counts.summary(state.nodes.values(), whole)
        if silent:
            summary.only_on_silent = await _only_on(state, frozenset(silent))
        if (active := self._coordinator.active) is not None:
            summary.unserved.CopyFrom(await self._unserved(state, active.reports))
        return summary

    async def _unserved(self, state: State, reports: NodeReports) -> Unserved:
        damaged = reports.damaged()
        found = UnservedCounts(state.nodes, damaged)
        for ids in slices(list(state.partitions.leaderless), ROWS_A_PIECE):
            for row in filter(None, map(state.partitions.get, ids)):
                if row.keyspace_id not in state.incomplete:
                    found.offline(row)
            await turn()
        for some in slices(damaged, ROWS_A_PIECE):
            for one in some:
                led = state.partitions.get(one.partition_id)
                found.damaged(one, led, partition_name(state.keyspaces, led) if led is not None else "")
            await turn()
        until = self._clock() - UNCONFIRMED_S
        lasting = [leadership for leadership, since in self._unconfirmed_since.items() if since <= until]
        found.unconfirmed(self._counts.unconfirmed, lasting)
        return found.message()

    async def _count_rows(self, state: State) -> Collection[int]:
        """Count the changed rows, and return their partitions."""
        counts, version = self._counts, state.version
        if counts.version == version:
            return ()
        known = state.changes.since(counts.version)
        changed: Collection[int] = known.partitions if known is not None else list(state.partitions)
        for some in slices(chain(changed, () if known is not None else counts.gone(state.partitions)), ROWS_A_PIECE):
            for partition_id in some:
                row = state.partitions.get(partition_id)
                if row is None or row.keyspace_id not in state.incomplete:
                    counts.put(partition_id, row)
            counts.settle(state.keyspaces)
            await turn()
        counts.version = version  # a row that has changed meanwhile is among the later changes
        return changed

    async def _count_sizes(self, reports: NodeReports | None, changed: Collection[int]) -> None:
        """Count the leaders' reports since the last time, and the reports of the partitions whose rows have changed."""
        if reports is None:
            return
        for some in slices(reports.take_fresh().union(changed), ROWS_A_PIECE):
            for partition_id in some:
                stats = reports.of(partition_id)
                self._counts.put_size(partition_id, *((stats.keys, stats.bytes) if stats is not None else (0, 0)))
            await turn()


async def _only_on(state: State, nodes: frozenset[str]) -> int:
    """The number of partitions that have replicas in sync on these nodes alone."""
    found = 0
    for node in nodes:
        for some in slices(list(state.partitions.copies.get(node, ())), ROWS_A_PIECE):
            for partition_id in some:
                row = state.partitions.get(partition_id)
                if row is None or row.keyspace_id in state.incomplete:
                    continue
                isr = row.isr
                found += bool(isr) and isr[0] == node and nodes.issuperset(isr)
            await turn()
    return found
