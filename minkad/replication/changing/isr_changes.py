"""Looks which followers lag, and asks the controller to record the in-sync sets of the partitions that a node leads.

Only the active controller changes an in-sync set, by compare-and-set. One call has the changes of many partitions
(KIP-497).
"""

import asyncio
import contextlib
import logging
from typing import Final

from minka.errors import MinkaError
from minka.v1.coordinator_pb2 import AlterIsrRequest, AlterIsrResponse, IsrChange
from minkad.core.controller_methods import ALTER_ISR
from minkad.core.replication.instructions import IsrProposal
from minkad.core.replication.leadership import Leader
from minkad.core.replication.node import Node
from minkad.process.turns import turn
from minkad.replication.applying.hosted_replica import HostedReplica
from minkad.replication.background_task import BackgroundTask
from minkad.replication.surroundings import Surroundings

log: Final = logging.getLogger(__name__)

_MAX_CHANGES: Final = 1000  # in one call
_AT_ONCE: Final = 100  # replicas looked at before other tasks get a turn
_REST: Final = 2  # the pause after a long look is at least twice as long as the look, so that other work goes on
_LONGEST_BACKOFF: Final = 0.2  # seconds; short, since writes may wait until the controller has removed a dead replica


class IsrChanges:
    """Two tasks: one looks which followers lag, one asks the controller."""

    def __init__(self, around: Surroundings, node: Node[HostedReplica]) -> None:
        self._node = node
        self._settings = node.shared.settings
        self._controller = around.controller
        self._has_clearance = around.table.has_clearance
        self._low_disks = around.table.low_disks
        self._known_low: frozenset[str] = frozenset()  # the nodes whose disks were low at the last look
        self._look = asyncio.Event()  # nodes have changed since the last look
        self._clock = around.clock
        self._waiting: dict[int, IsrProposal] = {}  # by partition: to be sent to the controller
        self._wake = asyncio.Event()  # there may be proposals in `_waiting`
        self._tasks = [
            BackgroundTask("lag check", self._watch, around.log_db.fail),
            BackgroundTask("in-sync sets", self._ask, around.log_db.fail),
        ]

    def start(self) -> None:
        for task in self._tasks:
            task.start()

    async def close(self) -> None:
        for task in self._tasks:
            await task.close()

    def propose(self, proposal: IsrProposal) -> None:
        """Ask the controller to record the proposal, until there is an answer, or the leader gives the proposal up."""
        self._waiting[proposal.partition_id] = proposal
        self._wake.set()

    def nodes_changed(self) -> None:
        """Nodes have come or gone: tell all leaders soon, a few at a time."""
        self._look.set()

    async def _watch(self) -> None:
        pause = interval = self._settings.lag_timeout / 8
        before = self._clock()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._look.wait()
            now = self._clock()
            # If this node stood still, it can't tell which followers lag. Without clearance, it may no longer lead.
            stalled = now - before > pause + self._settings.lag_timeout / 2 or not self._has_clearance()
            before = now
            low = frozenset(self._low_disks())
            concerns_all = self._look.is_set() or low != self._known_low
            self._known_low = low
            self._look.clear()
            for number, partition_id in enumerate(
                list(self._node.replicas if concerns_all else self._node.shared.unsettled), 1
            ):
                self._node.check(partition_id, now, stalled=stalled, nodes_changed=concerns_all)
                if number % _AT_ONCE == 0:
                    await turn()
            pause = max(interval, _REST * (self._clock() - now))

    async def _ask(self) -> None:
        backoff = self._settings.first_backoff
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked = self._take()
            if not asked:
                continue
            try:
                request = AlterIsrRequest(node_id=self._node.id, changes=map(_change, asked))
                response = await self._controller.call(ALTER_ISR, request)
            except MinkaError as error:
                log.info("in-sync sets can't be changed; it is tried again", extra={"reason": str(error)})
                for proposal in asked:
                    self._node.isr_in_doubt(proposal, self._clock())
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, _LONGEST_BACKOFF)
                self._wake.set()
                continue
            backoff = self._settings.first_backoff
            await self._answered(asked, response)

    async def _answered(self, asked: list[IsrProposal], response: AlterIsrResponse) -> None:
        assert len(response.results) == len(asked), f"{len(response.results)} results for {len(asked)} changes"
        for number, (proposal, result) in enumerate(zip(asked, response.results, strict=True), 1):
            if number % _AT_ONCE == 0:
                await turn()
            if result.HasField("partition"):
                self._node.adopt(result.partition, self._clock())
            if self._leader_of(proposal) is not None:  # a recorded proposal would have been cleared by the new row
                log.info(
                    "an in-sync set was not changed",
                    extra={"partition": proposal.partition_id, "to": list(proposal.isr), "reason": result.error},
                )
                self._node.isr_refused(proposal, self._clock())

    def _take(self) -> list[IsrProposal]:
        """The proposals to send now, without those that no leader waits for."""
        taken: list[IsrProposal] = []
        for partition_id, proposal in list(self._waiting.items()):
            if len(taken) == _MAX_CHANGES:
                self._wake.set()
                break
            del self._waiting[partition_id]
            if self._leader_of(proposal) is not None:
                taken.append(proposal)
        return taken

    def _leader_of(self, proposal: IsrProposal) -> Leader | None:
        """The leader that waits for this proposal; None if it has given it up."""
        replica = self._node.replicas.get(proposal.partition_id)
        leader = replica.state.leader if replica is not None else None
        return leader if leader is not None and leader.proposed is proposal else None


def _change(proposal: IsrProposal) -> IsrChange:
    return IsrChange(
        partition_id=proposal.partition_id,
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch,
        isr=proposal.isr,
        eligible=proposal.eligible,
    )
