"""Measures the load of a node's replicas, and proposes to split those that are too busy (load-based splitting, as in
CockroachDB).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import ProposeSplitRequest
from minkad.core.controller_methods import PROPOSE_SPLIT
from minkad.core.load_split import NoCut, best_cut
from minkad.core.replication.node import Node
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.background_task import BackgroundTask
from minkad.replication.reading.changed_figures import ChangedFigures
from minkad.replication.surroundings import Surroundings

log: Final = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
SUSTAINED_S: Final = 5.0
# A node that uses more of a processor than this is busy: Python runs on one processor.
_BUSY_PROCESSORS: Final = 0.8
_SHARE_OF_NODE: Final = 0.5
_HALF_LIFE_S: Final = 1.0  # of the smoothed rates
_LEAST_OPS: Final = 500  # with fewer operations a second, other work keeps the node busy: a compaction, a checkpoint


class Meter:
    """Measures and smooths the rates of a node's replicas. Example: after a second without requests, 800 operations a
    second have become 400.
    """

    def __init__(
        self,
        replicas: Mapping[int, HostedReplica],
        used: set[int],
        clock: Callable[[], float],
        cpu_time: Callable[[], float] = time.process_time,
    ) -> None:
        """`used`: see `Load`. `cpu_time` returns the processor seconds that the process has used."""
        self.ops = 0.0  # operations a second, of all replicas
        self.processors = 0.0  # the number of processors that the process keeps busy
        self._replicas = replicas
        self._used = used
        self._clock = clock
        self._cpu_time = cpu_time
        self.at, self._cpu_at = clock(), cpu_time()  # the last tick

    def tick(self) -> list[HostedReplica]:
        """Bring the rates up to date. Returns the replicas used lately, including those whose rate has just
        become 0.
        """
        now, cpu = self._clock(), self._cpu_time()
        seconds = max(1e-3, now - self.at)
        kept = 0.5 ** (seconds / _HALF_LIFE_S)
        used = [replica for id_ in sorted(self._used) if (replica := self._replicas.get(id_)) is not None]
        served = sum(replica.load.served for replica in used)
        self.ops = self.ops * kept + served / seconds * (1 - kept)
        self.processors = self.processors * kept + (cpu - self._cpu_at) / seconds * (1 - kept)
        for replica in used:
            load = replica.load
            load.last = load.served / seconds
            ops = load.ops * kept + load.last * (1 - kept)
            load.ops = ops if load.served or ops >= 0.5 else 0.0
            # `self.ops` is 0 if the only request had no keys, or the replica that was used has been replaced.
            load.cpu_percent = 100 * self.processors * load.ops / self.ops if self.ops else 0.0
            load.served = 0
        self.at, self._cpu_at = now, cpu
        self._used.clear()
        self._used.update(replica.id for replica in used if replica.load.ops)
        return used


class LoadCheck(BackgroundTask):
    """Looks once a second. A partition is too busy with more than `max_ops` operations a second; or with at least half
    of its node's operations, if the process uses nearly a whole processor. The node proposes to split a partition that
    was too busy for five seconds. A half is split again only if the half, too, was too busy for five seconds, so that
    there aren't more partitions than the load needs.
    """

    def __init__(self, around: Surroundings, node: Node[HostedReplica], figures: ChangedFigures) -> None:
        super().__init__("load check", self._run, around.log_db.fail)
        self._node = node
        self._figures = figures
        self._known_keyspace = around.table.keyspace
        self._controller = around.controller
        self._clock = around.clock
        self.meter = Meter(node.replicas, node.shared.used, around.clock)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            used = self.meter.tick()
            for replica in used:
                await self._check_load(replica)
                self._figures.to_report.add(replica.id)  # the last report says 0

    async def _check_load(self, replica: HostedReplica) -> None:
        load, now = replica.load, self._clock()
        if not self._is_too_busy(replica):
            load.cool()
            return
        load.begin(now, replica.state.row.generation)
        if now - load.looked_at < SUSTAINED_S:
            return
        load.looked_at = now
        try:
            await self._split(replica)
        except MinkaError as error:
            if error.code is Code.SPLIT_REFUSED:
                load.not_split = f"too busy, and not split yet: {error.message}"
            log.info("a busy partition is not split yet", extra={"partition": replica.id, "reason": str(error)})
        await asyncio.sleep(0)  # the search for a key took milliseconds: let other tasks run

    def _is_too_busy(self, replica: HostedReplica) -> bool:
        if not replica.state.is_ready or replica.state.is_restructured:
            return False
        keyspace = self._known_keyspace(replica.state.row.keyspace_id)
        if keyspace is None or not keyspace.max_ops:
            return False
        ops, meter = replica.load.steady_ops, self.meter
        is_busy_node = meter.processors >= _BUSY_PROCESSORS and ops >= _LEAST_OPS
        return ops > keyspace.max_ops or (is_busy_node and ops >= _SHARE_OF_NODE * meter.ops)

    async def _split(self, replica: HostedReplica) -> None:
        """Propose the split. Raises MinkaError; the next try follows later."""
        load, row = replica.load, replica.state.row
        assert load.sample is not None, "what is too busy is sampled"
        cut = best_cut(load.sample.spans, KeyRange(row.start_key, row.end_key))
        if isinstance(cut, NoCut):
            if cut.reason and not load.not_split:
                log.warning("a busy partition can't be split", extra={"partition": row.id, "reason": cut.reason})
            load.not_split = cut.reason and f"too busy, and {cut.reason}"
            return
        request = ProposeSplitRequest(
            node_id=self._node.id, partition_id=row.id, generation=row.generation, key=cut.key
        )
        figures = {"partition": row.id, "ops": round(load.ops), "cpu_percent": round(load.cpu_percent)}
        for new in (await self._controller.call(PROPOSE_SPLIT, request)).partitions:
            self._node.adopt(new, self._clock())
        load.cool()
        log.info(
            "a partition was too busy", extra=figures | {"below": round(cut.below, 2), "above": round(cut.above, 2)}
        )
