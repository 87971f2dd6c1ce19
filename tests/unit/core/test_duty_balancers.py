"""The balancers: the examples of the page on Minka in Java, and the reasons that people see."""

from dataclasses import replace

import pytest

from minkad.core.duties.placement import BALANCERS, BalancerSettings, FillBy, PlacedDuty, PreSort, ShardRoom, compare
from tests.unit.core.duty_cases import applied, counts, duties_of, loaded, shards_of, weights

DEFAULTS = BalancerSettings()
ROUND_ROBIN, SPILL_OVER = BALANCERS["round_robin"], BALANCERS["spill_over"]
CAPACITY, FAIR = BALANCERS["capacity_workload"], BALANCERS["fair_workload"]
every_balancer = pytest.mark.parametrize("name", BALANCERS)


# The examples of the page


def test_the_balancers_of_figure_5() -> None:
    """The figure has four pallets on three shards. Its white duty is synthetic, so the balancers ignore it."""
    green, green_shards = duties_of([5] * 26), shards_of(a=200, b=100, c=0)
    after = applied(green, CAPACITY.rebalance(green, green_shards, DEFAULTS))
    assert counts(after, green_shards) == {"a": 17, "b": 9, "c": 0}  # the page: "one shard responded zero allocation"

    pink, pink_shards = duties_of([1, 2, 3, 4, 5] * 3), shards_of(a=10, b=20, c=None)
    after = applied(pink, FAIR.rebalance(pink, pink_shards, DEFAULTS))
    assert weights(after, pink_shards) == {"a": 15, "b": 15, "c": 15}  # the page: "in all shards with the same weight"

    blue, blue_shards = duties_of([1] * 13), shards_of(a=10, b=10, c=10)
    after = applied(blue, SPILL_OVER.rebalance(blue, blue_shards, DEFAULTS))
    # The page: "it filled the 1st, now is coming for the 2nd".
    assert counts(after, blue_shards) == {"a": 10, "b": 3, "c": 0}

    yellow, yellow_shards = duties_of([9, 1, 1, 1, 1, 1]), shards_of(a=1, b=None, c=7)
    after = applied(yellow, ROUND_ROBIN.rebalance(yellow, yellow_shards, DEFAULTS))
    assert counts(after, yellow_shards) == {"a": 2, "b": 2, "c": 2}  # the page: "in all shards with the same number"


@pytest.mark.parametrize("at_once", [True, False])
def test_the_java_sample_fills_all_shards_to_the_same_percentage(at_once: bool) -> None:
    """The sample has 100 duties of weight 5, and shards with the capacities 100, 300, 500 and 500."""
    shards = shards_of(a=100, b=300, c=500, d=500)
    duties = duties_of([5] * 100)
    if at_once:
        duties = applied(duties, CAPACITY.rebalance(duties, shards, DEFAULTS))
    else:
        for duty in duties_of([5] * 100):
            (duties[duty.number],) = applied([duty], CAPACITY.place([duty], loaded(duties, shards), DEFAULTS))
    for shard, weight in weights(duties, shards).items():
        capacity = next(s.capacity or 0 for s in shards if s.name == shard)
        assert abs(weight - 500 * capacity / 1400) <= 5
    assert CAPACITY.rebalance(duties, shards, DEFAULTS).moves == ()


def test_the_java_sample_until_nothing_fits() -> None:
    """The cluster's capacity is 1,400: 280 duties of weight 5 fill every shard, and the next one has no place."""
    shards = shards_of(a=100, b=300, c=500, d=500)
    duties = duties_of([5] * 281)
    plan = CAPACITY.rebalance(duties, shards, DEFAULTS)
    assert weights(applied(duties, plan), shards) == {"a": 100, "b": 300, "c": 500, "d": 500}
    (left,) = plan.unplaced
    assert left.number == 280
    assert left.reason == (
        "no shard can take it: a, b, c and 1 more have no room for weight 5 (0 of 500 free at most, on d)"
    )


# The balancers


def test_round_robin_ignores_weights_and_capacities() -> None:
    shards, duties = shards_of(a=1, b=1, c=0), duties_of([100, 100, 1, 1])
    assert counts(applied(duties, ROUND_ROBIN.place(duties, shards, DEFAULTS)), shards) == {"a": 2, "b": 2, "c": 0}


def test_round_robin_allows_differences_up_to_the_maximum() -> None:
    shards = shards_of(a=None, b=None)
    duties = duties_of([1] * 5, "a") + duties_of([1] * 2, "b", first=5)
    assert ROUND_ROBIN.rebalance(duties, shards, BalancerSettings(max_difference=3)).moves == ()
    plan = ROUND_ROBIN.rebalance(duties, shards, BalancerSettings(max_difference=2))
    assert [(m.number, m.source, m.target) for m in plan.moves] == [(4, "a", "b")]  # the newest duty moves
    assert plan.moves[0].reason == "a has 5 duties and is to have 4; b has 2 duties and is to have 3"


def test_spill_over_fills_by_weight_or_number_in_the_given_order() -> None:
    shards, duties = shards_of(a=100, b=100, c=100), duties_of([4] * 10)
    for settings, wanted in (
        (BalancerSettings(fill_by=FillBy.WEIGHT, fill_limit=21), {"a": 5, "b": 5, "c": 0}),
        (BalancerSettings(fill_by=FillBy.COUNT, fill_limit=4), {"a": 4, "b": 4, "c": 2}),
        (BalancerSettings(fill_by=FillBy.COUNT, fill_limit=7, shard_order=("c", "x", "b")), {"a": 0, "b": 3, "c": 7}),
        (BalancerSettings(), {"a": 10, "b": 0, "c": 0}),
    ):
        assert counts(applied(duties, SPILL_OVER.place(duties, shards, settings)), shards) == wanted


def test_spill_over_fills_a_hole_from_the_last_shard() -> None:
    shards = shards_of(a=10, b=10, c=10)
    duties = duties_of([1] * 5, "a") + duties_of([1] * 10, "b", first=5) + duties_of([1] * 3, "c", first=15)
    plan = SPILL_OVER.rebalance(duties, shards, DEFAULTS)
    assert counts(applied(duties, plan), shards) == {"a": 10, "b": 8, "c": 0}
    assert len(plan.moves) == plan.minimum_moves == 5


def test_spill_over_leaves_a_nearly_full_shard_alone() -> None:
    shards = shards_of(a=100, b=100)
    duties = duties_of([1] * 95, "a") + duties_of([1] * 50, "b", first=95)
    assert SPILL_OVER.rebalance(duties, shards, DEFAULTS).moves == ()
    assert len(SPILL_OVER.rebalance(duties[1:], shards, DEFAULTS).moves) == 6


def test_a_shard_without_a_stated_capacity_counts_as_the_mean_and_has_no_limit() -> None:
    shards, duties = shards_of(a=100, b=300, c=None), duties_of([1] * 300)
    assert weights(applied(duties, CAPACITY.place(duties, shards, DEFAULTS)), shards) == {"a": 50, "b": 150, "c": 100}
    duties = duties_of([1] * 1000)
    assert weights(applied(duties, CAPACITY.place(duties, shards, DEFAULTS)), shards) == {"a": 100, "b": 300, "c": 600}
    nothing_stated, few = shards_of(a=None, b=None), duties_of([1] * 6)
    assert weights(applied(few, CAPACITY.place(few, nothing_stated, DEFAULTS)), nothing_stated) == {"a": 3, "b": 3}


def test_fair_workload_sorts_by_weight_or_by_date() -> None:
    shards, duties = shards_of(a=None, b=None), duties_of([1, 1, 4])
    heaviest_first = applied(duties, FAIR.place(duties, shards, DEFAULTS))
    assert weights(heaviest_first, shards) == {"a": 4, "b": 2}
    oldest_first = applied(duties, FAIR.place(duties, shards, BalancerSettings(pre_sort=PreSort.DATE)))
    assert [duty.shard for duty in oldest_first] == ["a", "b", "a"]


def test_duties_that_weigh_nothing_are_spread_by_number() -> None:
    shards, duties = shards_of(a=10, b=10, c=10), duties_of([7] + [0] * 8)
    for balancer in (FAIR, CAPACITY):
        assert counts(applied(duties, balancer.place(duties, shards, DEFAULTS)), shards) == {"a": 3, "b": 3, "c": 3}


def test_fixed_duties_count_for_their_shard() -> None:
    shards = shards_of(a=100, b=100)
    fixed = [replace(duty, is_fixed=True) for duty in duties_of([10] * 3, "a")]
    duties = fixed + duties_of([10] * 5, first=3)
    for balancer in (ROUND_ROBIN, FAIR, CAPACITY):
        assert counts(applied(duties, balancer.rebalance(duties, shards, DEFAULTS)), shards) == {"a": 4, "b": 4}


def test_of_equal_shards_the_healthier_one_is_preferred() -> None:
    shards = [ShardRoom("a", 10, rank=2), ShardRoom("b", 10, rank=1), ShardRoom("c", 10, rank=1)]
    (duty,) = duties_of([1])
    for balancer in (ROUND_ROBIN, FAIR, CAPACITY):
        (move,) = balancer.place([duty], shards, DEFAULTS).moves
        assert move.target == "b"


def test_the_next_fullest_shard_gives_duties_if_those_of_the_fullest_are_fixed() -> None:
    shards = shards_of(a=500, b=500, c=500)
    fixed = [replace(duty, is_fixed=True) for duty in duties_of([10] * 9, "a")]
    duties = fixed + duties_of([10] * 6, "b", first=9)
    for balancer in (ROUND_ROBIN, FAIR, CAPACITY):
        after = applied(duties, balancer.rebalance(duties, shards, DEFAULTS))
        assert counts(after, shards) == {"a": 9, "b": 3, "c": 3}


def test_the_last_bit_of_room_is_used() -> None:
    """Shard a has the least weight, but room for only 2 more. So a gets the duty of weight 2, and b the other."""
    shards = [ShardRoom("a", 10, weight=8), ShardRoom("b", None, weight=20), ShardRoom("c", None, weight=20)]
    plan = CAPACITY.place(duties_of([3, 2]), shards, DEFAULTS)
    assert [(move.number, move.target) for move in plan.moves] == [(0, "b"), (1, "a")]


# Moves after a weight has changed


def test_a_shard_within_5_percent_is_left_alone_and_others_are_brought_within_1_percent() -> None:
    shards = shards_of(a=10_000, b=10_000)
    for on_a, moves in ((1000, 0), (1049, 0), (1060, 50)):
        duties = duties_of([1] * on_a, "a") + duties_of([1] * (2000 - on_a), "b", first=on_a)
        for balancer in (FAIR, CAPACITY):
            assert len(balancer.rebalance(duties, shards, DEFAULTS).moves) == moves


def test_only_as_many_duties_move_as_bring_the_uneven_shard_within_1_percent() -> None:
    shards = [ShardRoom(name, 10_000) for name in "abcdefgh"]
    duties = duties_of([1] * 1120, "a")
    for shard, count in zip("bcdefgh", (1040, 1030, 980, 960, 960, 960, 950), strict=True):
        duties += duties_of([1] * count, shard, first=len(duties))
    for balancer in (FAIR, CAPACITY):
        moves = balancer.rebalance(duties, shards, DEFAULTS).moves
        assert {move.source for move in moves} == {"a"}
        assert len(moves) == 110


def test_shares_are_of_the_weight_that_is_not_fixed() -> None:
    """The fixed duty alone is more than the share of shard a. So b and c share the others: each has half of their
    weight, within 5 %.
    """
    shards = shards_of(a=10_000, b=10_000, c=10_000)
    fixed = [replace(duty, is_fixed=True) for duty in duties_of([5000], "a")]
    duties = fixed + duties_of([1] * 103, "b", first=1) + duties_of([1] * 97, "c", first=200)
    for balancer in (FAIR, CAPACITY):
        assert balancer.rebalance(duties, shards, DEFAULTS).moves == ()


@pytest.mark.parametrize("balancer", [FAIR, CAPACITY], ids=lambda balancer: str(balancer.name))
def test_a_weight_that_goes_up_and_down_moves_one_duty_at_most(balancer: object) -> None:
    """The duties are few and heavy: each is more than 5 % of a shard's share. A duty that moved does not move back."""
    shards, duties = shards_of(a=1000, b=1000), duties_of([50] * 4, "a") + duties_of([50] * 4, "b", first=4)
    moves = 0
    for weight in (60, 50, 74, 50, 80, 50, 80, 50):
        duties = [replace(duty, weight=weight) if duty.number == 0 else duty for duty in duties]
        plan = FAIR.rebalance(duties, shards, DEFAULTS) if balancer is FAIR else CAPACITY.rebalance(
            duties, shards, DEFAULTS
        )  # fmt: skip
        moves += len(plan.moves)
        duties = applied(duties, plan)
    assert moves <= 1


# Duties without a place


@every_balancer
def test_a_duty_that_fits_nowhere_is_placed_as_soon_as_there_is_room(name: str) -> None:
    settings = BalancerSettings()
    duty = PlacedDuty(1, "feeds/bbc", 50, 0, not_on=frozenset("b"))
    shards = [ShardRoom("a", 0), ShardRoom("b", 100), ShardRoom("c", 100, accepts=False, why="is draining")]
    plan = BALANCERS[name].place([duty], shards, settings)
    assert plan.moves == ()
    assert plan.unplaced[0].reason == (
        "no shard can take it: it is quarantined on b; a states capacity 0 and c is draining"
    )
    for n in range(3):
        roomy = [*shards]
        roomy[n] = ShardRoom(shards[n].name, 60)
        targets = [move.target for move in BALANCERS[name].rebalance([duty], roomy, settings).moves]
        assert targets == ([] if n == 1 else [roomy[n].name])


@pytest.mark.parametrize("balancer", [SPILL_OVER, CAPACITY], ids=lambda balancer: str(balancer.name))
def test_a_duty_waits_until_one_shard_has_enough_room(balancer: object) -> None:
    chosen = SPILL_OVER if balancer is SPILL_OVER else CAPACITY
    shards = shards_of(a=10, b=10)
    duties = [*duties_of([8], "a"), *duties_of([7], "b", first=1), *duties_of([5], first=2)]
    (left,) = chosen.rebalance(duties, shards, DEFAULTS).unplaced
    assert left.reason == "no shard can take it: a and b have no room for weight 5 (3 of 10 free at most, on b)"
    plan = chosen.rebalance(duties, [*shards, ShardRoom("c", 5)], DEFAULTS)
    assert [(move.number, move.target) for move in plan.moves] == [(2, "c")]


@every_balancer
def test_a_pinned_duty_waits_for_its_shard(name: str) -> None:
    duty = PlacedDuty(1, "feeds/bbc", 1, 0, only_on="b")
    (left,) = BALANCERS[name].place([duty], shards_of(a=100), DEFAULTS).unplaced
    assert left.reason == "it is pinned to b, and b is gone"
    (move,) = BALANCERS[name].place([duty], shards_of(a=100, b=100), DEFAULTS).moves
    assert move.target == "b"


@every_balancer
def test_without_shards_no_duty_has_a_place(name: str) -> None:
    duties = duties_of([1, 2], "gone")
    for plan in (BALANCERS[name].rebalance(duties, [], DEFAULTS), BALANCERS[name].place(duties, [], DEFAULTS)):
        assert plan.moves == ()
        assert [(one.number, one.reason) for one in plan.unplaced] == [
            (0, "there is no shard"),
            (1, "there is no shard"),
        ]


@every_balancer
def test_a_shard_that_leaves_is_emptied_except_for_duties_that_no_other_can_take(name: str) -> None:
    leaving = ShardRoom("a", 100, accepts=False, why="is draining")
    stuck = PlacedDuty(9, "feeds/9", 1, 0, "a", not_on=frozenset("b"))
    duties = [*duties_of([1] * 4, "a"), stuck]
    plan = BALANCERS[name].rebalance(duties, [leaving, ShardRoom("b", 100)], DEFAULTS)
    assert [(move.number, move.target) for move in plan.moves] == [(n, "b") for n in range(4)]
    assert {move.reason.split(";")[0] for move in plan.moves} == {"a is draining"}
    (left,) = plan.unplaced
    assert (left.number, left.shard) == (9, "a")


@pytest.mark.parametrize("balancer", [SPILL_OVER, CAPACITY], ids=lambda balancer: str(balancer.name))
def test_a_shard_whose_capacity_shrinks_keeps_excess_duties_that_fit_nowhere_else(balancer: object) -> None:
    chosen = SPILL_OVER if balancer is SPILL_OVER else CAPACITY
    duties = duties_of([10] * 10, "a")
    plan = chosen.rebalance(duties, shards_of(a=50, b=30), DEFAULTS)
    assert weights(applied(duties, plan), shards_of(a=50, b=30)) == {"a": 70, "b": 30}
    assert [one.shard for one in plan.unplaced] == ["a", "a"]
    assert plan.unplaced[0].reason == (
        "a has weight 70 and may have 50; no shard can take it: "
        "a and b have no room for weight 10 (0 of 30 free at most, on b)"
    )
    assert plan.moves[0].reason == "a has weight 100 and may have 50; b has weight 0 and is to have 30"


# The comparison of all balancers


def test_compare_shows_all_four_balancers() -> None:
    shards = shards_of(a=100, b=300)
    duties = duties_of([10] * 20, "a")
    rows = {row.balancer: row for row in compare(duties, shards, BalancerSettings(max_difference=1))}
    assert list(rows) == list(BALANCERS)
    assert rows["round_robin"].count_skew == rows["fair_workload"].weight_skew == 1.0
    assert rows["fair_workload"].moves == rows["fair_workload"].minimum_moves == 10
    assert rows["capacity_workload"].fill_skew == 1.0
    assert rows["capacity_workload"].moves == 15
    assert (rows["spill_over"].moves, rows["spill_over"].fullest) == (10, 1.0)
    assert rows["round_robin"].fullest == 1.0
    assert all(row.unplaced == () for row in rows.values())
    full = {row.balancer: len(row.unplaced) for row in compare(duties, shards_of(a=100, b=50), DEFAULTS)}
    assert full == {"round_robin": 0, "spill_over": 5, "capacity_workload": 5, "fair_workload": 0}
