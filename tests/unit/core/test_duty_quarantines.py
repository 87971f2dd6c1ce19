"""A duty that a shard can't attach is tried on other shards. The tries end, however many shards there are."""

from collections.abc import Callable

import pytest

from minka.v1.duties_pb2 import AssignmentState
from minka.v1.duty_api_pb2 import ChangeDutiesRequest, DutyChange, DutyName
from minkad.core.duties.control import why_not_placed
from minkad.core.duties.control.quarantines import MAX_OLD_REASON, MAX_QUARANTINES, MAX_REASON
from tests.unit.core.duty_world import DutyWorld

MANY = MAX_QUARANTINES + 4
ROUNDS = 10 * MANY


def world_of(shards: int, version: Callable[[int], str] = lambda _: "1") -> DutyWorld:
    """A world with this many shards. A shard's name has its version and its number: `v1-03`."""
    world = DutyWorld()
    world.pallet("feeds")
    for number in range(shards):
        world.join(f"v{version(number)}-{number:02}", version=version(number))
    return world


def assigned(world: DutyWorld) -> list[str]:
    """The shards that are about to attach the duty."""
    some = world.duties.assignments(world.row("bad").number)
    return [one.shard for one in some if one.state == AssignmentState.ASSIGNMENT_STATE_ASSIGNED]


def fail_everywhere(world: DutyWorld, reason: str = "ValueError: no") -> list[str]:
    """Let each shard that gets the duty fail to attach it, until no shard gets it. Returns the shards in the order of
    the tries.
    """
    tried: list[str] = []
    for _ in range(ROUNDS):
        world.follow()
        shards = assigned(world)
        if not shards:
            return tried
        for name in shards:
            world.fail_to_attach(name, "bad", reason=reason)
        tried += shards
    raise AssertionError(f"the duty was tried {len(tried)} times, and the tries do not end")


@pytest.mark.parametrize("shards", [MAX_QUARANTINES - 1, MAX_QUARANTINES, MAX_QUARANTINES + 1, MANY])
@pytest.mark.parametrize("synthetic", [False, True])
def test_the_tries_end(shards: int, synthetic: bool) -> None:
    world = world_of(shards)
    world.create("feeds", ["bad"], synthetic=synthetic)
    tried = fail_everywhere(world)
    assert len(set(tried)) == len(tried) >= min(shards, MAX_QUARANTINES + 1)
    assert len(world.row("bad").quarantines) <= MAX_QUARANTINES
    world.wait(600_000)
    assert not assigned(world)
    world.check_tables()


@pytest.mark.parametrize("shards", [3, MANY])
def test_people_are_told_where_the_duty_failed_last_and_why(shards: int) -> None:
    world = world_of(shards)
    world.create("feeds", ["bad"])
    last = fail_everywhere(world)[-1]
    why = world.why_unplaced("bad")
    assert "no shard can take it: it is quarantined on" in why
    assert f"on {last}: ValueError: no" in why
    verdicts = why_not_placed.verdicts(world.state, world.row("bad"), world.now_ms)
    assert len(verdicts) == shards
    assert all("ValueError: no" in one.verdict and not one.possible for one in verdicts)


def test_a_synthetic_duty_stays_where_it_is_attached_and_people_are_told_where_it_failed() -> None:
    world = world_of(2)
    world.create("feeds", ["bad"], synthetic=True)
    world.settle()
    for number in range(MANY):
        world.join(f"later{number:02}")
    tried = fail_everywhere(world)
    assert set(tried) == set(world.processes) - {"v1-00", "v1-01"}
    text = why_not_placed.summary(world.state, world.row("bad"), "", world.now_ms)
    assert "on 2 of the shards" in text
    assert f"on {tried[-1]}: ValueError: no" in text


@pytest.mark.parametrize("synthetic", [False, True])
def test_shards_of_a_new_version_try_again_and_these_tries_end_too(synthetic: bool) -> None:
    """Shards of the old version don't try again, although the duty's row no longer names all that have failed."""
    world = world_of(MANY)
    world.create("feeds", ["bad"], synthetic=synthetic)
    fail_everywhere(world)
    for number in range(MANY):
        world.join(f"v2-{number:02}", version="2")
    tried = fail_everywhere(world)
    assert len(tried) > MAX_QUARANTINES // 2
    assert all(name.startswith("v2") for name in tried)
    world.join("v3-00", version="3")
    world.settle()
    assert [one.shard for one in world.duties.assignments(world.row("bad").number)] == ["v3-00"]


def test_the_tries_end_although_each_shard_has_another_version() -> None:
    world = world_of(MANY, version=str)
    world.create("feeds", ["bad"])
    assert len(fail_everywhere(world)) == MAX_QUARANTINES
    world.kill("v0-00")
    world.now_ms += 600_000
    world.settle()
    assert assigned(world) or world.where("bad"), "a version that failed is gone, so another shard may try"


def test_a_person_ends_the_quarantine() -> None:
    world = world_of(MANY)
    world.create("feeds", ["bad"])
    fail_everywhere(world)
    world.do(ChangeDutiesRequest(changes=[DutyChange(unquarantine=DutyName(pallet="feeds", id="bad"))]))
    world.settle()
    assert world.where("bad")


def test_a_row_keeps_the_newest_reason_whole_and_older_ones_short() -> None:
    world = world_of(MAX_QUARANTINES)
    world.create("feeds", ["bad"])
    fail_everywhere(world, reason="x" * 2 * MAX_REASON)
    lengths = [len(one.reason) for one in world.row("bad").quarantines]
    assert lengths == [MAX_OLD_REASON] * (MAX_QUARANTINES - 1) + [MAX_REASON]
