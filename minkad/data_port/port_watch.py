"""Watches data ports: this node's own port, at the address that clients use, and the ports of some other nodes.

An answer needs all that a client's request needs, except the data: the listener, TLS, the protocol and the loop. Every
few seconds a new connection replaces the old connection, so that the watch also notices a listener that accepts no
connections. Until an answer has come on the new connection, questions go over the old connection.
"""

import asyncio
import errno
import logging
import ssl
from collections.abc import Callable
from typing import Final

from minka.errors import Code, MinkaError
from minka.wire.data_port import Connection, Hello, Purpose, connect
from minkad.config.addresses import split_address
from minkad.core.controller.data_ports import watched_by
from minkad.core.controller.failure_detector import FailureDetector
from minkad.core.state import OwnTable
from minkad.process import tasks

log: Final = logging.getLogger(__name__)

_RENEW_BEATS: Final = 10  # questions on a connection before it is replaced
_TRIES: Final = 3  # new connections without an answer, while the old one still answers
_AT_ONCE_TIMES: Final = 2  # refusals in a row; a process that is just starting may refuse once
_NO_ANSWER: Final = "no answer"
_REFUSED: Final = "connection refused"
_OUT_OF_FILES: Final = "no file descriptors are left"


class Watch:
    """Asks each watched data port once every `interval` seconds. A port is silent `timeout` seconds after the last
    question that it answered; time in which this process stood still doesn't count. A port that answers on the old
    connection, but not on new connections, is silent after `_TRIES` tries, or after `_AT_ONCE_TIMES` refusals in a row.
    """

    def __init__(
        self,
        own: str,
        cluster_id: str,
        table: OwnTable,
        tls: Callable[[], ssl.SSLContext | None],
        interval: float,
        timeout: float,
        now: Callable[[], float],
    ) -> None:
        """`own` is this node's id."""
        self.own = own
        self.hello = Hello(Purpose.PING, cluster_id, own)
        self.tls = tls
        self.timeout = timeout
        self.now = now
        self.answers = FailureDetector(timeout, now(), float("-inf"), interval)  # answers on any connection
        patience = (_RENEW_BEATS + 1) * interval + _TRIES * timeout
        self.listens = FailureDetector(patience, now(), float("-inf"), interval)  # answers on new connections
        self._table = table
        self._interval = interval
        self._probes: dict[str, _Probe] = {}  # by node
        self._changed = True  # the table's nodes, since the last choice

    def nodes_changed(self) -> None:
        """The table's nodes have changed."""
        self._changed = True

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                for detector in (self.answers, self.listens):
                    detector.turn(self.now())
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
        watched = {node.id: node.data_address for node in watched_by(self._table.state.nodes.values(), self.own)}
        for name in [name for name, probe in self._probes.items() if watched.get(name) != probe.address]:
            self._probes.pop(name).close()
        for name, address in watched.items():
            if name not in self._probes:
                self._probes[name] = _Probe(self, name, address)

    def unanswered(self) -> dict[str, str]:
        """By node: the error in place of an answer from its data port."""
        now = self.now()
        return {name: reason for name, probe in self._probes.items() if (reason := probe.problem(now))}


class _Probe:
    """The questions to one data port."""

    def __init__(self, watch: Watch, node: str, address: str) -> None:
        self.address = address
        self.watch = watch
        self._node = node
        self._is_own = node == watch.own
        self._line: _Line | None = None  # the open line; an answer has come on it
        self._trying: asyncio.Task[None] | None = None  # opens a new line, and waits for its first answer
        self._beats = 0  # since the line was made
        self._failed_at_once = 0  # new connections in a row
        self._has_answered = False  # at any time
        self._reason = _NO_ANSWER  # the error to report if the port is silent
        self._heard_now()

    def problem(self, now: float) -> str:
        """The error in place of an answer; "" while the port answers."""
        if self._failed_at_once >= _AT_ONCE_TIMES:
            return self._reason
        if self._is_own and not self._has_answered:
            return ""  # with address translation, a node may never reach its own address
        is_silent = not (self.watch.answers.is_alive(self._node, now) and self.watch.listens.is_alive(self._node, now))
        return self._reason if is_silent else ""

    def beat(self) -> None:
        """Ask, and try a new line if this one is old or missing."""
        self._beats += 1
        if self._line is not None:
            self._line.ask()
        is_due = self._line is None or self._line.is_late() or self._beats > _RENEW_BEATS
        if is_due and (self._trying is None or self._trying.done()):
            name = f"watching the data port of {self._node}"
            self._trying = tasks.start(self._try_line(), name, self._broken)

    async def _try_line(self) -> None:
        """Replace the old line after an answer has come on a new line. Meanwhile questions go over the old line: a lost
        packet, or a queue of connections that is full for a moment, isn't silence. The old line ends last: if it ended
        first, the new line could take its file descriptor, and hide that no descriptor is left for a client.
        """
        began, line = self.watch.now(), _Line(self)
        over: _Line | None = line
        try:
            async with asyncio.timeout(self.watch.timeout):
                await line.open()
            over, self._line = self._line, None if line.is_over else line
            self._reason, self._failed_at_once, self._beats = _NO_ANSWER, 0, 0
            self.watch.listens.heard(self._node, began)
        except TimeoutError:
            self._reason, self._failed_at_once = _NO_ANSWER, 0
        except MinkaError as error:
            self._failed(error)
        finally:
            if over is not None:
                over.end()

    def _failed(self, error: MinkaError) -> None:
        cause = error.__cause__
        is_at_once = isinstance(cause, ConnectionRefusedError)
        self._reason = _REFUSED if is_at_once else error.message.removeprefix(f"{self.address}: ")
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            self._reason = _OUT_OF_FILES
            if self._is_own:
                is_at_once = True
            else:
                self._heard_now()  # the fault is on this node
        self._failed_at_once = self._failed_at_once + 1 if is_at_once else 0

    def _broken(self, _error: BaseException) -> None:
        """There was a bug, perhaps in the treatment of the other side's bytes: the next beat tries again."""
        self._reason = _NO_ANSWER

    def _heard_now(self) -> None:
        for detector in (self.watch.answers, self.watch.listens):
            detector.heard(self._node, self.watch.now())

    def answered(self, asked_at: float) -> None:
        """A question was answered."""
        self._has_answered = True
        self.watch.answers.heard(self._node, asked_at)

    def lost(self, line: "_Line", error: MinkaError | None) -> None:
        """A connection is over."""
        if line is self._line:
            self._line = None
            self._reason = _NO_ANSWER if error is None else error.message

    def close(self) -> None:
        """Stop watching the port."""
        if self._trying is not None:
            self._trying.cancel()
        if self._line is not None:
            self._line.end()


class _Line:
    """A connection on which questions are asked, one after the other: a `Receiver`."""

    def __init__(self, probe: _Probe) -> None:
        self._probe = probe
        self._connection: Connection | None = None
        self._asked_at: float | None = None  # the question that is not answered yet
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self) -> None:
        """Connect, and wait for the first answer. Raises UNREACHABLE."""
        watch = self._probe.watch
        self._asked_at = watch.now()
        self._connection = await connect(split_address(self._probe.address), watch.tls(), watch.hello, self)
        self._connection.send(b"")
        await self._first

    def ask(self) -> None:
        """Ask, if the last question was answered."""
        if self._connection is not None and self._asked_at is None:
            self._asked_at = self._probe.watch.now()
            self._connection.send_at_once(b"")

    def is_late(self) -> bool:
        """True if a question has waited too long for its answer."""
        watch = self._probe.watch
        return self._asked_at is not None and watch.now() - self._asked_at > watch.timeout

    @property
    def is_over(self) -> bool:
        """True if the line can't carry questions: it is closed."""
        return self._connection is None

    def end(self) -> None:
        """Close the line, if it is open."""
        if not self._first.cancel() and not self._first.cancelled():
            self._first.exception()  # so that asyncio doesn't log an exception that nobody has asked for
        if self._connection is not None:
            self._connection.drop()
            self._connection = None

    # The receiver

    def received(self, content: bytes) -> None:
        """The answer."""
        if self._asked_at is not None:
            self._probe.answered(self._asked_at)
            self._asked_at = None
        if not self._first.done():
            self._first.set_result(None)

    def ended(self) -> None:
        """The other side is about to close."""

    def lost(self, error: MinkaError | None) -> None:
        """The connection is over. A node of an older version refuses the question: its refusal counts as an answer."""
        self._connection = None
        if error is not None and error.code is Code.INVALID_ARGUMENT:
            self.received(b"")
        if not self._first.done():
            self._first.set_exception(error or MinkaError(Code.UNREACHABLE, "the connection was closed"))
        self._probe.lost(self, error)

    def paused(self) -> None:
        """Nothing waits for room."""

    def resumed(self) -> None:
        """Nothing waits for room."""


class Pings:
    """Answers the nodes that watch this node's data port, without tasks."""

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
