"""A shard with a session, for the tests of its state machine."""

import pytest

from minka.duties._events import Method
from tests.unit.duties.world import ALL, World, held


@pytest.fixture
def world() -> World:
    """A shard with a session, a clearance and two duties."""
    world = World([method for method in ALL if method is not Method.REPORT])
    world.connect()
    world.attach(held(1, 11), held(2, 12))
    world.end_calls()
    world.record()
    world.history.clear()
    return world


@pytest.fixture
def silent(world: World) -> World:
    """The shard of `world`, whose heartbeats are no longer answered."""
    world.answers = False
    return world
