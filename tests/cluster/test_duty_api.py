"""Pallets and duties on real nodes: the client library and REST, versions, atomic batches, consistency, failover."""

import asyncio
import json
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import grpc
import pytest

from minka.admin.control import Control
from minka.async_client import OwnKeyspace
from minka.duties import AsyncClient, Balancer, BalancerKind, Canary, Client, Pallet, changes
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.duty_api_pb2 import GetDutiesRequest
from minka.v1.duty_api_pb2_grpc import DutiesStub
from minkad.core.state.display_names import PAYLOADS_KEYSPACE
from minkad.duties.node.payloads import PayloadStore
from minkad.process.clock import unix_ms
from tests.cluster.cluster import QUICK, eventually, wait_settled

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, config=QUICK) as cluster, Control(cluster.endpoints) as control:
        wait_settled(control, live=3)
        yield cluster


@pytest.fixture
def duties(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.endpoints, timeout=20.0) as client:
        yield client


def refusal(call: Any) -> Code:
    with pytest.raises(MinkaError) as caught:
        call()
    return caught.value.code


def test_a_pallet_from_its_creation_to_its_end(duties: Client) -> None:
    kind = BalancerKind.ROUND_ROBIN
    created = duties.create_pallet(Pallet("life", balancer=Balancer(kind, max_difference=2), canary=Canary("7", 5)))
    assert (created.version, created.balancer.kind, created.canary) == (1, kind, Canary("7", 5))
    assert refusal(lambda: duties.create_pallet("life")) is Code.PALLET_EXISTS
    changed = duties.update_pallet(replace(created, manual=True), if_version=1)
    assert changed == replace(created, manual=True, version=2, changed=changed.changed)
    assert refusal(lambda: duties.update_pallet(Pallet("life"), if_version=1)) is Code.VERSION_MISMATCH
    duties.create("life", "one")
    assert refusal(lambda: duties.delete_pallet("life")) is Code.PALLET_IN_USE
    [summary] = duties.pallets(["life"])
    assert (summary.duties, summary.unplaced_count, summary.pallet.manual) == (1, 1, True)
    duties.delete("life", "one")
    assert duties.delete_pallet("life").id == "life"
    assert refusal(lambda: duties.pallets(["life"])) is Code.UNKNOWN_PALLET


def test_a_duty_from_its_creation_to_its_end(cluster: LocalCluster, duties: Client) -> None:
    duties.create_pallet("feeds")
    created = duties.create("feeds", "https://bbc/ä", b"\0payload", weight=5, lazy=True)
    duty = created.duty
    assert (duty.version, duty.weight, duty.lazy, duty.epoch, created.payload_bytes) == (1, 5, True, 0, 8)
    assert not duty.is_held()
    for node in cluster.nodes.values():  # each node serves the request
        with Client([node.address]) as one:
            assert one.get("feeds", "https://bbc/ä").duty.payload == b"\0payload"
    assert duties.update("feeds", "https://bbc/ä", "new", if_version=1).duty.version == 2
    assert refusal(lambda: duties.update("feeds", "https://bbc/ä", weight=9, if_version=1)) is Code.VERSION_MISMATCH
    assert duties.update("feeds", "https://bbc/ä", weight=9).duty.weight == 9
    found = duties.get("feeds", "https://bbc/ä")
    assert (found.duty.payload, found.duty.weight, found.duty.version) == (b"new", 9, 3)
    assert found.unplaced
    assert duties.update("feeds", "https://bbc/ä", b"").payload_bytes == 0
    assert duties.get("feeds", "https://bbc/ä").duty.payload == b""
    assert refusal(lambda: duties.create("feeds", "https://bbc/ä")) is Code.DUTY_EXISTS
    assert refusal(lambda: duties.delete("feeds", "https://bbc/ä", if_version=1)) is Code.VERSION_MISMATCH
    duties.delete("feeds", "https://bbc/ä")
    assert refusal(lambda: duties.get("feeds", "https://bbc/ä")) is Code.UNKNOWN_DUTY
    assert refusal(lambda: duties.delete("feeds", "https://bbc/ä")) is Code.UNKNOWN_DUTY
    assert refusal(lambda: duties.create("nowhere", "x", b"payload")) is Code.UNKNOWN_PALLET
    assert refusal(lambda: duties.create("feeds", "x", synthetic=True, lazy=True)) is Code.INVALID_DUTY
    assert refusal(lambda: duties.create("feeds", "x", b"x" * (2**20 + 1))) is Code.TOO_LARGE
    assert refusal(lambda: duties.pin("feeds", "x", "shard")) in (Code.UNKNOWN_DUTY, Code.UNKNOWN_SHARD)


def test_a_batch_is_done_as_a_whole(duties: Client) -> None:
    duties.create_pallet("batches")
    rows = duties.change([changes.create("batches", str(number), b"x" * 1000) for number in range(1000)])
    assert len({row.duty.number for row in rows}) == 1000
    refused = [
        *(changes.create("batches", f"new-{number}", b"y") for number in range(10)),
        changes.update("batches", "0", weight=7),
        changes.delete("batches", "1"),
        changes.create("batches", "999"),
    ]
    assert refusal(lambda: duties.change(refused)) is Code.DUTY_EXISTS
    found = {one.duty.id: one for one in duties.list("batches", with_payloads=True)}
    assert found.keys() == {str(number) for number in range(1000)}
    assert all(one.duty.payload == b"x" * 1000 for one in found.values())
    assert found["0"].duty.weight == 1
    duties.change(
        [changes.create("batches", "last"), changes.update("batches", "0", weight=7), changes.delete("batches", "1")]
    )
    names = [one.duty.id for one in duties.list("batches")]
    assert (len(names), names[-1]) == (1000, "last")


def test_a_list_of_large_payloads_comes_in_pages(duties: Client) -> None:
    duties.create_pallet("large")
    payloads = {str(number): bytes([number]) * 900_000 for number in range(12)}
    for names in (range(8), range(8, 12)):
        duties.change([changes.create("large", str(name), payloads[str(name)]) for name in names])
    assert {one.duty.id: one.duty.payload for one in duties.list("large", with_payloads=True)} == payloads
    found = duties.get_many([("large", name) for name in payloads])
    assert [one.duty.payload for one in found] == list(payloads.values())


@pytest.mark.parametrize("level", ["leader", "quorum", "voters", "all"])
def test_each_level_of_consistency(duties: Client, level: Any) -> None:
    duties.create_pallet(f"level-{level}", consistency=level)
    assert duties.create(f"level-{level}", "d", b"x", consistency=level).duty.version == 1
    assert duties.update(f"level-{level}", "d", weight=2, consistency=level).duty.version == 2


def test_a_level_that_is_not_reached(cluster: LocalCluster, duties: Client) -> None:
    with Control(cluster.endpoints) as control:
        controller = control.status().coordinator.controller
        paused = next(name for name in cluster.nodes if name != controller)
        endpoints = [node.address for name, node in cluster.nodes.items() if name != paused]
        duties.create_pallet("reach")
        cluster.signal(paused, signal.SIGSTOP)
        try:
            with Client(endpoints) as client:  # one of its calls uses the default timeout
                assert client.create("reach", "quorum", timeout=30.0).duty.version == 1
                late: list[Callable[[], object]] = [
                    lambda: client.create("reach", "all", consistency="all", timeout=30.0),
                    lambda: client.update("reach", "quorum", weight=2, consistency="voters"),
                    lambda: client.update_pallet(Pallet("reach", manual=True), consistency="all", timeout=3.0),
                ]
                assert [refusal(call) for call in late] == [Code.CONSISTENCY_NOT_REACHED] * 3
                # The changes are done nevertheless.
                assert client.get("reach", "all").duty.version == 1
                assert client.get("reach", "quorum").duty.weight == 2
                assert client.pallets(["reach"])[0].pallet.manual
        finally:
            cluster.signal(paused, signal.SIGCONT)
        wait_settled(control, live=3)
    assert duties.update("reach", "all", weight=2, consistency="all").duty.version == 2


async def test_the_asyncio_twin(cluster: LocalCluster) -> None:
    async with AsyncClient(cluster.endpoints) as client:
        await client.create_pallet("async")
        await asyncio.gather(*(client.create("async", str(number), b"x") for number in range(20)))
        listed = [one.duty.payload.decode() async for one in client.list("async", with_payloads=True)]
        assert listed == ["x"] * 20


async def test_payloads_that_nothing_names_are_swept(cluster: LocalCluster, duties: Client) -> None:
    duties.create_pallet("swept")
    duties.create("swept", "kept", b"kept")
    store = PayloadStore(lambda: OwnKeyspace(PAYLOADS_KEYSPACE, cluster.endpoints, None))
    orphans = await store.put_many([b"orphan", b"another"], 10.0)
    async with grpc.aio.insecure_channel(cluster.endpoints[0]) as channel:
        stub: Any = DutiesStub(channel)
        rows = {one.duty.number: one.duty for one in (await stub.GetDuties(GetDutiesRequest(limit=10_000))).duties}
    now = await store.sweep(lambda: rows, lambda: True, unix_ms())
    assert now == 0  # a payload without a duty may belong to a request under way, if it is new
    later = await store.sweep(lambda: rows, lambda: True, unix_ms() + 2 * 3_600_000)
    assert later >= 2
    assert not await store.get_many(orphans, 10.0)
    await store.close()
    assert duties.get("swept", "kept").duty.payload == b"kept"


class Rest:
    """Sends REST requests, each to the next node."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._addresses = [node.http_address for node in cluster.nodes.values()]
        self._turn = count()

    def __call__(self, method: str, path: str, document: Any = None, **headers: str) -> tuple[int, Any, str]:
        """Send a request; returns the status, the document and the ETag of the answer."""
        address = self._addresses[next(self._turn) % len(self._addresses)]
        body = None if document is None else json.dumps(document).encode()
        named = {"Content-Type": "application/json"} if body is not None else {}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"http://{address}{path}", body, named, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.load(answer), answer.headers.get("ETag", "")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error), ""


def test_rest_at_every_node(cluster: LocalCluster) -> None:
    rest = Rest(cluster)
    assert rest("POST", "/v1/pallets", {"id": "rest", "balancer": {"kind": "fair_workload"}})[0] == 201
    status, document, etag = rest("PUT", "/v1/pallets/rest", {"manual": True}, If_Match='"1"')
    assert (status, document["manual"], document["balancer"]["kind"], etag) == (200, True, "capacity_workload", '"2"')
    status, document, etag = rest("POST", "/v1/duties", {"pallet": "rest", "id": "a/b c", "payload": "ä", "weight": 3})
    assert (status, document["version"], document["payload_bytes"], etag) == (201, 1, 2, '"1"')
    status, document, _ = rest("GET", "/v1/duties/rest/a%2Fb%20c")
    assert (status, document["payload"], document["assignments"]) == (200, "ä", [])
    assert rest("PUT", "/v1/duties/rest/a/b%20c", {"payload_base64": "/wA="}, If_Match='"1"')[2] == '"2"'
    assert rest("GET", "/v1/duties/rest/a/b%20c")[1]["payload_base64"] == "/wA="
    status, document, _ = rest("PUT", "/v1/duties/rest/a/b%20c", {"weight": 5}, If_Match='"1"')
    assert (status, document["code"]) == (412, "VERSION_MISMATCH")
    assert document["details"] == {"duty": "rest/a/b c", "version": "2"}
    status, document, _ = rest("POST", "/v1/duties", [{"pallet": "rest", "id": str(number)} for number in range(30)])
    assert (status, len(document)) == (201, 30)
    refused = {"changes": [{"create": {"pallet": "rest", "id": "new"}}, {"delete": {"pallet": "rest", "id": "none"}}]}
    status, document, _ = rest("POST", "/v1/changes?consistency=all", refused)
    assert (status, document["code"]) == (404, "UNKNOWN_DUTY")
    assert rest("GET", "/v1/duties/rest/new")[0] == 404
    status, page, _ = rest("GET", "/v1/duties?pallet=rest&limit=20&payloads=true")
    assert (status, len(page["duties"]), page["total"]) == (200, 20, 31)
    status, rest_of_it, _ = rest("GET", f"/v1/duties?pallet=rest&after={page['next']}")
    assert (len(rest_of_it["duties"]), rest_of_it["next"]) == (11, None)
    assert rest("PUT", "/v1/duties", [{"pallet": "rest", "id": "0", "weight": 8}])[1][0]["weight"] == 8
    assert rest("DELETE", "/v1/pallets/rest")[0] == 409
    everything = [{"pallet": "rest", "id": one["id"]} for one in (*page["duties"], *rest_of_it["duties"])]
    assert rest("DELETE", "/v1/duties?consistency=voters", everything)[0] == 200
    assert rest("DELETE", "/v1/pallets/rest", If_Match='"2"')[0] == 200
    assert rest("GET", "/v1/pallets/rest")[1]["code"] == "UNKNOWN_PALLET"
    assert rest("GET", "/v1/shards")[:2] == (200, [])  # no test of this file starts a shard


def test_acknowledged_duties_outlive_the_controller(cluster: LocalCluster, duties: Client) -> None:
    """The active controller is killed while a client creates duties in batches of ten. Each acknowledged batch exists
    afterwards. Of each other batch, all duties exist or none.
    """
    duties.create_pallet("failover")
    done: list[int] = []
    unknown: list[int] = []
    stop = threading.Event()

    def create() -> None:
        with Client(cluster.endpoints, timeout=20.0) as client:
            for number in count():
                if stop.is_set():
                    return
                batch = [changes.create("failover", f"{number}-{part}", f"{number}") for part in range(10)]
                try:
                    client.change(batch)
                    done.append(number)
                except MinkaError as error:
                    if error.code not in (Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED, Code.UNREACHABLE):
                        raise
                    unknown.append(number)

    thread = threading.Thread(target=create)
    thread.start()
    try:
        eventually("some are created", lambda: len(done) > 10)
        with Control(cluster.endpoints) as control:
            killed = control.status().coordinator.controller
            cluster.kill(killed)
            before = len(done)
            eventually("more are created", lambda: len(done) > before + 10)
            cluster.restart(killed)
            wait_settled(control, live=3)
    finally:
        stop.set()
        thread.join()
    found: dict[str, list[bytes]] = {}
    for one in duties.list("failover", with_payloads=True):
        found.setdefault(one.duty.id.partition("-")[0], []).append(one.duty.payload)
    assert {str(number) for number in done} <= found.keys() <= {str(number) for number in (*done, *unknown)}
    assert all(payloads == [number.encode()] * 10 for number, payloads in found.items())
