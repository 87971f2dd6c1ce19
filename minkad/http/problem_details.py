"""Errors as problem documents (RFC 9457), from the registry of error codes."""

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from minka.errors import Code, MinkaError
from minkad.config.addresses import is_loopback, join_address
from minkad.process.logs import Seldom

log: Final = Seldom(logging.getLogger(__name__))
MEDIA_TYPE: Final = "application/problem+json"
_RETRY_AFTER_S: Final = "1"

_STATUS: Final = {
    "INVALID_ARGUMENT": HTTPStatus.BAD_REQUEST,
    "NOT_FOUND": HTTPStatus.NOT_FOUND,
    "ALREADY_EXISTS": HTTPStatus.CONFLICT,
    "FAILED_PRECONDITION": HTTPStatus.CONFLICT,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
    "RESOURCE_EXHAUSTED": HTTPStatus.SERVICE_UNAVAILABLE,
    "DEADLINE_EXCEEDED": HTTPStatus.GATEWAY_TIMEOUT,
    "UNKNOWN": HTTPStatus.GATEWAY_TIMEOUT,
}
_STATUS_OF_CODE: Final = {
    Code.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Code.VERSION_MISMATCH: HTTPStatus.PRECONDITION_FAILED,
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem (RFC 9457); `type` is the page that explains its code, `details` depend on the code."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    remedy: str
    retriable: bool
    details: dict[str, str] = {}


def status_of(code: Code) -> int:
    """The HTTP status of errors with this code."""
    by_code = _STATUS_OF_CODE.get(code)
    return by_code or _STATUS.get(code.info.grpc_status, HTTPStatus.INTERNAL_SERVER_ERROR)


def problem_of(error: MinkaError) -> Problem:
    """The problem document of an error."""
    info = error.code.info
    return Problem(
        type=f"/v1/errors#{error.code.name}",
        title=info.meaning,
        status=status_of(error.code),
        detail=error.message,
        code=error.code.name,
        remedy=info.remedy,
        retriable=info.retriable,
        details=error.details,
    )


def _response(problem: Problem, headers: dict[str, str] | None = None) -> web.Response:
    retry = {"Retry-After": _RETRY_AFTER_S} if problem.status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    return web.Response(
        status=problem.status,
        body=msgspec.json.encode(problem),
        content_type=MEDIA_TYPE,
        headers={**retry, **(headers or {})},
    )


def _of_http(error: web.HTTPException) -> web.Response:
    """The response to a refusal of aiohttp itself, such as an unknown path or method."""
    problem = Problem(
        type="about:blank",
        title=error.reason,
        status=error.status,
        detail=error.text or error.reason,
        code="INVALID_ARGUMENT",
        remedy="GET /v1/openapi.json describes the interface.",
        retriable=False,
    )
    allow = error.headers.get("Allow")
    return _response(problem, {"Allow": allow} if allow else None)


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error leaves as a problem document."""
    try:
        return await handler(request)
    except MinkaError as error:
        return _response(problem_of(error))
    except web.HTTPException as error:
        if error.status < HTTPStatus.BAD_REQUEST:
            raise
        return _of_http(error)
    except Exception as error:  # noqa: BLE001 - in any case, the caller gets a named error
        log.log(logging.ERROR, "a request failed", with_traceback=True, method=request.method, path=request.path)
        return _response(problem_of(MinkaError(Code.INTERNAL, f"{type(error).__name__}: {error}")))


@web.middleware
async def local_names(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests (421) to a name that isn't this machine's own, for services on loopback. Without this check, a
    web page in a browser here could let its name point to 127.0.0.1, and talk to the service (DNS rebinding).
    """
    try:
        host = request.url.host or ""
    except ValueError:
        host = request.host
    if not is_loopback(join_address(host, 0)):
        text = f"this is served on loopback, as localhost or by its address, not as {host or 'nothing'}"
        raise web.HTTPMisdirectedRequest(text=text)
    return await handler(request)


def error_registry() -> list[dict[str, Any]]:
    """All error codes, as JSON objects."""
    return [
        {
            "code": code.name,
            "meaning": code.info.meaning,
            "remedy": code.info.remedy,
            "retriable": code.info.retriable,
            "status": status_of(code),
        }
        for code in Code
    ]
