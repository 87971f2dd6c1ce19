"""How each kind of placed thing is moved, by the field of `Migration.placed`."""

from collections.abc import Mapping
from typing import Final

from minka.v1.cluster_pb2 import Migration
from minkad.core.controller.mover import Mover
from minkad.core.controller.reassignment import PartitionMover

MOVERS: Final[Mapping[str, Mover]] = {"partition_id": PartitionMover()}


def mover_of(migration: Migration) -> Mover:
    """The mover for the kind of thing that this migration moves."""
    thing = migration.WhichOneof("placed")
    assert thing is not None, migration
    return MOVERS[thing]
