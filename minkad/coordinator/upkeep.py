"""The active controller's own initiative: it gives up stalled migrations, balances, and begins queued operations."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from minka.errors import MinkaError
from minkad.coordinator.controller_settings import ControllerSettings
from minkad.coordinator.node_reports import NodeReports
from minkad.coordinator.stalls import Stalls
from minkad.core.controller import BALANCERS, BeginQueued, Command, View
from minkad.core.controller.balancer import Balancer
from minkad.core.state import State

log: Final = logging.getLogger(__name__)

QUEUE_INTERVAL_S: Final = 1.0  # between looks at the queue, while the same operations run


@dataclass(slots=True)
class Upkeep:
    """`decided` is the state after all proposals are committed. `act` records the effects of a command, and returns
    True if there are any; it raises MinkaError. Times are in seconds, by the clock `now`.
    """

    decided: State
    reports: NodeReports
    act: Callable[[Command], bool]
    now: Callable[[], float]
    settings: ControllerSettings
    stalls: Stalls = field(default_factory=Stalls)
    _balancers: list[Balancer] = field(default_factory=lambda: [balancer() for balancer in BALANCERS])
    _queue_looked_at: float = float("-inf")
    _ran: list[int] = field(default_factory=list)  # the operations that ran at the last look at the queue

    def look(self) -> None:
        """Look once, and do what is due."""
        for command in self.stalls.due(self.decided, self.reports.progress, self.now(), self.settings.stall_timeout):
            self.act(command)
        self._balance()
        self._begin_queued()

    def _balance(self) -> None:
        reports, after, abandon_after = self.reports, self.settings.merge_after, self.settings.abandon_loads_after
        view = View(self.decided, lambda: list(reports.leader_stats()), self.now(), reports.disks, after, abandon_after)
        for balancer in self._balancers:
            if (command := balancer.due(view)) is None:
                continue
            name, operation = type(balancer).__name__, self.decided.next_operation_id
            try:
                acts = self.act(command)
            except MinkaError as error:
                log.info("a balancer's command is refused", extra={"balancer": name, "reason": str(error)})
                continue
            if acts:
                log.info("a balancer acts", extra={"balancer": name, "operation": operation})

    def _begin_queued(self) -> None:
        """Begin queued operations that nothing blocks any longer. This is checked when the running operations have
        changed, and once a second, since other things can also block them.
        """
        if not self.decided.queued_operations():
            return
        running = [operation.id for operation in self.decided.running_operations()]
        if running == self._ran and self.now() - self._queue_looked_at < QUEUE_INTERVAL_S:
            return
        self._ran, self._queue_looked_at = running, self.now()
        self.act(BeginQueued(self.reports.sizes(), self.reports.disks))
