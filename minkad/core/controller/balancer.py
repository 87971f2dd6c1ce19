"""The interface of balancers, which find work to be done automatically. `balancers.py` lists them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from minka.v1.coordinator_pb2 import DiskSpace, ReplicaStats
from minkad.core.controller.decision import Command
from minkad.core.state import State


@dataclass(frozen=True, slots=True)
class View:
    """The input of a balancer. `now`: seconds of the active controller's monotonic clock."""

    state: State
    stats: Callable[[], Collection[ReplicaStats]]  # the last reports of the leaders
    now: float
    disks: Mapping[str, DiskSpace] = field(default_factory=dict)  # the last reports of the nodes
    merge_after: float = 0.0  # seconds for which neighbours are small and cold before they are merged; 0: never
    abandon_loads_after: float = 0.0  # seconds after which an untouched load is aborted; 0: never


class Balancer(Protocol):
    """Asked at each tick of an active controller; a new controller begins with new balancers."""

    def due(self, view: View) -> Command | None:
        """The command that is due; None if none is, or it isn't time to look."""
