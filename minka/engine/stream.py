"""The connection to one node. Simultaneous calls share frames, and several frames are under way at once."""

import asyncio
import itertools
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from minka.engine.call import Part
from minka.engine.grpc_calls import clipped
from minka.engine.lane import MAX_QUEUED_BYTES, Lane
from minka.errors import Code, MinkaError
from minka.wire.data_port import Connection, Hello, Purpose, Receiver, connect
from minka.wire.kv_frames import WRITING, Op, decode_response, encode

# After QUIET_S without an answer the client fetches the partition table, and then again about every ASK_AGAIN_S: other
# nodes soon take a silent node's place.
QUIET_S: Final = 0.25
ASK_AGAIN_S: Final = 0.05
OVERDUE_S: Final = 1.0  # a frame that is overdue for this long ends the connection
_CONNECT_S: Final = 2.0
# The usual remedy, to check the endpoints, doesn't help: one of them has given the table that names the node.
_NODE_DOWN: Final = (
    "Start the node that the message names, or wait until another node leads the partition. Without a majority of the "
    "voters no other node can lead it: start the missing voters (minkactl status names them)."
)


Connect = Callable[[Receiver], Awaitable[Connection]]


def to_port(data_address: str, tls: ssl.SSLContext | None, cluster_id: str) -> Connect:
    """Connects to the data port of a node, at `data_address`."""
    host, _, port = data_address.rpartition(":")
    address, hello = (host.strip("[]"), int(port)), Hello(Purpose.KV, cluster_id, "")
    return lambda receiver: connect(address, tls, hello, receiver)


class NodeStream:
    """Sends parts to one node, and gives the answers to the calls of these parts. It connects when there is something
    to send, and is the `Receiver` of its connection.
    """

    def __init__(self, connect: Connect, loop: asyncio.AbstractEventLoop, on_quiet: Callable[[], object]) -> None:
        self._connect_to_node: Final = connect
        self._loop = loop
        self._on_quiet = on_quiet
        self._lanes: Final = {op: Lane(op) for op in Op}
        self._ids: Final = itertools.count(1)
        self._connecting: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._fills_soon = False
        self._heard_at = 0.0  # when the node last answered, or when waiting for it began
        self._watch_timer: asyncio.TimerHandle | None = None
        self._closing = False

    def add(self, part: Part) -> None:
        """Queue a part. Parts that are added in the same turn of the loop go into the same frame."""
        lane = self._lanes[part.call.op]
        if lane.is_full:
            message = f"{MAX_QUEUED_BYTES >> 20} MiB are queued for this node already"
            self._loop.call_soon(part.call.refused, part, MinkaError(Code.OVERLOADED, message))
            return
        lane.add(part)
        if not self._fills_soon:
            self._fill_soon()

    def close(self) -> None:
        """End the connection; calls under way are given up."""
        self._closing = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._give_up(MinkaError(Code.OUTCOME_UNKNOWN, "the stream was closed"))

    # The receiver

    def received(self, content: bytes) -> None:
        """Give the answers in a frame to their calls."""
        self._heard_at = self._loop.time()
        try:
            response = decode_response(content)
            if not any(lane.receive(response) for lane in self._lanes.values()):
                raise msgspec.DecodeError(f"frame {response.id} was not asked for")
        except msgspec.DecodeError as failure:
            self._give_up(MinkaError(Code.INTERNAL, f"an answer is not understood: {failure}"))
            return
        if not self._fills_soon:
            self._fill_soon()

    def ended(self) -> None:
        """The node sends nothing more, so its stream ends."""
        self._give_up(MinkaError(Code.OUTCOME_UNKNOWN, "the node ended the stream"))

    def lost(self, error: MinkaError | None) -> None:
        """The connection is over."""
        if error is None or error.code is Code.UNREACHABLE:  # the node may have done parts that were sent
            why = error.message if error is not None else "the node closed the connection"
            error = MinkaError(Code.OUTCOME_UNKNOWN, why)
        self._end(error)

    def paused(self) -> None:
        """The node takes nothing more for now, so nothing is sent."""

    def resumed(self) -> None:
        """Everything that was sent has left, so the node takes more."""
        self._fill_soon()

    # Sending

    def _fill_soon(self) -> None:
        self._fills_soon = True
        self._loop.call_soon(self._fill)

    def _fill(self) -> None:
        """Send queued parts, as far as there is room."""
        self._fills_soon = False
        connection = self._connection
        if connection is None:
            if self._connecting is None and not self._closing and any(lane.can_send for lane in self._lanes.values()):
                self._connecting = self._loop.create_task(self._connect(), name="minka connection")
            return
        for lane in self._lanes.values():
            while lane.can_send and not connection.is_paused:
                now = self._loop.time()
                if not self._is_waiting():
                    self._heard_at = now
                if (frame := lane.next_frame(next(self._ids), now)) is not None:
                    connection.send(encode(frame))
        if self._watch_timer is None and self._is_waiting():
            self._watch_later()

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                connection = await self._connect_to_node(self)
            if connection.is_over:
                raise MinkaError(Code.UNREACHABLE, "the node closed the connection at once")
            self._connection = connection
        except TimeoutError:
            error = MinkaError(Code.UNREACHABLE, f"no connection within {_CONNECT_S:g} s")
        except MinkaError as caught:
            error = caught
        else:
            self._connecting = None
            self._fill_soon()
            return
        self._connecting = None
        self._end(error)

    # The end

    def _watch_later(self) -> None:
        self._watch_timer = self._loop.call_later(min(QUIET_S / 2, ASK_AGAIN_S), self._watch)

    def _watch(self) -> None:
        """Notice a connected node that is silent because it hangs or its machine is gone."""
        self._watch_timer = None
        now = self._loop.time()
        if self._connection is None or not self._is_waiting():
            return
        self._watch_later()
        if now - self._heard_at < QUIET_S:
            return
        self._on_quiet()
        if any(lane.is_overdue(now - OVERDUE_S) for lane in self._lanes.values()):
            self._give_up(MinkaError(Code.OUTCOME_UNKNOWN, "the node is connected but answers nothing"))

    def _is_waiting(self) -> bool:
        return any(lane.is_waiting for lane in self._lanes.values())

    def _give_up(self, error: MinkaError) -> None:
        if self._connection is not None:
            self._connection.drop()
        self._end(error)

    def _end(self, error: MinkaError) -> None:
        """Refuse all parts. Parts under way may have been done, unless there was no connection; queued parts were never
        sent.
        """
        self._connection = None
        if self._watch_timer is not None:
            self._watch_timer.cancel()
            self._watch_timer = None
        message = clipped(error.message)
        if error.code not in (Code.UNREACHABLE, Code.OUTCOME_UNKNOWN):
            message = f"the stream ended with {error.code.name}: {message}"
        unknown = MinkaError(Code.OUTCOME_UNKNOWN, message)
        if error.code in (Code.UNREACHABLE, Code.OUTCOME_UNKNOWN):
            never_sent = MinkaError(Code.UNREACHABLE, message, remedy=_NODE_DOWN)
        else:
            never_sent = MinkaError(error.code, message)
        for op, lane in self._lanes.items():
            under_way, queued = lane.clear()
            maybe_done = op in WRITING and error.code is not Code.UNREACHABLE
            for part in under_way:
                part.call.refused(part, unknown if maybe_done else never_sent)
            for part in queued:
                part.call.refused(part, never_sent)
