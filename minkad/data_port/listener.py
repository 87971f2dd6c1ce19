"""Listens on the data port, and finds out which protocol the other side speaks."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from minka.wire.data_port import PREFACE
from minkad.config.addresses import split_address
from minkad.process import tasks
from minkad.process.listening import cannot_listen

_BACKLOG: Final = 1024
_FIRST_BYTE_S: Final = 10.0  # a connection that is silent for this long goes to `redis`, or is closed
_HANDSHAKE_S: Final = 10.0
_MOST_SILENT: Final = 128  # connections that may be silent for `_FIRST_BYTE_S`; with more, the oldest get:
_LEAST_WAIT_S: Final = 1.0  # not less: the loop accepts all connections of a moment before it reads the first

Protocols = Callable[[], asyncio.Protocol]
Tls = Callable[[], ssl.SSLContext]


class Listener:
    """The bound port."""

    def __init__(self, address: str, minka: Protocols, redis: Protocols | None, tls: Tls | None) -> None:
        """`minka` serves connections in Minka's own protocol, `redis` those in Redis's protocol; None: Redis clients
        are refused. `tls` gives the context for later connections. Raises ADDRESS_IN_USE, ADDRESS_UNAVAILABLE.
        """
        self.minka = minka
        self.redis = redis
        self.is_stopped = False
        self._tls = tls
        self._servers: list[asyncio.Server] = []
        self._renewing: asyncio.Task[None] | None = None
        self._silent: dict[_Arrival, None] = {}  # silent connections that may wait `_FIRST_BYTE_S`, the oldest first
        self._hurried: set[_Arrival] = set()  # the other silent connections
        self._sockets = _bound(address)

    async def start(self) -> None:
        """Take connections."""
        loop, old = asyncio.get_running_loop(), self._servers
        context, handshake_s = (self._tls(), _HANDSHAKE_S) if self._tls is not None else (None, None)
        self._servers = [
            await loop.create_server(
                self._arrived, sock=bound.dup(), ssl=context, backlog=_BACKLOG, ssl_handshake_timeout=handshake_s
            )
            for bound in self._sockets
        ]
        for server in old:
            server.close()

    def renew(self) -> None:
        """Use the present certificates for all connections from now on; existing connections stay."""
        self._renewing = tasks.start(self.start(), "data port", tasks.told)

    def stop(self) -> None:
        """Take no more connections, and end the silent connections."""
        self.is_stopped = True
        if self._renewing is not None:
            self._renewing.cancel()
        for server in self._servers:
            server.close()
        for bound in self._sockets:
            bound.close()
        for arrival in [*self._silent, *self._hurried]:
            arrival.end()

    def _arrived(self) -> asyncio.Protocol:
        return _Arrival(self)

    def is_silent(self, arrival: "_Arrival") -> None:
        """A connection is new. Silent connections aren't counted as clients, so only a few may stay for long."""
        self._silent[arrival] = None
        if len(self._silent) > _MOST_SILENT:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            self._hurried.add(oldest)
            oldest.hurry()

    def is_heard(self, arrival: "_Arrival") -> None:
        """Something has come, or the connection is over."""
        self._silent.pop(arrival, None)
        self._hurried.discard(arrival)


def _bound(address: str) -> list[socket.socket]:
    """A socket for each address of the host. Raises ADDRESS_IN_USE, ADDRESS_UNAVAILABLE."""
    host, port = split_address(address)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, where in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            bound = socket.socket(family, kind, protocol)
            sockets.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(where)
    except OSError as error:
        for bound in sockets:
            bound.close()
        raise cannot_listen("listen.data", address, error) from error
    return sockets


class _Arrival(asyncio.Protocol):
    """A connection until its first byte has come."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport = cast("asyncio.Transport", None)
        self._made_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._listener.is_stopped:  # the loop accepted the connection just before
            self._transport.abort()
            return
        self._made_at = asyncio.get_running_loop().time()
        self._wait(_FIRST_BYTE_S)
        self._listener.is_silent(self)

    def hurry(self) -> None:
        """Too many connections are silent: wait less."""
        self._wait(_LEAST_WAIT_S)

    def end(self) -> None:
        """The listener takes no more connections."""
        self._stop_timer()
        self._transport.abort()

    def _wait(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._made_at + seconds, self.has_waited)

    def data_received(self, data: bytes) -> None:
        self._stop_timer()
        make = self._listener.minka if data[:1] == PREFACE[:1] else self._listener.redis
        if make is None:
            self._transport.write(b"-ERR this port speaks Minka's own protocol\r\n")
            self._transport.close()
            return
        self._give_to(make()).data_received(data)

    def has_waited(self) -> None:
        """Pools of Redis clients connect before they have anything to send; clients of Minka don't."""
        self._stop_timer()
        if self._listener.redis is None:
            self._transport.abort()
        else:
            self._give_to(self._listener.redis())

    def _give_to(self, chosen: asyncio.Protocol) -> asyncio.Protocol:
        self._transport.set_protocol(chosen)
        chosen.connection_made(self._transport)
        return chosen

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()

    def _stop_timer(self) -> None:
        self._listener.is_heard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
