"""Balancers never move stationary duties. If a shard fails, the pallet's `on_failure` says whether other shards get its
stationary duties.
"""

import pytest

from minka.v1.duties_pb2 import Balancer, BalancerKind, OnFailure, PalletCapacity, Shard
from minkad.core.duties.control.shard_lives import RegisterShard
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
    """A world with a stationary duty on s1, the first of two shards. If s1 fails, the duty stays without a shard."""
    world.change_pallet("feeds", on_failure=OnFailure.ON_FAILURE_LEAVE)
    world.create("feeds", ["a"], stationary=True)
    world.settle()
    assert world.where("a") == "s1"
    world.join("s2")
    world.settle()
    return world


def test_stationary_duties_never_move_but_are_placed_again_on_failure(world: DutyWorld) -> None:
    world.create("feeds", TEN, stationary=True)
    world.settle()
    world.join("s2")
    world.settle()
    assert world.rebalance("feeds") == 0
    world.kill("s1")
    world.settle()
    assert world.counts() == {"s2": 10}


def test_a_failed_stationary_duty_has_no_shard_if_the_pallet_says_so(left: DutyWorld) -> None:
    left.kill("s1")
    left.settle()
    assert left.where("a") == ""
    assert "on_failure: leave" in left.why_unplaced("a")
    left.change_pallet("feeds", on_failure=OnFailure.ON_FAILURE_REATTACH)
    left.settle()
    assert left.where("a") == "s2"


@pytest.mark.parametrize("shard", ["s2", ""])
def test_a_failed_duty_is_placed_again_when_a_person_pins_or_releases_it(left: DutyWorld, shard: str) -> None:
    left.kill("s1")
    left.settle()
    assert left.where("a") == ""
    left.pin("feeds", "a", shard)
    left.settle()
    assert left.where("a") == "s2"
    left.kill("s2")
    left.settle()
    assert left.where("a") == "", "it has failed again"


def test_a_failed_duty_pinned_to_its_former_shard_is_placed_there(left: DutyWorld) -> None:
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


def test_a_duty_pinned_elsewhere_while_attached_moves(left: DutyWorld) -> None:
    left.pin("feeds", "a", "s2")
    left.settle()
    assert left.where("a") == "s2"


def test_a_duty_pinned_elsewhere_leaves_a_shard_that_no_longer_takes_its_pallet(left: DutyWorld) -> None:
    process = left.processes["s1"]
    said = Shard(name="s1", incarnation=process.incarnation, version="1", pallets=[PalletCapacity(pallet="mail")])
    left.pallet("mail")
    left.do(RegisterShard(said, holder_alive=True))
    left.settle()
    assert left.where("a") == "s1", "a stationary duty stays"
    left.pin("feeds", "a", "s2")
    left.settle()
    assert left.where("a") == "s2"


def test_a_duty_released_by_a_stopping_shard_has_not_failed(left: DutyWorld) -> None:
    left.leave("s1")
    left.settle()
    assert left.where("a") == "s2"
    left.kill("s2")
    left.join("s3")
    left.settle()
    assert left.where("a") == "", "this time it has"


def test_a_duty_released_unasked_by_a_stopping_shard_has_not_failed(left: DutyWorld) -> None:
    """A stopping shard has no time to wait for an instruction."""
    process = left.processes["s1"]
    left.leave("s1")
    left.release("s1", "a")
    assert not process.held
    left.settle()
    assert left.where("a") == "s2"


def test_a_duty_released_unasked_by_a_running_shard_has_failed(left: DutyWorld) -> None:
    """A running shard releases duties unasked if its clearance is about to end."""
    left.release("s1", "a")
    left.settle()
    assert left.where("a") == ""


def test_a_duty_kept_for_a_stopped_shard_is_placed_when_the_grace_ends(world: DutyWorld) -> None:
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
