"""Clients' reads and writes on the data port: no task for a frame, and answers in any order."""

import asyncio
import time
from functools import partial
from typing import Final

from minka import wire
from minka.data_port import Connection
from minka.errors import Code, MinkaError
from minka.v1 import errors_pb2
from minkad.process.memory import Memory
from minkad.process.telemetry import Operation, Outcome, Telemetry
from minkad.replication.requests import Requests
from minkad.replication.ticket import Ticket

MAX_FRAMES_IN_FLIGHT: Final = 64  # of one connection; it is read further when fewer are
_FRAME_BYTES: Final = 16 * 1024  # the size that the next frame is expected to have
_PROGRESS_S: Final = 0.5


class Clients:
    """What the connections of all clients share."""

    def __init__(self, requests: Requests, telemetry: Telemetry, memory: Memory) -> None:
        self.requests = requests
        self.telemetry = telemetry
        self.memory = memory

    def serve(self, connection: Connection) -> "ClientConnection":
        """Serve a connection of a client. Raises OVERLOADED if clients have too many open at the node."""
        return ClientConnection(self, connection)


class ClientConnection:
    """One client's connection: a `Receiver`.

    A frame counts as memory until it is answered, and an answer that the client doesn't take until it has. A connection
    whose answers are not taken is not read further.
    """

    def __init__(self, clients: Clients, connection: Connection) -> None:
        self._clients = clients
        self._connection = connection
        self._share = clients.memory.share(connection.abort)
        self._in_flight = 0
        self._has_ended = False
        self._untaken = 0  # bytes of answers that are counted, since the client doesn't take them
        self._is_reading = True
        self._awaits_room: asyncio.Task[None] | None = None

    # The receiver

    def received(self, content: bytes) -> None:
        """A request. Raises TOO_LARGE, INVALID_ARGUMENT."""
        if len(content) > wire.MAX_FRAME_BYTES:
            raise MinkaError(Code.TOO_LARGE, f"a frame of {len(content)} bytes")
        try:
            request = wire.decode_request(content)
        except wire.UNDECODABLE as error:
            raise MinkaError(Code.INVALID_ARGUMENT, f"a frame that is no request: {error}") from error
        self._share.take(len(content))
        self._in_flight += 1
        answer = partial(self._answer, request, len(content), time.perf_counter())
        self._clients.requests.begin(request.groups, request.timeout_ms, self._share, answer)
        self._read_or_not()

    def ended(self) -> None:
        """The client asks for nothing more."""
        self._has_ended = True
        if not self._in_flight:
            self._connection.close()

    def lost(self, error: MinkaError | None) -> None:
        """Nobody waits for the answers any longer."""
        if self._awaits_room is not None:
            self._awaits_room.cancel()
        self._share.close()

    def paused(self) -> None:
        """The client doesn't take its answers."""
        self._untaken = self._connection.unsent_bytes
        self._share.take(self._untaken)
        self._watch(self._untaken)
        self._read_or_not()

    def resumed(self) -> None:
        """The client has taken all answers."""
        self._share.give(self._untaken)
        self._share.sending_since, self._untaken = None, 0
        self._read_or_not()

    # Answers

    def _answer(self, request: wire.Request, size: int, began: float, ticket: Ticket) -> None:
        results = ticket.answers
        answer = wire.encode(wire.Response(request.id, results))
        counted = size + self._count(request, results, time.perf_counter() - began)
        self._in_flight -= 1
        if self._connection.is_paused:
            self._untaken += len(answer)
            counted -= len(answer)
        self._share.give(counted)
        self._connection.send(answer)
        if self._has_ended and not self._in_flight:
            self._connection.close()
        elif not self._is_reading:
            self._read_or_not()

    def _count(self, request: wire.Request, results: list[wire.GroupResult], seconds: float) -> int:
        """Count the batches for the metrics. Returns how many bytes the bodies of the results have."""
        size = 0
        for group, result in zip(request.groups, results, strict=True):
            operation: Operation = "write" if group.op == wire.Op.WRITE else "read"
            self._clients.telemetry.kv(operation, "ok" if result.error is None else _outcome(result.error), seconds)
            if result.body is not None:
                size += len(result.body)
        return size

    # Reading no more than there is room for

    def _read_or_not(self) -> None:
        if self._connection.is_over:
            return
        has_plenty = self._share.has_plenty
        limit = MAX_FRAMES_IN_FLIGHT if has_plenty else 1
        if self._in_flight >= limit or self._connection.is_paused:
            self._read(on=False)
        elif has_plenty:
            self._read(on=True)
        elif self._awaits_room is None and not self._is_reading:  # then frames come one by one
            self._awaits_room = asyncio.create_task(self._await_room())

    async def _await_room(self) -> None:
        if await self._share.reserve(_FRAME_BYTES):
            self._share.give(_FRAME_BYTES)
        self._awaits_room = None
        if not self._in_flight and not self._connection.is_paused:
            self._read(on=True)

    def _read(self, *, on: bool) -> None:
        if on is self._is_reading:
            return
        self._is_reading = on
        if on:
            self._connection.resume_reading()
        else:
            self._connection.pause_reading()

    def _watch(self, unsent: int) -> None:
        """See whether a client that is slow takes anything at all."""
        if not self._connection.is_paused or self._connection.is_over:
            return
        now_unsent = self._connection.unsent_bytes
        if self._share.sending_since is None or now_unsent < unsent:
            self._share.sending_since = time.monotonic()
        asyncio.get_running_loop().call_later(_PROGRESS_S, self._watch, now_unsent)


def _outcome(error: bytes) -> Outcome:
    """The outcome for the metrics: a retriable error, after which the client tries again or elsewhere, is a refusal."""
    code = errors_pb2.Error.FromString(error).code
    return "refused" if Code[code].info.retriable else "failed"
