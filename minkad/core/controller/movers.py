"""The mover of each kind of placed thing, by the field of `Migration.placed`."""

from collections.abc import Mapping
from typing import Final

from minka.v1.cluster_pb2 import Migration
from minkad.core.controller.mover import Mover
from minkad.core.controller.reassignment import PartitionMover
from minkad.core.duties.control.duty_mover import DutyMover
from minkad.core.state import Placed, State

MOVERS: Final[Mapping[str, Mover]] = {"partition_id": PartitionMover(), "duty": DutyMover()}


def mover_of(migration: Migration) -> Mover:
    """The mover for the kind of thing that this migration moves."""
    return MOVERS[Placed.of(migration).kind]


def name_of(state: State, thing: Placed) -> str:
    """A thing's name, for people."""
    return MOVERS[thing.kind].name(state, thing.id)
