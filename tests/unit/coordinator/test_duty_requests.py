"""Which members have a change before it is acknowledged."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import cast

import pytest

from minka.v1.duty_api_pb2 import ChangeDutiesRequest, Consistency, DutyChange, DutyName
from minka.v1.raft_pb2 import ConfState
from minkad.coordinator.coordinator import Coordinator
from minkad.coordinator.duty_requests import DutyRequests
from minkad.core.controller import Command
from minkad.core.state import State

_C = Consistency


class Controller:
    """A controller that records anything."""

    decided = State()

    async def submit(self, command: Command) -> None:
        pass


@pytest.mark.parametrize(
    ("consistency", "members"), [(_C.CONSISTENCY_VOTERS, {1, 2, 3}), (_C.CONSISTENCY_ALL, {1, 2, 3, 4})]
)
async def test_while_the_voters_change_both_sets_have_it(consistency: Consistency.ValueType, members: set[int]) -> None:
    """One of the former voters becomes a learner when the change ends."""
    asked: set[int] = set()

    async def logged_by(raft_ids: Collection[int]) -> None:
        asked.update(raft_ids)

    conf_state = ConfState(voters=[1, 2], voters_outgoing=[1, 3], learners_next=[3], learners=[4])
    driver = SimpleNamespace(conf_state=conf_state, logged_by=logged_by)
    coordinator = SimpleNamespace(driver=driver, controller=Controller)
    change = DutyChange(delete=DutyName(pallet="feeds", id="bbc"))
    request = ChangeDutiesRequest(changes=[change], consistency=consistency)
    await DutyRequests(cast("Coordinator", coordinator)).change_duties(request)
    assert asked == members
