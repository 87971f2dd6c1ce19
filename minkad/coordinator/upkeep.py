"""The active controller's automatic work: it gives up stalled migrations, balances, and begins queued operations."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from minka.errors import MinkaError
from minkad.coordinator.controller_settings import ControllerSettings
from minkad.coordinator.node_reports import NodeReports
from minkad.coordinator.stalls import Stalls
from minkad.core.controller.balancer import Balancer, View
from minkad.core.controller.balancers import BALANCERS
from minkad.core.controller.begin import BeginQueued
from minkad.core.controller.decision import Command
from minkad.core.state import State

log: Final = logging.getLogger(__name__)

QUEUE_INTERVAL_S: Final = 1.0  # between looks at the queue, while the same operations run


@dataclass(slots=True)
class Upkeep:
    """`decided` is the state after all proposals are committed. `perform` decides a command and proposes its records;
    it raises MinkaError. Times are in seconds, by the clock `now`.
    """

    decided: State
    reports: NodeReports
    perform: Callable[[Command], Awaitable[object]]
    now: Callable[[], float]
    stalls: Stalls = field(default_factory=Stalls)
    _balancers: list[Balancer] = field(default_factory=lambda: [balancer() for balancer in BALANCERS])
    _queue_looked_at: float = float("-inf")
    _ran: list[int] = field(default_factory=list)  # the operations that ran at the last look at the queue

    async def look(self, settings: ControllerSettings) -> None:
        """Look once, and do the work that is due. The caller has to hold the turn."""
        for command in self.stalls.due(self.decided, self.reports.progress, self.now(), settings.stall_timeout):
            await self._act(command)
        await self._balance(settings)
        await self._begin_queued()

    async def _act(self, command: Command) -> bool:
        """True if the command has changed anything."""
        before = self.decided.revision
        await self.perform(command)
        return self.decided.revision != before

    async def _balance(self, settings: ControllerSettings) -> None:
        reports, after, abandon_after = self.reports, settings.merge_after, settings.abandon_loads_after
        view = View(self.decided, lambda: list(reports.leader_stats()), self.now(), reports.disks, after, abandon_after)
        for balancer in self._balancers:
            if (command := balancer.due(view)) is None:
                continue
            name, operation = type(balancer).__name__, self.decided.next_operation_id
            try:
                acts = await self._act(command)
            except MinkaError as error:
                log.info("a balancer's command is refused", extra={"balancer": name, "reason": str(error)})
                continue
            if acts:
                log.info("a balancer acts", extra={"balancer": name, "operation": operation})

    async def _begin_queued(self) -> None:
        """Begin queued operations that nothing blocks any longer. Check this when the running operations have changed,
        and once a second, since other things can also block a queued operation.
        """
        if not self.decided.queued_operations():
            return
        running = [operation.id for operation in self.decided.running_operations()]
        if running == self._ran and self.now() - self._queue_looked_at < QUEUE_INTERVAL_S:
            return
        self._ran, self._queue_looked_at = running, self.now()
        await self._act(BeginQueued(self.reports.sizes(), self.reports.disks))
