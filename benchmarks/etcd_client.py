"""A client that sends many requests to etcd's gRPC API with as little processor time as possible.

A call through gRPC's Python library costs more processor time than etcd needs to serve it, and on a small machine the
servers would lack this time. So this module writes the frames of HTTP/2 (RFC 9113) and the message prefix of gRPC
itself. It compresses the headers once (RFC 7541); every later request begins with the same six bytes.
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Final, cast

PUT: Final = "/etcdserverpb.KV/Put"
TXN: Final = "/etcdserverpb.KV/Txn"

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_MAX_WINDOW: Final = 2**31 - 1
_FRAME_BYTES: Final = 16_384  # the most that a frame may have, in both directions, by default


def field(number: int, data: bytes) -> bytes:
    """Encode a length-delimited field of a Protocol Buffers message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """Encode a number like Protocol Buffers."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def put_request(key: bytes, value: bytes) -> bytes:
    """Encode an etcdserverpb.PutRequest."""
    return field(1, key) + field(2, value)


def txn_request(puts: list[tuple[bytes, bytes]]) -> bytes:
    """Encode an etcdserverpb.TxnRequest that makes these puts without a condition."""
    return b"".join(field(2, field(2, put_request(key, value))) for key, value in puts)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Encode one frame of HTTP/2."""
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def first_headers(path: str, authority: str) -> bytes:
    """Encode the headers of a connection's first request. The receiver keeps four of them in the connection's table, to
    which LATER_HEADERS refers.
    """

    def entered(name: bytes, value: str) -> bytes:
        return name + bytes([len(value)]) + value.encode()

    te = b"\x40\x02te"  # a new name; the other names are in the static table
    return (
        b"\x83\x86"
        + entered(b"\x44", path)
        + entered(b"\x41", authority)
        + entered(b"\x5f", "application/grpc")
        + entered(te, "trailers")
    )


LATER_HEADERS: Final = b"\x83\x86\xc1\xc0\xbf\xbe"  # the same headers, all from the tables


class Connection(asyncio.Protocol):
    """Makes calls of one method on one connection. After each successful call, it calls `answered` with the connection
    and the call's seconds.
    """

    def __init__(self, path: str, authority: str, answered: "Callable[[Connection, float], None]") -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._headers = first_headers(path, authority)
        self._answered = answered
        self._buffer = b""
        self._next_stream = 1
        self._window = 65_535
        self._blocked: deque[tuple[bytes, float]] = deque()  # messages that wait, and the times of their calls
        self._started: dict[int, float] = {}
        self._with_data: set[int] = set()
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the connection's preface and settings."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport isn't a subclass
        settings = struct.pack(">HI", 4, _MAX_WINDOW)  # the window of each stream
        more = struct.pack(">I", _MAX_WINDOW - 65_535)
        self._transport.write(_PREFACE + frame(_SETTINGS, 0, 0, settings) + frame(_WINDOW, 0, 0, more))

    def connection_lost(self, exc: Exception | None) -> None:
        """Let the future `failed` fail with the reason."""
        self._fail(f"etcd closed the connection: {exc or 'no reason given'}")

    def call(self, message: bytes) -> None:
        """Send one request, now or as soon as the connection's flow-control window has room for it."""
        assert len(message) + 5 < 65_535, "one request fits into the window of its stream"
        self._blocked.append((message, time.perf_counter()))
        self._send_blocked()

    def _send_blocked(self) -> None:
        while self._blocked and self._window >= len(self._blocked[0][0]) + 5:
            message, since = self._blocked.popleft()
            data = b"\x00" + struct.pack(">I", len(message)) + message
            stream, self._next_stream = self._next_stream, self._next_stream + 2
            self._started[stream] = since
            self._window -= len(data)
            out = [frame(_HEADERS, _END_HEADERS, stream, self._headers)]
            self._headers = LATER_HEADERS
            for start in range(0, len(data), _FRAME_BYTES):
                last = start + _FRAME_BYTES >= len(data)
                out.append(frame(_DATA, _END_STREAM if last else 0, stream, data[start : start + _FRAME_BYTES]))
            self._transport.write(b"".join(out))

    def data_received(self, data: bytes) -> None:
        """Handle all complete frames; keep the beginning of the next one."""
        buffer = self._buffer + data if self._buffer else data
        position, end = 0, len(buffer)
        while end - position >= 9:
            head, flags, stream = struct.unpack_from(">IBI", buffer, position)
            after = position + 9 + (head >> 8)
            if after > end:
                break
            self._frame(head & 0xFF, flags, stream, buffer[position + 9 : after])
            position = after
        self._buffer = buffer[position:]

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _HEADERS:
            if flags & _END_STREAM:
                self._ended(stream)
        elif kind == _DATA:
            self._with_data.add(stream)
            self._received += len(payload)
            if self._received > _MAX_WINDOW // 2:
                self._transport.write(frame(_WINDOW, 0, 0, struct.pack(">I", self._received)))
                self._received = 0
        elif kind == _WINDOW:
            if stream == 0:
                self._window += int.from_bytes(payload, "big")
                self._send_blocked()
        elif kind in (_SETTINGS, _PING):
            if not flags & _ACK:
                self._transport.write(frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind in (_RST, _GOAWAY):
            self._fail(f"etcd ended {'a call' if kind == _RST else 'the connection'}: {payload!r}")

    def _ended(self, stream: int) -> None:
        # A failed gRPC call has only trailers. Only a successful call has a message.
        if stream not in self._with_data:
            self._fail("etcd refused a call")
            return
        self._with_data.discard(stream)
        self._answered(self, time.perf_counter() - self._started.pop(stream))

    def _fail(self, reason: str) -> None:
        if not self.failed.done():
            self.failed.set_exception(ConnectionError(reason))

    def close(self) -> None:
        """Close the connection."""
        self.failed.cancel()
        self._transport.close()


class Calls:
    """Keeps a number of calls under way for some time: after each answer, it makes the next call."""

    def __init__(self, path: str, make: Callable[[int], bytes]) -> None:
        self.latencies: list[float] = []  # the seconds of each call
        self._path = path
        self._make = make  # returns the message of the n-th call
        self._called = 0
        self._under_way = 0
        self._stop_at = 0.0
        self._idle: asyncio.Future[None]

    async def run(self, address: str, concurrency: int, connections: int, seconds: float) -> float:
        """Make calls for `seconds`; returns the seconds from the first call to the last answer. Raises ConnectionError
        if etcd refuses a call.
        """
        self._idle = asyncio.get_running_loop().create_future()
        made = [await self._connect(address) for _ in range(min(connections, concurrency))]
        started = time.perf_counter()
        self._stop_at = started + seconds
        self._under_way = concurrency
        for number in range(concurrency):
            self._call(made[number % len(made)])
        waited_for = [self._idle, *(one.failed for one in made)]
        done, _ = await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        elapsed = time.perf_counter() - started
        for one in made:
            one.close()
        for ended in done:
            ended.result()
        return elapsed

    async def _connect(self, address: str) -> Connection:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: Connection(self._path, address, self._answered), host, int(port))
        return made

    def _call(self, connection: Connection) -> None:
        self._called += 1
        connection.call(self._make(self._called))

    def _answered(self, connection: Connection, seconds: float) -> None:
        self.latencies.append(seconds)
        if time.perf_counter() < self._stop_at:
            self._call(connection)
            return
        self._under_way -= 1
        if self._under_way == 0:
            self._idle.set_result(None)
