"""The explanation of a duty's place names the capacities of shards."""

import re

from minka.v1.duties_pb2 import PalletCapacity, Shard
from minkad.core.duties.control import why_not_placed
from minkad.core.duties.control.shard_lives import RegisterShard
from tests.unit.core.duty_world import DutyWorld


def says(world: DutyWorld, duty: str) -> dict[str, str]:
    """Return, for each shard, the sentence that explains why it has this duty or can't have it."""
    return {one.shard: one.verdict for one in why_not_placed.verdicts(world.state, world.row(duty), world.now_ms)}


def resize(world: DutyWorld, name: str, capacity: int) -> None:
    """Let the shard's process state another capacity."""
    pallets = [PalletCapacity(pallet="feeds", capacity=capacity)]
    world.do(RegisterShard(Shard(name=name, incarnation=world.processes[name].incarnation, pallets=pallets), True))
    world.rebalance("feeds")
    world.settle()


def test_a_shard_of_capacity_0_keeps_duties_that_no_other_can_take() -> None:
    world = DutyWorld()
    world.pallet("feeds")
    world.join("one", capacity=40)
    world.create("feeds", ["bbc"], weight=30)
    world.create("feeds", ["all"], synthetic=True)
    world.settle()
    assert says(world, "bbc")["one"].endswith("; it carries weight 30 of its capacity 40")
    resize(world, "one", 0)
    assert world.where("bbc") == "one"
    assert says(world, "bbc")["one"].endswith(
        "it has capacity 0 for pallet feeds, so duties go as soon as another shard has room"
    )
    assert "capacity" not in says(world, "all")["one"]
    world.join("two", capacity=50)
    world.rebalance("feeds")
    world.settle()
    assert world.where("bbc") == "two"
    assert says(world, "bbc")["one"] == "has capacity 0 for pallet feeds"
    world.join("none")
    assert says(world, "bbc")["none"] == "could have it; it has 0 duties of weight 0"


def test_the_verdict_about_a_shard_with_room_names_its_capacity() -> None:
    world = DutyWorld()
    world.pallet("feeds")
    world.join("one", capacity=40)
    world.create("feeds", ["bbc"], weight=30)
    world.settle()
    world.join("two", capacity=50)
    assert says(world, "bbc")["two"] == "could have it; it has 0 duties of weight 0 of its capacity 50"


def summary_of(world: DutyWorld, duty: str) -> str:
    """Return the sentences that say where the duty is, and why."""
    return why_not_placed.summary(world.state, world.row(duty), world.why_unplaced(duty), world.now_ms)


def test_the_summary_of_a_duty_that_is_placed_and_then_pinned() -> None:
    world = DutyWorld()
    world.pallet("feeds")
    world.join("alpha", capacity=40)
    world.create("feeds", ["bbc"], weight=30)
    world.settle()
    assert summary_of(world, "bbc") == (
        "feeds/bbc is on alpha: the balancer chose alpha, which goes from weight 0 to 30. The pallet's balancer "
        "(capacity workload) may move it."
    )
    world.join("beta", capacity=40)
    world.pin("feeds", "bbc", "beta")
    world.settle()
    assert summary_of(world, "bbc") == (
        "feeds/bbc is on beta: it is pinned to beta. It stays there while the shard can have it, until it is released."
    )
    world.kill("beta")
    world.settle()
    to_beta = "A person has pinned it to beta: it goes there as soon as that shard can have it."
    assert summary_of(world, "bbc") == (
        f"feeds/bbc is on alpha: the balancer chose alpha, which goes from weight 0 to 30. {to_beta}"
    )
    world.kill("alpha")
    world.settle()
    assert summary_of(world, "bbc").endswith(f". {to_beta}")
    world.join("beta", capacity=40)
    world.settle()
    assert world.where("bbc") == "beta"


def test_the_verdict_about_a_quarantined_shard_says_when_it_is_trusted_again() -> None:
    world = DutyWorld()
    world.pallet("feeds")
    world.join("one")
    world.join("two")
    world.create("feeds", ["bbc"])
    world.settle()
    other = "two" if world.where("bbc") == "one" else "one"
    for _ in range(2):
        world.kill(other)
        world.settle()
        world.join(other)
        world.settle()
    quarantined = (
        "it is QUARANTINED: it fell silent again and again; it is trusted again in about 40 s, unless it fails"
    )
    assert says(world, "bbc")[other] == f"can't have it: {quarantined} again"
    world.kill(world.where("bbc"))
    world.settle()
    assert world.where("bbc") == other
    found = re.search(
        r"^has it .*; it is QUARANTINED: .* again in about (\d+) s, unless it fails", says(world, "bbc")[other]
    )
    assert found is not None
    seconds = int(found[1])
    assert 38 <= seconds <= 40
    world.wait(seconds * 1000 - 2000)
    assert "QUARANTINED" in says(world, "bbc")[other]
    world.wait(2000)
    assert says(world, "bbc")[other].startswith("has it (epoch ")
    assert "QUARANTINED" not in says(world, "bbc")[other]
