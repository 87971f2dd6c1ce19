"""The data stream to one node: what callers do at the same time travels in common frames, several under way."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Final

import grpc
import msgspec

from minka._call import Part
from minka._lane import MAX_QUEUED_BYTES, Lane
from minka.errors import Code, MinkaError
from minka.grpc_calls import clipped, error_from_call
from minka.wire import KV_BATCH_METHOD, Assembly, Op, decode_response, encode

# After so long without an answer the partition table is fetched, again and again: a silent node is soon replaced.
QUIET_S: Final = 0.25
ASK_AGAIN_S: Final = 0.05
OVERDUE_S: Final = 1.0  # a node answers every frame within its timeout; so much later the stream is given up


class NodeStream:
    """Sends parts to one node and hands them their answers. It connects when there is something to send."""

    def __init__(
        self,
        address: str,
        channel: grpc.aio.Channel,
        loop: asyncio.AbstractEventLoop,
        on_quiet: Callable[[str], object],
    ) -> None:
        self._address = address
        # The stream has raw bytes in both directions.
        self._method: Final[grpc.aio.StreamStreamMultiCallable[bytes, bytes]] = channel.stream_stream(KV_BATCH_METHOD)
        self._loop = loop
        self._on_quiet = on_quiet
        self._lanes: Final = {op: Lane(op) for op in Op}
        self._ids: Final = itertools.count(1)
        self._assembly = Assembly()
        self._wake: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._heard_at = 0.0  # when something was last heard, or begun to be waited for
        self._closing = False

    def add(self, part: Part) -> None:
        """Queue a part; what is added in one turn of the loop travels together."""
        lane = self._lanes[part.call.op]
        if lane.is_full:
            message = f"{MAX_QUEUED_BYTES >> 20} MiB are queued for this node already"
            self._loop.call_soon(part.call.refused, part, MinkaError(Code.OVERLOADED, message))
            return
        lane.add(part)
        self._wake.set()
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name=f"minka stream to {self._address}")

    async def close(self) -> None:
        """End the stream."""
        self._closing = True
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        """Run the stream from its first part to its end; refuse what is left then."""
        call = self._method()
        self._assembly = Assembly()
        writer = self._loop.create_task(self._write(call))
        writer.add_done_callback(lambda _: call.cancel())
        watch = self._loop.create_task(self._watch(call))
        error = MinkaError(Code.OUTCOME_UNKNOWN, "the stream was closed")
        try:
            while isinstance(data := await call.read(), bytes):
                self._receive(data)
            error = MinkaError(Code.OUTCOME_UNKNOWN, "the node ended the stream")
        except grpc.aio.AioRpcError as failure:
            error = error_from_call(failure, self._address, repeatable=False)
        except msgspec.DecodeError as failure:
            error = MinkaError(Code.INTERNAL, f"an answer is not understood: {failure}")
        except asyncio.CancelledError:
            if not call.cancelled() or self._closing:
                raise
            error = MinkaError(Code.OUTCOME_UNKNOWN, "the node is connected but answers nothing")
        finally:
            writer.cancel()
            watch.cancel()
            call.cancel()
            self._task = None
            self._refuse_all(error)

    async def _write(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while ready := [lane for lane in self._lanes.values() if lane.can_send]:
                for lane in ready:
                    now = self._loop.time()
                    if not self._is_waiting():
                        self._heard_at = now
                    if (frame := lane.next_frame(next(self._ids), now)) is None:
                        continue
                    try:
                        await call.write(encode(frame))
                    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        return  # the call is over, and its reader says why

    def _receive(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        if (frame := self._assembly.add(data)) is None:
            return
        response = decode_response(frame)
        if not any(lane.receive(response) for lane in self._lanes.values()):
            raise msgspec.DecodeError(f"frame {response.id} was not asked for")
        self._wake.set()

    async def _watch(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        """Notice a node that is connected and silent, since it hangs or its machine is gone."""
        while True:
            await asyncio.sleep(min(QUIET_S / 2, ASK_AGAIN_S))
            now = self._loop.time()
            if not self._is_waiting() or now - self._heard_at < QUIET_S:
                continue
            self._on_quiet(self._address)
            if any(lane.is_overdue(now - OVERDUE_S) for lane in self._lanes.values()):
                call.cancel()
                return

    def _is_waiting(self) -> bool:
        return any(lane.is_waiting for lane in self._lanes.values())

    def _refuse_all(self, error: MinkaError) -> None:
        """Refuse what is under way: it may have been done, unless there was no connection. The queue was never sent."""
        message = clipped(error.message.removeprefix(f"{self._address}: "))
        if error.code not in (Code.UNREACHABLE, Code.OUTCOME_UNKNOWN):
            message = f"the stream ended with {error.code.name}: {message}"
        unknown = MinkaError(Code.OUTCOME_UNKNOWN, message)
        never_sent = MinkaError(Code.UNREACHABLE if error.code is Code.OUTCOME_UNKNOWN else error.code, message)
        for op, lane in self._lanes.items():
            under_way, queued = lane.clear()
            maybe_done = op is Op.WRITE and error.code is not Code.UNREACHABLE
            for part in under_way:
                part.call.refused(part, unknown if maybe_done else never_sent)
            for part in queued:
                part.call.refused(part, never_sent)
