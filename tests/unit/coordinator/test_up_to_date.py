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
from tests.unit.coordinator.controller_harness import Harness

Ask = Callable[[ActiveController], Awaitable[object]]

_STALE_ISR = AlterIsrRequest(node_id="a", changes=[IsrChange(partition_id=1, leader_epoch=99, isr=["a"])])
_FLIGHTS = CreateKeyspace("flights", 2, HashFunction.HASH_FUNCTION_MURMUR3, 1)
_ANSWERS: list[tuple[Ask, Code | None]] = [
    (lambda controller: controller.run(RemoveNodeRequest(node="zanzibar")), Code.UNKNOWN_NODE),
    (lambda controller: controller.run(_STALE_ISR), None),  # the answer has an error for this one change
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
