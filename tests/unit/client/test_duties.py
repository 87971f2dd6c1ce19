"""The clients of duties, synchronous and asyncio, against real servers that answer as a test tells them."""

import asyncio
import math
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from minka.duties import AsyncClient, Balancer, Canary, Client, Pallet, changes, messages
from minka.duties.changes import duty_messages, pallet_messages
from minka.errors import Code, MinkaError
from minka.v1.duties_pb2 import Duty
from minka.v1.duties_pb2 import Pallet as PalletRow
from minka.v1.duty_api_pb2 import (
    ChangeDutiesResponse,
    ChangePalletsResponse,
    Consistency,
    DutyStatus,
    GetDutiesRequest,
    GetDutiesResponse,
    GetShardsResponse,
)
from tests.unit.client.conftest import ControlNode

Start = Callable[[], ControlNode]
BBC = Duty(number=1, pallet="feeds", id="bbc", version=1)


class Twin:
    """An asyncio client with the methods of the synchronous one, so that both kinds pass the same tests."""

    def __init__(self, endpoints: list[str], timeout: float = 5.0) -> None:
        self._endpoints, self._timeout = endpoints, timeout

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            async with AsyncClient(self._endpoints, timeout=self._timeout) as client:
                found = getattr(client, name)(*arguments, **named)
                return [one async for one in found] if isinstance(found, AsyncIterator) else await found

        return lambda *arguments, **named: asyncio.run(call(*arguments, **named))


@pytest.fixture(params=[Client, Twin], ids=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Any:
    """Run the test twice: with the class of the synchronous client, and with `Twin`."""
    return request.param


def test_several_changes_are_sent_in_one_request(connect: Any, control_node: Start) -> None:
    node = control_node()
    node.answers["ChangeDuties"] = ChangeDutiesResponse(duties=[BBC])
    wanted = [changes.create("feeds", "bbc", "ä", weight=5), changes.delete("feeds", "ft", if_version=2)]
    assert connect([node.address]).change(wanted, consistency="all") == [messages.duty_row(BBC)]
    [(_, request)] = node.asked
    assert list(request.changes) == duty_messages(wanted)
    assert request.changes[0].create.payload == "ä".encode()
    assert request.consistency == Consistency.CONSISTENCY_ALL


def test_a_pallet_is_sent_and_returned(connect: Any, control_node: Start) -> None:
    node = control_node()
    node.answers["ChangePallets"] = ChangePalletsResponse(pallets=[PalletRow(id="feeds", version=3, manual=True)])
    client = connect([node.address])
    assert client.create_pallet("feeds").manual
    updated = client.update_pallet(Pallet("feeds", manual=True, version=9), if_version=2)
    assert (updated.id, updated.version) == ("feeds", 3)
    client.update_pallet(Pallet("feeds"))
    sent = [request.changes[0] for _, request in node.asked]
    assert sent[0].create == PalletRow(id="feeds"), "the cluster chooses the settings"
    assert (sent[1].update.manual, sent[1].update.version, sent[1].if_version) == (True, 0, 2)
    assert sent[2].if_version == 0, "no condition"
    assert sent[:1] == pallet_messages([changes.create_pallet("feeds")])


def test_the_repr_of_a_change_hides_its_payload() -> None:
    change = changes.create("feeds", "bbc", b"secret")
    assert (repr(change), change.payload_bytes) == ("DutyChange(create feeds/bbc)", 6)


Ask = Callable[[Any], Any]
NO_BALANCER = Pallet("f", balancer="even")  # type: ignore[arg-type]
NO_KIND = Pallet("f", balancer=Balancer(kind="best"))  # type: ignore[arg-type]
NO_ORDER = Pallet("f", balancer=Balancer(shard_order="one"))  # type: ignore[arg-type]
NO_LIMIT = Pallet("f", balancer=Balancer(fill_limit=-1))
NO_SHARD = Pallet("f", balancer=Balancer(shard_order=("s1", "")))


def with_canary(version: str, percent: Any) -> Pallet:
    """Return a pallet with this canary."""
    return Pallet("f", canary=Canary(version, percent))


BAD: list[tuple[str, Ask]] = [
    ("weight=-1 isn't a whole number", lambda client: client.create("feeds", "bbc", weight=-1)),
    ("weight=1.5 isn't a whole number", lambda client: client.create("feeds", "bbc", weight=1.5)),
    ("a payload is int, not bytes or str", lambda client: client.create("feeds", "bbc", 7)),
    ("the payload .* isn't UTF-8 text", lambda client: client.update("feeds", "bbc", "\udcff")),
    ("lazy is 'yes', not bool", lambda client: client.create("feeds", "bbc", lazy="yes")),
    ("consistency is 'most', not one of leader", lambda client: client.create("feeds", "bbc", consistency="most")),
    (r"consistency is \[\], not one of leader", lambda client: client.create("feeds", "bbc", consistency=[])),
    ("the id of a duty is int, not str", lambda client: client.update("feeds", 7)),
    ("the update of feeds/bbc would change nothing: it takes", lambda client: client.update("feeds", "bbc")),
    ("the name of a pallet is int, not str", lambda client: client.get(5, "bbc")),
    ("the id of a duty .* isn't UTF-8 text", lambda client: client.get("feeds", "\udcff")),
    ("the id of a duty must not be empty", lambda client: client.get("feeds", "")),
    ("the name of a pallet must have no slash", lambda client: client.get("feeds/uk", "bbc")),
    (r"\('a', 'b', 'c'\) isn't a pair of a pallet", lambda client: client.get_many([("a", "b", "c")])),
    ("pairs of a pallet and the id of a duty are wanted, not int", lambda client: client.get_many(5)),
    ("with_payloads is 'no', not bool", lambda client: client.get_many([("a", "b")], with_payloads="no")),
    ("the name of a pallet is int, not str", lambda client: list(client.list(5))),
    ("the name of a shard is int, not str", lambda client: list(client.list("feeds", shard=5))),
    ("the name of a pallet must not be empty", lambda client: list(client.list(""))),
    ("the name of a shard must not be empty", lambda client: list(client.list(shard=""))),
    ("the name of a pallet is int, not str", lambda client: client.explain(5, "bbc")),
    ("the name of a shard must not be empty", lambda client: client.pin("feeds", "bbc", "")),
    ("the pallet is int, not a minka.duties.Pallet", lambda client: client.create_pallet(5)),
    ("the pallet is str, not a minka.duties.Pallet", lambda client: client.update_pallet("feeds")),
    ("the balancer is str, not a minka.duties.Balancer", lambda client: client.create_pallet(NO_BALANCER)),
    ("balancer.kind is 'best', not one of round_robin", lambda client: client.create_pallet(NO_KIND)),
    ("shard_order is 'one', not a list of str", lambda client: client.create_pallet(NO_ORDER)),
    (
        "moves_per_shard is -1, not from 0 to 4,294,967,295",
        lambda client: client.create_pallet(Pallet("f", moves_per_shard=-1)),
    ),
    ("canary.percent is 0, not from 1 to 100", lambda client: client.update_pallet(with_canary("2", 0))),
    ("canary.percent is 5.5, not int", lambda client: client.create_pallet(with_canary("2", 5.5))),
    ("canary.version must not be empty", lambda client: client.update_pallet(with_canary("", 5))),
    ("canary.version must have 256 characters at most", lambda client: client.update_pallet(with_canary("x" * 257, 5))),
    ("balancer.fill_limit is -1, not from 0 to", lambda client: client.create_pallet(NO_LIMIT)),
    ("a shard in balancer.shard_order must not be empty", lambda client: client.create_pallet(NO_SHARD)),
    ("if_version=-1 isn't a version", lambda client: client.update_pallet(Pallet("feeds"), if_version=-1)),
    ("if_version='1' isn't a version", lambda client: client.delete("feeds", "bbc", if_version="1")),
    ("if_version=0 can never hold: .* begin at 1", lambda client: client.delete("feeds", "bbc", if_version=0)),
    ("if_version=0 can never hold", lambda client: client.update("feeds", "bbc", weight=3, if_version=0)),
    ("if_version=0 can never hold", lambda client: client.update_pallet(Pallet("feeds"), if_version=0)),
    ("if_version=0 can never hold", lambda client: client.delete_pallet("feeds", if_version=0)),
    ("the name of a pallet is int, not str", lambda client: client.delete_pallet(5)),
    ("names of pallets are wanted, not str", lambda client: client.pallets("feeds")),
    ("the name of a pallet is int, not str", lambda client: client.pallets([5])),
    ("the name of a shard is int, not str", lambda client: client.shards([5])),
    ("the name of a pallet is int, not str", lambda client: client.compare_pallet(5)),
    ("the name of a pallet is int, not str", lambda client: client.plan_rebalance(5)),
    ("reason is 5, not str", lambda client: client.plan_rebalance("feeds", reason=5)),
    ("None isn't a DutyChange", lambda client: client.change([None])),
    ("changes of duties are wanted, not int", lambda client: client.change(5)),
    ("'feeds' isn't a PalletChange", lambda client: client.change_pallets(["feeds"])),
    ("timeout='x' isn't a positive time in seconds", lambda client: client.get("feeds", "bbc", timeout="x")),
    ("timeout=-1 isn't a positive time in seconds", lambda client: client.get("feeds", "bbc", timeout=-1)),
]


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (changes.create("feeds", "bbc", b"x"), "DutyChange(create feeds/bbc)"),
        (changes.update("feeds", "bbc", weight=3), "DutyChange(update feeds/bbc)"),
        (changes.delete("feeds", "bbc"), "DutyChange(delete feeds/bbc)"),
        (changes.pin("feeds", "bbc", "s1"), "DutyChange(pin feeds/bbc)"),
        (changes.release("feeds", "bbc"), "DutyChange(release feeds/bbc)"),
        (changes.unquarantine("feeds", "bbc"), "DutyChange(unquarantine feeds/bbc)"),
        (changes.create_pallet("feeds"), "PalletChange(create feeds)"),
        (changes.update_pallet(Pallet("feeds")), "PalletChange(update feeds)"),
        (changes.delete_pallet("feeds"), "PalletChange(delete feeds)"),
    ],
)
def test_the_repr_of_a_change(change: object, shown: str) -> None:
    assert repr(change) == shown


@pytest.mark.parametrize("method", ["update", "delete", "pin", "release", "unquarantine"])
def test_each_change_of_a_duty_takes_a_version_and_a_consistency(
    control_node: Start, connect: Any, method: str
) -> None:
    node = control_node()
    node.answers["ChangeDuties"] = ChangeDutiesResponse(duties=[BBC])
    more = {"update": ["https://…"], "pin": ["s1"]}.get(method, [])
    changed = getattr(connect([node.address]), method)("feeds", "bbc", *more, if_version=4, consistency="all")
    assert changed == messages.duty_row(BBC)
    ((_, asked),) = node.asked
    (change,) = asked.changes
    assert (change.WhichOneof("change"), change.if_version) == ("pin" if method == "release" else method, 4)
    assert asked.consistency == Consistency.CONSISTENCY_ALL


MIB = 1 << 20
LARGE: list[tuple[str, Ask]] = [
    ("a payload has 1,048,577 bytes; 1,048,576 is", lambda client: client.create("feeds", "bbc", b"x" * (MIB + 1))),
    ("a payload has 1,048,578 bytes", lambda client: client.update("feeds", "bbc", "ä" * (MIB // 2 + 1))),
    (
        "a request has 1,001 changes; 1,000",
        lambda client: client.change(changes.delete("f", f"{n}") for n in range(1001)),
    ),
    (
        "a request has 9,437,184 bytes of payloads",
        lambda client: client.change(changes.create("f", f"{n}", b"x" * MIB) for n in range(9)),
    ),
    ("a request has 1,001 names", lambda client: client.get_many([("f", f"{n}") for n in range(1001)])),
    ("1,001 changes", lambda client: client.change_pallets(changes.delete_pallet(f"{n}") for n in range(1001))),
]


@pytest.mark.parametrize(("why", "call"), LARGE)
def test_requests_that_are_too_large_are_not_sent(connect: Any, why: str, call: Ask) -> None:
    with pytest.raises(MinkaError, match=why) as caught:
        call(connect(["127.0.0.1:1"]))
    assert caught.value.code is Code.TOO_LARGE


@pytest.mark.parametrize(("why", "call"), BAD)
def test_invalid_requests_are_not_sent(connect: Any, why: str, call: Ask) -> None:
    with pytest.raises(MinkaError, match=why) as caught:
        call(connect(["127.0.0.1:1"]))
    assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("why", "given"),
    [
        ("'5' isn't a positive time in seconds", {"timeout": "5"}),
        ("nan isn't a positive time in seconds", {"timeout": math.nan}),
        ("endpoints is int, not a list of strings", {"endpoints": 5}),
        ("endpoint None isn't str", {"endpoints": [None]}),
        ("endpoint .* isn't host:port", {"endpoints": ["athens:" + 5000 * "1"]}),
        ("tls is str, not minka.Tls", {"tls": "ca.pem"}),
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_invalid_arguments_of_a_client(kind: Any, why: str, given: dict[str, Any]) -> None:
    with pytest.raises(MinkaError, match=why) as caught:
        kind(**{"endpoints": ["athens:7400"], **given})
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_a_request_goes_to_another_endpoint_if_the_first_is_dead(
    connect: Any, control_node: Start, free_address: Callable[[], str]
) -> None:
    node = control_node()
    node.answers["ChangeDuties"] = ChangeDutiesResponse(duties=[BBC])
    assert connect([free_address(), node.address]).create("feeds", "bbc").duty.version == 1


def test_the_endpoint_that_answered_is_asked_first(control_node: Start) -> None:
    refusing, node = control_node(), control_node()
    refusing.answers["ChangeDuties"] = MinkaError(Code.SHUTTING_DOWN, "the node stops")
    node.answers["ChangeDuties"] = ChangeDutiesResponse(duties=[BBC])
    with Client([refusing.address, node.address]) as client:
        client.create("feeds", "bbc")
        client.create("feeds", "bbc")
    assert (len(refusing.asked), len(node.asked)) == (1, 2)


def test_the_node_that_a_refusal_names_is_asked_first_from_then_on(control_node: Start) -> None:
    follower, leader = control_node(), control_node()
    follower.answers["ChangeDuties"] = MinkaError(Code.NOT_CONTROLLER, "ask the leader", leader_address=leader.address)
    leader.answers["ChangeDuties"] = ChangeDutiesResponse(duties=[BBC])
    with Client([follower.address]) as client:
        client.create("feeds", "bbc")
        client.create("feeds", "bbc")
    assert (len(follower.asked), len(leader.asked)) == (1, 2)


def test_the_caller_gets_a_nodes_refusal_unchanged(connect: Any, control_node: Start) -> None:
    node = control_node()
    node.answers["ChangeDuties"] = MinkaError(Code.VERSION_MISMATCH, "bbc has version 4", version="4")
    with pytest.raises(MinkaError) as caught:
        connect([node.address]).update("feeds", "bbc", weight=3, if_version=3)
    assert (caught.value.code, caught.value.details) == (Code.VERSION_MISMATCH, {"version": "4"})


def test_a_change_without_an_answer_is_not_repeated(connect: Any, control_node: Start) -> None:
    node, other = control_node(), control_node()
    node.answers["ChangeDuties"] = other.answers["ChangeDuties"] = MinkaError(Code.OUTCOME_UNKNOWN, "the call was lost")
    with pytest.raises(MinkaError) as caught:
        connect([node.address, other.address]).delete("feeds", "bbc")
    assert caught.value.code is Code.OUTCOME_UNKNOWN
    assert len(node.asked) + len(other.asked) == 1


def status(number: int) -> DutyStatus:
    return DutyStatus(duty=Duty(number=number, pallet="feeds", id=str(number)))


def test_a_list_is_fetched_page_by_page(connect: Any, control_node: Start) -> None:
    node = control_node()
    pages = {0: ([1, 2], True), 2: ([5], True), 5: ([7], False)}

    def page(request: GetDutiesRequest) -> GetDutiesResponse:
        numbers, more = pages[request.after]
        return GetDutiesResponse(duties=map(status, numbers), more=more)

    node.answers["GetDuties"] = page
    assert [one.duty.number for one in connect([node.address]).list("feeds")] == [1, 2, 5, 7]


def test_get_many_asks_again_for_duties_that_one_answer_did_not_hold(connect: Any, control_node: Start) -> None:
    node = control_node()

    def two_at_most(request: GetDutiesRequest) -> GetDutiesResponse:
        found: Iterator[DutyStatus] = (status(int(name.id)) for name in request.names[:2])
        return GetDutiesResponse(duties=found, more=len(request.names) > 2)

    node.answers["GetDuties"] = two_at_most
    names = [("feeds", str(number)) for number in (3, 1, 4, 5, 9)]
    assert [one.duty.number for one in connect([node.address]).get_many(names)] == [3, 1, 4, 5, 9]


def test_a_call_of_a_closed_client_is_refused(control_node: Start) -> None:
    node = control_node()
    client = Client([node.address])
    client.close()
    client.close()
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT: the client is closed"):
        client.get("feeds", "bbc")


async def test_a_call_of_a_closed_asyncio_client_is_refused(control_node: Start) -> None:
    async with AsyncClient([control_node().address]) as client:
        pass
    with pytest.raises(MinkaError, match="INVALID_ARGUMENT: the client is closed"):
        await client.get("feeds", "bbc")


@pytest.mark.parametrize(
    ("use", "code"),
    [
        (lambda client: client.get("feeds", "bbc"), Code.UNREACHABLE),
        (lambda client: client.delete("feeds", "bbc"), Code.OUTCOME_UNKNOWN),
    ],
)
def test_closing_ends_the_calls_of_other_threads(control_node: Start, use: Ask, code: Code) -> None:
    node, asked, go_on = control_node(), threading.Event(), threading.Event()

    def hang(_: Any) -> GetDutiesResponse:
        asked.set()
        go_on.wait(20)
        return GetDutiesResponse()

    node.answers["GetDuties"] = node.answers["ChangeDuties"] = hang
    client = Client([node.address], timeout=30)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(use, client)
        assert asked.wait(10)
        client.close()
        try:
            with pytest.raises(MinkaError, match="closed") as caught:
                call.result(timeout=10)
        finally:
            go_on.set()
    assert caught.value.code is code


def test_a_client_refuses_calls_from_another_event_loop(control_node: Start) -> None:
    node = control_node()
    node.answers["GetShards"] = GetShardsResponse()
    client = AsyncClient([node.address])

    async def ask() -> None:
        await client.shards()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(ask())
    for use in (ask, client.close):
        with pytest.raises(MinkaError, match="INVALID_ARGUMENT: the client belongs to another event loop"):
            asyncio.run(use())
    loop.close()
    asyncio.run(client.close())


def test_a_client_refuses_calls_in_a_forked_child(control_node: Start) -> None:
    node = control_node()
    node.answers["GetShards"] = GetShardsResponse()
    script = f"""
import os
from minka import MinkaError
from minka.duties import Client
client = Client([{node.address!r}])
client.shards()
if (pid := os.fork()) == 0:
    for use in (client.shards, lambda: Client([{node.address!r}])):
        try:
            use()
        except MinkaError as error:
            print(error, flush=True)
    client.close()
    os._exit(7)
print("child:", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=True)
    *told, last = ended.stdout.splitlines()
    assert len(told) == 2
    assert all(line.startswith("INVALID_ARGUMENT: this process was forked from one that") for line in told)
    assert last == "child: 7"
