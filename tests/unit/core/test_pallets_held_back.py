"""No pallet is balanced while one of its shards is being emptied. Duties that stay on the shard cause no delay."""

import pytest

from minka.v1.cluster_pb2 import Node, NodeState
from minka.v1.duties_pb2 import Balancer, BalancerKind, PalletCapacity, Shard
from minkad.core.duties.control.duty_rebalance import held_back
from minkad.core.duties.control.rooms import rooms
from minkad.core.duties.control.shard_lives import RegisterShard
from tests.unit.core.duty_world import TEN, DutyWorld

WEEK_MS = 7 * 24 * 3600 * 1000


@pytest.fixture
def world() -> DutyWorld:
    """A world with a pallet that is balanced by numbers, and a node that may be drained."""
    world = DutyWorld()
    world.pallet("feeds", balancer=Balancer(kind=BalancerKind.BALANCER_KIND_ROUND_ROBIN))
    world.state.nodes["athens"] = Node(id="athens", state=NodeState.NODE_STATE_LIVE)
    return world


def why_held_back(world: DutyWorld) -> str:
    """Return the reason why the controller doesn't balance the pallet; "" if the controller balances it."""
    return held_back(world.state, world.duties.pallets["feeds"], rooms(world.state, "feeds", world.now_ms))


def drain(world: DutyWorld) -> None:
    """Drain the node."""
    world.state.nodes["athens"] = Node(id="athens", state=NodeState.NODE_STATE_DRAINING, emptied=True)


def test_duties_kept_for_an_absent_shard_do_not_delay_balancing(world: DutyWorld) -> None:
    world.join("s1", grace_ms=WEEK_MS)
    world.join("s2")
    world.create("feeds", TEN)
    world.settle()
    world.kill("s1")
    world.join("s3")
    world.settle()
    assert why_held_back(world) == ""
    assert world.rebalance("feeds") == 2
    world.settle()
    assert world.counts() == {"s2": 3, "s3": 2}
    assert not world.state.running_operations()
    assert world.duties.load("s1", "feeds").duties == 5
    world.join("s1", grace_ms=WEEK_MS)
    world.settle()
    assert world.counts() == {"s1": 5, "s2": 3, "s3": 2}


def test_a_rebalance_does_not_wait_for_an_absent_shard(world: DutyWorld) -> None:
    world.change_pallet("feeds", moves_per_shard=1, balancer=Balancer(kind=BalancerKind.BALANCER_KIND_ROUND_ROBIN))
    world.join("s1", grace_ms=WEEK_MS)
    world.create("feeds", TEN)
    world.settle()
    world.join("s2")
    assert world.rebalance("feeds") == 5
    world.follow()
    world.kill("s1")
    world.settle()
    assert not world.state.running_operations()
    assert world.counts() == {"s2": 1}, "s2 has the duty that s1 was releasing"
    assert why_held_back(world) == ""


def test_a_stationary_duty_of_a_pallet_its_shard_no_longer_takes_does_not_delay_balancing(
    world: DutyWorld,
) -> None:
    process = world.join("s1", pallets=("feeds", "mail"))
    world.create("feeds", ["still"], stationary=True)
    world.settle()
    world.join("s2")
    said = Shard(name="s1", incarnation=process.incarnation, version="1", pallets=[PalletCapacity(pallet="mail")])
    world.do(RegisterShard(said, holder_alive=True))
    world.settle()
    assert world.where("still") == "s1"
    assert why_held_back(world) == ""


def test_balancing_waits_until_a_drained_shard_has_only_duties_that_fit_nowhere_else(world: DutyWorld) -> None:
    world.join("s1", node="athens", capacity=10)
    world.create("feeds", TEN)
    world.settle()
    world.change_pallet("feeds")  # the default balancer, which respects capacities
    world.join("s2", capacity=4)
    drain(world)
    assert why_held_back(world) == "s1 is being emptied"
    world.releases = False
    world.wait(1000)
    assert why_held_back(world) == "s1 is being emptied", "four are being released"
    world.releases = True
    world.wait(1000)
    assert world.counts() == {"s1": 6, "s2": 4}
    assert why_held_back(world) == ""


def test_balancing_waits_until_a_leaving_shard_has_released_everything(world: DutyWorld) -> None:
    world.join("s1", grace_ms=WEEK_MS)
    world.join("s2")
    world.create("feeds", TEN, stationary=True)
    world.settle()
    world.releases = False
    world.leave("s1")
    assert why_held_back(world) == "s1 is being emptied"
    world.releases = True
    world.settle()
    assert why_held_back(world) == ""
