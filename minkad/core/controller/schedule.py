"""What the controller does of its own accord: start migrations as the caps allow, and end operations."""

from collections import Counter
from dataclasses import dataclass

from minka.v1.cluster_pb2 import MigrationState
from minka.v1.records_pb2 import Record
from minkad.core.controller import operations
from minkad.core.state import State


@dataclass(frozen=True, slots=True)
class MigrationCaps:
    """How many migrations may be COPYING at once: in or out of one node, and in the cluster."""

    per_node: int
    cluster: int


def schedule(state: State, caps: MigrationCaps, now_ms: int) -> list[Record]:
    """The next facts; none when there is nothing to do. The order of the plan is kept where the caps allow it."""
    operation = state.running_operation()
    if operation is None:
        return []
    migrations = state.migrations[operation.id].values()
    if all(m.state in operations.ENDED for m in migrations):
        return [operations.finish(state, operation, now_ms)]
    copying = [m for m in migrations if m.state == MigrationState.MIGRATION_STATE_COPYING]
    busy = Counter(node for m in copying for node in (m.source, m.target))
    free = caps.cluster - len(copying)
    records: list[Record] = []
    for migration in migrations:
        if free <= 0:
            break
        if migration.state != MigrationState.MIGRATION_STATE_PENDING:
            continue
        if max(busy[migration.source], busy[migration.target]) >= caps.per_node:
            continue
        busy.update((migration.source, migration.target))
        free -= 1
        records += operations.start(state.partitions[migration.partition_id], migration, now_ms)
    return records
