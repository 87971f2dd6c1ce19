"""The controller's decisions about duties and shards. Here all shards follow every instruction. The rules come from the
Minka library in Java.
"""

import pytest

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Node, NodeState, OperationState
from minka.v1.duties_pb2 import Balancer, BalancerKind, Canary, ShardState
from minka.v1.duty_api_pb2 import (
    ChangeDutiesRequest,
    ChangePalletsRequest,
    DutyChange,
    DutyName,
    DutySpec,
    PalletChange,
)
from minka.v1.shards_pb2 import LeaveShardRequest
from minkad.core.duties.control.distribution import JOINED_MS, TIMER_MS
from minkad.core.duties.control.shard_lives import FailShards, NoteFlap
from minkad.core.duties.control.trust import HALF_LIFE_MS, score
from tests.unit.core.deciding import records_of
from tests.unit.core.duty_world import TEN, DutyWorld


@pytest.fixture
def world() -> DutyWorld:
    """A world with a pallet that is balanced by numbers."""
    world = DutyWorld()
    world.pallet("feeds", balancer=Balancer(kind=BalancerKind.BALANCER_KIND_ROUND_ROBIN))
    return world


def refused(world: DutyWorld, command: ChangeDutiesRequest | ChangePalletsRequest) -> Code:
    """Run a command that must be refused, and check that nothing changes. Returns the code of the refusal."""
    before = world.duties.revision
    with pytest.raises(MinkaError) as caught:
        world.do(command)
    assert world.duties.revision == before
    return caught.value.code


# Clients


def test_a_batch_of_changes_is_decided_as_a_whole(world: DutyWorld) -> None:
    creates = [DutyChange(create=DutySpec(pallet="feeds", id=id_)) for id_ in ("a", "b")]
    unknown = DutyChange(update=DutySpec(pallet="feeds", id="c", weight=2))
    assert refused(world, ChangeDutiesRequest(changes=[*creates, unknown])) is Code.UNKNOWN_DUTY
    assert not world.duties.duties
    world.do(ChangeDutiesRequest(changes=creates))
    assert sorted(row.id for row in world.duties.duties.values()) == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (DutyChange(create=DutySpec(pallet="nope", id="x")), Code.UNKNOWN_PALLET),
        (DutyChange(create=DutySpec(pallet="feeds", id="d0")), Code.DUTY_EXISTS),
        (DutyChange(create=DutySpec(pallet="feeds", id="x", synthetic=True, lazy=True)), Code.INVALID_DUTY),
        (DutyChange(create=DutySpec(pallet="feeds", id="x", synthetic=True, stationary=True)), Code.INVALID_DUTY),
        (DutyChange(delete=DutyName(pallet="feeds", id="x")), Code.UNKNOWN_DUTY),
        (DutyChange(delete=DutyName(pallet="feeds", id="d0"), if_version=2), Code.VERSION_MISMATCH),
        (DutyChange(update=DutySpec(pallet="feeds", id="d0")), Code.INVALID_ARGUMENT),
        (DutyChange(), Code.INVALID_ARGUMENT),
    ],
)
def test_refused_changes(world: DutyWorld, change: DutyChange, code: Code) -> None:
    world.create("feeds", TEN)
    assert refused(world, ChangeDutiesRequest(changes=[change])) is code


def test_a_pallet_that_exists_with_other_settings(world: DutyWorld) -> None:
    fair, robin = BalancerKind.BALANCER_KIND_FAIR_WORKLOAD, BalancerKind.BALANCER_KIND_ROUND_ROBIN
    with pytest.raises(MinkaError) as caught:
        world.pallet("feeds", manual=True, balancer=Balancer(kind=fair), canary=Canary(version="2", percent=5))
    assert caught.value.code is Code.PALLET_EXISTS
    assert caught.value.message == (
        "there is a pallet feeds already, with other settings (balancer.kind, manual, canary.version, canary.percent); "
        "an update would change them"
    )
    world.pallet("feeds", balancer=Balancer(kind=robin))  # the same settings: nothing is done


def test_a_refusal_names_what_has_another_version(world: DutyWorld) -> None:
    world.create("feeds", ["a"])
    with pytest.raises(MinkaError) as caught:
        world.do(ChangeDutiesRequest(changes=[DutyChange(delete=DutyName(pallet="feeds", id="a"), if_version=2)]))
    assert caught.value.details == {"duty": "feeds/a", "version": "1"}
    with pytest.raises(MinkaError) as caught:
        world.do(ChangePalletsRequest(changes=[PalletChange(delete="feeds", if_version=2)]))
    assert caught.value.details == {"pallet": "feeds", "version": "1"}


def test_a_change_can_demand_a_version(world: DutyWorld) -> None:
    world.create("feeds", ["a"])
    update = DutySpec(pallet="feeds", id="a", weight=5)
    world.do(ChangeDutiesRequest(changes=[DutyChange(update=update, if_version=1)]))
    assert (world.row("a").version, world.row("a").weight) == (2, 5)
    assert (
        refused(world, ChangeDutiesRequest(changes=[DutyChange(update=update, if_version=1)])) is Code.VERSION_MISMATCH
    )


def test_a_repeated_change_with_the_same_payload_is_done_once(world: DutyWorld) -> None:
    create = ChangeDutiesRequest(
        changes=[DutyChange(create=DutySpec(pallet="feeds", id="a", payload_id=b"1" * 16, payload_bytes=3))]
    )
    world.do(create)
    world.do(create)
    update = ChangeDutiesRequest(
        changes=[
            DutyChange(update=DutySpec(pallet="feeds", id="a", payload_id=b"2" * 16, payload_bytes=3), if_version=1)
        ]
    )
    world.do(update)
    world.do(update)
    assert world.row("a").version == 2


def test_a_pallet_with_duties_is_not_deleted(world: DutyWorld) -> None:
    world.create("feeds", ["a"])
    delete = ChangePalletsRequest(changes=[PalletChange(delete="feeds")])
    assert refused(world, delete) is Code.PALLET_IN_USE
    world.delete("feeds", "a")
    world.do(delete)
    assert not world.duties.pallets


# The places of duties


def test_duties_are_placed_and_move_when_a_shard_joins(world: DutyWorld) -> None:
    world.create("feeds", TEN)
    world.settle()
    assert all(world.where(id_) == "" for id_ in TEN)
    world.join("s1")
    world.settle()
    assert world.counts() == {"s1": 10}
    world.join("s2")
    world.settle()
    assert world.counts() == {"s1": 10, "s2": 0}, "nothing moves without a plan"
    assert world.rebalance("feeds") == 5
    world.settle()
    assert world.counts() == {"s1": 5, "s2": 5}
    (operation,) = world.state.operations.values()
    assert operation.state == OperationState.OPERATION_STATE_SUCCEEDED
    assert operation.outcome == "5 of 5 duties moved"
    world.check_tables()


def test_at_most_moves_per_shard_duties_are_on_their_way_to_a_shard(world: DutyWorld) -> None:
    """A duty is on its way from the instruction to attach it until the shard has attached it."""
    world.change_pallet("feeds", moves_per_shard=2, balancer=Balancer(kind=BalancerKind.BALANCER_KIND_ROUND_ROBIN))
    source = world.join("s1")
    world.create("feeds", TEN)
    world.settle()
    target = world.join("s2")
    world.rebalance("feeds")
    for attached in (0, 2):
        for _ in range(3):
            world.follow()
            world.work(source)
        assert len(source.held) == 8 - attached
        assert world.duties.taking == {"s1": 0, "s2": 2}
        world.check_tables()
        world.work(target)
        assert len(target.held) == attached + 2
    world.settle()
    assert world.counts() == {"s1": 5, "s2": 5}


def test_a_deleted_duty_is_gone_when_its_shard_has_released_it(world: DutyWorld) -> None:
    world.join("s1")
    world.create("feeds", ["a"])
    world.settle()
    world.releases = False
    world.delete("feeds", "a")
    world.settle()
    assert world.row("a").deleting
    again = ChangeDutiesRequest(changes=[DutyChange(create=DutySpec(pallet="feeds", id="a"))])
    assert refused(world, again) is Code.DUTY_EXISTS
    world.releases = True
    world.settle()
    assert world.duties.named("feeds", "a") is None
    world.do(again)
    world.settle()
    assert world.where("a") == "s1"


def test_the_duties_of_a_dead_shard_go_to_other_shards(world: DutyWorld) -> None:
    world.join("s1")
    world.join("s2")
    world.create("feeds", TEN)
    world.settle()
    world.kill("s1")
    world.settle()
    assert world.counts() == {"s2": 10}
    world.check_tables()


def test_a_duty_that_a_delegate_cannot_attach_is_tried_on_another_shard(world: DutyWorld) -> None:
    world.join("s1")
    world.join("s2")
    world.create("feeds", ["a"])
    world.settle()
    first = world.where("a")
    other = {"s1": "s2", "s2": "s1"}[first]
    world.fail_to_attach(first, "a")
    world.settle()
    assert world.where("a") == other
    world.fail_to_attach(other, "a")
    world.settle()
    assert world.where("a") == ""
    world.do(ChangeDutiesRequest(changes=[DutyChange(unquarantine=DutyName(pallet="feeds", id="a"))]))
    world.settle()
    assert world.where("a") in ("s1", "s2")


def test_a_failed_duty_is_tried_again_on_another_version_of_the_application(world: DutyWorld) -> None:
    world.join("s1")
    world.create("feeds", ["a"])
    world.settle()
    world.fail_to_attach("s1", "a")
    world.settle()
    assert world.where("a") == ""
    world.join("s2", version="2")
    world.settle()
    assert world.where("a") == "s2"
    world.kill("s2")
    world.settle()
    assert world.where("a") == ""
    world.leave("s1")
    world.settle()
    world.join("s1", version="2")
    world.settle()
    assert world.where("a") == "s1"


def test_a_lazy_duty_ends_when_its_delegate_no_longer_reports_it(world: DutyWorld) -> None:
    world.join("s1")
    world.create("feeds", ["a"], lazy=True)
    world.create("feeds", ["b"])
    world.settle()
    world.finish("s1", "a")
    world.settle()
    assert world.duties.named("feeds", "a") is None
    world.finish("s1", "b")
    world.settle()
    assert world.duties.named("feeds", "b") is not None, "it isn't lazy"


def test_a_pinned_duty_stays_on_its_shard(world: DutyWorld) -> None:
    world.join("s1")
    world.join("s2")
    world.create("feeds", TEN)
    world.settle()
    for id_ in TEN:
        world.pin("feeds", id_, "s1")
    world.settle()
    assert world.counts() == {"s1": 10, "s2": 0}
    assert world.rebalance("feeds") == 0
    world.kill("s1")
    world.settle()
    assert world.counts() == {"s2": 10}, "s2 has the duties while s1 is gone"
    world.wait(HALF_LIFE_MS * 2)
    world.join("s1")
    world.settle()
    assert world.counts() == {"s1": 10, "s2": 0}
    for id_ in TEN:
        world.pin("feeds", id_, "")
    world.settle()
    assert world.rebalance("feeds") == 5


def test_a_duty_pinned_elsewhere_leaves_a_shard_that_no_longer_takes_another_pallet(world: DutyWorld) -> None:
    world.pallet("mail")
    world.join("s1", pallets=("feeds", "mail"), grace_ms=60_000)
    world.create("mail", ["stays"], stationary=True)
    world.create("feeds", ["a"])
    world.settle()
    world.leave("s1")
    world.settle()
    world.join("s1", grace_ms=60_000)
    world.join("s2", pallets=("feeds", "mail"))
    world.settle()
    assert world.where("stays", "mail") == "s1"
    world.pin("feeds", "a", "s2")
    world.settle()
    assert world.where("a") == "s2"


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_duty_pinned_to_a_shard_that_is_gone_goes_to_another(world: DutyWorld, is_forgotten: bool) -> None:
    """The duty is pinned to s2, which doesn't take the duty's pallet. The duty waits for s2 only while s2 is up."""
    world.join("s1")
    world.join("s2", pallets=("mail",))
    world.create("feeds", ["a"])
    world.pin("feeds", "a", "s2")
    world.settle()
    assert world.where("a") == "", "the duty waits for s2, which a person has chosen"
    world.kill("s2")
    if is_forgotten:
        world.now_ms += 600_000
    world.settle()
    assert world.where("a") == "s1"


def test_duties_that_do_not_fit_are_placed_as_soon_as_there_is_room() -> None:
    world = DutyWorld()
    world.pallet("feeds")
    world.join("s1", capacity=6)
    world.create("feeds", TEN)
    world.settle()
    assert world.counts() == {"s1": 6}
    world.delete("feeds", *[id_ for id_ in TEN if world.where(id_)][:2])
    world.settle()
    assert world.counts() == {"s1": 6}
    world.join("s2", capacity=100)
    world.settle()
    assert sum(world.counts().values()) == 8


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_pallet_created_again_under_the_same_name_is_a_new_one(is_seen: bool) -> None:
    """The new pallet knows nothing of the old pallet's unplaced duties, nor of the room that shards had for them."""
    world = DutyWorld()
    world.pallet("feeds")
    world.join("s1", capacity=10)
    world.create("feeds", ["big"], weight=20)
    world.wait(5000)
    row, seen = world.row("big"), world.duties.room["feeds"]
    assert "no shard can take it" in world.why_unplaced("big")
    world.delete("feeds", "big")
    world.do(ChangePalletsRequest(changes=[PalletChange(delete="feeds")]))
    if is_seen:
        world.look()
        assert not world.distributor.why_unplaced(row), "the duty is forgotten with its pallet"
    world.pallet("feeds")
    while world.duties.room["feeds"] < seen:
        world.change_pallet("feeds", moves_per_shard=world.duties.revision)
    world.create("feeds", ["small"])
    world.wait(5000)
    assert world.where("small") == "s1"


# Shards


def test_a_shard_that_stops_cleanly_releases_its_duties_first(world: DutyWorld) -> None:
    world.join("s1")
    world.join("s2")
    world.create("feeds", TEN)
    world.settle()
    world.leave("s1")
    world.settle()
    assert world.counts() == {"s2": 10}
    assert world.duties.shards["s1"].state == ShardState.SHARD_STATE_GONE
    assert score(world.duties.shards["s1"], world.now_ms) == 100


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_shard_that_is_back_within_its_grace_gets_its_duties_back(world: DutyWorld, is_clean: bool) -> None:
    world.join("s1", grace_ms=10_000)
    world.join("s2")
    world.create("feeds", TEN)
    world.settle()
    had = {id_: world.where(id_) for id_ in TEN}
    epochs = {one.duty: one.epoch for one in world.duties.on_shard["s1"].values()}
    if is_clean:
        world.leave("s1")
    else:
        world.kill("s1")
    world.settle()
    world.wait(5000)
    assert {id_: world.where(id_) for id_ in TEN} == had
    world.join("s1", grace_ms=10_000)
    world.settle()
    assert {id_: world.where(id_) for id_ in TEN} == had
    assert all(one.epoch > epochs[one.duty] for one in world.duties.on_shard["s1"].values())
    world.check_tables()


def test_after_a_shards_grace_other_shards_get_its_duties(world: DutyWorld) -> None:
    world.join("s1", grace_ms=10_000)
    world.join("s2")
    world.create("feeds", TEN)
    world.settle()
    world.kill("s1")
    world.wait(9_999)
    assert world.counts() == {"s2": 5}
    world.wait(TIMER_MS)
    assert world.counts() == {"s2": 10}


def test_a_live_shards_name_is_refused_to_another_process(world: DutyWorld) -> None:
    world.join("s1")
    with pytest.raises(MinkaError) as caught:
        world.join("s1")
    assert caught.value.code is Code.SHARD_NAME_TAKEN


def test_a_shard_that_crashes_repeatedly_is_quarantined_until_its_score_is_good(world: DutyWorld) -> None:
    world.join("s1")
    world.join("s2")
    world.create("feeds", TEN)
    world.settle()
    for _ in range(2):
        world.kill("s1")
        world.settle()
        world.join("s1")
    world.settle()
    assert world.duties.shards["s1"].state == ShardState.SHARD_STATE_QUARANTINED
    assert world.rebalance("feeds") == 0
    world.wait(3 * HALF_LIFE_MS // 2)
    assert world.duties.shards["s1"].state == ShardState.SHARD_STATE_LIVE
    assert world.rebalance("feeds") == 5


def test_a_shard_that_flaps_repeatedly_is_emptied(world: DutyWorld) -> None:
    flapping = world.join("s1")
    world.join("s2")
    world.create("feeds", TEN)
    world.settle()
    for _ in range(5):
        world.do(NoteFlap("s1", flapping.incarnation))
        world.settle()
    assert world.duties.shards["s1"].state == ShardState.SHARD_STATE_QUARANTINED
    assert world.counts() == {"s1": 0, "s2": 10}


def test_the_shards_of_a_drained_node_are_emptied(world: DutyWorld) -> None:
    world.state.nodes["athens"] = Node(id="athens", state=NodeState.NODE_STATE_LIVE)
    world.join("s1", node="athens")
    world.join("s2")
    world.create("feeds", TEN)
    world.settle()
    world.state.nodes["athens"] = Node(id="athens", state=NodeState.NODE_STATE_DRAINING, emptied=True)
    world.wait(1000)
    assert world.counts() == {"s1": 0, "s2": 10}


def test_a_drained_shard_keeps_duties_that_fit_nowhere_else() -> None:
    world = DutyWorld()
    world.pallet("feeds")
    world.state.nodes["athens"] = Node(id="athens", state=NodeState.NODE_STATE_LIVE)
    world.join("s1", node="athens", capacity=10)
    world.create("feeds", TEN)
    world.settle()
    world.join("s2", capacity=4)
    world.state.nodes["athens"] = Node(id="athens", state=NodeState.NODE_STATE_DRAINING, emptied=True)
    world.wait(1000)
    assert world.counts() == {"s1": 6, "s2": 4}


# Deploys of new versions of the shards


def test_a_rolling_deploy_moves_each_duty_at_most_once(world: DutyWorld) -> None:
    """Twenty shards are replaced one after the other, and each new one starts before the old one stops."""
    ids = [f"d{number}" for number in range(200)]
    for number in range(20):
        world.join(f"old{number}", version="1")
    world.create("feeds", ids)
    world.settle()
    moves = dict.fromkeys(ids, 0)
    for number in range(20):
        before = {id_: world.where(id_) for id_ in ids}
        world.now_ms += 1000
        world.join(f"new{number}", version="2")
        world.settle()
        world.leave(f"old{number}")
        world.settle()
        for id_ in ids:
            moves[id_] += world.where(id_) != before[id_]
    assert set(moves.values()) == {1}
    world.rebalance("feeds")
    world.settle()
    assert max(world.counts().values()) - min(world.counts().values()) <= 1


def test_a_canary_gets_its_share_of_duties(world: DutyWorld) -> None:
    ids = [f"d{number}" for number in range(400)]
    for number in range(4):
        world.join(f"s{number}", version="1")
    world.create("feeds", ids)
    world.settle()
    world.join("s9", version="2")
    world.change_pallet("feeds", canary=Canary(version="2", percent=5))
    world.settle()
    world.rebalance("feeds")
    world.settle()
    assert 8 <= world.counts()["s9"] <= 35
    assert world.rebalance("feeds") == 0


def test_a_move_whose_target_dies_leaves_the_duties_at_their_source(world: DutyWorld) -> None:
    world.join("s1")
    world.create("feeds", TEN)
    world.settle()
    world.join("s2")
    world.rebalance("feeds")
    world.releases = False
    world.follow()
    world.kill("s2")
    world.releases = True
    world.settle()
    assert world.counts() == {"s1": 10}
    assert not world.state.moving
    world.check_tables()


def test_leaving_a_second_time_changes_nothing(world: DutyWorld) -> None:
    process = world.join("s1")
    world.leave("s1")
    world.settle()
    world.do(LeaveShardRequest(shard="s1", incarnation=process.incarnation))
    assert world.duties.shards["s1"].state == ShardState.SHARD_STATE_GONE


@pytest.mark.parametrize("grace_ms", [0, 10_000])
@pytest.mark.parametrize("pieces", [1, 2])
def test_the_next_controller_completes_the_failure_of_a_shard(grace_ms: int, pieces: int) -> None:
    world = DutyWorld()
    world.pallet("feeds")
    world.join("s1", grace_ms=grace_ms)
    for start in range(0, 600, 200):
        world.create("feeds", [f"d{start + number}" for number in range(200)])
    world.settle()
    world.join("s2")
    facts = records_of(world.state, FailShards({"s1": "silent"}), world.now_ms)
    for _ in range(pieces):
        world.state.apply(next(facts))
    del world.processes["s1"]
    world.settle()
    assert world.counts() == ({"s2": 0} if grace_ms else {"s2": 600})
    if grace_ms:
        world.join("s1")
        world.settle()
        assert world.counts() == {"s1": 600, "s2": 0}
    world.check_tables()


def test_a_canary_does_not_divide_duties_if_all_shards_have_its_version(world: DutyWorld) -> None:
    world.change_pallet("feeds", canary=Canary(version="2", percent=5))
    world.join("s1", version="2")
    world.create("feeds", TEN)
    world.settle()
    assert world.counts() == {"s1": 10}


def test_many_duties_wait_until_no_more_shards_join(world: DutyWorld) -> None:
    for start in range(0, 3000, 1000):
        world.create("feeds", [f"d{start + number}" for number in range(1000)])
    for number in range(4):
        world.join(f"s{number}")
        facts = world.look()
        assert not facts, "the first would get everything"
        world.now_ms += JOINED_MS // 2
    world.now_ms += JOINED_MS
    world.settle()
    assert set(world.counts().values()) == {750}
