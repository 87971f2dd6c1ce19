"""Chooses a shard for each duty."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from minka.v1.duties_pb2 import AssignmentState, Duty, Pallet
from minka.v1.records_pb2 import Record
from minkad.core.duties.control.duty_rows import in_state
from minkad.core.duties.control.rooms import (
    balancer_of,
    groups,
    newest_version,
    placed_duty,
    settings_of,
    with_quarantined,
    without,
)
from minkad.core.duties.placement import ShardRoom
from minkad.core.state import State, weight_of

_A = AssignmentState
NO_SHARD: Final = "no shard takes duties of the pallet"


def cleared(state: State, numbers: list[int], shard: str, now_ms: int) -> Iterator[Record]:
    """The records that end the preparations of all other shards for these duties. No shard has the duties."""
    others: dict[str, list[int]] = {}
    for number in numbers:
        for one in state.duties.of_duty.get(number, ()):
            if one.shard != shard:
                others.setdefault(one.shard, []).append(number)
    for name, some in others.items():
        yield from in_state(name, _A.ASSIGNMENT_STATE_UNSPECIFIED, some, now_ms)


def besides(found: list[ShardRoom], busy: Collection[str]) -> list[ShardRoom]:
    """These rooms, but the busy shards, which try suspects, accept nothing."""
    return without(found, {room.name for room in found} - set(busy), "is attaching what may end its process")


def chosen(
    state: State, pallet: Pallet, duties: list[Duty], found: list[ShardRoom], unplaced: dict[int, str]
) -> Iterator[tuple[int, str, str]]:
    """(duty, shard, reason) for each duty that a shard gets; `unplaced` gets the reasons for the others. Duties that no
    trusted shard takes go to a quarantined shard.
    """
    trusted = list(by_trusted(state, pallet, duties, found, unplaced))
    yield from trusted
    resort, rest = with_quarantined(state, found), [duty for duty in duties if duty.number in unplaced]
    if rest and resort != found:
        for duty in rest:
            del unplaced[duty.number]
        for some, rooms_of in groups(state, pallet, rest, _with_more(state, resort, trusted)):
            yield from _by_balancer(state, pallet, some, rooms_of, unplaced)


def _with_more(state: State, found: list[ShardRoom], given: list[tuple[int, str, str]]) -> list[ShardRoom]:
    """The rooms as they are once the shards have the duties of `given`."""
    count, weight = Counter[str](), Counter[str]()
    for number, shard, _ in given:
        count[shard] += 1
        weight[shard] += weight_of(state.duties.duties[number])
    return [replace(one, count=one.count + count[one.name], weight=one.weight + weight[one.name]) for one in found]


def by_trusted(
    state: State, pallet: Pallet, duties: list[Duty], found: list[ShardRoom], unplaced: dict[int, str]
) -> Iterator[tuple[int, str, str]]:
    """Like `chosen`, without quarantined shards. A duty goes to a shard that has prepared for it, if there is one."""
    open_ = [room.name for room in found if room.accepts]
    if not found:
        unplaced.update((duty.number, NO_SHARD) for duty in duties)
        return
    prepared = [(duty, _prepared_on(state, duty, open_)) for duty in duties]
    yield from ((duty.number, shard, f"{shard} has prepared for it") for duty, shard in prepared if shard)
    rest = [duty for duty, shard in prepared if not shard]
    for some, rooms_of in groups(state, pallet, rest, found):
        yield from _by_balancer(state, pallet, some, rooms_of, unplaced)


def _prepared_on(state: State, duty: Duty, open_: list[str]) -> str:
    for one in state.duties.of_duty.get(duty.number, ()):
        if one.state == _A.ASSIGNMENT_STATE_PREPARING and one.shard in open_:
            return one.shard
    return ""


def _by_balancer(
    state: State, pallet: Pallet, duties: list[Duty], found: list[ShardRoom], unplaced: dict[int, str]
) -> Iterator[tuple[int, str, str]]:
    """Like `chosen`, by the pallet's balancer alone. While shards run several versions of the application, those with
    the newest version come first: their duties won't have to move again when the other shards stop.
    """
    balancer, settings = balancer_of(pallet), settings_of(pallet.balancer)
    open_ = [room.name for room in found if room.accepts]
    newest = newest_version(state, open_)
    preferred = [name for name in open_ if state.duties.shards[name].version == newest]
    asked = [placed_duty(state, duty) for duty in duties]
    if len(preferred) < len(open_):
        plan = balancer.place(asked, without(found, preferred), settings)
        yield from ((move.number, move.target, move.reason) for move in plan.moves)
        left_over = {one.number for one in plan.unplaced}
        asked = [one for one in asked if one.number in left_over]
        found = without(found, [name for name in open_ if name not in preferred])
    if asked:
        plan = balancer.place(asked, found, settings)
        yield from ((move.number, move.target, move.reason) for move in plan.moves)
        unplaced.update((one.number, one.reason) for one in plan.unplaced)
