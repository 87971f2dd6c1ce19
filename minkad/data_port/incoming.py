"""Serves connections in Minka's own protocol: checks who connects, and hands the connection to what it is for."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from minka.data_port import PREFACE, Connection, Purpose, Receiver, decode_hello
from minka.errors import Code, MinkaError
from minkad.core.state.names import node_id_problem
from minkad.process.logs import Seldom

log: Final = logging.getLogger(__name__)

Serve = Callable[[Connection], Receiver]


class Incoming:
    """Makes the protocol of each connection, and knows those that are open."""

    def __init__(self, cluster_id: str, services: Mapping[Purpose, Serve]) -> None:
        self._cluster_id = cluster_id
        self._services = services
        self._seldom = Seldom(log)
        self.open: set[Connection] = set()

    def protocol(self) -> asyncio.Protocol:
        """What serves a new connection."""
        return _Accepted(self)

    def close(self) -> None:
        """End all connections."""
        for connection in list(self.open):
            connection.close()

    def service(self, content: bytes) -> Serve:
        """What the first frame asks for. Raises INVALID_ARGUMENT, CLUSTER_MISMATCH."""
        try:
            hello = decode_hello(content)
            purpose = Purpose(hello.purpose)
        except (msgspec.MsgspecError, ValueError) as error:
            raise MinkaError(Code.INVALID_ARGUMENT, f"the first frame is no hello: {error}") from error
        if hello.cluster_id not in ("", self._cluster_id):
            text = f"the caller belongs to cluster {hello.cluster_id[:64]!r}, this node to {self._cluster_id}"
            raise MinkaError(Code.CLUSTER_MISMATCH, text)
        if purpose is not Purpose.KV and (not hello.cluster_id or node_id_problem(hello.node_id)):
            raise MinkaError(Code.INVALID_ARGUMENT, "a connection between nodes says of which cluster and node it is")
        return self._services[purpose]

    def refused(self, error: MinkaError) -> None:
        """Log a caller's mistake, at most once in 10 s."""
        if error.code in (Code.INVALID_ARGUMENT, Code.CLUSTER_MISMATCH, Code.TOO_LARGE):
            self._seldom.log(logging.INFO, "a connection was refused", reason=str(error)[:300])


class _Accepted(Connection):
    """A connection from another process."""

    def __init__(self, incoming: Incoming) -> None:
        super().__init__(_Greeting(self, incoming), PREFACE)
        self._incoming = incoming
        incoming.open.add(self)

    def fail(self, error: MinkaError) -> None:
        self._incoming.refused(error)
        super().fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._incoming.open.discard(self)
        super().connection_lost(exc)


class _Greeting:
    """The receiver until the hello has come; then that of the service takes its place."""

    def __init__(self, connection: Connection, incoming: Incoming) -> None:
        self._connection = connection
        self._incoming = incoming

    def received(self, content: bytes) -> None:
        self._connection.receiver = self._incoming.service(content)(self._connection)

    def ended(self) -> None: ...
    def lost(self, error: MinkaError | None) -> None: ...
    def paused(self) -> None: ...
    def resumed(self) -> None: ...
