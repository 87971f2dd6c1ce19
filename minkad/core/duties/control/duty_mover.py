"""Moves a duty from one shard to another: the source releases the duty, then the target gets it. With a warm hand-over,
the target prepares first.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from minka.v1.cluster_pb2 import Migration, MigrationState
from minka.v1.duties_pb2 import AssignmentState
from minka.v1.records_pb2 import Record
from minkad.core.controller.mover import MigrationCaps, Most
from minkad.core.controller.rows import migration_in_state
from minkad.core.controller.selectors import Live
from minkad.core.duties.control.duty_rows import Epochs, in_state
from minkad.core.duties.control.quarantines import quarantine_of
from minkad.core.duties.control.rooms import capacity_of, refusal
from minkad.core.duties.control.suspects import is_suspect
from minkad.core.state import State, duty_name

_M, _A = MigrationState, AssignmentState
_HAS: Final = (_A.ASSIGNMENT_STATE_ASSIGNED, _A.ASSIGNMENT_STATE_ATTACHED)

MOVES_PER_SHARD: Final = 50  # for one shard at once, unless the pallet sets another number
MOVES_IN_CLUSTER: Final = 1000
PREPARED_WITHIN_MS: Final = 10_000  # after this time the duty is handed over without preparation


class DutyMover:
    """The `Mover` of duties: PENDING → (PREPARING →) RELEASING → COMPLETED."""

    def name(self, state: State, id_: int) -> str:
        """The duty's name; its number if it is gone."""
        row = state.duties.duties.get(id_)
        return f"duty {id_}" if row is None else duty_name(row)

    def impossible(self, state: State, migration: Migration) -> str | None:
        """The reason: the duty isn't where the plan found it, is kept for another shard, or can't go to the target."""
        row, holder = state.duties.duties.get(migration.duty), state.duties.holder(migration.duty)
        if row is None or row.deleting:
            return "it was deleted"
        if holder is None or holder.shard != migration.source:
            return f"it is no longer on {migration.source}"
        if holder.state == _A.ASSIGNMENT_STATE_KEPT:
            return f"{holder.shard} is away, and it is kept for it"
        return _no_target(state, migration)

    def obstacle(self, state: State, migration: Migration) -> str | None:
        """The reason to wait: the source releases the duty for another reason, or another shard prepares for it."""
        holder = state.duties.holder(migration.duty)
        if holder is None or holder.state not in _HAS:
            return f"{migration.source} is releasing it"
        others = [one.shard for one in state.duties.of_duty[migration.duty] if one.shard != holder.shard]
        return f"{others[0]} prepares for it" if others else None

    def most(self, state: State, migration: Migration, caps: MigrationCaps) -> Most:
        """The pallet's limit for one shard."""
        row = state.duties.duties.get(migration.duty)
        pallet = state.duties.pallets.get(row.pallet) if row is not None else None
        return Most((pallet.moves_per_shard if pallet is not None else 0) or MOVES_PER_SHARD, MOVES_IN_CLUSTER)

    def hosts(self, state: State, migration: Migration, live: Live) -> list[str]:
        """The source and the target."""
        return [migration.source, migration.target]

    def busy_besides(self, state: State) -> Mapping[str, int]:
        """By shard, the number of duties that it was given and has yet to attach; they count for its limit, too."""
        return state.duties.taking

    def begin(self, state: State, migrations: Sequence[Migration], now_ms: int) -> list[Record]:
        """The target prepares, or the source releases."""
        cold, warm = list[Migration](), list[Migration]()
        for migration in migrations:
            row = state.duties.duties[migration.duty]
            (warm if state.duties.pallets[row.pallet].warm else cold).append(migration)
        epochs = Epochs(state.duties.next_epoch)
        records: list[Record] = []
        for (shard, reason), rows in _by(warm, "target").items():
            numbers = [m.duty for m in rows]
            records += epochs.given(shard, _A.ASSIGNMENT_STATE_PREPARING, numbers, now_ms, reason)
        records += [migration_in_state(m, _M.MIGRATION_STATE_PREPARING, now_ms) for m in warm]
        return records + self._release(state, cold, now_ms)

    def _release(self, state: State, migrations: Iterable[Migration], now_ms: int) -> list[Record]:
        records: list[Record] = []
        for (shard, reason), rows in _by(migrations, "source").items():
            held = ((m.duty, state.duties.assignment(m.duty, shard)) for m in rows)
            numbers = [number for number, one in held if one is not None and one.state in _HAS]
            records += in_state(shard, _A.ASSIGNMENT_STATE_RELEASING, numbers, now_ms, reason)
            records += [migration_in_state(m, _M.MIGRATION_STATE_RELEASING, now_ms) for m in rows]
        return records

    def go_on(self, state: State, migrations: Sequence[Migration], live: Live, now_ms: int) -> list[Record]:
        """Give released duties to their targets. If a target can't have its duty, the migration ends, and another shard
        gets the duty.
        """
        records, given, unprepared = list[Record](), list[Migration](), list[Migration]()
        for migration in migrations:
            row, holder = state.duties.duties.get(migration.duty), state.duties.holder(migration.duty)
            if row is None or row.deleting:
                records += _ended(state, migration, now_ms, "it was deleted")
            elif (never := _no_target(state, migration)) is not None:
                records += _ended(state, migration, now_ms, never)
            elif holder is None:
                given.append(migration)
            elif holder.shard != migration.source:
                records += _ended(state, migration, now_ms, f"it is on {holder.shard}")
            elif holder.state == _A.ASSIGNMENT_STATE_KEPT:
                records += _ended(state, migration, now_ms, f"{holder.shard} is away, and it is kept for it")
            elif migration.state == _M.MIGRATION_STATE_PREPARING and _is_late(migration, now_ms):
                unprepared.append(migration)
        epochs = Epochs(state.duties.next_epoch)
        for (shard, reason), rows in _by(given, "target").items():
            numbers = [m.duty for m in rows]
            records += epochs.given(shard, _A.ASSIGNMENT_STATE_ASSIGNED, numbers, now_ms, reason)
            records += [migration_in_state(m, _M.MIGRATION_STATE_COMPLETED, now_ms, "moved") for m in rows]
        return records + self._release(state, unprepared, now_ms)

    def waits_for(self, state: State, migration: Migration, now_ms: int | None) -> tuple[str, str]:
        """The source's delegate has yet to release the duty."""
        if migration.state != _M.MIGRATION_STATE_RELEASING:
            return "", ""
        holder = state.duties.holder(migration.duty)
        since_ms = holder.since_ms if holder is not None else migration.started_ms
        waited = "" if now_ms is None else f" {max(0, now_ms - since_ms) // 1000:,} s"
        reason = f"it has waited{waited} for {migration.source}'s detach"
        return reason, f"look at what {migration.source} logs, or stop its process"

    def refusal_to_go_back(self, state: State, migration: Migration, live: Live) -> str | None:
        """None: a migration can always go back, as its source still has the duty."""
        return None

    def go_back(self, state: State, migration: Migration, live: Live, now_ms: int, reason: str) -> list[Record]:
        """The target no longer needs to prepare."""
        return _ended(state, migration, now_ms, reason)


def _by(migrations: Iterable[Migration], side: str) -> dict[tuple[str, str], list[Migration]]:
    """The migrations by (shard on this side, reason)."""
    found: dict[tuple[str, str], list[Migration]] = {}
    for migration in migrations:
        found.setdefault((getattr(migration, side), migration.reason), []).append(migration)
    return found


def _no_target(state: State, migration: Migration) -> str | None:
    row, shard = state.duties.duties[migration.duty], state.duties.shards.get(migration.target)
    if is_suspect(row):
        return "it may end the processes that attach it, and is tried alone"
    if shard is None:
        return f"there is no shard {migration.target}"
    if capacity_of(shard, row.pallet) is None:
        return f"{shard.name} takes no duties of {row.pallet}"
    if quarantine_of(state, row, shard) is not None:
        return f"it couldn't be attached on {shard.name}"
    if why := refusal(state, shard):
        return f"{shard.name} can't take it: {why}"
    return None


def _is_late(migration: Migration, now_ms: int) -> bool:
    return now_ms - migration.started_ms >= PREPARED_WITHIN_MS


def _ended(state: State, migration: Migration, now_ms: int, outcome: str) -> list[Record]:
    """End the migration without a move: the target no longer needs to prepare for the duty."""
    one = state.duties.assignment(migration.duty, migration.target)
    prepares = one is not None and one.state == _A.ASSIGNMENT_STATE_PREPARING
    dropped = in_state(migration.target, _A.ASSIGNMENT_STATE_UNSPECIFIED, [migration.duty], now_ms) if prepares else ()
    return [*dropped, migration_in_state(migration, _M.MIGRATION_STATE_CANCELLED, now_ms, outcome)]
