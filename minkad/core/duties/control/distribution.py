"""Decides, by the rows, which shard gets which duties: the next records that the controller makes automatically.

The controller gives duties without a shard to shards, releases the duties of leaving shards in waves, and removes rows
that nobody needs. It remembers a duty that it couldn't place, with the reason, and tries it again when there may be
room.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from minka.v1.duties_pb2 import AssignmentState, Duty, Pallet, Shard, ShardState
from minka.v1.records_pb2 import Record
from minkad.core.duties.control import suspects
from minkad.core.duties.control.choosing import besides, by_trusted, chosen, cleared
from minkad.core.duties.control.duty_changes import removed_when_released
from minkad.core.duties.control.duty_mover import MOVES_PER_SHARD, PREPARED_WITHIN_MS
from minkad.core.duties.control.duty_rows import Epochs, duties_changed, in_state, shard_in_state, stops
from minkad.core.duties.control.quarantines import last_failure, quarantine_of
from minkad.core.duties.control.rooms import (
    may_be_placed,
    refusal,
    rooms,
    with_quarantined,
)
from minkad.core.duties.control.shard_lives import is_registered, left, let_go
from minkad.core.duties.control.synthetic import lacking_on
from minkad.core.duties.control.trials import SUSPECT, next_trial
from minkad.core.duties.control.trust import TRUSTED_FROM, score
from minkad.core.duties.placement import ShardRoom
from minkad.core.state import Placed, State, duty_name

_S, _A = ShardState, AssignmentState
_LIVE: Final = ShardState.SHARD_STATE_LIVE

PIECE: Final = 500  # duties that are placed, or synthetic duties that are given to shards, at once
FORGOTTEN_AFTER_MS: Final = 600_000  # from when a shard is gone until its row is removed
NEW_MS: Final = 1000  # a duty counts as new for this long
GATHER_MS: Final = 500  # between two placements of new duties
WINDOW: Final = 2000  # at most this many duties, of all pallets, that shards were given and haven't attached yet
SLOW_MS: Final = 10_000  # duties that take longer to attach don't count for WINDOW
MANY: Final = 2000  # if this many duties wait, new shards are awaited: see `_awaits_shards`
JOINED_MS: Final = 1000  # a shard counts as new for this long
AWAITED_MS: Final = 5000  # many duties wait for more new shards at most this long
TIMER_MS: Final = 200  # from one look to the next while no row changes
_HAS: Final = (_A.ASSIGNMENT_STATE_ASSIGNED, _A.ASSIGNMENT_STATE_ATTACHED)
FAILED_AND_LEFT: Final = (
    "it is stationary, and its shard has failed (on_failure: leave): pin it to a shard or release it"
)


class Distributor:
    """The distribution by one active controller, which remembers the duties that it couldn't place."""

    def __init__(self) -> None:
        self.unplaced: dict[str, dict[int, str]] = {}  # by pallet and duty: why it isn't placed
        self._room: dict[str, object] = {}  # by pallet: the values on which the room depended at the last try
        self._placed_ms: dict[str, int] = {}  # by pallet: when new duties were last placed
        self._awaited_ms: dict[str, int] = {}  # by pallet: since when MANY of its duties wait
        self._everywhere: dict[str, int] = {}  # by pallet: its `balance` when no shard lacked a synthetic duty
        self._looked: tuple[object, int] = (None, 0)  # the revisions at which there was nothing to do, and when

    def next_facts(self, state: State, now_ms: int) -> list[Record]:
        """The next records, which change each row at most once; none if there is nothing to do."""
        seen, (before, at) = (state.duties.revision, state.version), self._looked
        if seen == before and now_ms - at < TIMER_MS:
            return []
        self._forget_pallets(state)
        trying = suspects.trying(state.duties, now_ms)
        # Released duties are placed before others are released: the latter may otherwise have no room left.
        steps = (
            _tidy(state, now_ms),
            self._place(state, now_ms, trying),
            () if trying else next_trial(state, self.unplaced, now_ms),
            _waves(state, now_ms),
            self._synthetic(state, now_ms, trying),
        )
        found = next(filter(None, map(list, steps)), [])
        if not found:
            self._looked = (seen, now_ms)
        return found

    def _forget_pallets(self, state: State) -> None:
        """Drop the notes about deleted pallets."""
        noted: tuple[dict[str, Any], ...] = (
            self.unplaced,
            self._room,
            self._placed_ms,
            self._awaited_ms,
            self._everywhere,
        )
        for some in noted:
            for pallet in some.keys() - state.duties.pallets.keys():
                del some[pallet]

    def is_waited_for(self, state: State, pallet: str) -> bool:
        """True if some duty of the pallet is nowhere, and `unplaced` has no reason for it."""
        return not state.duties.nowhere.get(pallet, {}).keys() <= self.unplaced.get(pallet, {}).keys()

    def why_unplaced(self, duty: Duty) -> str:
        """The reason why the duty couldn't be placed; "" if none is known."""
        return self.unplaced.get(duty.pallet, {}).get(duty.number, "")

    def _place(self, state: State, now_ms: int, trying: set[str]) -> Iterator[Record]:
        for pallet_id, nowhere in state.duties.nowhere.items():
            if nowhere and (found := list(self._place_of(state, pallet_id, now_ms, trying))):
                yield from found
                return

    def _place_of(self, state: State, pallet_id: str, now_ms: int, trying: set[str]) -> Iterator[Record]:
        pallet = state.duties.pallets[pallet_id]
        nowhere, found = state.duties.nowhere[pallet.id], rooms(state, pallet.id, now_ms)
        open_ = [room.name for room in with_quarantined(state, found) if room.is_open]
        room = (state.duties.room.get(pallet.id), open_, _emptied(state), trying)
        if self._room.get(pallet.id) != room:
            self._room[pallet.id] = room
            self.unplaced[pallet.id] = {}
        unplaced = self.unplaced.setdefault(pallet.id, {})
        if not self.is_waited_for(state, pallet.id):
            return
        waiting = (number for number in nowhere if number not in unplaced)
        free = (number for number in waiting if Placed.duty(number) not in state.under_way)
        duties = [state.duties.duties[number] for number in islice(free, PIECE)]
        if _is_full(state, now_ms) or (open_ and trying.issuperset(open_)):
            return
        waits = len(nowhere) - len(unplaced)
        if self._awaits_shards(state, pallet.id, found, waits, now_ms) or self._gathers(pallet.id, duties, now_ms):
            return
        given: dict[tuple[str, str], list[int]] = defaultdict(list)
        for duty in duties:
            if not may_be_placed(pallet, duty):
                unplaced[duty.number] = FAILED_AND_LEFT
            elif suspects.is_suspect(duty):
                unplaced[duty.number] = SUSPECT
        to_place = [duty for duty in duties if duty.number not in unplaced]
        found = besides(found, trying)
        for number, shard, reason in chosen(state, pallet, to_place, found, unplaced):
            given[shard, reason].append(number)
        epochs = Epochs(state.duties.next_epoch)
        for (shard, reason), numbers in sorted(given.items()):
            yield from cleared(state, numbers, shard, now_ms)
            yield from epochs.given(shard, _A.ASSIGNMENT_STATE_ASSIGNED, numbers, now_ms, reason)

    def _synthetic(self, state: State, now_ms: int, trying: set[str]) -> Iterator[Record]:
        """Give the next synthetic duties to all shards that take their pallet, whatever the shards' capacities."""
        balance = state.duties.balance
        due = {pallet: balance[pallet] for pallet, some in state.duties.synthetic.items() if some}
        due = {pallet: seen for pallet, seen in due.items() if self._everywhere.get(pallet) != seen}
        if not due or _is_full(state, now_ms):
            return
        epochs, most = Epochs(state.duties.next_epoch), PIECE
        for shard in state.duties.shards.values():
            if shard.name in trying:
                continue
            lacking = list(islice(lacking_on(state, shard, due), most))
            most -= len(lacking)
            reason = "it is synthetic: on every shard"
            yield from epochs.given(shard.name, _A.ASSIGNMENT_STATE_ASSIGNED, lacking, now_ms, reason)
        if most == PIECE and not trying:
            self._everywhere.update(due)

    def _awaits_shards(self, state: State, pallet: str, found: list[ShardRoom], waits: int, now_ms: int) -> bool:
        """True if many duties wait, and a shard has come within the last second. More shards may come. Without this
        wait, the first shards would get all duties, and would have to give most of them to the next shards.
        """
        if waits < MANY:
            self._awaited_ms.pop(pallet, None)
            return False
        since = self._awaited_ms.setdefault(pallet, now_ms)
        last = max((state.duties.shards[room.name].registered_ms for room in found if room.is_open), default=0)
        return now_ms - last < JOINED_MS and now_ms - since < AWAITED_MS

    def _gathers(self, pallet: str, duties: list[Duty], now_ms: int) -> bool:
        """True if these duties are all new, and the pallet's last new duties were placed less than GATHER_MS ago. More
        duties may come, and it is cheaper to tell each shard about many at once.
        """
        if any(now_ms - duty.created_ms > NEW_MS for duty in duties):
            return False
        if now_ms - self._placed_ms.get(pallet, 0) < GATHER_MS:
            return True
        if len(duties) < PIECE:
            self._placed_ms[pallet] = now_ms
        return False


def _is_full(state: State, now_ms: int) -> bool:
    """True if more than WINDOW - PIECE of the duties that shards were given within the last SLOW_MS aren't attached
    yet. The next piece then has to wait: more duties would only delay the heartbeats of shards and nodes.
    """
    first_too_many = next(islice(reversed(state.duties.attaching), WINDOW - PIECE, None), None)
    one = None if first_too_many is None else state.duties.assignment(*first_too_many)
    return one is not None and now_ms - one.since_ms < SLOW_MS


# Releases


def _tidy(state: State, now_ms: int) -> Iterator[Record]:
    """Remove deleted duties that are released, and change the rows of shards that have left, are trusted again, or are
    gone.
    """
    duties = state.duties
    yield from duties_changed(removed=islice(removed_when_released(duties), PIECE))
    for shard in [shard for shard in duties.shards.values() if shard.state != _LIVE]:
        yield from _tidy_shard(state, shard, now_ms)
    yield from _forgotten_preparations(state, now_ms)


def _forgotten_preparations(state: State, now_ms: int) -> Iterator[Record]:
    """Drop a preparation in three cases. The shard that was to release the duty keeps it after all. Or the shard that
    prepares can no longer have it. Or the holder has failed, and the duty is a suspect now: a suspect goes only to a
    shard that isn't preparing or attaching anything.
    A migration that has begun ends its preparation itself; one that is PENDING waits for the end of this preparation.
    """
    due: dict[str, list[int]] = {}
    for number, name in state.duties.preparing:
        if Placed.duty(number) in state.under_way or not is_registered(state.duties.shards[name]):
            continue
        if _is_forgotten(state, number, name):
            due.setdefault(name, []).append(number)
    for name, numbers in due.items():
        yield from in_state(name, _A.ASSIGNMENT_STATE_UNSPECIFIED, numbers, now_ms)


def _is_forgotten(state: State, number: int, name: str) -> bool:
    row, holder = state.duties.duties[number], state.duties.holder(number)
    if holder is None:
        return suspects.is_suspect(row)
    is_kept = _stays(state, state.duties.shards[holder.shard], row)
    return holder.state in _HAS and (is_kept or not _takes(state, row, name))


def _tidy_shard(state: State, shard: Shard, now_ms: int) -> Iterator[Record]:
    held = state.duties.on_shard.get(shard.name, {})
    match shard.state:
        case _S.SHARD_STATE_LEAVING if all(one.state == _A.ASSIGNMENT_STATE_KEPT for one in held.values()):
            yield from left(state.duties, shard, now_ms)
        case _S.SHARD_STATE_QUARANTINED if score(shard, now_ms) >= TRUSTED_FROM:
            yield shard_in_state(shard, _S.SHARD_STATE_LIVE, "its health score is good again", now_ms)
        case _S.SHARD_STATE_AWAY if now_ms >= shard.away_until_ms:
            yield shard_in_state(shard, _S.SHARD_STATE_GONE, "has not come back within its grace", now_ms)
            reason = f"{shard.name} has not come back within its grace"
            yield from in_state(shard.name, _A.ASSIGNMENT_STATE_UNSPECIFIED, list(held), now_ms, reason)
        case _S.SHARD_STATE_AWAY | _S.SHARD_STATE_GONE if held:
            yield from let_go(state.duties, shard, now_ms)
        case _S.SHARD_STATE_GONE if not held and now_ms - shard.state_since_ms >= FORGOTTEN_AFTER_MS:
            yield Record(shard_removed=shard.name)


def _waves(state: State, now_ms: int) -> Iterator[Record]:
    """Release, some at a time, the duties of shards that leave or no longer take their pallet; and all duties that are
    pinned to another shard.
    """
    epochs, going = Epochs(state.duties.next_epoch), _going(state)
    found = 0
    for name in sorted(going):
        if found < PIECE:
            for record in _wave_of(state, state.duties.shards[name], epochs, now_ms):
                found += len(record.assignments_changed.duties)
                yield record
    yield from _pinned_elsewhere(state, now_ms)


def _going(state: State) -> set[str]:
    """The shards that may have duties that other shards should get."""
    emptied, duties = _emptied(state), state.duties
    shards = ((name, duties.shards[name]) for name in duties.on_shard)
    found = {name for name, shard in shards if shard.state != _LIVE or (emptied and shard.node in emptied)}
    for name, loads in duties.loads.items():
        if any(load.duties and pallet not in duties.takes[name] for pallet, load in loads.items()):
            found.add(name)
    return found


def _emptied(state: State) -> set[str]:
    """The nodes that are being drained: their shards get no duties."""
    return {node.id for node in state.nodes.values() if node.emptied}


def _wave_of(state: State, shard: Shard, epochs: Epochs, now_ms: int) -> Iterator[Record]:
    if shard.state == _S.SHARD_STATE_LEAVING:
        yield from _leaving(state, shard, now_ms)
        return
    if shard.state in (_S.SHARD_STATE_AWAY, _S.SHARD_STATE_GONE):
        return
    closed, takes = refusal(state, shard), state.duties.takes[shard.name]
    for pallet, load in list(state.duties.loads.get(shard.name, {}).items()):
        if load.duties and (closed or pallet not in takes):
            reason = f"{shard.name} {closed.removeprefix('it ') or f'takes no duties of {pallet}'}"
            yield from _moved_away(state, shard, state.duties.pallets[pallet], reason, epochs, now_ms)


def _free(state: State, shard: Shard, pallet: Pallet | None = None) -> int:
    most = pallet.moves_per_shard if pallet is not None else 0
    return (most or MOVES_PER_SHARD) - state.duties.releasing.get(shard.name, 0)


def _leaving(state: State, shard: Shard, now_ms: int) -> Iterator[Record]:
    """Release the shard's duties, some at a time, also those for which there is no other shard yet."""
    held = state.duties.on_shard[shard.name].values()
    due = (one.duty for one in held if one.state in _HAS)
    prepares = [one.duty for one in held if one.state == _A.ASSIGNMENT_STATE_PREPARING]
    numbers = list(islice(due, max(0, _free(state, shard))))
    yield from in_state(shard.name, _A.ASSIGNMENT_STATE_RELEASING, numbers, now_ms, stops(shard))
    yield from in_state(shard.name, _A.ASSIGNMENT_STATE_UNSPECIFIED, prepares, now_ms)


def _moved_away(
    state: State, shard: Shard, pallet: Pallet, reason: str, epochs: Epochs, now_ms: int
) -> Iterator[Record]:
    """Release the duties that have a place on another shard, except stationary ones. With a warm hand-over, the other
    shard prepares first; this shard waits for that at most PREPARED_WITHIN_MS.
    """
    prepared_for = _prepared_for(state, shard, pallet)
    late = [number for number, since_ms in prepared_for.items() if now_ms - since_ms >= PREPARED_WITHIN_MS]
    if late:
        yield from in_state(shard.name, _A.ASSIGNMENT_STATE_RELEASING, late, now_ms, reason)
        return
    free = _free(state, shard, pallet) - len(prepared_for)
    duties = list(islice(_movable(state, shard, pallet), max(0, free)))
    if not duties:
        return
    targets = _places_for(state, pallet, duties, now_ms)
    cold = [number for number in targets if not pallet.warm or suspects.is_suspect(state.duties.duties[number])]
    if cold:
        yield from in_state(shard.name, _A.ASSIGNMENT_STATE_RELEASING, cold, now_ms, reason)
        return
    by_target: dict[str, list[int]] = {}
    for number, target in targets.items():
        by_target.setdefault(target, []).append(number)
    for target, numbers in sorted(by_target.items()):
        yield from epochs.given(target, _A.ASSIGNMENT_STATE_PREPARING, numbers, now_ms, reason)


def _prepared_for(state: State, shard: Shard, pallet: Pallet) -> dict[int, int]:
    """The duties that the shard is to release once another shard has prepared for them. By duty: since when the other
    shard prepares. Duties that a migration moves are left out.
    """
    found: dict[int, int] = {}
    for number, name in state.duties.preparing:
        holder, one = state.duties.assignment(number, shard.name), state.duties.assignment(number, name)
        is_due = holder is not None and holder.state in _HAS and Placed.duty(number) not in state.under_way
        if is_due and one is not None and state.duties.duties[number].pallet == pallet.id:
            found[number] = one.since_ms
    return found


def _movable(state: State, shard: Shard, pallet: Pallet) -> Iterator[Duty]:
    """The shard's duties of the pallet that may be moved, that no operation moves, and for which no shard prepares."""
    for one in state.duties.on_shard[shard.name].values():
        row = state.duties.duties[one.duty]
        is_left_alone = Placed.duty(row.number) in state.moving or len(state.duties.assignments(row.number)) > 1
        if one.state in _HAS and row.pallet == pallet.id and not (row.stationary or row.synthetic or is_left_alone):
            yield row


def _places_for(state: State, pallet: Pallet, duties: list[Duty], now_ms: int) -> dict[int, str]:
    """By duty, the shard to which it could go. Duties that are already being released get their places first; if one of
    them has none, no further duty has one.
    """
    on_their_way = [
        state.duties.duties[one.duty]
        for name, count in state.duties.releasing.items()
        if count
        for one in state.duties.on_shard[name].values()
        if one.state == _A.ASSIGNMENT_STATE_RELEASING
    ]
    before = [row for row in on_their_way if row.pallet == pallet.id and not (row.deleting or row.synthetic)]
    unplaced: dict[int, str] = {}
    found = list(by_trusted(state, pallet, [*before, *duties], rooms(state, pallet.id, now_ms), unplaced))
    if any(row.number in unplaced for row in before):
        return {}
    new = {row.number for row in duties}
    return {number: target for number, target, _ in found if number in new}


def _pinned_elsewhere(state: State, now_ms: int) -> Iterator[Record]:
    """Release duties that are pinned to another shard, except those that `_wave_of` releases in any case."""
    due: dict[tuple[str, str], list[int]] = {}
    for number in state.duties.pinned:
        row, holder = state.duties.duties[number], state.duties.holder(number)
        if holder is None or holder.state not in _HAS or holder.shard == row.pinned_to:
            continue
        if _stays(state, state.duties.shards[holder.shard], row) and _takes(state, row, row.pinned_to):
            due.setdefault((holder.shard, row.pinned_to), []).append(number)
    for (name, pinned_to), numbers in due.items():
        reason = f"it is pinned to {pinned_to}"
        yield from in_state(name, _A.ASSIGNMENT_STATE_RELEASING, numbers, now_ms, reason)


def _stays(state: State, shard: Shard, duty: Duty) -> bool:
    """True if the shard keeps the duty unless somebody moves the duty. A stationary duty stays even on a shard that no
    longer takes its pallet.
    """
    if duty.stationary:
        return shard.state in (_LIVE, _S.SHARD_STATE_QUARANTINED)
    return not refusal(state, shard) and duty.pallet in state.duties.takes[shard.name]


def _takes(state: State, duty: Duty, name: str) -> bool:
    shard = state.duties.shards.get(name)
    takes = shard is not None and any(one.pallet == duty.pallet for one in shard.pallets)
    return shard is not None and takes and not refusal(state, shard) and quarantine_of(state, duty, shard) is None


def describe_unplaced(state: State, distributor: Distributor, duty: Duty, now_ms: int) -> str:
    """The reason, for people, why no shard has the duty; "" if a shard has it."""
    if duty.number not in state.duties.nowhere.get(duty.pallet, {}):
        return ""
    why = distributor.why_unplaced(duty)
    if suspects.is_suspect(duty):
        kept = suspects.why(duty, now_ms)
        why = kept if why in ("", SUSPECT) else f"{kept}; {why}"
    if not why:
        return f"{duty_name(duty)} is about to be placed"
    return f"{why}; {last_failure(duty)}" if duty.quarantines else why
