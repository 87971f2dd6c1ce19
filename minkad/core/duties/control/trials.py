"""The trials of suspects: which suspects a shard attaches next, while it attaches nothing else.

One search for a trial costs at most two plans for each pallet and number of failures, whatever the number of suspects.
"""

from collections.abc import Iterator
from typing import Final

from minka.v1.duties_pb2 import AssignmentState, Duty
from minka.v1.records_pb2 import Record
from minkad.core.duties.control import suspects
from minkad.core.duties.control.choosing import besides, chosen, cleared
from minkad.core.duties.control.duty_rows import Epochs
from minkad.core.duties.control.rooms import rooms, with_quarantined, without
from minkad.core.duties.control.shard_lives import is_registered
from minkad.core.duties.control.synthetic import lacking_on
from minkad.core.duties.placement import ShardRoom
from minkad.core.state import Placed, State

_A = AssignmentState
SUSPECT: Final = "it is tried alone"

Unplaced = dict[str, dict[int, str]]  # by pallet and duty: the reason why it isn't placed


def next_trial(state: State, unplaced: Unplaced, now_ms: int) -> Iterator[Record]:
    """Give the next suspects to a shard that attaches nothing else. Only synthetic suspects, and suspects that are
    SUSPECT in `unplaced`, are considered; if no shard takes the latter, `unplaced` gets the reason.
    """
    if not state.duties.suspected:
        return
    busy = {name for _, name in (*state.duties.attaching, *state.duties.preparing)}
    registered = [shard.name for shard in state.duties.shards.values() if is_registered(shard)]
    if registered and busy.issuperset(registered):
        return
    found: dict[str, list[ShardRoom]] = {}
    for some in suspects.due(state.duties, now_ms, lambda row: _may_be_tried(state, unplaced, row)):
        pallet = some.first[0].pallet
        if some.first[0].synthetic:
            given = _synthetic_trial(state, some, busy)
        else:
            if pallet not in found:
                found[pallet] = rooms(state, pallet, now_ms)
            given = _trial(state, some, found[pallet], busy, unplaced[pallet])
        if given is not None:
            shard, numbers, reason = given
            yield from cleared(state, numbers, shard, now_ms)
            epochs = Epochs(state.duties.next_epoch)
            yield from epochs.given(shard, _A.ASSIGNMENT_STATE_ASSIGNED, numbers, now_ms, reason)
            return


def _may_be_tried(state: State, unplaced: Unplaced, row: Duty) -> bool:
    is_free = Placed.duty(row.number) not in state.under_way
    return row.synthetic or (is_free and unplaced.get(row.pallet, {}).get(row.number) == SUSPECT)


def _trial(
    state: State, some: suspects.Alike, found: list[ShardRoom], busy: set[str], unplaced: dict[int, str]
) -> tuple[str, list[int], str] | None:
    """(shard, duties, reason) if there is a shard for one of these suspects. The shard also gets others of them, up to
    `together` in all, if it takes them.
    """
    pallet = state.duties.pallets[some.first[0].pallet]
    open_ = {room.name for room in with_quarantined(state, found) if room.is_open}
    if open_ and busy.issuperset(open_):
        return None
    refused: dict[int, str] = {}
    given = {number: move for number, *move in chosen(state, pallet, some.first, besides(found, busy), refused)}
    if not given:
        if busy.isdisjoint(open_):
            unplaced.update(refused)
        return None
    first = next(row for row in some.first if row.number in given)
    shard, reason = given[first.number]
    others = [row for row in some.first if row is not first][: some.together - 1]
    only = without(found, [shard], "is not asked")
    beside = [number for number, _, _ in chosen(state, pallet, others, only, refused)]
    return shard, [first.number, *beside], f"it is tried alone; {reason}"


def _synthetic_trial(state: State, some: suspects.Alike, busy: set[str]) -> tuple[str, list[int], str] | None:
    for shard in state.duties.shards.values():
        if shard.name not in busy:
            lacking = set(lacking_on(state, shard, (some.first[0].pallet,), with_suspects=True))
            number = next((row.number for row in some.first if row.number in lacking), None)
            if number is not None:
                return shard.name, [number], "it is synthetic, and tried alone"
    return None
