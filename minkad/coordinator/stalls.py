"""Gives up migrations that have made no progress for too long."""

from collections.abc import Iterable, Iterator, Sequence

from minka.v1.cluster_pb2 import Migration, MigrationState
from minka.v1.coordinator_pb2 import MigrationProgress
from minkad.core.controller import CancelMigration, unfinished, what_blocks
from minkad.core.state import Placed, State


class Stalls:
    """Times are seconds of the active controller's clock."""

    def __init__(self) -> None:
        # The progress that the migrations of a thing last showed, and since when they have shown it.
        self._advanced: dict[Placed, tuple[tuple[object, ...], float]] = {}

    def note(self, source: str, migrations: Iterable[MigrationProgress], now: float) -> None:
        """Note the progress that the source of migrations reports."""
        by_thing: dict[Placed, list[object]] = {}
        for migration in migrations:
            shown = (source, migration.target, migration.bytes_done, migration.lag, migration.phase)
            by_thing.setdefault(Placed.partition(migration.partition_id), []).append(shown)
        for thing, all_shown in by_thing.items():
            if self._advanced.get(thing, (None, 0.0))[0] != tuple(all_shown):
                self._advanced[thing] = (tuple(all_shown), now)

    def due(
        self, state: State, progress: Sequence[MigrationProgress], now: float, timeout: float
    ) -> Iterator[CancelMigration]:
        """The migrations to give up after `timeout` seconds without progress: no migration may keep its operation from
        ending, unless a person has paused it.
        """
        advanced: dict[Placed, tuple[tuple[object, ...], float]] = {}
        for operation in state.moving_operations():
            if operation.HasField("rebalance"):
                continue  # a duty is not copied, and once it is to be released there is no way back
            for migration in list(unfinished(state, operation)):
                if not _can_stall(state, migration, operation.paused):
                    continue
                thing = Placed.of(migration)
                shown, since = self._advanced.get(thing, ((), now))
                if now - since > timeout:
                    since = now
                    reason = f"no progress for {timeout:.0f} s: {_blocked_by(state, migration, progress)}"
                    yield CancelMigration(operation.id, thing, reason)
                advanced[thing] = (shown, since)
        self._advanced = advanced


def _can_stall(state: State, migration: Migration, paused: bool) -> bool:
    if migration.state == MigrationState.MIGRATION_STATE_PENDING:
        return not paused and what_blocks(state, migration) is not None
    return migration.state == MigrationState.MIGRATION_STATE_COPYING


def _blocked_by(state: State, migration: Migration, progress: Sequence[MigrationProgress]) -> str:
    thing = Placed.of(migration)
    reported = next((p.blocked_by for p in progress if Placed.partition(p.partition_id) == thing), "")
    known = what_blocks(state, migration)
    return reported or (known.reason if known else "no reason reported")
