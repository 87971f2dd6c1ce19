"""What a balancer is: it says what is due of the controller's own accord. `balancers.py` lists all of them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from minka.v1.coordinator_pb2 import DiskSpace, ReplicaStats
from minkad.core.controller.commands import Command
from minkad.core.state import State


@dataclass(frozen=True, slots=True)
class View:
    """What a balancer goes by. `now`: seconds of the active controller's monotonic clock."""

    state: State
    stats: Callable[[], Collection[ReplicaStats]]  # what the leaders last reported
    now: float
    disks: Mapping[str, DiskSpace] = field(default_factory=dict)  # what the nodes last reported
    merge_after: float = 0.0  # seconds for which neighbours are small and cold before they are merged; 0: never
    abandon_loads_after: float = 0.0  # seconds for which nobody has touched them; 0: never


class Balancer(Protocol):
    """Asked with each tick of an active controller; a new one begins with new balancers."""

    def due(self, view: View) -> Command | None:
        """The command; None: nothing is due, or it isn't time to look."""
