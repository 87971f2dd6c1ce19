"""Proposes to split partitions that have grown too large (Key-Range Partitions, Patterns of Distributed Systems), and
measures sizes that have become too uncertain.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import ProposeSplitRequest
from minkad.core.controller_methods import PROPOSE_SPLIT
from minkad.core.replication.node import Node
from minkad.process.turns import turn
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.background_task import BackgroundTask
from minkad.replication.reading.changed_figures import ChangedFigures
from minkad.replication.reading.inventory import Inventory
from minkad.replication.surroundings import Surroundings

log: Final = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
_RECHECK_S: Final = 10.0
_AT_ONCE: Final = 500  # replicas looked at before other tasks get a turn
_ROUND: Final = 60  # looks in which each replica is looked at, even without a known change of its figures
MAX_ERROR: Final = 0.03  # standard error; all but one size in a thousand are then within 10 %
_SURE: Final = 3.0  # standard errors


@dataclass(slots=True)
class _Checked:
    """When a partition was last measured or its split refused, and its bytes then."""

    at: float
    bytes: int


class SizeCheck(BackgroundTask):
    """Checks one partition at a time. A compaction measures a size, outside of the GIL, if the estimate may be off by
    too much, or doesn't tell if the partition is above the maximum.
    """

    def __init__(
        self,
        around: Surroundings,
        node: Node[HostedReplica],
        inventory: Inventory,
        figures: ChangedFigures,
    ) -> None:
        super().__init__("size check", self._run, around.log_db.fail)
        self._node = node
        self._replicas: Final = node.replicas
        self._inventory = inventory
        self._figures = figures
        self._known_keyspace = around.table.keyspace
        self._controller = around.controller
        self._clock = around.clock
        self._checked: dict[int, _Checked] = {}
        self._round: list[int] = []

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self._checked = {id_: checked for id_, checked in self._checked.items() if id_ in self._replicas}
            for number, partition_id in enumerate(self._next(), 1):
                if number % _AT_ONCE == 0:
                    await turn()
                replica = self._replicas.get(partition_id)
                if replica is None or not self._is_to_be_checked(replica):
                    self._figures.to_measure.discard(partition_id)
                    continue
                try:
                    await self._check(replica)
                except MinkaError as error:
                    names = {"partition": replica.id, "reason": str(error)}
                    log.info("a partition's size can't be dealt with yet", extra=names)

    def _next(self) -> list[int]:
        """The partitions to look at now: those that have changed or are under way, and a part of the others."""
        if not self._round:
            self._round = list(self._replicas)
        some = min(len(self._round), len(self._replicas) // _ROUND + 1)
        others = [self._round.pop() for _ in range(some)]
        return [*self._figures.to_measure, *(id_ for id_ in others if id_ not in self._figures.to_measure)]

    def _is_to_be_checked(self, replica: HostedReplica) -> bool:
        if not (replica.data.is_open and replica.state.is_ready):
            return False
        return not (replica.state.is_restructured or replica.state.trim.has_foreign)

    async def _check(self, replica: HostedReplica) -> None:
        """Measure the partition or propose its split, if it is time. Raises MinkaError; the next try follows later."""
        keyspace, data = self._known_keyspace(replica.state.row.keyspace_id), replica.data
        limit = keyspace.max_bytes if keyspace is not None else 0
        is_large = 0 < limit < data.size().bytes
        if not is_large:
            self._say(replica, "")
        is_uncertain = self._is_uncertain(replica, limit)
        if not (is_uncertain or is_large):
            self._figures.to_measure.discard(replica.id)
            return
        self._figures.to_measure.add(replica.id)
        if not self._is_due(replica, limit):
            return
        if is_uncertain:
            await replica.log_first()
            await data.compact()
        self._checked[replica.id] = _Checked(self._clock(), data.size().bytes)
        if 0 < limit < data.size().bytes and self._is_to_be_checked(replica):
            await self._split(replica, limit)
            del self._checked[replica.id]

    def _say(self, replica: HostedReplica, not_split: str) -> None:
        if replica.not_split != not_split:
            replica.not_split = not_split
            self._figures.to_report.add(replica.id)

    def _is_uncertain(self, replica: HostedReplica, limit: int) -> bool:
        """True if the size is uncertain or, with a limit, if it is uncertain that the size is above it."""
        data = replica.data
        size, error = data.size().bytes, data.size_error()
        if error > MAX_ERROR:
            return True
        return 0 < limit < data.size_at_most().bytes and abs(size - limit) < _SURE * error * size

    def _is_due(self, replica: HostedReplica, limit: int) -> bool:
        """True if it is time to check again: a partition that is overwritten all the time, or can't be split now, isn't
        checked each time.
        """
        checked = self._checked.get(replica.id)
        if checked is None or self._clock() - checked.at >= _RECHECK_S:
            return True
        return limit > 0 and replica.data.size().bytes - checked.bytes >= limit // 4

    async def _split(self, replica: HostedReplica, limit: int) -> None:
        size = replica.data.size().bytes
        generation = replica.state.row.generation
        try:
            (key,) = await self._inventory.split_keys(replica.id, 2)
        except MinkaError as error:
            if error.code is Code.NO_SPLIT_KEY and not replica.not_split:
                self._say(replica, "too large, and no key divides it")
                log.warning("a large partition can't be split", extra={"partition": replica.id, "bytes": size})
            raise
        request = ProposeSplitRequest(node_id=self._node.id, partition_id=replica.id, generation=generation, key=key)
        for row in (await self._controller.call(PROPOSE_SPLIT, request)).partitions:
            self._node.adopt(row, self._clock())
        log.info("a partition was too large", extra={"partition": replica.id, "bytes": size, "max": limit})
