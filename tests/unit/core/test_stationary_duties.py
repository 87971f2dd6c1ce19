"""Stationary duties are never moved to balance. Their pallet decides about them when their shard fails."""

import pytest

from minka.v1.duties_pb2 import Balancer, BalancerKind, OnFailure
from tests.unit.core.duty_world import TEN, DutyWorld

GRACE_MS = 10_000


@pytest.fixture
def world() -> DutyWorld:
    """A world with a pallet that is balanced by numbers, and a shard."""
    world = DutyWorld()
    world.pallet("feeds", balancer=Balancer(kind=BalancerKind.BALANCER_KIND_ROUND_ROBIN))
    world.join("s1")
    return world


@pytest.fixture
def left(world: DutyWorld) -> DutyWorld:
    """A world with a second shard, and one stationary duty, which goes nowhere when its shard fails."""
    world.change_pallet("feeds", on_failure=OnFailure.ON_FAILURE_LEAVE)
    world.create("feeds", ["a"], stationary=True)
    world.settle()
    assert world.where("a") == "s1"
    world.join("s2")
    world.settle()
    return world


def test_they_are_never_moved_but_placed_again_on_failure(world: DutyWorld) -> None:
    world.create("feeds", TEN, stationary=True)
    world.settle()
    world.join("s2")
    world.settle()
    assert world.rebalance("feeds") == 0
    world.kill("s1")
    world.settle()
    assert world.counts() == {"s2": 10}


def test_they_stay_nowhere_where_the_pallet_says_so(left: DutyWorld) -> None:
    left.kill("s1")
    left.settle()
    assert left.where("a") == ""
    assert "on_failure: leave" in left.why_unplaced("a")
    left.change_pallet("feeds", on_failure=OnFailure.ON_FAILURE_REATTACH)
    left.settle()
    assert left.where("a") == "s2"


@pytest.mark.parametrize("shard", ["s2", ""])
def test_a_person_pins_or_releases_what_failed_and_it_is_placed_again(left: DutyWorld, shard: str) -> None:
    left.kill("s1")
    left.settle()
    assert left.where("a") == ""
    left.pin("feeds", "a", shard)
    left.settle()
    assert left.where("a") == "s2"
    left.kill("s2")
    left.settle()
    assert left.where("a") == "", "it has failed again"


def test_what_is_pinned_again_to_the_shard_that_failed_is_placed_there(left: DutyWorld) -> None:
    left.pin("feeds", "a", "s1")
    left.settle()
    left.kill("s1")
    left.wait(600_000)
    left.join("s1")
    left.settle()
    assert left.where("a") == ""
    left.pin("feeds", "a", "s1")
    left.settle()
    assert left.where("a") == "s1"


def test_what_is_pinned_elsewhere_while_it_is_attached_has_not_failed(left: DutyWorld) -> None:
    left.pin("feeds", "a", "s2")
    left.settle()
    assert left.where("a") == "s2"


def test_what_a_shard_releases_because_it_stops_has_not_failed(left: DutyWorld) -> None:
    left.leave("s1")
    left.settle()
    assert left.where("a") == "s2"
    left.kill("s2")
    left.join("s3")
    left.settle()
    assert left.where("a") == "", "this time it has"


def test_what_a_stopping_shard_releases_unasked_has_not_failed(left: DutyWorld) -> None:
    """A stopping shard has no time to wait for an instruction."""
    process = left.processes["s1"]
    left.leave("s1")
    left.release("s1", "a")
    assert not process.held
    left.settle()
    assert left.where("a") == "s2"


def test_what_a_shard_releases_unasked_while_it_does_not_stop_has_failed(left: DutyWorld) -> None:
    """The shard's clearance was about to end."""
    left.release("s1", "a")
    left.settle()
    assert left.where("a") == ""


def test_what_is_released_as_planned_and_kept_is_placed_when_the_grace_is_over(world: DutyWorld) -> None:
    world.change_pallet("feeds", on_failure=OnFailure.ON_FAILURE_LEAVE)
    world.leave("s1")
    world.settle()
    world.join("s1", grace_ms=GRACE_MS)
    world.create("feeds", ["a"], stationary=True)
    world.settle()
    world.join("s2")
    world.leave("s1")
    world.settle()
    assert world.where("a") == "s1"
    world.wait(GRACE_MS)
    assert world.where("a") == "s2"
