"""The in-sync sets of all partitions that one node leads: who lags leaves, who has caught up joins.

Only the active controller changes a set, by compare-and-set; one call carries all that change at the time (KIP-497).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from minka.errors import MinkaError
from minka.v1.cluster_pb2 import Partition
from minka.v1.coordinator_pb2 import AlterIsrRequest, AlterIsrResponse, IsrChange
from minkad.process.turns import turn
from minkad.replication.background import BackgroundTask
from minkad.replication.context import ReplicationSettings
from minkad.replication.leadership import Leadership, Proposal

log: Final = logging.getLogger(__name__)

_MAX_CHANGES: Final = 1000  # in one call
_AT_ONCE: Final = 200  # looked at before the loop gets its turn
_LONGEST_BACKOFF: Final = 0.2  # seconds; writes may wait for the new controller to take a dead replica out


class InSyncSets:
    """Two tasks: one looks who lags, one asks the controller."""

    def __init__(
        self,
        node_id: str,
        leaderships: Mapping[int, Leadership],
        settings: ReplicationSettings,
        alter_isr: Callable[[AlterIsrRequest], Awaitable[AlterIsrResponse]],
        has_clearance: Callable[[], bool],
        learn: Callable[[Partition], None],
        clock: Callable[[], float],
        on_failure: Callable[[MinkaError], None],
    ) -> None:
        """`on_failure`: it can't go on, so neither can the node."""
        self._node_id = node_id
        self._leaderships = leaderships
        self._settings = settings
        self._alter_isr = alter_isr
        self._has_clearance = has_clearance
        self._learn = learn
        self._clock = clock
        self._waiting: dict[int, Leadership] = {}
        self._wake = asyncio.Event()
        self._tasks = [
            BackgroundTask("who lags", self._watch, on_failure),
            BackgroundTask("in-sync sets", self._ask, on_failure),
        ]

    def start(self) -> None:
        """Begin."""
        for task in self._tasks:
            task.start()

    async def close(self) -> None:
        """End."""
        for task in self._tasks:
            await task.close()

    def propose(self, leadership: Leadership) -> None:
        """Have its `proposed` recorded."""
        self._waiting[leadership.replica.id] = leadership
        self._wake.set()

    async def _watch(self) -> None:
        interval = self._settings.lag_timeout / 8
        before = self._clock()
        while True:
            await asyncio.sleep(interval)
            now = self._clock()
            # A node that stood still knows nothing of its followers, and without clearance it may not lead any more.
            stalled = now - before > self._settings.lag_timeout / 2 or not self._has_clearance()
            before = now
            for number, leadership in enumerate(list(self._leaderships.values()), 1):
                leadership.check(now, stalled)
                if number % _AT_ONCE == 0:
                    await turn()

    async def _ask(self) -> None:
        backoff = self._settings.first_backoff
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked = self._take()
            if not asked:
                continue
            changes = [
                IsrChange(
                    partition_id=leadership.replica.id,
                    leader_epoch=leadership.leader_epoch,
                    partition_epoch=proposal.partition_epoch,
                    isr=proposal.isr,
                )
                for leadership, proposal in asked
            ]
            try:
                response = await self._alter_isr(AlterIsrRequest(node_id=self._node_id, changes=changes))
            except MinkaError as error:
                log.info("in-sync sets can't be changed; it is tried again", extra={"reason": str(error)})
                for leadership, proposal in asked:
                    proposal.in_doubt = True
                    self._waiting.setdefault(leadership.replica.id, leadership)
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, _LONGEST_BACKOFF)
                self._wake.set()
                continue
            backoff = self._settings.first_backoff
            assert len(response.results) == len(asked), f"{len(response.results)} results for {len(asked)} changes"
            for (leadership, proposal), result in zip(asked, response.results, strict=True):
                if result.HasField("partition"):
                    self._learn(result.partition)
                if leadership.proposed is proposal:  # it wasn't recorded: the row is as it was
                    log.info(
                        "an in-sync set was not changed",
                        extra={"partition": leadership.replica.id, "to": list(proposal.isr), "reason": result.error},
                    )
                    leadership.refused()

    def _take(self) -> list[tuple[Leadership, Proposal]]:
        """What is to be asked now: proposals that still stand."""
        taken: list[tuple[Leadership, Proposal]] = []
        for partition_id, leadership in list(self._waiting.items()):
            if len(taken) == _MAX_CHANGES:
                self._wake.set()
                break
            del self._waiting[partition_id]
            proposal = leadership.proposed
            if proposal is not None and self._leaderships.get(partition_id) is leadership:
                taken.append((leadership, proposal))
        return taken
