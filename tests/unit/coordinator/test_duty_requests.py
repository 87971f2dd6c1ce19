"""Which members have a change before it is acknowledged, and what the answer shows."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import cast

import pytest

from minka.v1.duties_pb2 import Pallet
from minka.v1.duty_api_pb2 import (
    ChangeDutiesRequest,
    ChangePalletsRequest,
    Consistency,
    DutyChange,
    DutyName,
    PalletChange,
)
from minka.v1.raft_pb2 import ConfState
from minkad.coordinator.coordinator import Coordinator
from minkad.coordinator.duty_requests import DutyRequests
from minkad.core.controller import Command
from minkad.core.state import State

_C = Consistency


class Controller:
    """A controller that records anything."""

    def __init__(self, decided: State | None = None) -> None:
        self.decided = decided or State()

    async def submit(self, command: Command) -> None:
        pass

    async def submit_logged(self, command: Command) -> None:
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
    coordinator = SimpleNamespace(driver=driver, controller=Controller, state=State())
    change = DutyChange(delete=DutyName(pallet="feeds", id="bbc"))
    request = ChangeDutiesRequest(changes=[change], consistency=consistency)
    await DutyRequests(cast("Coordinator", coordinator)).change_duties(request)
    assert asked == members


@pytest.mark.parametrize(("consistency", "version"), [(_C.CONSISTENCY_QUORUM, 2), (_C.CONSISTENCY_LEADER, 3)])
async def test_an_answer_shows_nothing_less_certain_than_was_asked_for(
    consistency: Consistency.ValueType, version: int
) -> None:
    """The next change of the same pallet is decided before this one is answered; its answer may be lost with it."""
    committed, decided = State(), State()
    committed.duties.put_pallet(Pallet(id="feeds", version=2))
    decided.duties.put_pallet(Pallet(id="feeds", version=3))
    coordinator = SimpleNamespace(controller=lambda: Controller(decided), state=committed)
    request = ChangePalletsRequest(changes=[PalletChange(update=Pallet(id="feeds"))], consistency=consistency)
    response = await DutyRequests(cast("Coordinator", coordinator)).change_pallets(request)
    assert [pallet.version for pallet in response.pallets] == [version]
