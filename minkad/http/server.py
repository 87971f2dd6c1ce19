"""The HTTP endpoints of a node: /metrics, /livez, /readyz, /v1 if it is served, and an index of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from minkad.config.addresses import split_address
from minkad.process.listening import cannot_listen

_SHUTDOWN_SECONDS = 1.0
_MAX_CONNECTIONS = 256
_MAX_LINE_BYTES = 4096
_INDEX = """\
minkad

/metrics   Prometheus metrics
/livez     200 while this process works; else restart it
/readyz    200 while this node serves; ?verbose lists every check
"""
_INDEX_OF_REST = """\
/v1        pallets and duties: /v1/openapi.json describes it
"""


@dataclass(frozen=True, slots=True)
class Check:
    """A condition for the node to be ready, to be live, or both."""

    name: str
    ok: bool
    reason: str
    """The reason why it isn't ok, or a word on its state."""
    needed_for_ready: bool
    needed_for_live: bool


class HealthView(Protocol):
    """The node's own view of its health; asked on the event loop, so it must be quick and must not wait."""

    def checks(self) -> Sequence[Check]:
        """All checks, in the order in which they are shown."""

    async def refresh(self) -> None:
        """Make the counts that take long, before the metrics are read."""


def create_app(health: HealthView, registry: CollectorRegistry, rest: web.Application | None = None) -> web.Application:
    """The endpoints, with the health and the metrics that they show; `rest` is served under /v1."""

    async def index(_: web.Request) -> web.Response:
        return web.Response(text=_INDEX + (_INDEX_OF_REST if rest is not None else ""))

    async def metrics(request: web.Request) -> web.Response:
        await health.refresh()
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    async def livez(request: web.Request) -> web.Response:
        return _verdict("livez", health.checks(), lambda check: check.needed_for_live, request)

    async def readyz(request: web.Request) -> web.Response:
        return _verdict("readyz", health.checks(), lambda check: check.needed_for_ready, request)

    app = web.Application(client_max_size=1024)
    app.router.add_get("/", index)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    if rest is not None:
        app.add_subapp("/v1", rest)
    return app


def _verdict(name: str, checks: Sequence[Check], needed: Callable[[Check], bool], request: web.Request) -> web.Response:
    """200 with "ok" (?verbose: with every check), or 503 with every check, in the form of Kubernetes' endpoints."""
    counted = [check for check in checks if needed(check)]
    passed = all(check.ok for check in counted)
    if passed and "verbose" not in request.query:
        return web.Response(text="ok\n")
    lines = [f"[+]{check.name} ok" if check.ok else f"[-]{check.name} failed: {check.reason}" for check in counted]
    lines.append(f"{name} check {'passed' if passed else 'failed'}")
    return web.Response(status=200 if passed else 503, text="\n".join(lines) + "\n")


class _Room:
    """At the limit of connections, ends the oldest idle connection, or if none is idle, the oldest: so a probe of the
    node's health always gets through.
    """

    def __init__(self) -> None:
        self._busy: set[web.RequestHandler] = set()  # connections with a request under way

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Notes a request on a connection."""
        self._busy.add(request.protocol)
        try:
            return await handler(request)
        finally:
            self._busy.discard(request.protocol)

    def make(self, connections: Iterable[web.RequestHandler]) -> None:
        """Make room for one more."""
        alive = [one for one in connections if one.transport is not None]
        if len(alive) >= _MAX_CONNECTIONS:
            next((one for one in alive if one not in self._busy), alive[0]).force_close()


async def start(app: web.Application, address: str) -> web.AppRunner:
    """Listen on `address` (listen.http) until `cleanup()` of the result, which gives open requests a second to end.

    Raises MinkaError: ADDRESS_IN_USE, or ADDRESS_UNAVAILABLE if it can't listen for another reason.
    """
    host, port = split_address(address)
    room = _Room()
    app.middlewares.append(room.middleware)
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=_SHUTDOWN_SECONDS,
        keepalive_timeout=15.0,
        max_line_size=_MAX_LINE_BYTES,
        max_field_size=_MAX_LINE_BYTES,
    )
    listeners: list[asyncio.Server] = []

    async def close(_: web.Application) -> None:
        for listener in listeners:
            listener.close()

    app.on_shutdown.append(close)
    await runner.setup()
    server = runner.server
    assert server is not None, "it is there after setup"

    def protocol() -> asyncio.Protocol:
        room.make(server.connections)
        return server()

    try:
        listeners.append(await asyncio.get_running_loop().create_server(protocol, host, port))
    except OSError as error:
        await runner.cleanup()
        raise cannot_listen("listen.http", address, error) from error
    return runner
