"""The interface of balancers, which find out what is to be done automatically. `balancers.py` lists all of them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from minka.v1.coordinator_pb2 import DiskSpace, ReplicaStats
from minkad.core.controller.commands import Command
from minkad.core.state import State


@dataclass(frozen=True, slots=True)
class View:
    """What a balancer decides by. `now`: seconds of the active controller's monotonic clock."""

    state: State
    stats: Callable[[], Collection[ReplicaStats]]  # what the leaders last reported
    now: float
    disks: Mapping[str, DiskSpace] = field(default_factory=dict)  # what the nodes last reported
    merge_after: float = 0.0  # neighbours that are small and cold for so many seconds are merged; 0: never
    abandon_loads_after: float = 0.0  # loads that nobody has touched for so many seconds are aborted; 0: never


class Balancer(Protocol):
    """Is asked at each tick of an active controller; a new controller begins with new balancers."""

    def due(self, view: View) -> Command | None:
        """The command that is due; None if none is, or if it isn't time to look."""
