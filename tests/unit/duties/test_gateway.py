"""A node's part in a client's request about duties: payloads, calls to the controller, and repetitions."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent import futures
from typing import Any, TypeVar, cast

import grpc
import pytest

from minka.duties import changes
from minka.duties.changes import DutyChange, duty_messages
from minka.duties.limits import MAX_REQUEST_BYTES
from minka.errors import Code, MinkaError, error_to_proto
from minka.testing.loopback_ports import free_addresses
from minka.v1.duties_pb2 import Duty, Pallet
from minka.v1.duty_api_pb2 import (
    ChangeDutiesRequest,
    ChangeDutiesResponse,
    Consistency,
    DutyStatus,
    GetDutiesRequest,
    GetDutiesResponse,
    GetPalletsResponse,
)
from minka.v1.duty_api_pb2_grpc import add_DutyControlServicer_to_server
from minkad.coordinator.controller_calls import ControllerCalls
from minkad.core.state import State
from minkad.duties.node.gateway import DutyGateway
from minkad.duties.node.payloads import PayloadStore, _id, _key, is_old, new_id
from minkad.process.clock import boottime
from minkad.rpc.channels import Channels
from minkad.rpc.peers import Peers
from tests.own_table import Table

T = TypeVar("T")
LOST = "lost"  # stands for an answer that doesn't arrive


class Controller:
    """A controller that answers each call with the next item: a message, a MinkaError, LOST, or a function."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    def __getattr__(self, method: str) -> Any:
        return self._answer

    def _answer(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.asked.append(request)
        answer = self.answers.pop(0)
        answer = answer(request) if callable(answer) else answer
        if answer == LOST:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        if isinstance(answer, MinkaError):
            context.set_trailing_metadata((("minka-error-bin", error_to_proto(answer).SerializeToString()),))
            context.abort(grpc.StatusCode[answer.code.info.grpc_status], answer.message)
        return answer


class Shelf(PayloadStore):
    """A store of payloads in memory; tests with real nodes use the real store."""

    def __init__(self) -> None:
        super().__init__(cast(Any, None))
        self.content: dict[bytes, bytes] = {}
        self.doomed: list[tuple[int, bytes]] = []

    async def put_many(self, payloads: Any, timeout: float) -> list[bytes]:
        ids = [new_id(1000) for _ in payloads]
        self.content.update({id_: payload for id_, payload in zip(ids, payloads, strict=True) if payload})
        return ids

    async def get_many(self, ids: Any, timeout: float) -> dict[bytes, bytes]:
        return {id_: self.content[id_] for id_ in ids if id_ in self.content}

    def delete_later(self, ids: Any) -> None:
        self.doomed += ids


async def asked(
    controller: Controller, use: Callable[[DutyGateway], Awaitable[T]], shelf: Shelf | None = None, *rows: Duty
) -> T:
    """Call `use` with the gateway of a node that knows the pallet feeds and these rows. Returns the result of `use`."""
    server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    add_DutyControlServicer_to_server(controller, server)  # type: ignore[arg-type]  # answers by __getattr__
    (address,) = free_addresses(1)
    server.add_insecure_port(address)
    server.start()
    state, channels = State(), Channels("", "athens")
    state.duties.pallets["feeds"] = Pallet(id="feeds")
    for number, row in enumerate(rows, 1):
        state.duties.duties[number], state.duties.numbers[row.pallet, row.id] = row, number
    try:
        return await use(DutyGateway(calls_to(channels, lambda: address), Table(state), shelf or Shelf()))
    finally:
        await channels.close()
        server.stop(None)


def calls_to(channels: Channels, address: Callable[[], str]) -> ControllerCalls:
    """The calls of a node to a controller on another node."""
    return ControllerCalls("127.0.0.1:9", address, cast(Any, None), Peers(channels, lambda _: ""), 5.0)


async def change(
    controller: Controller,
    *wanted: DutyChange,
    shelf: Shelf | None = None,
    rows: tuple[Duty, ...] = (),
    level: Consistency.ValueType = Consistency.CONSISTENCY_QUORUM,
) -> ChangeDutiesResponse:
    request = ChangeDutiesRequest(changes=duty_messages(wanted), consistency=level)
    return await asked(controller, lambda gateway: gateway.change_duties(request, 5.0), shelf, *rows)


async def test_a_payload_is_stored_and_the_controller_gets_its_id() -> None:
    controller, shelf = Controller(ChangeDutiesResponse()), Shelf()
    await change(controller, changes.create("feeds", "bbc", b"https://"), changes.create("feeds", "ft"), shelf=shelf)
    first, second = (one.create for one in controller.asked[0].changes)
    assert shelf.content == {first.payload_id: b"https://"}
    assert (first.payload_bytes, first.HasField("payload")) == (8, False)
    assert len(second.payload_id) == 16
    assert second.payload_bytes == 0


async def test_payload_ids_from_clients_are_ignored() -> None:
    controller = Controller(ChangeDutiesResponse())
    forged = changes.update("feeds", "bbc", weight=3)
    [message] = duty_messages([forged])
    message.update.payload_id, message.update.payload_bytes = b"x" * 16, 7
    await change(controller, forged)
    assert controller.asked[0].changes[0].update.payload_id == b""


async def test_payloads_that_are_too_large_together_are_refused() -> None:
    controller = Controller()
    wanted = [changes.create("feeds", str(number), b"x" * 1024 * 1024) for number in range(9)]
    with pytest.raises(MinkaError) as caught:
        await change(controller, *wanted)
    assert caught.value.code is Code.TOO_LARGE
    assert not controller.asked


async def test_no_payload_is_stored_for_a_missing_pallet() -> None:
    controller, shelf = Controller(MinkaError(Code.UNKNOWN_PALLET, "no such pallet")), Shelf()
    with pytest.raises(MinkaError) as caught:
        await change(controller, changes.create("maps", "x", b"content"), shelf=shelf)
    assert caught.value.code is Code.UNKNOWN_PALLET
    assert not shelf.content
    assert list(controller.asked[0].ids) == ["maps"]


async def test_a_node_asks_the_controller_about_a_pallet_that_it_does_not_know() -> None:
    controller = Controller(GetPalletsResponse(), ChangeDutiesResponse())
    await change(controller, changes.create("maps", "x", b"content"))
    assert len(controller.asked) == 2


async def test_a_request_is_repeated_after_a_temporary_refusal() -> None:
    controller = Controller(MinkaError(Code.NOT_CONTROLLER, "ask another node"), ChangeDutiesResponse())
    await change(controller, changes.update("feeds", "bbc", weight=3))
    assert len(controller.asked) == 2


async def test_a_creation_without_an_answer_is_repeated_with_the_same_payload_ids() -> None:
    row = Duty(pallet="feeds", id="bbc", version=1)
    controller = Controller(LOST, ChangeDutiesResponse(duties=[row]))
    assert list((await change(controller, changes.create("feeds", "bbc", b"https://"))).duties) == [row]
    assert controller.asked[0] == controller.asked[1]


async def test_an_update_with_a_payload_and_a_version_is_repeated() -> None:
    controller = Controller(LOST, ChangeDutiesResponse())
    await change(controller, changes.update("feeds", "bbc", b"new", if_version=3))
    assert len(controller.asked) == 2


@pytest.mark.parametrize(
    "wanted",
    [
        [changes.update("feeds", "bbc", b"new")],
        [changes.update("feeds", "bbc", weight=3, if_version=3)],
        [changes.delete("feeds", "bbc")],
        [changes.create("feeds", "ft"), changes.delete("feeds", "bbc")],
        [changes.pin("feeds", "bbc", "fetcher-1")],
    ],
    ids=["update", "weight", "delete", "mixed", "pin"],
)
async def test_changes_that_could_be_made_twice_are_not_repeated(wanted: list[DutyChange]) -> None:
    controller = Controller(LOST, ChangeDutiesResponse())
    with pytest.raises(MinkaError) as caught:
        await change(controller, *wanted)
    assert caught.value.code is Code.OUTCOME_UNKNOWN
    assert len(controller.asked) == 1


@pytest.mark.parametrize("refusal", [Code.DUTY_EXISTS, Code.VERSION_MISMATCH])
async def test_the_outcome_is_unknown_if_a_repetition_is_refused(refusal: Code) -> None:
    controller = Controller(LOST, MinkaError(refusal, "the duty has changed"))
    with pytest.raises(MinkaError) as caught:
        await change(controller, changes.create("feeds", "bbc", b"https://"))
    assert caught.value.code is Code.OUTCOME_UNKNOWN


def status(number: int, payload_id: bytes, size: int) -> DutyStatus:
    return DutyStatus(
        duty=Duty(number=number, pallet="feeds", id=str(number), payload_id=payload_id, payload_bytes=size)
    )


async def read(controller: Controller, shelf: Shelf) -> GetDutiesResponse:
    request = GetDutiesRequest(pallet="feeds", with_payloads=True)
    return await asked(controller, lambda gateway: gateway.get_duties(request, 5.0), shelf)


async def test_payloads_are_added_to_an_answer_and_empty_ones_are_not_looked_up() -> None:
    shelf = Shelf()
    shelf.content[b"a"] = b"content"
    found = await read(Controller(GetDutiesResponse(duties=[status(1, b"a", 7), status(2, b"b", 0)])), shelf)
    assert [one.payload for one in found.duties] == [b"content", b""]
    assert not found.more


async def test_an_answer_has_only_as_many_payloads_as_fit() -> None:
    shelf = Shelf()
    size = MAX_REQUEST_BYTES // 2
    shelf.content = {bytes([number]): b"x" for number in range(1, 4)}
    found = await read(Controller(GetDutiesResponse(duties=[status(n, bytes([n]), size) for n in range(1, 4)])), shelf)
    assert len(found.duties) == 2
    assert found.more


async def test_a_payload_replaced_during_the_read_is_read_again() -> None:
    shelf = Shelf()
    shelf.content[b"new"] = b"content"
    controller = Controller(
        GetDutiesResponse(duties=[status(1, b"old", 3)]), GetDutiesResponse(duties=[status(1, b"new", 7)])
    )
    assert (await read(controller, shelf)).duties[0].payload == b"content"


def row_of(version: int, payload_id: bytes) -> Duty:
    return Duty(number=1, pallet="feeds", id="bbc", version=version, payload_id=payload_id, payload_bytes=3)


@pytest.mark.parametrize(
    ("after", "level", "doomed"),
    [
        (4, Consistency.CONSISTENCY_QUORUM, [(1, b"old")]),
        (5, Consistency.CONSISTENCY_QUORUM, []),  # the payload of version 4 is unknown here
        (4, Consistency.CONSISTENCY_LEADER, []),  # this change may be lost: then a row still names `old`
    ],
)
async def test_a_replaced_payload_is_deleted_later(
    after: int, level: Consistency.ValueType, doomed: list[tuple[int, bytes]]
) -> None:
    shelf = Shelf()
    controller = Controller(ChangeDutiesResponse(duties=[row_of(after, b"new")]))
    update = changes.update("feeds", "bbc", b"new")
    await change(controller, update, shelf=shelf, rows=(row_of(3, b"old"),), level=level)
    assert shelf.doomed == doomed


async def test_the_payload_of_a_deleted_duty_is_deleted_later() -> None:
    shelf = Shelf()
    controller = Controller(ChangeDutiesResponse(duties=[row_of(3, b"old")]))
    await change(controller, changes.delete("feeds", "bbc"), shelf=shelf)
    assert shelf.doomed == [(1, b"old")]


class Deleting(PayloadStore):
    """A store that only notes the payloads that it should delete."""

    def __init__(self) -> None:
        super().__init__(cast(Any, None))
        self.deleted: list[bytes] = []

    async def _delete(self, ids: Any) -> None:
        self.deleted += ids


async def test_a_payload_stays_as_long_as_a_row_names_it() -> None:
    """A deleted duty keeps its row until its shard has released the duty, which may take long."""
    store, row = Deleting(), row_of(3, b"old")
    store.delete_later([(1, b"old"), (2, b"other")])
    due = boottime() + 11
    await store.delete_doomed({1: row}, due)
    assert store.deleted == [b"other"]
    await store.delete_doomed({1: row}, due + 11)
    await store.delete_doomed({}, due + 12)
    assert store.deleted == [b"other"]
    await store.delete_doomed({}, due + 22)
    assert store.deleted == [b"other", b"old"]


async def test_a_call_is_given_up_when_another_controller_is_elected() -> None:
    silent = socket.create_server(("127.0.0.1", 0))  # it accepts connections, and never answers
    addresses = [f"127.0.0.1:{silent.getsockname()[1]}"]
    channels = Channels("", "athens")
    calls = calls_to(channels, lambda: addresses[-1])
    gateway = DutyGateway(calls, Table(State()), Shelf())
    request = ChangeDutiesRequest(changes=duty_messages([changes.delete("feeds", "bbc")]))
    change = asyncio.create_task(gateway.change_duties(request, 20.0))
    await asyncio.sleep(0.1)
    addresses.append("127.0.0.1:2")
    calls.leader_changed()
    with pytest.raises(MinkaError) as caught:
        await asyncio.wait_for(change, 5)
    assert caught.value.code is Code.OUTCOME_UNKNOWN
    await channels.close()
    silent.close()


def test_payload_keys_begin_at_random_and_ids_with_the_time() -> None:
    now = 1_795_369_614_230
    id_ = new_id(now)
    assert _id(_key(id_)) == id_
    assert _key(id_)[:8] == id_[8:]
    assert not is_old(id_, now + 3_599_000)
    assert is_old(id_, now + 3_601_000)
