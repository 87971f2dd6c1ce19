"""The controller's part in warm hand-overs: a shard prepares for a duty while another shard still has it."""

import pytest

from minka.v1.cluster_pb2 import Node, NodeState
from minka.v1.duties_pb2 import Balancer, BalancerKind
from minkad.core.duties.control.distribution import TIMER_MS
from minkad.core.duties.control.duty_mover import PREPARED_WITHIN_MS
from minkad.core.duties.control.duty_rows import duties_in_pieces, duty_with
from tests.unit.core.duty_world import TEN, DutyWorld

ROUND_ROBIN = Balancer(kind=BalancerKind.BALANCER_KIND_ROUND_ROBIN)


@pytest.fixture
def world() -> DutyWorld:
    """A world with a pallet whose duties are handed over warm."""
    world = DutyWorld()
    world.pallet("feeds", warm=True, balancer=ROUND_ROBIN)
    return world


def test_a_warm_hand_over_prepares_first(world: DutyWorld) -> None:
    world.join("s1")
    world.create("feeds", TEN)
    world.settle()
    world.join("s2")
    assert world.rebalance("feeds") == 5
    world.follow()
    prepares = list(world.duties.on_shard["s2"].values())
    assert len(prepares) == 5
    assert world.counts() == {"s1": 10, "s2": 0}
    world.settle()
    assert world.counts() == {"s1": 5, "s2": 5}
    world.check_tables()


def test_a_target_gets_the_duties_it_prepares_for_when_the_source_dies(world: DutyWorld) -> None:
    world.join("s1")
    world.create("feeds", TEN)
    world.settle()
    world.join("s2")
    world.rebalance("feeds")
    world.follow()
    world.kill("s1")
    world.settle()
    assert world.counts() == {"s2": 10}
    assert not world.state.unended_operations()
    world.check_tables()


def _draining_warm(world: DutyWorld, moves_per_shard: int = 0) -> None:
    """Begin to empty the shard s1, while s2 prepares for `moves_per_shard` duties at a time (0: for all)."""
    world.change_pallet("feeds", warm=True, moves_per_shard=moves_per_shard, balancer=ROUND_ROBIN)
    world.state.nodes["athens"] = Node(id="athens", state=NodeState.NODE_STATE_LIVE)
    world.join("s1", node="athens")
    world.create("feeds", TEN)
    world.settle()
    world.join("s2")
    world.state.nodes["athens"] = Node(id="athens", state=NodeState.NODE_STATE_DRAINING, emptied=True)
    world.now_ms += 1000
    world.follow()
    assert len(world.duties.on_shard["s2"]) == (moves_per_shard or 10)


def test_a_duty_that_a_shard_can_not_prepare_for_is_tried_elsewhere(world: DutyWorld) -> None:
    _draining_warm(world)
    world.fail_to_attach("s2", "d1")
    assert [one.shard for one in world.row("d1").quarantines] == ["s2"]
    world.settle()
    assert world.counts() == {"s1": 1, "s2": 9}, "there is no other place"
    world.join("s3")
    world.settle()
    assert world.counts() == {"s1": 0, "s2": 9, "s3": 1}
    world.check_tables()


def test_a_drained_shard_waits_for_preparations_for_a_limited_time(world: DutyWorld) -> None:
    _draining_warm(world)
    source = world.processes["s1"]
    world.now_ms += PREPARED_WITHIN_MS - 1
    world.follow()
    assert not world.work(source)
    world.now_ms += TIMER_MS
    world.follow()
    assert world.work(source)
    world.settle()
    assert world.counts() == {"s1": 0, "s2": 10}
    world.check_tables()


def test_a_shard_is_drained_in_waves_also_with_preparations(world: DutyWorld) -> None:
    _draining_warm(world, 2)
    target = world.processes["s2"]
    for _ in range(5):
        world.follow()
        assert len(world.duties.preparing) == 2
        world.work(target)
    world.settle()
    assert world.counts() == {"s1": 0, "s2": 10}


def test_preparations_end_if_the_source_keeps_its_duties(world: DutyWorld) -> None:
    _draining_warm(world)
    world.state.nodes["athens"] = Node(id="athens", state=NodeState.NODE_STATE_LIVE)
    world.now_ms += TIMER_MS
    world.follow()
    assert not world.duties.on_shard["s2"]
    world.settle()
    assert world.counts() == {"s1": 10, "s2": 0}
    world.check_tables()


def test_a_migration_does_not_wait_for_a_preparation_that_nobody_needs(world: DutyWorld) -> None:
    """s2 prepares for duties that s1 keeps after all, and never says that it is prepared: it said so while s1 was
    away for a moment. A rebalance that was planned meanwhile has to begin nevertheless.
    """
    _draining_warm(world)
    world.state.nodes["athens"] = Node(id="athens", state=NodeState.NODE_STATE_LIVE)
    assert world.rebalance("feeds") == 5
    assert not world.state.under_way
    world.now_ms += TIMER_MS
    world.follow()
    assert len(world.state.under_way) == 5
    world.settle()
    assert world.counts() == {"s1": 5, "s2": 5}
    assert not world.state.unended_operations()
    world.check_tables()


def test_a_shard_that_is_drained_too_no_longer_prepares(world: DutyWorld) -> None:
    """s1 keeps its duties until there is a place for them."""
    _draining_warm(world)
    world.state.nodes["byzantium"] = Node(id="byzantium", state=NodeState.NODE_STATE_DRAINING, emptied=True)
    world.duties.shards["s2"].node = "byzantium"
    world.now_ms += TIMER_MS
    world.follow()
    assert not world.duties.preparing
    world.now_ms += PREPARED_WITHIN_MS
    world.settle()
    assert world.counts() == {"s1": 10, "s2": 0}
    world.join("s3")
    world.settle()
    assert world.counts() == {"s1": 0, "s2": 0, "s3": 10}
    world.check_tables()


def test_a_drain_goes_on_although_a_rebalance_waits_for_its_preparations(world: DutyWorld) -> None:
    _draining_warm(world)
    assert world.rebalance("feeds")
    world.now_ms += PREPARED_WITHIN_MS + TIMER_MS
    world.follow()
    assert world.duties.releasing.get("s1"), "s2 has not said that it is prepared, and is given the duties nevertheless"
    world.settle()
    assert world.counts() == {"s1": 0, "s2": 10}
    assert not world.state.unended_operations()
    world.check_tables()


def test_suspects_do_not_prepare_for_ever_if_the_source_dies(world: DutyWorld) -> None:
    """All duties are suspects by the time that their shard dies. The only other shard prepares for them, so it would
    not try a suspect alone: the preparations end.
    """
    _draining_warm(world)
    rows = list(world.duties.duties.values())
    for record in duties_in_pieces(duty_with(row, lambda new: setattr(new.suspicion, "failures", 2)) for row in rows):
        world.apply(record)
    world.kill("s1")
    world.follow()
    assert not world.duties.preparing
    for _ in range(20):
        world.settle()
        world.now_ms += TIMER_MS
    assert world.counts()["s2"] == 10
    world.check_tables()


def test_a_duty_for_which_a_shard_prepares_is_not_moved_by_a_rebalance(world: DutyWorld) -> None:
    """The pallet is rebalanced while warm hand-overs empty s1, a shard on a node that is drained."""
    _draining_warm(world)
    assert world.rebalance("feeds")
    world.settle()
    assert world.counts() == {"s1": 0, "s2": 10}
    assert not world.state.unended_operations()
    world.check_tables()
