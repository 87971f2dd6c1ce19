"""The clients of duties, against real servers that answer as a test says: the synchronous one and its asyncio twin."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from minka.duties import Client, aio, changes
from minka.errors import Code, MinkaError
from minka.v1.duties_pb2 import Duty
from minka.v1.duty_api_pb2 import (
    ChangeDutiesResponse,
    Consistency,
    DutyStatus,
    GetDutiesRequest,
    GetDutiesResponse,
)
from tests.unit.client.conftest import ControlNode

Start = Callable[[], ControlNode]
BBC = Duty(number=1, pallet="feeds", id="bbc", version=1)


class Twin:
    """The asyncio client, used like the synchronous one."""

    def __init__(self, endpoints: list[str], timeout: float = 5.0) -> None:
        self._endpoints, self._timeout = endpoints, timeout

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            async with aio.Client(self._endpoints, timeout=self._timeout) as client:
                found = getattr(client, name)(*arguments, **named)
                return [one async for one in found] if isinstance(found, AsyncIterator) else await found

        return lambda *arguments, **named: asyncio.run(call(*arguments, **named))


@pytest.fixture(params=[Client, Twin], ids=["sync", "aio"])
def connect(request: pytest.FixtureRequest) -> Any:
    """Make a client of either kind."""
    return request.param


def test_the_twins_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(method).parameters)
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert methods(Client) == methods(aio.Client)


def test_changes_are_sent_together(connect: Any, control_node: Start) -> None:
    node = control_node()
    node.answers["ChangeDuties"] = ChangeDutiesResponse(duties=[BBC])
    wanted = [changes.create("feeds", "bbc", "ä", weight=5), changes.delete("feeds", "ft", if_version=2)]
    assert connect([node.address]).change(wanted, consistency="all") == [BBC]
    [(_, request)] = node.asked
    assert list(request.changes) == wanted
    assert request.changes[0].create.payload == "ä".encode()
    assert request.consistency == Consistency.CONSISTENCY_ALL


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.create("feeds", "bbc", weight=-1),
        lambda client: client.create("feeds", "bbc", 7),
        lambda client: client.create("feeds", "bbc", consistency="most"),
        lambda client: client.update("feeds", 7),
    ],
)
def test_what_can_not_be_sent(connect: Any, call: Any) -> None:
    with pytest.raises(MinkaError) as caught:
        call(connect(["127.0.0.1:1"]))
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_another_endpoint_takes_what_a_dead_one_can_not(
    connect: Any, control_node: Start, free_address: Callable[[], str]
) -> None:
    node = control_node()
    node.answers["ChangeDuties"] = ChangeDutiesResponse(duties=[BBC])
    assert connect([free_address(), node.address]).create("feeds", "bbc") == BBC


def test_the_endpoint_that_answered_is_asked_first(control_node: Start) -> None:
    refusing, node = control_node(), control_node()
    refusing.answers["ChangeDuties"] = MinkaError(Code.SHUTTING_DOWN, "it stops")
    node.answers["ChangeDuties"] = ChangeDutiesResponse(duties=[BBC])
    with Client([refusing.address, node.address]) as client:
        client.create("feeds", "bbc")
        client.create("feeds", "bbc")
    assert (len(refusing.asked), len(node.asked)) == (1, 2)


def test_a_refusal_is_raised_as_it_is(connect: Any, control_node: Start) -> None:
    node = control_node()
    node.answers["ChangeDuties"] = MinkaError(Code.VERSION_MISMATCH, "it has version 4", version="4")
    with pytest.raises(MinkaError) as caught:
        connect([node.address]).update("feeds", "bbc", weight=3, if_version=3)
    assert (caught.value.code, caught.value.details) == (Code.VERSION_MISMATCH, {"version": "4"})


def test_a_change_without_an_answer_is_not_repeated(connect: Any, control_node: Start) -> None:
    node, other = control_node(), control_node()
    node.answers["ChangeDuties"] = other.answers["ChangeDuties"] = MinkaError(Code.OUTCOME_UNKNOWN, "it broke off")
    with pytest.raises(MinkaError) as caught:
        connect([node.address, other.address]).delete("feeds", "bbc")
    assert caught.value.code is Code.OUTCOME_UNKNOWN
    assert len(node.asked) + len(other.asked) == 1


def status(number: int) -> DutyStatus:
    return DutyStatus(duty=Duty(number=number, pallet="feeds", id=str(number)))


def test_a_list_goes_on_where_a_page_ends(connect: Any, control_node: Start) -> None:
    node = control_node()
    pages = {0: ([1, 2], True), 2: ([5], True), 5: ([7], False)}

    def page(request: GetDutiesRequest) -> GetDutiesResponse:
        numbers, more = pages[request.after]
        return GetDutiesResponse(duties=map(status, numbers), more=more)

    node.answers["GetDuties"] = page
    assert [one.duty.number for one in connect([node.address]).list("feeds")] == [1, 2, 5, 7]


def test_what_does_not_fit_into_one_answer_is_asked_for_again(connect: Any, control_node: Start) -> None:
    node = control_node()

    def two_at_most(request: GetDutiesRequest) -> GetDutiesResponse:
        found: Iterator[DutyStatus] = (status(int(name.id)) for name in request.names[:2])
        return GetDutiesResponse(duties=found, more=len(request.names) > 2)

    node.answers["GetDuties"] = two_at_most
    names = [("feeds", str(number)) for number in (3, 1, 4, 5, 9)]
    assert [one.duty.number for one in connect([node.address]).get_many(names)] == [3, 1, 4, 5, 9]
