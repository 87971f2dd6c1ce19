"""Pallets and duties over HTTP: /v1/duties, /v1/pallets, described by /v1/openapi.json."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web
from google.protobuf.message import Message

from minka.duties import changes, documents, messages
from minka.duties.changes import DutyChange, PalletChange, duty_messages, pallet_messages
from minka.duties.documents import (
    DutyDocument,
    DutyName,
    DutyUpdate,
    DutyView,
    PalletSettings,
    PalletUpdate,
    PalletView,
    ShardView,
)
from minka.duties.limits import MAX_REQUEST_BYTES
from minka.errors import Code, MinkaError
from minka.v1 import duty_api_pb2 as api
from minkad.core.controller_methods import CHANGE_PALLETS, GET_PALLETS, GET_SHARDS
from minkad.duties.node.gateway import DutyGateway
from minkad.http.openapi import Query, Route, describe
from minkad.http.problem_details import error_registry, local_names, problems

_Update = TypeVar("_Update", DutyUpdate, PalletUpdate)

_MAX_BODY: Final = MAX_REQUEST_BYTES * 3 // 2  # the payloads in base64, and their names
_BODIES_AT_ONCE: Final = 4
_BODY_TIMEOUT_S: Final = 10.0
_TIMEOUT_S: Final = 10.0  # for a request to the cluster
_JSON: Final = "application/json"
_LEVELS: Final = {name: getattr(api, f"CONSISTENCY_{name.upper()}") for name in ("leader", "quorum", "voters", "all")}
_CONSISTENCY: Final = Query(
    "consistency",
    "The nodes that have the change durably when it is answered: a quorum of the coordinator's voters by default.",
    {"type": "string", "enum": list(_LEVELS), "default": "quorum"},
)
_FLAG: Final = {"type": "boolean", "default": False}
_LISTING: Final = (
    Query("pallet", "Only those of this pallet."),
    Query("shard", "Only those that this shard has."),
    Query("unplaced", "Only those that no shard has.", _FLAG),
    Query("quarantined", "Only those that are kept from shards: attaching them failed, or ended processes.", _FLAG),
    Query("payloads", "With their payloads; then fewer may come than `limit`.", _FLAG),
    Query("after", "Only those with a greater number: `next` of the page before.", {"type": "integer"}),
    Query("limit", "How many at most.", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 1000}),
)


class Change(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Exactly one of these."""

    create: DutyDocument | None = None
    update: DutyUpdate | None = None
    delete: DutyName | None = None

    def change(self) -> DutyChange:
        """Raises MinkaError(INVALID_ARGUMENT)."""
        if [self.create, self.update, self.delete].count(None) != 2:
            raise MinkaError(Code.INVALID_ARGUMENT, "a change is one of create, update and delete")
        if self.create is not None:
            return documents.create_duty(self.create)
        if self.update is not None:
            return documents.update_duty(self.update)
        assert self.delete is not None, "it is the third"
        return changes.delete(self.delete.pallet, self.delete.id, if_version=self.delete.version)


class Changes(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """All of them are made, or none."""

    changes: list[Change]


class Pin(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The shard on which a duty is to stay."""

    shard: documents.Id


class DutyPage(msgspec.Struct, frozen=True):
    """Some duties; `next` is null on the last page, `total` counts those on all pages."""

    duties: list[DutyView]
    next: int | None
    total: int


def _without(kind: type[msgspec.Struct], name: str, *left_out: str) -> Any:
    """The type without the fields that are already in the path."""
    kept = [(one.name, one.type, one.default) for one in msgspec.structs.fields(kind) if one.name not in left_out]
    return msgspec.defstruct(name, kept, forbid_unknown_fields=True)


_DUTY_BODY: Final = _without(DutyUpdate, "DutyContent", "pallet", "id")
_PALLET_BODY: Final = _without(PalletUpdate, "PalletContent", "id")


class Rest:
    """The handlers. `check` raises MinkaError for a request that breaks the rules of its fields. `is_local`: the node
    listens only on loopback, so only programs on this machine can send requests.
    """

    def __init__(self, gateway: DutyGateway, check: Callable[[Message], None], *, is_local: bool) -> None:
        self._is_local = is_local
        self._gateway = gateway
        self._check = check
        self._reading = asyncio.Semaphore(_BODIES_AT_ONCE)
        self.routes: Final[Sequence[Route]] = self._routes()
        self._description: bytes = msgspec.json.encode(describe(self.routes))
        self._errors: bytes = msgspec.json.encode(error_registry())

    def app(self) -> web.Application:
        """The application under /v1."""
        app = web.Application(middlewares=[problems, local_names] if self._is_local else [problems])
        for route in self.routes:
            app.router.add_route(route.method, route.path.removeprefix("/v1"), route.handler)
        app.router.add_get("/openapi.json", self._openapi)
        app.router.add_get("/errors", self._error_codes)
        return app

    def _routes(self) -> list[Route]:
        duty, pallet, pin = "/v1/duties/{pallet}/{id:.+}", "/v1/pallets/{id}", "/v1/pins/{pallet}/{id:.+}"
        once, versioned = (_CONSISTENCY,), ("If-Match",)
        views, rows = list[DutyView], list[PalletView]
        updates, names = list[DutyUpdate], list[DutyName]
        creates = DutyDocument | list[DutyDocument]
        pallets = PalletSettings | list[PalletSettings]
        return [
            Route("POST", "/v1/duties", "Create one, or all of a list", self._post_duties, creates, views, 201, once),
            Route("GET", "/v1/duties", "List duties", self._list_duties, None, DutyPage, query=_LISTING),
            Route("PUT", "/v1/duties", "Change all of a list", self._put_duties, updates, views, 200, once),
            Route("DELETE", "/v1/duties", "Delete all of a list", self._delete_duties, names, views, 200, once),
            Route("POST", "/v1/changes", "Make changes together", self._post_changes, Changes, views, 200, once),
            Route("GET", duty, "A duty, with its payload", self._get_duty, None, DutyView),
            Route("PUT", duty, "Change a duty", self._put_duty, _DUTY_BODY, DutyView, 200, once, versioned),
            Route("DELETE", duty, "Delete a duty", self._delete_duty, None, DutyView, 200, once, versioned),
            Route("PUT", pin, "Place a duty by hand", self._pin, Pin, DutyView, 200, once, versioned),
            Route("DELETE", pin, "Let it be moved again", self._unpin, None, DutyView, 200, once, versioned),
            Route("POST", "/v1/pallets", "Create one, or all of a list", self._post_pallets, pallets, rows, 201, once),
            Route("GET", "/v1/pallets", "List pallets", self._list_pallets, None, rows),
            Route("GET", pallet, "A pallet", self._get_pallet, None, PalletView),
            Route("PUT", pallet, "Change it", self._put_pallet, _PALLET_BODY, PalletView, 200, once, versioned),
            Route("DELETE", pallet, "Delete it", self._delete_pallet, None, PalletView, 200, once, versioned),
            Route("GET", "/v1/shards", "List shards", self._list_shards, None, list[ShardView]),
        ]  # fmt: skip

    async def _openapi(self, _: web.Request) -> web.Response:
        return web.Response(body=self._description, content_type=_JSON)

    async def _error_codes(self, _: web.Request) -> web.Response:
        return web.Response(body=self._errors, content_type=_JSON)

    # Duties

    async def _post_duties(self, request: web.Request) -> web.Response:
        found = await self._body(request, DutyDocument | list[DutyDocument])
        if isinstance(found, list):
            return _answer(await self._change_duties(request, map(documents.create_duty, found)), HTTPStatus.CREATED)
        [view] = await self._change_duties(request, [documents.create_duty(found)])
        return _answer(view, HTTPStatus.CREATED)

    async def _put_duties(self, request: web.Request) -> web.Response:
        found = await self._body(request, list[DutyUpdate])
        return _answer(await self._change_duties(request, map(documents.update_duty, found)))

    async def _delete_duties(self, request: web.Request) -> web.Response:
        found = await self._body(request, list[DutyName])
        deletes = [changes.delete(one.pallet, one.id, if_version=one.version) for one in found]
        return _answer(await self._change_duties(request, deletes))

    async def _post_changes(self, request: web.Request) -> web.Response:
        found = await self._body(request, Changes)
        return _answer(await self._change_duties(request, [one.change() for one in found.changes]))

    async def _list_duties(self, request: web.Request) -> web.Response:
        query = request.query
        payloads = _flag(request, "payloads")
        asked = api.GetDutiesRequest(
            pallet=query.get("pallet", ""),
            shard=query.get("shard", ""),
            unplaced=_flag(request, "unplaced"),
            quarantined=_flag(request, "quarantined"),
            after=_number(request, "after", 0, 2**63),
            limit=_number(request, "limit", 1000, 10_000) or 1000,
            with_payloads=payloads,
        )
        self._check(asked)
        found = await self._gateway.get_duties(asked, _TIMEOUT_S)
        views = [documents.duty_view(messages.duty_status(one), with_payload=payloads) for one in found.duties]
        last = found.duties[-1].duty.number if found.more and found.duties else None
        return _answer(DutyPage(views, last, found.total))

    async def _get_duty(self, request: web.Request) -> web.Response:
        asked = api.GetDutiesRequest(names=[_duty_name(request)], with_payloads=True)
        self._check(asked)
        [status] = (await self._gateway.get_duties(asked, _TIMEOUT_S)).duties
        return _answer(documents.duty_view(messages.duty_status(status), with_payload=True))

    async def _put_duty(self, request: web.Request) -> web.Response:
        name = _duty_name(request)
        document = await self._body(request, DutyUpdate, pallet=name.pallet, id=name.id)
        [view] = await self._change_duties(request, [documents.update_duty(_matching(request, document))])
        return _answer(view)

    async def _delete_duty(self, request: web.Request) -> web.Response:
        name = _duty_name(request)
        [view] = await self._change_duties(
            request, [changes.delete(name.pallet, name.id, if_version=_if_match(request))]
        )
        return _answer(view)

    async def _pin(self, request: web.Request) -> web.Response:
        name, pin = _duty_name(request), await self._body(request, Pin)
        change = changes.pin(name.pallet, name.id, pin.shard, if_version=_if_match(request))
        [view] = await self._change_duties(request, [change])
        return _answer(view)

    async def _unpin(self, request: web.Request) -> web.Response:
        name = _duty_name(request)
        change = changes.release(name.pallet, name.id, if_version=_if_match(request))
        [view] = await self._change_duties(request, [change])
        return _answer(view)

    async def _change_duties(self, request: web.Request, asked: Iterable[DutyChange]) -> list[DutyView]:
        change = api.ChangeDutiesRequest(changes=duty_messages(asked), consistency=_level(request))
        self._check(change)
        response = await self._gateway.change_duties(change, _TIMEOUT_S)
        return [documents.duty_view(messages.duty_row(row)) for row in response.duties]

    # Pallets and shards

    async def _post_pallets(self, request: web.Request) -> web.Response:
        found = await self._body(request, PalletSettings | list[PalletSettings])
        if isinstance(found, list):
            return _answer(await self._change_pallets(request, map(documents.create_pallet, found)), HTTPStatus.CREATED)
        [view] = await self._change_pallets(request, [documents.create_pallet(found)])
        return _answer(view, HTTPStatus.CREATED)

    async def _list_pallets(self, _: web.Request) -> web.Response:
        found = await self._gateway.ask(GET_PALLETS, api.GetPalletsRequest(), _TIMEOUT_S)
        return _answer([_pallet_view(one) for one in found.pallets])

    async def _get_pallet(self, request: web.Request) -> web.Response:
        asked = api.GetPalletsRequest(ids=[request.match_info["id"]])
        self._check(asked)
        [found] = (await self._gateway.ask(GET_PALLETS, asked, _TIMEOUT_S)).pallets
        return _answer(_pallet_view(found))

    async def _put_pallet(self, request: web.Request) -> web.Response:
        document = await self._body(request, PalletUpdate, id=request.match_info["id"])
        [view] = await self._change_pallets(request, [documents.update_pallet(_matching(request, document))])
        return _answer(view)

    async def _delete_pallet(self, request: web.Request) -> web.Response:
        change = changes.delete_pallet(request.match_info["id"], if_version=_if_match(request))
        [view] = await self._change_pallets(request, [change])
        return _answer(view)

    async def _change_pallets(self, request: web.Request, asked: Iterable[PalletChange]) -> list[PalletView]:
        change = api.ChangePalletsRequest(changes=pallet_messages(asked), consistency=_level(request))
        self._check(change)
        response = await self._gateway.ask(CHANGE_PALLETS, change, _TIMEOUT_S)
        return [documents.pallet_view(messages.pallet(row)) for row in response.pallets]

    async def _list_shards(self, _: web.Request) -> web.Response:
        found = await self._gateway.ask(GET_SHARDS, api.GetShardsRequest(), _TIMEOUT_S)
        return _answer([documents.shard_view(one) for one in messages.shards(found).shards])

    # Input

    async def _body(self, request: web.Request, kind: Any, **given: str) -> Any:
        """The request's document; `given` has the fields that are already in the path. Raises MinkaError."""
        if request.content_type != _JSON:  # a web page may send some types without a CORS preflight, but not JSON
            raise web.HTTPUnsupportedMediaType(text=f"the content must be {_JSON}, not {request.content_type}")
        async with self._reading:
            content = await _read(request)
            try:
                if not given:
                    return msgspec.json.decode(content, type=kind)
                document = msgspec.json.decode(content, type=dict[str, Any])
                for name, value in given.items():
                    if document.setdefault(name, value) != value:
                        raise MinkaError(Code.INVALID_ARGUMENT, f"{name} is {value!r} in the path, and not in the body")
                return msgspec.convert(document, kind)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise MinkaError(Code.INVALID_ARGUMENT, f"the body is not valid: {error}") from error


async def _read(request: web.Request) -> bytes:
    content = bytearray()
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for chunk in request.content.iter_any():
                content += chunk
                if len(content) > _MAX_BODY:
                    raise MinkaError(Code.TOO_LARGE, f"the body has more than {_MAX_BODY} bytes")
    except TimeoutError as error:
        raise web.HTTPRequestTimeout(text=f"the body did not come within {_BODY_TIMEOUT_S:g} s") from error
    return bytes(content)


def _duty_name(request: web.Request) -> api.DutyName:
    return api.DutyName(pallet=request.match_info["pallet"], id=request.match_info["id"])


def _level(request: web.Request) -> Any:
    name = request.query.get("consistency", "quorum")
    if name not in _LEVELS:
        raise MinkaError(Code.INVALID_ARGUMENT, f"consistency {name!r}: one of {', '.join(_LEVELS)}")
    return _LEVELS[name]


def _flag(request: web.Request, name: str) -> bool:
    value = request.query.get(name, "false")
    if value not in ("true", "false"):
        raise MinkaError(Code.INVALID_ARGUMENT, f"{name} must be true or false, not {value!r}")
    return value == "true"


def _number(request: web.Request, name: str, default: int, most: int) -> int:
    value = request.query.get(name, str(default))
    if not (value.isascii() and value.isdecimal() and len(value) < 20 and int(value) <= most):
        raise MinkaError(Code.INVALID_ARGUMENT, f"{name} must be a number up to {most}, not {value!r}")
    return int(value)


def _pallet_view(message: api.PalletSummary) -> PalletView:
    summary = messages.pallet_summary(message)
    return documents.pallet_view(summary.pallet, summary)


def _matching(request: web.Request, document: _Update) -> _Update:
    """The document with the version that If-Match requires, if any. Raises MinkaError(INVALID_ARGUMENT)."""
    version = _if_match(request)
    return document if version is None else msgspec.structs.replace(document, version=version)


def _if_match(request: web.Request) -> int | None:
    """The version that If-Match requires; None: any. Raises MinkaError(INVALID_ARGUMENT)."""
    value = request.headers.get("If-Match", "*").strip()
    if value == "*":
        return None
    version = value[1:-1] if len(value) > 2 and value[0] == value[-1] == '"' else ""
    if not (version.isascii() and version.isdecimal() and len(version) < 20 and int(version)):
        raise MinkaError(Code.INVALID_ARGUMENT, f'If-Match must be a version in quotes, as "7", not {value[:40]!r}')
    return int(version)


def _answer(document: msgspec.Struct | list[Any], status: int = HTTPStatus.OK) -> web.Response:
    """The answer. The version of a single duty or pallet is the answer's ETag, for If-Match."""
    headers = {"ETag": f'"{document.version}"'} if isinstance(document, (DutyView, PalletView)) else {}
    return web.Response(status=status, body=msgspec.json.encode(document), content_type=_JSON, headers=headers)
