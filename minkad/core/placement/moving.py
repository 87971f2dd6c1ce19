"""The partitions that unended operations move: a plan counts them on the nodes to which they move."""

from collections.abc import Generator
from typing import Final, NamedTuple

from minka.v1.cluster_pb2 import Migration, MigrationState, Partition, PartitionState
from minkad.core.state import MIGRATIONS_ENDED, State, holders, replace, slices

_ROWS_A_STEP: Final = 500


def has_leader(partition: Partition) -> bool:
    """True if the partition has a leader from which a replica can be copied."""
    return partition.state in (PartitionState.PARTITION_STATE_ASSIGNED, PartitionState.PARTITION_STATE_ONLINE)


class Destination(NamedTuple):
    """The replicas that a partition is to have, and the operation that moves it there."""

    operation_id: int
    replicas: list[str]


def destinations(state: State) -> dict[int, Destination]:
    """By id of each partition that an unended operation moves: where it will be after all these operations."""
    pieces = destinations_in_pieces(state)
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            found: dict[int, Destination] = end.value
            return found


def destinations_in_pieces(state: State) -> Generator[None, None, dict[int, Destination]]:
    """Like `destinations`, in steps. The state must not change between the steps."""
    found: dict[int, Destination] = {}
    for operation in state.unended_operations():
        for rows in slices(state.migrations[operation.id].values(), _ROWS_A_STEP):
            for migration in rows:
                if migration.HasField("partition_id") and migration.state not in MIGRATIONS_ENDED:
                    id_ = migration.partition_id
                    before = found[id_].replicas if id_ in found else holders(state.partitions[id_])
                    found[id_] = Destination(operation.id, _after(before, migration))
            yield
    return found


def _after(replicas: list[str], migration: Migration) -> list[str]:
    if migration.state == MigrationState.MIGRATION_STATE_CANCELLING:
        return list(migration.original_replicas)
    return list(migration.target_replicas) or replace(replicas, migration.source, migration.target)
