"""Changes of duties: which members must have a change before it is acknowledged, and which rows the answer shows."""

import asyncio
from collections.abc import AsyncIterator, Collection
from types import SimpleNamespace
from typing import cast

import pytest

from minka.duties.changes import DutyChange, create, delete, duty_messages
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Cluster, Node
from minka.v1.duties_pb2 import Pallet
from minka.v1.duty_api_pb2 import (
    ChangeDutiesRequest,
    ChangePalletsRequest,
    ChangePalletsResponse,
    Consistency,
    PalletChange,
)
from minka.v1.raft_pb2 import ConfState
from minkad.coordinator.coordinator import Coordinator
from minkad.core.controller.membership import CreateCluster
from minkad.duties.control.duty_requests import DutyRequests
from tests.unit.coordinator.controller_harness import Harness, until

_C = Consistency


class Served:
    """The requests to an active controller. Its group has four members, and a change of the voters is under way."""

    def __init__(self) -> None:
        self.h = Harness()
        self.asked: set[int] = set()
        self.confirmed = asyncio.Event()
        self.confirmed.set()
        conf_state = ConfState(voters=[1, 2], voters_outgoing=[1, 3], learners_next=[3], learners=[4])
        self.coordinator = SimpleNamespace(
            driver=SimpleNamespace(
                conf_state=conf_state, logged_by=self.logged_by, match=lambda: {1: 9, 2: 8, 3: 9}, applied_index=9
            ),
            node_with={2: Node(id="byzantium")}.get,
            controller=lambda: self.h.controller,
            state=self.h.state,
        )
        self.requests = DutyRequests(cast("Coordinator", self.coordinator))

    async def logged_by(self, raft_ids: Collection[int]) -> None:
        self.asked.update(raft_ids)
        await self.confirmed.wait()

    async def change(
        self, *changes: DutyChange, consistency: Consistency.ValueType = _C.CONSISTENCY_QUORUM, timeout: float = 10.0
    ) -> list[tuple[str, int]]:
        """Send these changes; returns the ids and versions in the answer."""
        request = ChangeDutiesRequest(changes=duty_messages(changes), consistency=consistency)
        return [(row.id, row.version) for row in (await self.requests.change_duties(request, timeout)).duties]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """The requests of a controller that has one pallet."""
    served = Served()
    await served.h.controller.run(CreateCluster(Cluster(id="c", name="test", min_nodes=1), ()))
    await served.h.controller.run(ChangePalletsRequest(changes=[PalletChange(create=Pallet(id="feeds"))]))
    yield served
    served.h.controller.close()


@pytest.mark.parametrize(
    ("consistency", "members"), [(_C.CONSISTENCY_VOTERS, {1, 2, 3}), (_C.CONSISTENCY_ALL, {1, 2, 3, 4})]
)
async def test_while_the_voters_change_members_of_both_sets_must_have_the_change(
    served: Served, consistency: Consistency.ValueType, members: set[int]
) -> None:
    """Node 3 is only in the former set of voters, and becomes a learner when the change of the voters ends."""
    await served.change(create("feeds", "bbc"), consistency=consistency)
    assert served.asked == members


@pytest.mark.timeout(4)
async def test_a_level_that_is_not_reached_in_the_callers_time_is_reported_in_that_time(served: Served) -> None:
    """Without this report, the caller would learn only that its time is over, not that the change is done."""
    served.confirmed.clear()
    refused = served.change(create("feeds", "bbc"), consistency=_C.CONSISTENCY_VOTERS, timeout=0.05)
    with pytest.raises(MinkaError, match=r"not confirmed within 0\.\d s by byzantium") as caught:
        await refused
    assert caught.value.code is Code.CONSISTENCY_NOT_REACHED
    assert served.h.state.duties.named("feeds", "bbc") is not None


@pytest.mark.parametrize("consistency", [_C.CONSISTENCY_QUORUM, _C.CONSISTENCY_LEADER])
async def test_an_answer_shows_no_later_change_that_is_less_certain(
    served: Served, consistency: Consistency.ValueType
) -> None:
    """A second change is decided before the first is answered. The second may still be lost, so the first answer hides
    it.
    """

    def updated(moves: int) -> "asyncio.Task[ChangePalletsResponse]":
        change = PalletChange(update=Pallet(id="feeds", moves_per_shard=moves))
        request = ChangePalletsRequest(changes=[change], consistency=consistency)
        return asyncio.create_task(served.requests.change_pallets(request, 10.0))

    served.h.hold()
    answers = [updated(1), updated(2)]
    await until(lambda: served.h.controller.decided.duties.pallets["feeds"].version == 3)
    served.h.release()
    assert [[row.version for row in (await answer).pallets] for answer in answers] == [[2], [3]]


async def test_the_answer_to_a_creation_has_a_duty_that_was_deleted_meanwhile(served: Served) -> None:
    served.confirmed.clear()
    created = asyncio.create_task(
        served.change(create("feeds", "bbc"), create("feeds", "ft"), consistency=_C.CONSISTENCY_ALL)
    )
    await until(lambda: bool(served.asked))
    assert await served.change(delete("feeds", "bbc")) == [("bbc", 1)]
    assert served.h.state.duties.named("feeds", "bbc") is None
    served.confirmed.set()
    assert await created == [("bbc", 1), ("ft", 1)]


async def test_a_deletion_that_waits_for_its_turn_sees_a_creation_before_it(served: Served) -> None:
    served.h.hold()
    created = asyncio.create_task(served.change(create("feeds", "bbc")))
    deleted = asyncio.create_task(served.change(delete("feeds", "bbc")))
    await until(lambda: len(served.h.held or ()) == 2)
    served.h.release()
    assert [await created, await deleted] == [[("bbc", 1)], [("bbc", 1)]]
