"""The part of the REST interface that needs no cluster: refusals, and the OpenAPI description."""

import io
from typing import Any, cast

import aiohttp
import pytest

from minka.errors import Code
from minkad.http.metrics import create_registry
from minkad.http.problem_details import MEDIA_TYPE, status_of
from minkad.http.rest import _MAX_BODY, Rest
from minkad.http.server import create_app, start
from minkad.rpc.validation import check
from tests.unit.http.http_node import FakeNode, free_address

JSON = {"Content-Type": "application/json"}


async def ask(method: str, path: str, **named: Any) -> tuple[int, str, Any]:
    """Send one request; returns the status, content type and document of the answer."""
    node, address = FakeNode(), free_address()
    rest = Rest(cast(Any, None), check, is_local=True).app()
    runner = await start(create_app(node, create_registry(node), rest), address)
    try:
        async with (
            aiohttp.ClientSession(f"http://{address}", timeout=aiohttp.ClientTimeout(10)) as session,
            session.request(method, path, **named) as response,
        ):
            return response.status, response.content_type, await response.json(content_type=None)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("host", ["localhost", "localhost:7401", "127.0.0.1:80", "127.3.2.1", "[::1]:7401"])
async def test_rest_accepts_the_names_of_this_machine(host: str) -> None:
    status, _, errors = await ask("GET", "/v1/errors", headers={"Host": host})
    assert status == 200
    assert errors


@pytest.mark.parametrize(
    ("method", "path", "named", "status", "said"),
    [
        ("GET", "/v1/errors", {"headers": {"Host": "feeds.example:7401"}}, 421, "not as feeds.example"),
        ("GET", "/v1/errors", {"headers": {"Host": ""}}, 421, "not as nothing"),
        ("POST", "/v1/duties", {"data": "{}"}, 415, "must be application/json"),
        ("POST", "/v1/duties", {"data": "{", "headers": JSON}, 400, "the body is not valid"),
        ("POST", "/v1/duties", {"json": {"pallet": "feeds"}}, 400, "missing required field `id`"),
        ("POST", "/v1/duties", {"json": {"pallet": "feeds", "id": "x", "wieght": 3}}, 400, "wieght"),
        ("POST", "/v1/duties", {"json": {"pallet": "feeds", "id": "x", "weight": -3}}, 400, "weight"),
        ("POST", "/v1/duties", {"json": {"pallet": "a/b", "id": "x"}}, 400, "pallet"),
        ("POST", "/v1/duties", {"json": {"pallet": "feeds", "id": "a\tb"}}, 400, "no control characters"),
        (
            "POST",
            "/v1/duties",
            {"json": {"pallet": "f", "id": "x", "payload": "", "payload_base64": ""}},
            400,
            "only one",
        ),
        ("POST", "/v1/duties", {"json": [{"pallet": "f", "id": "x"}] * 1001}, 400, "1000 at most"),
        (
            "POST",
            "/v1/duties?consistency=most",
            {"json": {"pallet": "f", "id": "x"}},
            400,
            "leader, quorum, voters, all",
        ),
        ("POST", "/v1/duties", {"data": io.BytesIO(b"x" * (_MAX_BODY + 1)), "headers": JSON}, 413, "more than"),
        ("POST", "/v1/changes", {"json": {"changes": [{}]}}, 400, "one of create, update and delete"),
        ("PUT", "/v1/duties/feeds/x", {"json": {"weight": 3}, "headers": {"If-Match": "3"}}, 400, "in quotes"),
        ("PUT", "/v1/duties/feeds/x", {"json": {"id": "y"}}, 400, "id is 'x' in the path"),
        ("PUT", "/v1/duties/feeds/x", {"json": {"version": 2**70}}, 400, str(2**70)),
        ("PUT", "/v1/duties", {"json": [{"pallet": "f", "id": "x", "version": 2**70}]}, 400, str(2**70)),
        ("DELETE", "/v1/duties", {"json": [{"pallet": "f", "id": "x", "version": 2**70}]}, 400, str(2**70)),
        (
            "POST",
            "/v1/changes",
            {"json": {"changes": [{"delete": {"pallet": "f", "id": "x", "version": 2**70}}]}},
            400,
            str(2**70),
        ),
        ("PUT", "/v1/pallets/x", {"json": {"version": 2**70}}, 400, str(2**70)),
        (
            "PUT",
            "/v1/pallets/x",
            {"json": {"version": 0}},
            400,
            "can never hold: the versions of duties",
        ),
        ("PUT", "/v1/duties/feeds/x", {"json": {"weight": 3, "version": 0}}, 400, "can never hold"),
        ("DELETE", "/v1/duties", {"json": [{"pallet": "f", "id": "x", "version": 0}]}, 400, "can never hold"),
        ("PUT", "/v1/duties/feeds/x", {"json": {"synthetic": True}}, 400, "synthetic"),
        ("POST", "/v1/pallets", {"json": {"id": "f", "balancer": {"kind": "best"}}}, 400, "balancer.kind"),
        ("GET", "/v1/duties?limit=x", {}, 400, "limit must be a number"),
        ("GET", "/v1/nothing", {}, 404, "Not Found"),
        ("PATCH", "/v1/duties", {}, 405, "Method Not Allowed"),
    ],
)
async def test_requests_that_are_refused(method: str, path: str, named: dict[str, Any], status: int, said: str) -> None:
    answer, content_type, document = await ask(method, path, **named)
    assert (answer, content_type) == (status, MEDIA_TYPE)
    assert said in document["detail"]
    assert document["status"] == status
    assert {"type", "title", "code", "remedy", "retriable"} <= document.keys()


async def test_a_bug_is_a_problem_document_too() -> None:
    status, content_type, document = await ask("GET", "/v1/pallets")  # has to fail: the node has no gateway
    assert (status, content_type, document["code"]) == (500, MEDIA_TYPE, "INTERNAL")


async def test_every_code_has_a_status_and_an_entry() -> None:
    _, _, entries = await ask("GET", "/v1/errors")
    assert {entry["code"] for entry in entries} == {code.name for code in Code}
    assert all(400 <= status_of(code) < 600 for code in Code)
    assert (status_of(Code.VERSION_MISMATCH), status_of(Code.UNKNOWN_DUTY), status_of(Code.DUTY_EXISTS)) == (
        412,
        404,
        409,
    )
    assert (status_of(Code.NO_CONTROLLER), status_of(Code.OUTCOME_UNKNOWN)) == (503, 504)


async def test_the_description_has_exactly_the_routes_that_exist() -> None:
    status, _, document = await ask("GET", "/v1/openapi.json")
    assert status == 200
    routes = Rest(cast(Any, None), check, is_local=True).routes
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(route.method, route.described_path) for route in routes}
    schemas = document["components"]["schemas"]

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                assert value["$ref"].removeprefix("#/components/schemas/") in schemas
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(document)
    assert schemas["DutyDocument"]["required"] == ["pallet", "id"]
    assert "pallet" not in schemas["DutyContent"]["properties"]
    version = schemas["DutyUpdate"]["properties"]["version"]
    assert (version["default"], version["minimum"]) == (None, 1)


async def test_without_rest_there_is_no_v1() -> None:
    node, address = FakeNode(), free_address()
    runner = await start(create_app(node, create_registry(node)), address)
    try:
        async with aiohttp.ClientSession(f"http://{address}") as session, session.get("/v1/pallets") as response:
            assert response.status == 404
    finally:
        await runner.cleanup()
