"""Gives up migrations that have made no progress for too long."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from minka.v1.cluster_pb2 import Migration, MigrationState
from minka.v1.coordinator_pb2 import MigrationProgress
from minkad.core.controller import CancelMigration, unfinished, what_blocks
from minkad.core.state import Placed, State

LOOK_INTERVAL_S: Final = 1.0

_Shown = dict[tuple[str, str], tuple[object, ...]]  # the progress of a thing's migrations, by source and target


class Stalls:
    """Times are seconds of the active controller's clock."""

    def __init__(self) -> None:
        # The progress that the migrations of a thing last showed, and since when they have shown it.
        self._advanced: dict[Placed, tuple[_Shown, float]] = {}
        self._looked_at = float("-inf")

    def note(self, source: str, migrations: Iterable[MigrationProgress], now: float) -> None:
        """Note the progress that the source of migrations reports; what it doesn't report is as before."""
        for migration in migrations:
            thing = Placed.partition(migration.partition_id)
            key = source, migration.target
            figures = migration.bytes_done, migration.lag, migration.phase
            shown, _ = self._advanced.get(thing, ({}, now))
            if shown.get(key) != figures:
                self._advanced[thing] = ({**shown, key: figures}, now)

    def due(
        self, state: State, progress: Callable[[], Sequence[MigrationProgress]], now: float, timeout: float
    ) -> Iterator[CancelMigration]:
        """The migrations to give up after `timeout` seconds without progress: no migration may keep its operation from
        ending, unless a person has paused it. This looks once a second. `progress`: what the sources last reported.
        """
        if now - self._looked_at < LOOK_INTERVAL_S:
            return
        self._looked_at = now
        advanced: dict[Placed, tuple[_Shown, float]] = {}
        for operation in state.moving_operations():
            if operation.HasField("rebalance"):
                continue  # a duty is not copied, and once it is to be released there is no way back
            for migration in list(unfinished(state, operation)):
                if not _can_stall(state, migration, operation.paused):
                    continue
                thing = Placed.of(migration)
                shown, since = self._advanced.get(thing, ({}, now))
                if now - since > timeout:
                    since = now
                    reason = f"no progress for {timeout:.0f} s: {_blocked_by(state, migration, progress())}"
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
