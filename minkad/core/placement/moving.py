"""What operations that run are moving: a plan leaves it alone, and reckons with where it will be."""

from minka.v1.cluster_pb2 import Migration, MigrationState
from minkad.core.state import MIGRATIONS_ENDED, State, holders, replace


def replicas_afterwards(state: State) -> dict[int, list[str]]:
    """By partition that is being moved: the replicas that it has in the end."""
    found: dict[int, list[str]] = {}
    for operation_id in dict.fromkeys(state.moving.values()):
        for migration in state.migrations[operation_id].values():
            if migration.state not in MIGRATIONS_ENDED:
                id_ = migration.partition_id
                found[id_] = _after(found.get(id_) or holders(state.partitions[id_]), migration)
    return found


def _after(replicas: list[str], migration: Migration) -> list[str]:
    if migration.state == MigrationState.MIGRATION_STATE_CANCELLING:
        return list(migration.original_replicas)
    return list(migration.target_replicas) or replace(replicas, migration.source, migration.target)
