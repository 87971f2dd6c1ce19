"""A node checks regularly if its own data port and those of other nodes answer. The tests use real ports, in their own
process.
"""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import minka.wire.data_port
from minka.errors import Code, MinkaError
from minka.testing.loopback_ports import free_addresses
from minka.v1.cluster_pb2 import Node, NodeState
from minka.wire.data_port import Purpose
from minkad.core.state import State
from minkad.data_port import port_watch
from minkad.data_port.incoming import Incoming
from minkad.data_port.listener import Listener
from minkad.data_port.port_watch import Pings, Watch
from minkad.process.clock import boottime
from tests.integration.replication.node import until
from tests.own_table import Table

BEAT, TIMEOUT = 0.02, 0.5


class Deaf(asyncio.Protocol):
    """Reads everything on a connection, and never answers."""

    def __init__(self, transports: set[asyncio.BaseTransport]) -> None:
        self._transports = transports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transports.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transports.discard(self._transport)


class Port:
    """A data port that answers; or, if it is deaf, reads everything and never answers."""

    def __init__(self, purposes: tuple[Purpose, ...] = (Purpose.PING,)) -> None:
        self.address = free_addresses(1)[0]
        self.made = 0
        self.is_deaf = False
        self._unheard: set[asyncio.BaseTransport] = set()
        services = {Purpose.PING: Pings().serve}
        self._incoming = Incoming("cluster", "a", {purpose: services[purpose] for purpose in purposes})
        self._listener: Listener | None = None

    def _protocol(self) -> asyncio.Protocol:
        self.made += 1
        return Deaf(self._unheard) if self.is_deaf else self._incoming.protocol()

    async def open(self) -> None:
        self._listener = Listener(self.address, self._protocol, None, None)
        await self._listener.start()

    def close(self) -> None:
        if self._listener is not None:
            self._listener.stop()
        self._incoming.close()
        for transport in self._unheard:
            transport.close()

    @property
    def is_open(self) -> bool:
        """True until the last connection is closed."""
        return bool(self._incoming.open or self._unheard)

    def hang(self) -> None:
        """Stop answering, also on open connections."""
        self.is_deaf = True
        for connection in self._incoming.open:
            connection.pause_reading()


@asynccontextmanager
async def watched(port: Port, own: str = "a") -> AsyncIterator[Watch]:
    """Let the node `own` watch the data port of node b. `own` is a, or b itself."""
    table = Table(State())
    table.state.nodes["b"] = Node(id="b", data_address=port.address, state=NodeState.NODE_STATE_LIVE)
    table.state.nodes["a"] = Node(id="a", data_address="127.0.0.1:9", state=NodeState.NODE_STATE_FAILED)
    await port.open()
    watch = Watch(own, "cluster", table, lambda: None, BEAT, TIMEOUT, boottime)
    task = asyncio.create_task(watch.run())
    try:
        await until(lambda: port.made > 0)
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        port.close()
        await until(lambda: not port.is_open)


def said(watch: Watch) -> str | None:
    return watch.unanswered().get("b")


async def test_an_answering_port_is_asked_on_new_connections_again_and_again() -> None:
    port = Port()
    async with watched(port) as watch:
        await until(lambda: port.made >= 4)
        assert said(watch) is None


async def test_a_hanging_port_is_reported_from_the_timeout_until_it_answers() -> None:
    port = Port()
    async with watched(port) as watch:
        await until(lambda: port.made >= 2)
        port.hang()
        assert said(watch) is None
        began = boottime()
        await until(lambda: said(watch) is not None)
        assert said(watch) == "no answer"
        assert boottime() - began > TIMEOUT / 2
        port.is_deaf = False
        await until(lambda: said(watch) is None)


async def test_a_port_that_refuses_is_reported_at_once() -> None:
    port = Port()
    async with watched(port) as watch:
        watch.timeout = 60.0
        watch.answers.timeout = watch.listens.timeout = 60.0
        await until(lambda: port.made >= 2)
        port.close()
        await until(lambda: said(watch) == "connection refused")
        await port.open()
        await until(lambda: said(watch) is None)


async def test_the_refusal_of_an_older_version_is_an_answer() -> None:
    port = Port(purposes=())
    async with watched(port) as watch:
        await until(lambda: port.made >= 3)
        await asyncio.sleep(2 * TIMEOUT)  # a silent port would be reported by then
        assert said(watch) is None


async def test_a_node_without_file_descriptors_reports_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    port = Port()
    async with watched(port) as watch:

        async def connect(*_: object) -> object:
            raise MinkaError(Code.UNREACHABLE, "no connection could be opened") from OSError(
                errno.EMFILE, "Too many open files"
            )

        monkeypatch.setattr(port_watch, "connect", connect)
        await until(lambda: watch.unanswered().get("a") == "no file descriptors are left")
        assert said(watch) is None


async def test_a_port_that_is_silent_on_several_new_connections_is_reported() -> None:
    port = Port()
    async with watched(port) as watch:
        await until(lambda: port.made >= 2)
        port.is_deaf = True
        made = port.made
        await until(lambda: port.made >= made + 3)
        assert said(watch) is None, "the old connection answers"
        await until(lambda: said(watch) == "no answer")
        port.is_deaf = False
        await until(lambda: said(watch) is None)


async def test_an_unexpected_error_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    port = Port()
    ended: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: ended.append(context))
    async with watched(port) as watch:

        async def connect(*_: object) -> object:
            raise ValueError("a bug")

        with monkeypatch.context() as bug:
            bug.setattr(port_watch, "connect", connect)
            await until(lambda: said(watch) == "no answer")
        await until(lambda: said(watch) is None)
    assert ended == []


async def test_a_node_that_never_reached_its_own_address_does_not_report_itself() -> None:
    """A node behind address translation may never reach its own address. So only a refusal, or silence after an answer,
    counts as a failure.
    """
    port = Port()
    port.is_deaf = True
    async with watched(port, own="b") as watch:
        made = port.made
        await until(lambda: port.made >= made + 3)
        assert said(watch) is None
        port.is_deaf = False
        await until(lambda: watch._probes["b"]._has_answered)
        port.hang()
        await until(lambda: said(watch) == "no answer")


def test_ping_is_a_purpose_of_the_protocol() -> None:
    assert minka.wire.data_port.Purpose("ping") is Purpose.PING
