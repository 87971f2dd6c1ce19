"""Clients' reads and writes on the data port: no task for a frame, and answers in any order."""

import asyncio
import time
from functools import partial
from typing import Final

from minka.errors import Code, MinkaError
from minka.v1 import errors_pb2
from minka.wire import kv_frames
from minka.wire.data_port import Connection
from minkad.process import tasks
from minkad.process.memory import Memory
from minkad.process.telemetry import Outcome, Telemetry
from minkad.replication.serving.bodies import element_count
from minkad.replication.serving.client_requests import Requests
from minkad.replication.serving.ticket import Ticket

MAX_FRAMES_IN_FLIGHT: Final = 128  # of one connection; with as many, it is not read further
_FEW_IN_FLIGHT: Final = MAX_FRAMES_IN_FLIGHT // 2  # with at most this many, it is read again
_FRAME_BYTES: Final = 16 * 1024  # the size that the next frame is expected to have
_PROGRESS_S: Final = 0.5
_READS: Final = frozenset({kv_frames.Op.READ, kv_frames.Op.READ_STALE, kv_frames.Op.READ_VERSIONED})
_KEY_BYTES: Final = 50  # of an object


class Clients:
    """The parts that the connections of all clients share."""

    def __init__(self, requests: Requests, telemetry: Telemetry, memory: Memory) -> None:
        self.requests = requests
        self.telemetry = telemetry
        self.memory = memory

    def serve(self, connection: Connection) -> "ClientConnection":
        """Serve a connection of a client. Raises OVERLOADED if clients have too many open at the node."""
        return ClientConnection(self, connection)


class ClientConnection:
    """One client's connection: a `Receiver`.

    A frame counts as memory until it is answered; an answer that the client doesn't take counts until it does. A
    connection whose answers are not taken isn't read further.
    """

    def __init__(self, clients: Clients, connection: Connection) -> None:
        self._clients = clients
        self._connection = connection
        self._share = clients.memory.share(connection.abort)
        self._in_flight = 0
        self._has_ended = False
        self._untaken = 0  # bytes of answers that the client doesn't take, counted as memory
        self._progress: asyncio.TimerHandle | None = None  # while the client doesn't take its answers
        self._awaits_room: asyncio.Task[None] | None = None

    # The receiver

    def received(self, content: bytes) -> None:
        """A request. Raises INVALID_ARGUMENT."""
        request = _decoded(content)
        size = _weight(request, len(content))
        self._share.take_until_answered(size)
        self._in_flight += 1
        answer = partial(self._answer, request, size, time.perf_counter())
        self._clients.requests.begin(request.groups, request.timeout_ms, self._share, answer, request.max_bytes)
        self._read_or_not()

    def ended(self) -> None:
        """The client asks for nothing more."""
        self._has_ended = True
        if not self._in_flight:
            self._connection.close()

    def lost(self, error: MinkaError | None) -> None:
        """Nobody waits for the answers any longer."""
        self._stop_watching()
        if self._awaits_room is not None:
            self._awaits_room.cancel()
        self._share.close()

    def paused(self) -> None:
        """The client doesn't take its answers."""
        self._untaken = self._connection.unsent_bytes
        self._share.take(self._untaken)
        self._share.sending_since = time.monotonic()
        self._watch_later(0)
        self._read_or_not()

    def resumed(self) -> None:
        """The client has taken all answers."""
        self._stop_watching()
        self._share.give(self._untaken)
        self._share.sending_since, self._untaken = None, 0
        self._read_or_not()

    # Answers

    def _answer(self, request: kv_frames.Request, size: int, began: float, ticket: Ticket) -> None:
        results = ticket.answers
        answer = kv_frames.encode(kv_frames.Response(request.id, results))
        counted = ticket.size
        _count(self._clients.telemetry, request, results, time.perf_counter() - began)
        self._in_flight -= 1
        if self._connection.is_paused:
            self._untaken += len(answer)
            counted -= len(answer)
        self._share.take_until_answered(-size)
        self._share.give(counted)
        self._connection.send(answer)
        if self._has_ended and not self._in_flight:
            self._connection.close()
        elif not self._connection.is_reading:
            self._read_or_not()

    # Reading at most what there is room for

    def _read_or_not(self) -> None:
        if self._connection.is_over:
            return
        has_plenty = self._share.has_plenty_for_requests
        limit = MAX_FRAMES_IN_FLIGHT if has_plenty else 1
        if self._in_flight >= limit or self._connection.is_paused:
            self._connection.pause_reading()
        elif has_plenty:
            if self._in_flight <= _FEW_IN_FLIGHT:
                self._connection.resume_reading()
        elif self._awaits_room is None and not self._connection.is_reading:  # then frames come one by one
            self._awaits_room = tasks.start(self._await_room(), "room for a client", lambda _: self._connection.abort())

    async def _await_room(self) -> None:
        if await self._share.reserve(_FRAME_BYTES):
            self._share.give(_FRAME_BYTES)
        self._awaits_room = None
        if not self._in_flight and not self._connection.is_paused:
            self._connection.resume_reading()

    def _watch_later(self, taken: int) -> None:
        self._progress = asyncio.get_running_loop().call_later(_PROGRESS_S, self._watch, taken)

    def _watch(self, taken: int) -> None:
        """See whether a slow client takes anything at all. `taken`: how much it had at the last look."""
        now_taken = self._untaken - self._connection.unsent_bytes
        if now_taken > taken:
            self._share.sending_since = time.monotonic()
        self._watch_later(now_taken)

    def _stop_watching(self) -> None:
        if self._progress is not None:
            self._progress.cancel()
            self._progress = None


def _decoded(frame: bytes) -> kv_frames.Request:
    """The frame's request; doesn't look at the bodies of its groups. Raises INVALID_ARGUMENT."""
    try:
        return kv_frames.decode_request(frame)
    except kv_frames.UNDECODABLE as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"a frame that isn't a valid request: {error}") from error


def _weight(request: kv_frames.Request, size: int) -> int:
    """The memory that a frame of `size` bytes takes until it is answered: short keys take several times their bytes."""
    return size + _KEY_BYTES * sum([element_count(group.body) for group in request.groups if group.op in _READS])


def _count(
    telemetry: Telemetry, request: kv_frames.Request, results: list[kv_frames.GroupResult], seconds: float
) -> None:
    """Count the batches of a frame, answered after `seconds`."""
    for group, result in zip(request.groups, results, strict=True):
        outcome: Outcome = "ok" if result.error is None else _outcome(result.error)
        telemetry.kv("write" if group.op in kv_frames.WRITING else "read", outcome, seconds)


def _outcome(error: bytes) -> Outcome:
    """The outcome for the metrics. A retriable error counts as a refusal: the client tries again, or elsewhere."""
    code = errors_pb2.Error.FromString(error).code
    return "refused" if Code[code].info.retriable else "failed"
