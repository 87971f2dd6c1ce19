"""Duties and shards for the tests of the balancers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from minkad.core.duties.placement import BalancerSettings, DutyPlan, FillBy, PlacedDuty, PreSort, ShardRoom

NAMES = tuple("abcdefgh")


def duties_of(weights: Iterable[int], shard: str = "", first: int = 0) -> list[PlacedDuty]:
    """Make a duty for each weight; the first one is the oldest."""
    return [PlacedDuty(n, f"feeds/{n}", weight, n, shard) for n, weight in enumerate(weights, first)]


def shards_of(**capacities: int | None) -> list[ShardRoom]:
    """Make shards with these names and capacities."""
    return [ShardRoom(name, capacity) for name, capacity in capacities.items()]


def applied(duties: Sequence[PlacedDuty], plan: DutyPlan) -> list[PlacedDuty]:
    """Return the duties after the plan's moves. Check that each move begins at the shard that has the duty."""
    moves = {move.number: move for move in plan.moves}
    assert len(moves) == len(plan.moves)
    for duty in duties:
        assert duty.number not in moves or moves[duty.number].source == duty.shard != moves[duty.number].target
    return [replace(d, shard=moves[d.number].target) if d.number in moves else d for d in duties]


def weights(duties: Iterable[PlacedDuty], shards: Iterable[ShardRoom]) -> dict[str, int]:
    """Return, for each shard, the total weight of its duties."""
    found = {shard.name: 0 for shard in shards}
    for duty in duties:
        if duty.shard in found:
            found[duty.shard] += duty.weight
    return found


def counts(duties: Iterable[PlacedDuty], shards: Iterable[ShardRoom]) -> dict[str, int]:
    """Return, for each shard, the number of its duties."""
    return weights((replace(duty, weight=1) for duty in duties), shards)


def loaded(duties: Sequence[PlacedDuty], shards: Sequence[ShardRoom]) -> list[ShardRoom]:
    """The shards, each with the totals of its duties, as `place` expects."""
    weight, count = weights(duties, shards), counts(duties, shards)
    return [replace(shard, weight=weight[shard.name], count=count[shard.name]) for shard in shards]


settings_of: st.SearchStrategy[BalancerSettings] = st.builds(
    BalancerSettings,
    max_difference=st.integers(1, 4),
    fill_by=st.sampled_from(FillBy),
    fill_limit=st.integers(1, 60),
    shard_order=st.lists(st.sampled_from(NAMES), unique=True, max_size=4).map(tuple),
    pre_sort=st.sampled_from(PreSort),
)


@st.composite
def plain(draw: st.DrawFn, heaviest: int = 50) -> tuple[list[PlacedDuty], list[ShardRoom]]:
    """Cases in which all duties may move. The duties are on any shards, and each shard has room for all duties."""
    found = draw(st.lists(st.integers(1, heaviest), max_size=60))
    names = draw(st.sampled_from([NAMES[:n] for n in range(1, 8)]))
    places = draw(st.lists(st.sampled_from(["", "gone", *names]), min_size=len(found), max_size=len(found)))
    duties = [replace(d, shard=place) for d, place in zip(duties_of(found), places, strict=True)]
    ample = sum(found) + 2 * heaviest
    factors = draw(st.lists(st.integers(1, 5), min_size=len(names), max_size=len(names)))
    return duties, [ShardRoom(name, ample * factor) for name, factor in zip(names, factors, strict=True)]


@st.composite
def anything(draw: st.DrawFn) -> tuple[list[PlacedDuty], list[ShardRoom]]:
    """Cases with fixed, pinned or quarantined duties, and with shards that leave, are too small, or take no duties."""
    names = draw(st.sampled_from([NAMES[:n] for n in range(6)]))
    shard = st.sampled_from(["", "gone", *names])
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 40), st.integers(0, 5), shard, st.integers(0, 9).map(lambda n: n == 0),
                st.frozensets(st.sampled_from([*names, "gone"]), max_size=2), st.booleans(), shard,
            ),
            max_size=40,
        )
    )  # fmt: skip
    duties = [
        PlacedDuty(n, f"feeds/{n}", weight, created, where, fixed, not_on if n % 3 == 0 else frozenset(),
                   only_on if pinned and n % 5 == 0 else "")
        for n, (weight, created, where, fixed, not_on, pinned, only_on) in enumerate(rows)
    ]  # fmt: skip
    rooms: Mapping[str, tuple[int | None, bool, int]] = {
        name: draw(st.tuples(st.sampled_from([None, 0, 30, 80, 300]), st.integers(0, 4).map(bool), st.integers(0, 2)))
        for name in names
    }
    return duties, [ShardRoom(name, capacity, accepts, rank) for name, (capacity, accepts, rank) in rooms.items()]
