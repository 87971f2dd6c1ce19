"""What operations that have not ended move: a plan leaves it alone, and counts it where it will be."""

from typing import NamedTuple

from minka.v1.cluster_pb2 import Migration, MigrationState
from minkad.core.state import MIGRATIONS_ENDED, State, holders, replace


class Destination(NamedTuple):
    """The replicas that a partition is to have, and the operation that moves it there."""

    operation_id: int
    replicas: list[str]


def destinations(state: State) -> dict[int, Destination]:
    """The destinations of all partitions that are to be moved, by partition id."""
    found: dict[int, Destination] = {}
    for operation in state.unended_operations():
        for migration in state.migrations[operation.id].values():
            if migration.HasField("partition_id") and migration.state not in MIGRATIONS_ENDED:
                id_ = migration.partition_id
                before = found[id_].replicas if id_ in found else holders(state.partitions[id_])
                found[id_] = Destination(operation.id, _after(before, migration))
    return found


def _after(replicas: list[str], migration: Migration) -> list[str]:
    if migration.state == MigrationState.MIGRATION_STATE_CANCELLING:
        return list(migration.original_replicas)
    return list(migration.target_replicas) or replace(replicas, migration.source, migration.target)
