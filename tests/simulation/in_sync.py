"""The in-sync sets of all partitions that one modelled node leads, changed by one call for all at the time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from minka.errors import MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import AlterIsrRequest, AlterIsrResponse, IsrChange
from tests.simulation.leadership import RETRY, Leadership


class InSyncSets:
    """Two tasks: one looks who lags, one asks the controller."""

    def __init__(
        self,
        node_id: str,
        leaderships: Mapping[int, Leadership],
        alter_isr: Callable[[AlterIsrRequest], Awaitable[AlterIsrResponse]],
        has_clearance: Callable[[], bool],
        learn: Callable[[Partition], None],
        now: Callable[[], float],
        lag_timeout: float,
    ) -> None:
        self._node_id = node_id
        self._leaderships = leaderships
        self._alter_isr = alter_isr
        self._has_clearance = has_clearance
        self._learn = learn
        self._now = now
        self._lag_timeout = lag_timeout
        self._waiting: dict[int, Leadership] = {}
        self._wake = asyncio.Event()

    def start(self) -> None:
        """Begin."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._watch()), loop.create_task(self._ask())]

    def propose(self, leadership: Leadership) -> None:
        """A leadership has something to ask."""
        self._waiting[leadership.replica.copy.row.id] = leadership
        self._wake.set()

    async def _watch(self) -> None:
        before = self._now()
        while True:
            await asyncio.sleep(self._lag_timeout / 4)
            now = self._now()
            stalled = now - before > self._lag_timeout / 2 or not self._has_clearance()
            before = now
            for leadership in list(self._leaderships.values()):
                leadership.check(stalled=stalled)

    async def _ask(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked = [
                (leadership, leadership.proposed)
                for id_, leadership in self._waiting.items()
                if leadership.proposed is not None and self._leaderships.get(id_) is leadership
            ]
            self._waiting.clear()
            if not asked:
                continue
            changes = [
                IsrChange(
                    partition_id=leadership.replica.copy.row.id,
                    leader_epoch=leadership.replica.copy.row.leader_epoch,
                    partition_epoch=proposal.partition_epoch,
                    isr=proposal.isr,
                )
                for leadership, proposal in asked
            ]
            try:
                response = await self._alter_isr(AlterIsrRequest(node_id=self._node_id, changes=changes))
            except MinkaError:
                for leadership, proposal in asked:
                    proposal.in_doubt = True
                    self._waiting.setdefault(leadership.replica.copy.row.id, leadership)
                await asyncio.sleep(RETRY)
                self._wake.set()
                continue
            for (leadership, proposal), result in zip(asked, response.results, strict=True):
                if result.HasField("partition"):
                    self._learn(result.partition)
                if leadership.proposed is proposal:  # it wasn't recorded: the row is as it was
                    leadership.refused()
