"""Synthetic duties go to every shard that takes their pallet, even if there are many duties and shards."""

import pytest

from minka.v1.duties_pb2 import PalletCapacity, Shard
from minkad.core.duties.control.distribution import PIECE, SLOW_MS, WINDOW
from minkad.core.duties.control.shard_lives import RegisterShard
from tests.unit.core.duty_world import DutyWorld


@pytest.fixture
def world() -> DutyWorld:
    """A world with a pallet."""
    world = DutyWorld()
    world.pallet("feeds")
    return world


def on(world: DutyWorld, id_: str) -> set[str]:
    """The shards that have the duty, or are about to have it."""
    return {one.shard for one in world.duties.assignments(world.row(id_).number)}


def decide(world: DutyWorld) -> int:
    """Let the controller decide once. Returns the number of assignments that it makes."""
    facts = world.look()
    for record in facts:
        world.state.apply(record)
    return sum(len(record.assignments_changed.duties) for record in facts)


def test_synthetic_duties_are_on_every_shard_even_on_later_ones(world: DutyWorld) -> None:
    world.join("s1", capacity=0)
    world.create("feeds", ["white"], synthetic=True)
    world.settle()
    world.join("s2")
    world.settle()
    assert on(world, "white") == {"s1", "s2"}
    world.kill("s1")
    world.settle()
    assert on(world, "white") == {"s2"}
    world.delete("feeds", "white")
    world.settle()
    assert not world.duties.duties
    world.check_tables()


def test_many_synthetic_duties_are_assigned_in_pieces(world: DutyWorld) -> None:
    """While the duties are assigned, one shard joins and gets all of them, and another shard fails and keeps none."""
    ids = [f"y{number}" for number in range(400)]
    for number in range(8):
        world.join(f"s{number}")
    world.create("feeds", ids, synthetic=True)
    for _ in range(2 * WINDOW // PIECE):
        assert decide(world) <= PIECE
    assert len(world.duties.attaching) == WINDOW
    world.check_tables()
    world.kill("s1")
    world.join("s8")
    for _ in range(2 * WINDOW // PIECE):
        assert decide(world) <= PIECE
        assert len(world.duties.attaching) <= WINDOW
    world.settle()
    assert not world.duties.attaching
    assert all(on(world, id_) == set(world.processes) for id_ in ids)
    world.check_tables()


def test_ordinary_duties_wait_while_many_synthetic_ones_are_on_their_way(world: DutyWorld) -> None:
    """Ordinary duties wait until the shard has attached some of the synthetic ones, or for SLOW_MS if it is slow."""
    world.join("s1")
    for start in range(0, WINDOW, 1000):
        world.create("feeds", [f"y{start + number}" for number in range(1000)], synthetic=True)
    world.follow()
    assert len(world.duties.attaching) == WINDOW
    world.create("feeds", ["a"])
    world.follow()
    assert world.where("a") == ""
    world.now_ms += SLOW_MS
    world.follow()
    assert world.where("a") == "s1"
    assert world.duties.taking == {"s1": 1}


def test_a_shard_that_takes_a_pallet_later_gets_its_synthetic_duties(world: DutyWorld) -> None:
    process = world.join("s1", pallets=("mail",))
    world.join("s2")
    world.create("feeds", ["white"], synthetic=True)
    world.settle()
    assert on(world, "white") == {"s2"}
    assert not world.look()
    said = [PalletCapacity(pallet=pallet) for pallet in ("mail", "feeds")]
    world.do(RegisterShard(Shard(name="s1", incarnation=process.incarnation, pallets=said), holder_alive=True))
    world.settle()
    assert on(world, "white") == {"s1", "s2"}


def test_one_more_assignment_does_not_copy_the_assignments_on_other_shards(world: DutyWorld) -> None:
    """If each assignment copied the others, its cost would grow with the number of shards."""
    world.join("s1")
    world.create("feeds", ["white"], synthetic=True)
    world.settle()
    some = world.duties.of_synthetic[world.row("white").number]
    world.join("s2")
    world.settle()
    assert world.duties.of_synthetic[world.row("white").number] is some
    assert set(some) == {"s1", "s2"}
    world.kill("s2")
    world.settle()
    assert world.duties.of_synthetic[world.row("white").number] is some
    assert set(some) == {"s1"}
    assert world.duties.copy().of_synthetic[world.row("white").number] is not some, "a copy changes apart"
