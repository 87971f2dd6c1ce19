"""Proposes to split partitions that are too large (Key-Range Partitions, Patterns of Distributed Systems), and measures
sizes whose estimates are too uncertain.
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
_ROUND: Final = 60  # each replica is looked at once in this many looks, even if its figures haven't changed
MAX_ERROR: Final = 0.03  # of an estimate, relative; with this standard error, 999 of 1000 sizes are within 10 %
_SURE: Final = 3.0  # a size is surely above or below a limit if it differs by this many standard errors


@dataclass(slots=True)
class _Checked:
    """The last check of a partition: its time, and the partition's bytes then."""

    at: float
    bytes: int


class SizeCheck(BackgroundTask):
    """Checks one partition at a time. If the estimate of a size is too uncertain, or doesn't tell whether the partition
    is above its maximum, a compaction measures the size; it doesn't hold the GIL.
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
        self._checked: dict[int, _Checked] = {}  # by partition
        self._round: list[int] = []  # the partitions that are left in this round: see `_ROUND`

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
        """The partitions to look at now: those in `to_measure`, and a part of the others."""
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
        """Measure the partition or propose its split, if that is due. Raises MinkaError; the next try comes later."""
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
        """True if the size is too uncertain, or if it is uncertain whether the size is above the limit (0: none)."""
        data = replica.data
        size, error = data.size().bytes, data.size_error()
        if error > MAX_ERROR:
            return True
        return 0 < limit < data.size_at_most().bytes and abs(size - limit) < _SURE * error * size

    def _is_due(self, replica: HostedReplica, limit: int) -> bool:
        """True if another check is due: 10 s after the last one, or once the partition has grown by a quarter of its
        limit. So a partition that clients overwrite all the time, or that can't be split now, isn't checked at each
        look.
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
