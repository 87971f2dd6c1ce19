"""Answers without records: a leader that is deposed and doesn't know it yet must not give them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import RemoveNodeRequest
from minka.v1.cluster_pb2 import HashFunction
from minka.v1.coordinator_pb2 import AlterIsrRequest, IsrChange
from minkad.coordinator.active_controller import ActiveController
from minkad.coordinator.new_keyspaces import created
from minkad.core.controller.keyspaces import CreateKeyspace
from tests.unit.coordinator.controller_harness import Harness, until

Ask = Callable[[ActiveController], Awaitable[object]]

_STALE_ISR = AlterIsrRequest(node_id="a", changes=[IsrChange(partition_id=1, leader_epoch=99, isr=["a"])])
_WITH_RECORDS = CreateKeyspace("trains", 2, HashFunction.HASH_FUNCTION_MURMUR3, 1)
_FLIGHTS = CreateKeyspace("flights", 2, HashFunction.HASH_FUNCTION_MURMUR3, 1)
_ANSWERS: list[tuple[Ask, Code | None]] = [
    (lambda controller: controller.run(RemoveNodeRequest(node="zanzibar")), Code.UNKNOWN_NODE),
    (lambda controller: controller.run(_STALE_ISR), None),  # the answer has an error for this one change
    (lambda controller: controller.run(_STALE_ISR, logged=True), None),  # no record of it is logged anywhere
    (lambda controller: created(controller, _FLIGHTS), Code.KEYSPACE_EXISTS),  # refused before it is decided
    (lambda controller: controller.up_to_date(), None),
]


async def code_of(answer: Awaitable[object]) -> Code | None:
    try:
        await answer
    except MinkaError as refusal:
        return refusal.code
    return None


@pytest.mark.parametrize(("ask", "code"), _ANSWERS)
async def test_an_answer_waits_until_a_quorum_confirms_the_leader(ask: Ask, code: Code | None) -> None:
    h = Harness()
    await h.begin("a", replicas=1)
    h.confirms = False
    asked = [asyncio.create_task(code_of(ask(h.controller))) for _ in range(3)]
    await h.look_around()
    assert not any(one.done() for one in asked)
    h.now, h.confirms = h.now + 1, True  # the controller asks its quorum again at its next tick
    async with asyncio.timeout(30):
        assert await asyncio.gather(*asked) == [code] * 3
    h.controller.close()


@pytest.mark.parametrize(("ask", "_code"), _ANSWERS)
async def test_a_deposed_leader_sends_the_asker_to_the_next_one(ask: Ask, _code: Code | None) -> None:
    h = Harness()
    await h.begin("a", replicas=1)
    h.confirms = False
    asked = asyncio.create_task(code_of(ask(h.controller)))
    await h.look_around()
    h.controller.close()
    async with asyncio.timeout(30):
        assert await asked is Code.NOT_CONTROLLER
        assert await code_of(ask(h.controller)) is Code.NOT_CONTROLLER


async def test_a_read_during_which_a_proposal_fails_sends_the_asker_to_the_next_one() -> None:
    """The proposal's outcome is unknown, but the read changes nothing: its caller may try again."""
    h = Harness()
    await h.begin("a", replicas=1)
    h.hold()
    changes = asyncio.create_task(code_of(h.controller.run(_WITH_RECORDS)))
    await until(lambda: bool(h.held))
    asked = asyncio.create_task(code_of(h.controller.up_to_date()))
    await h.look_around()
    assert h.held is not None
    for _, proposal in h.held:
        proposal.set_exception(MinkaError(Code.OUTCOME_UNKNOWN, "another node was elected"))
    async with asyncio.timeout(30):
        assert await changes is Code.OUTCOME_UNKNOWN
        assert await asked is Code.NOT_CONTROLLER
    h.controller.close()


class Questions(Harness):
    """A harness whose quorum answers when the test does."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, Callable[[float], None]]] = []
        super().__init__()

    def confirm_leadership(self, now: float, confirmed: Callable[[float], None]) -> None:
        self.asked.append((now, confirmed))

    def for_waiting(self) -> list[tuple[float, Callable[[float], None]]]:
        """The questions that aren't the periodic ones of the controller."""
        return [one for one in self.asked if one[1] != self.controller._confirmed]


async def test_a_quorum_is_asked_once_for_all_that_wait() -> None:
    h = Questions()
    began = h.now
    first = asyncio.create_task(h.controller.up_to_date())
    await until(lambda: len(h.for_waiting()) == 1)
    later = []
    for _ in range(3):
        h.now += 0.01
        later.append(asyncio.create_task(h.controller.up_to_date()))
        await h.look_around()
    h.controller._confirmed(began)  # the answer to a periodic question
    await first
    assert len(h.for_waiting()) == 1, "the question under way is enough"
    (asked_at, confirmed), *_ = h.for_waiting()
    confirmed(asked_at)
    assert len(h.for_waiting()) == 2
    assert not any(one.done() for one in later)
    asked_at, confirmed = h.for_waiting()[-1]
    confirmed(asked_at)
    async with asyncio.timeout(30):
        await asyncio.gather(*later)
    assert len(h.for_waiting()) == 2
    h.controller.close()


async def test_a_lost_question_is_asked_again() -> None:
    """A leader whose disk is stalled drops answers."""
    h = Questions()
    first = asyncio.create_task(h.controller.up_to_date())
    await until(lambda: len(h.for_waiting()) == 1)
    h.now += 0.1
    periodic = h.now
    h.now += 0.1
    second = asyncio.create_task(h.controller.up_to_date())
    await h.look_around()
    h.controller._confirmed(periodic)
    await first
    (_, (asked_at, confirmed)) = h.for_waiting()
    assert asked_at == h.now
    confirmed(asked_at)
    await second
    h.controller.close()
