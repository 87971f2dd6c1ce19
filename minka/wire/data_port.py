"""Minka's own protocol on the data port of a node. Both ends use this module.

The side that connects sends `PREFACE`, then a `Hello`, then frames; the other side answers with frames. A frame is four
bytes with the number of bytes that follow (big-endian), one byte with the frame's kind, and the content. Example: the
content "abc" in a frame of the kind DATA (0) is 00 00 00 04 00 61 62 63. A connection serves one purpose from its
start to its end.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum, StrEnum
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, cast

import msgspec
from google.protobuf.message import DecodeError

from minka.errors import Code, MinkaError, error_from_proto, error_to_proto
from minka.v1 import errors_pb2

PREFACE: Final = b"\x00minka\x01"
"""No request of a Redis client begins with the first of these bytes. The last byte is the protocol's version."""

MAX_FRAME_BYTES: Final = 128 * 1024 * 1024
_HEADER_BYTES: Final = 5
_GATHERED_BYTES: Final = 256 * 1024  # up to this size, all frames of one turn of the loop are written together
_JOINED_BYTES: Final = 64 * 1024
_UNSENT_BYTES: Final = 256 * 1024  # if the transport holds more, `is_paused` is true until the transport is empty
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class Purpose(StrEnum):
    """The purpose of a connection."""

    KV = "kv"  # a client's requests, and the node's responses: see minka.wire.kv_frames
    APPEND = "append"  # a leader's log for a follower: see minkad.replication.sending.peer_frames
    SHIP = "ship"  # the files of a checkpoint
    PING = "ping"  # the other side answers each frame with an empty one: see minkad.data_port.port_watch
    RAFT = "raft"  # messages of the coordinator's Raft group, in one direction: see minkad.data_port.raft


class Hello(msgspec.Struct, array_like=True, gc=False):
    """The first frame: the connection's purpose, and the side that connects. Clients may leave out the cluster's id,
    and have no node id. A node that sends its log to another node names the other node in `to_node`, since the address
    may belong to a third node by now.
    """

    purpose: str
    cluster_id: str
    node_id: str
    to_node: str = ""  # "": any node may answer


class Kind(IntEnum):
    """The kind of a frame."""

    DATA = 0
    ERROR = 1  # the reason why the sender ends the connection: a serialized `minka.v1.Error`
    END = 2  # the sender sends no more data


_DATA: Final = int(Kind.DATA)  # it is compared for each frame, and an enum compares slowly
encode_hello: Final = msgspec.msgpack.Encoder().encode
decode_hello: Final = msgspec.msgpack.Decoder(Hello).decode


class Frame(NamedTuple):
    """A frame that was received."""

    kind: int
    content: bytes


class Splitter:
    """Divides the bytes that arrive on a connection into frames."""

    def __init__(self, preface: bytes = b"") -> None:
        """`preface` has the bytes that come before the first frame."""
        self.max_bytes = MAX_FRAME_BYTES  # the most bytes of a frame; a new value holds from the next frame on
        self._preface = preface
        self._rest = b""
        self._kind = 0  # of an incomplete frame
        self._parts: list[bytes] = []  # the bytes that have come of its content
        self._missing = 0  # how many bytes of its content have yet to come

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take bytes that have arrived, and yield the frames that are now complete. Raises INVALID_ARGUMENT for another
        protocol, and TOO_LARGE for a frame of a wrong size.
        """
        missing = self._missing
        if missing > len(data):
            self._parts.append(data)
            self._missing -= len(data)
            return
        if missing:
            yield self._completed(data[:missing])
            data = data[missing:]
        if self._rest:
            data, self._rest = self._rest + data, b""
        start = self._past_preface(data) if self._preface else 0
        yield from self._split(data, start)

    def _completed(self, end: bytes) -> Frame:
        """The frame of which `end` was missing. Its content may be large, and is copied only here."""
        content = b"".join((*self._parts, end))
        self._parts, self._missing = [], 0
        return Frame(self._kind, content)

    def _past_preface(self, data: bytes) -> int:
        size = len(self._preface)
        if data[:size] != self._preface[: len(data)]:
            raise MinkaError(
                Code.INVALID_ARGUMENT,
                "the connection doesn't begin with the preface of this version of Minka's protocol",
            )
        if len(data) < size:
            return 0
        self._preface = b""
        return size

    def _split(self, data: bytes, start: int) -> Iterator[Frame]:
        end = len(data)
        while not self._preface and end - start >= _HEADER_BYTES:
            size = int.from_bytes(data[start : start + 4], "big")
            if not 1 <= size <= self.max_bytes:
                raise MinkaError(Code.TOO_LARGE, f"a frame has {size} bytes, not 1 to {self.max_bytes}")
            after = start + 4 + size
            if after > end:
                self._kind, self._parts, self._missing = data[start + 4], [data[start + _HEADER_BYTES :]], after - end
                return
            yield Frame(data[start + 4], data[start + _HEADER_BYTES : after])
            start = after
        self._rest = data[start:]


class Receiver(Protocol):
    """A connection calls these methods when frames arrive, and when its own state changes."""

    def received(self, content: bytes) -> None:
        """A frame of data has come. A MinkaError that this raises ends the connection, and goes to the other side."""

    def ended(self) -> None:
        """The other side sends no more data."""

    def lost(self, error: MinkaError | None) -> None:
        """The connection is over; `error` says why, as far as it is known."""

    def paused(self) -> None:
        """The other side doesn't read."""

    def resumed(self) -> None:
        """Everything that was sent has left this machine's buffers."""


class Connection(asyncio.Protocol):
    """One side of a connection. All frames that are sent in one turn of the event loop leave in one write."""

    def __init__(self, receiver: Receiver, preface: bytes = b"") -> None:
        """`preface` has the bytes that the other side sends before its first frame."""
        self.receiver = receiver
        self.is_paused = False  # the other side doesn't read
        self.is_reading = True
        self.is_over = False
        self._transport = cast("asyncio.Transport", None)
        self._splitter = Splitter(preface)
        self._frames: Iterator[Frame] | None = None  # those that have come and the receiver hasn't got; None: none
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._error: MinkaError | None = None

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES, low=0)
        if (connected := self._transport.get_extra_info("socket")) is not None:  # else it is within this process
            keep_alive(connected)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        frames = self._splitter.feed(data)
        self._frames = frames if self._frames is None else chain(self._frames, frames)
        self._take_frames()

    def _take_frames(self) -> None:
        """Give the receiver the frames that have come, until it pauses reading."""
        try:
            while self._frames is not None and self.is_reading and not self.is_over:
                if (frame := next(self._frames, None)) is None:
                    self._frames = None
                elif frame[0] == _DATA:
                    self.receiver.received(frame[1])
                else:
                    self._take(*frame)
        except MinkaError as error:
            self.fail(error)

    def _take(self, kind: int, content: bytes) -> None:
        if kind == Kind.END:
            self.receiver.ended()
        elif kind == Kind.ERROR:
            self._error = _sent_error(content)
            self.abort()
        else:
            raise MinkaError(Code.INVALID_ARGUMENT, f"a frame has the unknown kind {kind}")

    def pause_writing(self) -> None:
        """The transport calls this when its buffer is full."""
        self.is_paused = True
        self.receiver.paused()

    def resume_writing(self) -> None:
        """The transport calls this when its buffer is empty again."""
        self.is_paused = False
        self.receiver.resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self.is_over = True
        self._out.clear()
        if self._error is None and exc is not None:
            self._error = MinkaError(Code.UNREACHABLE, f"the connection broke: {reason_of(exc)}")
        self.receiver.lost(self._error)

    # Called by the receiver

    def send(self, content: bytes, kind: Kind = Kind.DATA) -> None:
        """Send a frame with the others of this turn of the loop. After the connection's end this does nothing."""
        if self.is_over:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._add(content, kind)
        if self._out_bytes > _GATHERED_BYTES:
            self._flush()

    def send_at_once(self, content: bytes) -> None:
        """Send a frame at once, for a receiver that waits for it. Each such frame costs a write of its own, so use
        `send` if many frames leave in this turn of the loop.
        """
        if not self.is_over:
            self._add(content, Kind.DATA)
            self._flush()

    def _add(self, content: bytes, kind: Kind) -> None:
        self._out += (len(content) + 1).to_bytes(4, "big"), kind.to_bytes(), content
        self._out_bytes += len(content)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not out or self.is_over:
            return
        if self._out_bytes > _JOINED_BYTES:
            self._transport.writelines(out)
        else:
            self._transport.write(b"".join(out))
        self._out_bytes = 0

    def fail(self, error: MinkaError) -> None:
        """End the connection, and tell the other side why."""
        self.send(error_to_proto(error).SerializeToString(), Kind.ERROR)
        self._error = error
        self.close()

    def close(self) -> None:
        """End the connection once all frames have left."""
        if not self.is_over:
            self._flush()
            self.is_over = True
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self.is_over = True
        self._transport.abort()

    def drop(self) -> None:
        """End the connection at once; the receiver gets no more calls."""
        self.receiver = Deaf()
        self.abort()

    def write_raw(self, data: bytes) -> None:
        """Send bytes that aren't a frame: the preface."""
        self._transport.write(data)

    @property
    def unsent_bytes(self) -> int:
        """The bytes that wait in the transport."""
        return self._transport.get_write_buffer_size()

    def limit(self, max_frame_bytes: int) -> None:
        """Refuse received frames of more than `max_frame_bytes` from now on."""
        self._splitter.max_bytes = max_frame_bytes

    def give_up_after(self, seconds: float) -> None:
        """End the connection when the other machine has not acknowledged sent bytes for `seconds`."""
        connected = self._transport.get_extra_info("socket")
        with suppress(OSError):  # the connection may be over already
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))

    def pause_reading(self) -> None:
        """Give the receiver no more frames until `resume_reading`, not even those that have come already."""
        if self.is_reading and not self.is_over:
            self.is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again, first the frames that have come already."""
        if not self.is_reading and not self.is_over:
            self.is_reading = True
            self._transport.resume_reading()
            self._loop.call_soon(self._take_the_rest)

    def _take_the_rest(self) -> None:
        try:
            self._take_frames()
        except Exception:
            self.abort()  # as the transport does when `data_received` fails
            raise


def _sent_error(content: bytes) -> MinkaError:
    """The error in a frame. Raises INVALID_ARGUMENT if the frame has none."""
    try:
        return error_from_proto(errors_pb2.Error.FromString(content))
    except DecodeError as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"the content of a frame isn't an error: {error}") from error


class Deaf:
    """A receiver that ignores all calls."""

    def received(self, content: bytes) -> None: ...
    def ended(self) -> None: ...
    def lost(self, error: MinkaError | None) -> None: ...
    def paused(self) -> None: ...
    def resumed(self) -> None: ...


async def connect(address: tuple[str, int], tls: ssl.SSLContext | None, hello: Hello, receiver: Receiver) -> Connection:
    """Connect to a data port, and say hello. Raises UNREACHABLE."""
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(lambda: Connection(receiver), *address, ssl=tls)
    except OSError as error:  # an ssl.SSLError is an OSError, too
        raise MinkaError(Code.UNREACHABLE, f"{address[0]}:{address[1]}: {reason_of(error)}") from error
    connection.write_raw(PREFACE)
    connection.send(encode_hello(hello))
    return connection


def reason_of(error: Exception) -> str:
    """The reason why a connection failed, for people."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def keep_alive(connected: Any) -> None:
    """Let the connection end within half a minute after the other machine has vanished without closing it."""
    with suppress(OSError):  # the connection may be over already
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
