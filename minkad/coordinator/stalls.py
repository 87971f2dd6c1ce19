"""Gives up migrations that have made no progress for too long."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from minka.v1.cluster_pb2 import Migration, MigrationState
from minka.v1.coordinator_pb2 import MigrationProgress
from minkad.core.controller.blockers import what_blocks
from minkad.core.controller.movers import mover_of
from minkad.core.controller.operations import CancelMigration
from minkad.core.state import Placed, State

WAITING_A_LOOK: Final = 200  # migrations that have not begun; with 10,000 of them, each is looked at every five seconds

_Shown = dict[tuple[str, str], tuple[object, ...]]  # the progress of a thing's migrations, by source and target
_Place = tuple[int, Placed, int]  # an operation, a thing, and the migration's place among the thing's


class Stalls:
    """Times are seconds of the active controller's clock."""

    def __init__(self) -> None:
        # The last progress of a thing's migrations, and the time when it was first seen.
        self._advanced: dict[Placed, tuple[_Shown, float]] = {}
        # Migrations that can't begin, and since when: every look at the migration since then has found an obstacle.
        self._blocked: dict[_Place, float] = {}
        self._round: Iterator[_Place] = iter(())  # the migrations that this round has yet to look at
        self._met: set[_Place] = set()  # those of `_blocked` that this round has looked at

    def note(self, source: str, migrations: Iterable[MigrationProgress], now: float) -> None:
        """Note the progress that the source of migrations reports; without a report, the progress is as before."""
        for migration in migrations:
            thing = Placed.partition(migration.partition_id)
            key = source, migration.target
            is_blocked = bool(migration.remedy)  # then the lag grows with each write, which isn't progress
            figures = migration.bytes_done, 0 if is_blocked else migration.lag, migration.phase
            shown, _ = self._advanced.get(thing, ({}, now))
            if shown.get(key) != figures:
                self._advanced[thing] = ({**shown, key: figures}, now)

    def due(
        self, state: State, progress: Callable[[], Sequence[MigrationProgress]], now: float, timeout: float
    ) -> Iterator[CancelMigration]:
        """The migrations to give up after `timeout` seconds without progress, since a stalled migration would keep its
        operation from ending. A migration that waits because a person has paused its operation isn't given up. Each
        call looks at a part of the migrations that have not begun. `progress` returns the sources' last reports.
        """
        advanced: dict[Placed, tuple[_Shown, float]] = {}
        for thing, migration in list(state.under_way.items()):
            # A duty isn't copied, and its release can't be undone.
            if migration.HasField("duty") or migration.state != MigrationState.MIGRATION_STATE_COPYING:
                continue
            shown, since = self._advanced.get(thing, ({}, now))
            if now - since > timeout:
                since = now
                yield _given_up(state, migration, progress(), timeout)
            advanced[thing] = (shown, since)
        self._advanced = advanced
        for place in self._some_waiting(state):
            if (waiting := _blocked_at(state, place)) is None:
                self._blocked.pop(place, None)
                continue
            self._met.add(place)
            if now - self._blocked.setdefault(place, now) > timeout:
                self._blocked[place] = now
                yield _given_up(state, waiting, progress(), timeout)

    def _some_waiting(self, state: State) -> Iterator[_Place]:
        some = list(islice(self._round, WAITING_A_LOOK))
        if len(some) < WAITING_A_LOOK:
            yield from some
            self._blocked = {place: since for place, since in self._blocked.items() if place in self._met}
            self._met = set()
            places = [
                (operation.id, thing, index)
                for operation in state.moving_operations()
                if not operation.HasField("rebalance")
                for thing, index in state.unended.get(operation.id, ())
            ]
            self._round = iter(places)
            return
        yield from some


def _blocked_at(state: State, place: _Place) -> Migration | None:
    """The migration if its thing's turn has come and it can't begin, unless its operation is paused."""
    operation_id, thing, index = place
    unended = state.unended.get(operation_id, {})
    migration = unended.get((thing, index))
    if migration is None or migration.state != MigrationState.MIGRATION_STATE_PENDING:
        return None
    if state.operations[operation_id].paused or (thing, index - 1) in unended:
        return None
    return migration if mover_of(migration).obstacle(state, migration) else None


def _given_up(
    state: State, migration: Migration, progress: Sequence[MigrationProgress], timeout: float
) -> CancelMigration:
    thing = Placed.of(migration)
    reported = next((p.blocked_by for p in progress if Placed.partition(p.partition_id) == thing), "")
    known = what_blocks(state, migration)
    blocked_by = reported or (known.reason if known else "no reason reported")
    return CancelMigration(migration.operation_id, thing, f"no progress for {timeout:.0f} s: {blocked_by}")
