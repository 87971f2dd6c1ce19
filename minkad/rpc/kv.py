"""The data stream: `/minka.v1.Kv/Batch`, frames of many operations as raw bytes (see minka.wire.kv_frames)."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc

from minka.errors import Code, MinkaError
from minka.wire import kv_frames
from minkad.process import tasks
from minkad.process.memory import Memory, Share
from minkad.process.telemetry import Telemetry
from minkad.replication.manager import ReplicaManager
from minkad.replication.serving.client_frames import checked_request, count, weight

MAX_FRAMES_IN_FLIGHT: Final = 64  # of one stream; the next is read when one is answered
_FRAME_BYTES: Final = 16 * 1024  # the expected size of the next frame

_Handle = Callable[[kv_frames.Request, Share], Awaitable[kv_frames.Response]]
_Context = grpc.aio.ServicerContext[Any, Any]


class _Stream:
    """One client's stream: each frame is a task, answers go out as they come.

    A frame counts as memory until it is answered, an answer until it is written, which is when the client takes it. A
    stream whose answers are not taken isn't read further.
    """

    def __init__(self, handle: _Handle, telemetry: Telemetry, memory: Memory) -> None:
        """Raises OVERLOADED if clients have too many streams open at the node."""
        self._handle = handle
        self._telemetry = telemetry
        self._slots = asyncio.Semaphore(MAX_FRAMES_IN_FLIGHT)
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._share = memory.share(self._end)
        self._serving: asyncio.Task[Any] | None = None

    async def serve(self, frames: AsyncIterator[bytes], context: _Context) -> None:
        """Answer frames until the client ends the stream. Raises OVERLOADED if it takes no answers while others wait
        for memory.
        """
        on_done: Any = lambda _: self._share.close()  # noqa: E731 - grpcio's types know no callable here
        context.add_done_callback(on_done)
        self._serving = asyncio.current_task()
        reader = tasks.awaited(self._read(frames), "a client's frames")
        try:
            while (answer := await self._answers.get()) is not None:
                await self._write(context, answer)
            await reader  # raises the error that ended it
        except asyncio.CancelledError:
            if self._serving is None or not self._share.is_revoked:
                raise
            self._serving.uncancel()
            raise MinkaError(Code.OVERLOADED, "answers were not taken while others waited for memory") from None
        finally:
            self._serving = None
            tasks.drop(reader)
            for task in self._tasks:
                task.cancel()
            # Sent answers stay with gRPC as long as the client doesn't take them.
            self._share.give_all_but(2 * kv_frames.PIECE_BYTES)

    def _end(self) -> None:
        if self._serving is not None:
            self._serving.cancel()

    async def _write(self, context: _Context, answer: bytes) -> None:
        share = self._share
        for piece in kv_frames.pieces(answer):
            share.sending_since = time.monotonic()
            await context.write(piece)
        share.sending_since = None
        share.give(kv_frames.weight(len(answer)))

    async def _read(self, frames: AsyncIterator[bytes]) -> None:
        try:
            async for frame in frames:
                request = checked_request(frame)
                size = weight(request, len(frame))
                self._share.take(size)
                await self._slots.acquire()
                task = tasks.start(self._answer(request, size), "answer", lambda _: self._end())
                self._tasks.add(task)
                task.add_done_callback(self._done)
                if not self._share.has_plenty:  # then frames are read one by one, when there is memory for more
                    await asyncio.wait([task])
                    if await self._share.reserve(_FRAME_BYTES):
                        self._share.give(_FRAME_BYTES)
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            self._answers.put_nowait(None)

    async def _answer(self, request: kv_frames.Request, size: int) -> None:
        began = time.perf_counter()
        response = await self._handle(request, self._share)
        answer = kv_frames.encode(response)
        # The values in the results were counted as they were read.
        counted = size + count(self._telemetry, request, response.results, time.perf_counter() - began)
        self._share.take(kv_frames.weight(len(answer)) - counted)
        self._answers.put_nowait(answer)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._slots.release()
        self._tasks.discard(task)


def kv_handler(manager: ReplicaManager, telemetry: Telemetry, memory: Memory) -> grpc.GenericRpcHandler:
    """The service, for the server."""

    async def batch(frames: AsyncIterator[bytes], context: _Context) -> None:
        await _Stream(manager.handle, telemetry, memory).serve(frames, context)

    service, method = kv_frames.KV_BATCH_METHOD.strip("/").split("/")
    return grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(batch)})
