"""Serves connections in Minka's own protocol: checks who connects, and hands the connection to the service for its
purpose.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from minka.cluster.name_rules import node_id_problem
from minka.errors import Code, MinkaError
from minka.wire import data_port
from minka.wire.data_port import PREFACE, Connection, Purpose, Receiver, decode_hello
from minka.wire.kv_frames import MAX_FRAME_BYTES
from minkad.process.logs import Seldom

log: Final = logging.getLogger(__name__)

Serve = Callable[[Connection], Receiver]

_HELLO_S: Final = 10.0  # a connection without a hello for this long is closed
_HELLO_BYTES: Final = 4096
_FRAME_BYTES: Final = {Purpose.KV: MAX_FRAME_BYTES + 1}  # by purpose; the first byte of a frame says its kind


class Incoming:
    """Makes the protocol of each connection, and knows the open connections."""

    def __init__(self, cluster_id: str, node_id: str, services: Mapping[Purpose, Serve]) -> None:
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._services = services
        self._seldom = Seldom(log)
        self.open: set[Connection] = set()  # also those whose hello hasn't come

    def protocol(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        return _Accepted(self)

    def close(self) -> None:
        """End all connections: at once if the other side takes no bytes, else after all sent bytes have left."""
        for connection in list(self.open):
            if connection.is_paused:
                connection.abort()
            else:
                connection.close()

    def greeted(self, connection: Connection, content: bytes) -> None:
        """Hand the connection to the service that its first frame asks for. Raises INVALID_ARGUMENT, CLUSTER_MISMATCH,
        UNREACHABLE if the caller wants another node, and the service's errors.
        """
        purpose = self._checked(content)
        connection.limit(_FRAME_BYTES.get(purpose, data_port.MAX_FRAME_BYTES))
        serve = self._services.get(purpose)
        if serve is None:
            raise MinkaError(Code.INVALID_ARGUMENT, f"nothing here serves connections for {purpose}")
        connection.receiver = serve(connection)

    def _checked(self, content: bytes) -> Purpose:
        try:
            hello = decode_hello(content)
            purpose = Purpose(hello.purpose)
        except (msgspec.MsgspecError, ValueError) as error:
            raise MinkaError(Code.INVALID_ARGUMENT, f"the first frame isn't a valid hello: {error}") from error
        if hello.cluster_id not in ("", self._cluster_id):
            text = f"the caller belongs to cluster {hello.cluster_id[:64]!r}, this node to {self._cluster_id}"
            raise MinkaError(Code.CLUSTER_MISMATCH, text)
        if hello.to_node not in ("", self._node_id):
            raise MinkaError(Code.UNREACHABLE, f"this is {self._node_id} now, not {hello.to_node[:64]}")
        if purpose is not Purpose.KV and (not hello.cluster_id or node_id_problem(hello.node_id)):
            raise MinkaError(Code.INVALID_ARGUMENT, "a connection between nodes must name its cluster and node")
        return purpose

    def refused(self, error: MinkaError) -> None:
        """Log a caller's mistake, at most once in 10 s."""
        if error.code in (Code.INVALID_ARGUMENT, Code.CLUSTER_MISMATCH, Code.TOO_LARGE):
            self._seldom.log(logging.INFO, "a connection was refused", reason=str(error)[:300])


class _Accepted(Connection):
    """A connection from another process."""

    def __init__(self, incoming: Incoming) -> None:
        super().__init__(_Greeting(self, incoming), PREFACE)
        self._incoming = incoming
        self.limit(_HELLO_BYTES)
        incoming.open.add(self)

    def fail(self, error: MinkaError) -> None:
        self._incoming.refused(error)
        super().fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._incoming.open.discard(self)
        super().connection_lost(exc)


class _Greeting:
    """The receiver until the hello has come; then the service's receiver replaces it."""

    def __init__(self, connection: Connection, incoming: Incoming) -> None:
        self._connection = connection
        self._incoming = incoming
        self._timer = asyncio.get_running_loop().call_later(_HELLO_S, connection.abort)

    def received(self, content: bytes) -> None:
        self._timer.cancel()
        self._incoming.greeted(self._connection, content)

    def ended(self) -> None: ...
    def lost(self, error: MinkaError | None) -> None:
        self._timer.cancel()

    def paused(self) -> None: ...
    def resumed(self) -> None: ...
