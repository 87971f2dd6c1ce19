"""Properties of the balancers, for any duties and shards: each keeps its bound, moves few duties, and comes to rest."""

from collections.abc import Sequence
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from minkad.core.duties.placement import (
    BALANCERS,
    BalancerSettings,
    DutyPlan,
    FillBy,
    PlacedDuty,
    ShardRoom,
)
from minkad.core.placement.quotas import level_shares
from tests.unit.core.duty_cases import anything, applied, counts, duties_of, loaded, plain, settings_of, weights

Case = tuple[list[PlacedDuty], list[ShardRoom]]
DEFAULTS = BalancerSettings()
few = hypothesis_settings(max_examples=40)  # few examples, since each is tried with several balancers
every_balancer = pytest.mark.parametrize("name", BALANCERS)
by_weight = pytest.mark.parametrize("name", ["fair_workload", "capacity_workload"])


def limit_of(name: str, shard: ShardRoom, settings: BalancerSettings) -> float:
    """The most weight, or the most duties, that the shard may have under this balancer."""
    if name == "spill_over" and settings.fill_by is not FillBy.CAPACITY:
        return settings.fill_limit
    if name in ("spill_over", "capacity_workload") and shard.capacity is not None:
        return shard.capacity
    return float("inf")


def by_number(name: str, settings: BalancerSettings) -> bool:
    return name == "round_robin" or (name == "spill_over" and settings.fill_by is FillBy.COUNT)


def may_be_on(duty: PlacedDuty, shard: ShardRoom) -> bool:
    pinned = not duty.only_on or duty.only_on == shard.name
    return shard.accepts and shard.capacity != 0 and shard.name not in duty.not_on and pinned


@every_balancer
@few
@given(case=anything(), settings=settings_of)
def test_rebalance_comes_to_rest(name: str, case: Case, settings: BalancerSettings) -> None:
    duties, shards = case
    plan = BALANCERS[name].rebalance(duties, shards, settings)
    again = BALANCERS[name].rebalance(applied(duties, plan), shards, settings)
    assert again.moves == ()
    assert {one.number for one in again.unplaced} == {one.number for one in plan.unplaced}


@every_balancer
@few
@given(case=anything(), settings=settings_of, seed=st.integers())
def test_the_order_of_the_input_does_not_matter(name: str, case: Case, settings: BalancerSettings, seed: int) -> None:
    duties, shards = case
    new, rooms = [d for d in duties if not d.shard], loaded(duties, shards)
    plan, placing = BALANCERS[name].rebalance(*case, settings), BALANCERS[name].place(new, rooms, settings)
    for one in (duties, shards, new, rooms):
        Random(seed).shuffle(one)
    assert BALANCERS[name].rebalance(duties, shards, settings) == plan
    assert BALANCERS[name].place(new, rooms, settings) == placing


@every_balancer
@few
@given(case=anything(), settings=settings_of)
def test_a_plan_respects_fixed_duties_and_limits(name: str, case: Case, settings: BalancerSettings) -> None:
    """Fixed duties stay, no duty goes to a shard that may not have the duty, and no move exceeds a limit."""
    duties, shards = case
    by_name, by_number_of = {shard.name: shard for shard in shards}, {duty.number: duty for duty in duties}
    new = [duty for duty in duties if not duty.shard]
    for plan, had in (
        (BALANCERS[name].rebalance(duties, shards, settings), duties),
        (BALANCERS[name].place(new, loaded(duties, shards), settings), new),
    ):
        for move in plan.moves:
            duty = by_number_of[move.number]
            assert not (duty.is_fixed and duty.shard)
            assert may_be_on(duty, by_name[move.target])
        total = counts if by_number(name, settings) else weights
        before, after = (
            total(duties, shards),
            total([*applied(had, plan), *(d for d in duties if d not in had)], shards),
        )
        for shard in shards:
            assert after[shard.name] <= max(before[shard.name], limit_of(name, shard, settings))
        assert {s.name: s.weight_before for s in plan.shards} == {s.name: s.weight for s in loaded(duties, shards)}


@every_balancer
@few
@given(case=anything(), settings=settings_of)
def test_a_plan_names_exactly_the_duties_without_a_place(name: str, case: Case, settings: BalancerSettings) -> None:
    duties, shards = case
    plan = BALANCERS[name].rebalance(duties, shards, settings)
    after = applied(duties, plan)
    total = (counts if by_number(name, settings) else weights)(after, shards)
    open_ = {shard.name: shard for shard in shards if shard.accepts and shard.capacity != 0}
    unplaced = {one.number: one for one in plan.unplaced}
    assert len(unplaced) == len(plan.unplaced)
    for duty in after:
        settled = duty.shard in open_ and may_be_on(duty, open_[duty.shard])
        if duty.is_fixed and duty.shard:
            assert duty.number not in unplaced
        elif duty.number in unplaced:
            assert unplaced[duty.number].shard == duty.shard
            assert unplaced[duty.number].reason
            size = 1 if by_number(name, settings) else duty.weight
            for shard in open_.values():
                free = limit_of(name, shard, settings) - total[shard.name]
                assert shard.name == duty.shard or not may_be_on(duty, shard) or size > free
        else:
            assert settled


@every_balancer
@few
@given(case=anything(), settings=settings_of)
def test_placing_leaves_other_duties_where_they_are_and_leaves_out_only_those_that_fit_nowhere(
    name: str, case: Case, settings: BalancerSettings
) -> None:
    duties, shards = case
    new = [duty for duty in duties if not duty.shard]
    plan = BALANCERS[name].place(new, loaded(duties, shards), settings)
    assert sorted([m.number for m in plan.moves] + [u.number for u in plan.unplaced]) == [d.number for d in new]
    assert all(move.source == "" for move in plan.moves)
    after = [*applied(new, plan), *(duty for duty in duties if duty.shard)]
    total = (counts if by_number(name, settings) else weights)(after, shards)
    for one in plan.unplaced:
        duty = next(d for d in new if d.number == one.number)
        size = 1 if by_number(name, settings) else duty.weight
        for shard in shards:
            assert not may_be_on(duty, shard) or size > limit_of(name, shard, settings) - total[shard.name]


# The bounds that each balancer keeps


@given(case=plain(), difference=st.integers(1, 5))
def test_round_robin_keeps_its_bound_with_the_fewest_moves(case: Case, difference: int) -> None:
    duties, shards = case
    plan = BALANCERS["round_robin"].rebalance(duties, shards, BalancerSettings(max_difference=difference))
    number = counts(applied(duties, plan), shards)
    assert max(number.values()) - min(number.values()) <= difference
    has = counts(duties, shards)
    homeless = len(duties) - sum(has.values())
    assert len(plan.moves) == plan.minimum_moves == homeless + fewest_given(list(has.values()), homeless, difference)


def fewest_given(has: Sequence[int], homeless: int, difference: int) -> int:
    """Return the fewest duties that must move so that each shard ends with `low` to `low + difference` duties."""
    total, best = sum(has) + homeless, sum(has)
    for low in range(total // len(has) + 1):
        if (low + difference) * len(has) >= total:
            over = sum(max(0, n - low - difference) for n in has)
            best = min(best, max(over, sum(max(0, low - n) for n in has) - homeless))
    return best


@by_weight
@given(case=plain())
def test_balancers_by_weight_keep_their_bound(name: str, case: Case) -> None:
    duties, shards = case
    after = applied(duties, BALANCERS[name].rebalance(duties, shards, DEFAULTS))
    check_shares(name, after, shards, 1.5)


@by_weight
@given(case=plain())
def test_duties_placed_at_once_are_within_one_duty_of_their_shares(name: str, case: Case) -> None:
    duties = duties_of(duty.weight for duty in case[0])
    check_shares(name, applied(duties, BALANCERS[name].place(duties, case[1], DEFAULTS)), case[1], 1.0)
    check_shares(name, applied(duties, BALANCERS[name].rebalance(duties, case[1], DEFAULTS)), case[1], 1.0)


def check_shares(name: str, after: Sequence[PlacedDuty], shards: Sequence[ShardRoom], times: float) -> None:
    """Check that the weight of each shard differs from its share by at most 5 %, or by at most `times` the heaviest
    weight if that is more.
    """
    parts = {shard.name: 1 if name == "fair_workload" else shard.capacity or 0 for shard in shards}
    heaviest = max((duty.weight for duty in after), default=0)
    for shard, weight in weights(after, shards).items():
        share = sum(duty.weight for duty in after) * parts[shard] / sum(parts.values())
        assert abs(weight - share) <= max(times * heaviest, 0.05 * share) + 1e-6


@given(case=plain(), settings=settings_of)
def test_spill_over_keeps_its_bound(case: Case, settings: BalancerSettings) -> None:
    duties, shards = case
    after = applied(duties, BALANCERS["spill_over"].rebalance(duties, shards, settings))
    check_filled(after, shards, settings)


@given(found=st.lists(st.integers(1, 50), max_size=60), shards=st.integers(1, 7), capacity=st.integers(1, 400))
def test_spill_over_keeps_its_bound_when_shards_are_small(found: list[int], shards: int, capacity: int) -> None:
    rooms = [ShardRoom(f"s{n}", capacity) for n in range(shards)]
    duties = duties_of(found)
    after = applied(duties, BALANCERS["spill_over"].rebalance(duties, rooms, DEFAULTS))
    check_filled(after, rooms, DEFAULTS)
    assert all(weight <= capacity for weight in weights(after, rooms).values())


def check_filled(after: Sequence[PlacedDuty], shards: Sequence[ShardRoom], settings: BalancerSettings) -> None:
    """Check that no duty is on a shard if an earlier shard is less than 95 % full and has room for this duty."""
    by_count = by_number("spill_over", settings)
    total = (counts if by_count else weights)(after, shards)
    named = [n for n in settings.shard_order if n in total]
    order = named + sorted(n for n in total if n not in named)
    limits = {shard.name: limit_of("spill_over", shard, settings) for shard in shards}
    for place, earlier in enumerate(order):
        if total[earlier] < 0.95 * limits[earlier]:
            later = [duty for duty in after if duty.shard in order[place + 1 :]]
            assert all((1 if by_count else d.weight) > limits[earlier] - total[earlier] for d in later)


# Moves


@every_balancer
@few
@given(case=plain(), joins=st.booleans(), settings=settings_of)
def test_moves_after_a_shard_joins_or_leaves(name: str, case: Case, joins: bool, settings: BalancerSettings) -> None:
    duties, shards = case
    one, rest = shards[0], shards[1:]
    if not rest:
        return
    before, after = (rest, shards) if joins else (shards, rest)
    balanced = applied(duties, BALANCERS[name].rebalance(duties, before, settings))
    check_movement(name, balanced, after, BALANCERS[name].rebalance(balanced, after, settings))
    if not joins:  # all duties of the shard that left have to move
        had = {duty.number for duty in balanced if duty.shard == one.name}
        plan = BALANCERS[name].rebalance(balanced, after, settings)
        assert had <= {m.number for m in plan.moves} | {u.number for u in plan.unplaced}


def check_movement(name: str, duties: Sequence[PlacedDuty], shards: Sequence[ShardRoom], plan: DutyPlan) -> None:
    balancer = BALANCERS[name]
    each = [duty.weight for duty in duties]
    multiple = 1 + balancer.spread_multiple * max(each, default=1) / min(each, default=1)
    assert plan.minimum_moves <= len(plan.moves) <= multiple * plan.minimum_moves
    if "workload" in name:
        weight_of = {duty.number: duty.weight for duty in duties}
        must_leave = sum(duty.weight for duty in duties if duty.shard not in {shard.name for shard in shards})
        beyond = sum(max(0.0, shard.weight_before - shard.ideal) for shard in plan.shards)
        moved = sum(weight_of[move.number] for move in plan.moves)
        assert moved <= must_leave + beyond + max(each, default=0) * len(shards) + 1e-6


@every_balancer
@few
@given(number=st.integers(0, 80), weight=st.integers(1, 9), shards=st.integers(2, 7), joins=st.booleans())
def test_duties_of_equal_weight_make_the_fewest_moves(
    name: str, number: int, weight: int, shards: int, joins: bool
) -> None:
    rooms = [ShardRoom(f"s{n}", 40) for n in range(shards)]
    before, after = (rooms[1:], rooms) if joins else (rooms, rooms[1:])
    balanced = duties_of([weight] * number)
    balanced = applied(balanced, BALANCERS[name].rebalance(balanced, before, DEFAULTS))
    plan = BALANCERS[name].rebalance(balanced, after, DEFAULTS)
    assert len(plan.moves) == plan.minimum_moves


@by_weight
@given(case=plain(), data=st.data())
def test_a_small_change_of_weights_moves_nothing(name: str, case: Case, data: st.DataObject) -> None:
    """At first each shard's weight is within 1 % of its share. Then the duties' weights grow by at most 3 %."""
    duties, shards = case
    heavy = duties_of((duty.weight * 100 for duty in duties), shards[0].name)
    roomy = [ShardRoom(shard.name, (shard.capacity or 1) * 200) for shard in shards]
    balanced = applied(heavy, BALANCERS[name].rebalance(heavy, roomy, DEFAULTS))
    shares = {shard.name: shard.ideal for shard in BALANCERS[name].rebalance(balanced, roomy, DEFAULTS).shards}
    if any(abs(weight - shares[n]) > 0.01 * shares[n] for n, weight in weights(balanced, roomy).items()):
        return  # some heavy duties can't be spread within 1 %
    grown = [
        PlacedDuty(d.number, d.name, d.weight + data.draw(st.integers(0, 3)) * d.weight // 100, d.created_ms, d.shard)
        for d in balanced
    ]
    assert BALANCERS[name].rebalance(grown, roomy, DEFAULTS).moves == ()


@pytest.mark.parametrize("name", BALANCERS)
@given(
    found=st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["a", "b", "c", "gone"])), min_size=1, max_size=5),
    settings=settings_of,
)
def test_fewer_moves_would_be_less_even(name: str, found: list[tuple[int, str]], settings: BalancerSettings) -> None:
    """The test tries all ways to place a few duties. Each way with fewer moves ends further from the ideal weights."""
    shards = [ShardRoom(n, 60) for n in "abc"]
    duties = [PlacedDuty(n, str(n), weight, n, shard) for n, (weight, shard) in enumerate(found)]
    plan = BALANCERS[name].rebalance(duties, shards, settings)
    if plan.unplaced:
        return
    by_count = by_number(name, settings)
    reached = {s.name: abs((s.count if by_count else s.weight) - s.ideal) for s in plan.shards}
    ideals = {s.name: s.ideal for s in plan.shards}
    exact = name in ("round_robin", "spill_over")
    ends = (counts if by_count else weights)(applied(duties, plan), shards)
    for places in product("abc", repeat=len(duties)):
        moves = sum(duty.shard != place for duty, place in zip(duties, places, strict=True))
        if moves < plan.minimum_moves:
            there = [PlacedDuty(d.number, d.name, d.weight, 0, p) for d, p in zip(duties, places, strict=True)]
            total = (counts if by_count else weights)(there, shards)
            as_near = all(abs(total[n] - ideals[n]) <= reached[n] for n in total)
            assert total != ends if exact else not as_near


# Shares


@given(
    total=st.integers(0, 500),
    rows=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 60), st.integers(0, 200)), min_size=1, max_size=8),
)
def test_level_shares(total: int, rows: list[tuple[int, int, int]]) -> None:
    """Each share is in proportion to its weight, unless it would be below its floor or above its ceiling."""
    parts = {str(n): float(part) for n, (part, _, _) in enumerate(rows)}
    floors = {str(n): float(floor) for n, (_, floor, _) in enumerate(rows)}
    ceilings = {str(n): float(floor + more) for n, (_, floor, more) in enumerate(rows)}
    shares = level_shares(total, parts, floors, ceilings)
    reachable = min(max(total, sum(floors.values())), sum(ceilings.values()))
    assert sum(shares.values()) == pytest.approx(reachable)
    assert all(floors[n] - 1e-9 <= share <= ceilings[n] + 1e-9 for n, share in shares.items())
    level = {n: share / parts[n] for n, share in shares.items()}
    for low, high in product(shares, repeat=2):
        if level[low] < level[high] - 1e-6:
            assert shares[low] == pytest.approx(ceilings[low]) or shares[high] == pytest.approx(floors[high])
