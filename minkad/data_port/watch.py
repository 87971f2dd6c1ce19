"""Watches data ports: this node's own, at the address that clients use, and those of some others.

An answer needs all that a client's request needs but the data: the listener, TLS, the protocol and the loop. A
connection is kept and made anew every few seconds, so that a listener that takes none is found, too.
"""

import asyncio
import errno
import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Final

from minka.data_port import Connection, Hello, Purpose, connect
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Node
from minkad.config.addresses import split_address
from minkad.core.controller import FailureDetector, watched_by
from minkad.process import tasks

log: Final = logging.getLogger(__name__)

_RENEW_BEATS: Final = 10  # a connection serves so many questions
_REFUSED_TIMES: Final = 2  # in a row; one alone may be of a moment in which a process starts
_NO_ANSWER: Final = "no answer"
_OUT_OF_FILES: Final = "no file descriptors are left"


class Watch:
    """Asks each watched data port once in `interval` seconds; one is silent `timeout` seconds after the last question
    that it answered, not counting time in which this process stood still, or as soon as it refuses connections.
    """

    def __init__(
        self,
        own: str,
        cluster_id: str,
        nodes: Callable[[], Iterable[Node]],
        tls: Callable[[], ssl.SSLContext | None],
        interval: float,
        timeout: float,
        now: Callable[[], float],
    ) -> None:
        """`own` is this node's id, and `nodes` gives the table's nodes."""
        self.own = own
        self.hello = Hello(Purpose.PING, cluster_id, own)
        self.tls = tls
        self.timeout = timeout
        self.now = now
        self.detector = FailureDetector(timeout, now(), float("-inf"), interval)
        self._nodes = nodes
        self._interval = interval
        self._probes: dict[str, _Probe] = {}
        self._changed = True

    def nodes_changed(self) -> None:
        """The table's nodes have changed."""
        self._changed = True

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                self.detector.turn(self.now())
                if self._changed:
                    self._changed = False
                    self._choose()
                for probe in self._probes.values():
                    probe.beat()
                await asyncio.sleep(self._interval)
        finally:
            for probe in self._probes.values():
                probe.close()

    def _choose(self) -> None:
        watched = {node.id: node.data_address for node in watched_by(self._nodes(), self.own)}
        for name in [name for name, probe in self._probes.items() if watched.get(name) != probe.address]:
            self._probes.pop(name).close()
        for name, address in watched.items():
            if name not in self._probes:
                self._probes[name] = _Probe(self, name, address)

    def unanswered(self) -> dict[str, str]:
        """By node: what comes instead of an answer of its data port."""
        now = self.now()
        return {name: reason for name, probe in self._probes.items() if (reason := probe.problem(now))}


class _Probe:
    """The questions to one data port: a `Receiver`."""

    def __init__(self, watch: Watch, node: str, address: str) -> None:
        self.address = address
        self._watch = watch
        self._node = node
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._beats = 0  # since the connection was made
        self._asked_at: float | None = None  # the question that is not answered yet
        self._refused = 0
        self._reason = _NO_ANSWER
        watch.detector.heard(node, watch.now())

    def problem(self, now: float) -> str:
        """What comes instead of an answer; "" while it answers."""
        if self._refused >= _REFUSED_TIMES:
            return "connection refused"
        return "" if self._watch.detector.is_alive(self._node, now) else self._reason

    def beat(self) -> None:
        """Ask, or connect."""
        if self._connecting is not None:
            if not self._connecting.done():
                return
            self._connecting = None
        self._beats += 1
        late = self._asked_at is not None and self._watch.now() - self._asked_at > self._watch.timeout
        if self._connection is None or late or self._beats > _RENEW_BEATS:
            self._connecting = tasks.start(self._connect(), f"watching the data port of {self._node}")
        elif self._asked_at is None:
            self._asked_at = self._watch.now()
            self._connection.send_at_once(b"")

    async def _connect(self) -> None:
        """A new connection takes the place of the old one, which ends afterwards: it would leave its file descriptor to
        the new one, and hide that the node has none for a client.
        """
        asked_at = self._watch.now()
        try:
            async with asyncio.timeout(self._watch.timeout):
                connection = await connect(split_address(self.address), self._watch.tls(), self._watch.hello, self)
        except TimeoutError:
            self._reason = _NO_ANSWER
        except MinkaError as error:
            self._failed(error)
        else:
            self._end()
            self._connection, self._beats, self._asked_at, self._refused = connection, 0, asked_at, 0
            connection.send(b"")

    def _failed(self, error: MinkaError) -> None:
        cause = error.__cause__
        self._reason = error.message.removeprefix(f"{self.address}: ")
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            self._reason = _OUT_OF_FILES
            if self._node != self._watch.own:  # the fault is here
                self._watch.detector.heard(self._node, self._watch.now())
        self._refused = self._refused + 1 if isinstance(cause, ConnectionRefusedError) else 0

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.drop()
            self._connection = None
        self._asked_at = None

    def close(self) -> None:
        """Watch it no longer."""
        if self._connecting is not None:
            self._connecting.cancel()
        self._end()

    # The receiver

    def received(self, content: bytes) -> None:
        """The answer."""
        if self._asked_at is not None:
            self._watch.detector.heard(self._node, self._asked_at)
            self._asked_at, self._reason = None, _NO_ANSWER

    def ended(self) -> None:
        """The other side is about to close."""

    def lost(self, error: MinkaError | None) -> None:
        """The connection is over. A node of an older version refuses the question, and that is an answer."""
        self._connection = None
        if error is not None and error.code is Code.INVALID_ARGUMENT:
            self.received(b"")
        elif error is not None:
            self._reason = error.message
        self._asked_at = None

    def paused(self) -> None:
        """Nothing waits for room."""

    def resumed(self) -> None:
        """Nothing waits for room."""


class Pings:
    """Answers those who watch this node's data port, without tasks."""

    def serve(self, connection: Connection) -> "_Answering":
        """Serve a connection for `Purpose.PING`."""
        return _Answering(connection)


class _Answering:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def received(self, content: bytes) -> None:
        self._connection.send_at_once(b"")

    def ended(self) -> None:
        self._connection.close()

    def lost(self, error: MinkaError | None) -> None: ...
    def paused(self) -> None: ...
    def resumed(self) -> None: ...
