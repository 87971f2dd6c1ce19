"""The data stream: `/minka.v1.Kv/Batch`, frames of many operations as raw bytes (see minka.wire)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
import msgspec

from minka import wire
from minka.errors import Code, MinkaError
from minkad.shard.manager import ReplicaManager

MAX_FRAMES_IN_FLIGHT: Final = 64  # of one stream; the next is read when one is answered

_Handle = Callable[[wire.Request], Awaitable[wire.Response]]


class _Stream:
    """One client's stream: each frame is a task, answers go out as they come."""

    def __init__(self, handle: _Handle) -> None:
        self._handle = handle
        self._slots = asyncio.Semaphore(MAX_FRAMES_IN_FLIGHT)
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    async def answers(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        reader = asyncio.create_task(self._read(frames))
        try:
            while (answer := await self._answers.get()) is not None:
                yield answer
            await reader  # raises what ended it
        finally:
            reader.cancel()
            for task in self._tasks:
                task.cancel()

    async def _read(self, frames: AsyncIterator[bytes]) -> None:
        try:
            async for frame in frames:
                request = _decoded(frame)
                await self._slots.acquire()
                task = asyncio.create_task(self._answer(request))
                self._tasks.add(task)
                task.add_done_callback(self._done)
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            self._answers.put_nowait(None)

    async def _answer(self, request: wire.Request) -> None:
        self._answers.put_nowait(wire.encode(await self._handle(request)))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._slots.release()
        self._tasks.discard(task)


def _decoded(frame: bytes) -> wire.Request:
    if len(frame) > wire.MAX_FRAME_BYTES:
        raise MinkaError(Code.TOO_LARGE, f"a frame of {len(frame)} bytes")
    try:
        return wire.decode_request(frame)
    except msgspec.MsgspecError as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"a frame that is no request: {error}") from error


def kv_handler(manager: ReplicaManager) -> grpc.GenericRpcHandler:
    """The service, for the server."""

    async def batch(frames: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for answer in _Stream(manager.handle).answers(frames):
            yield answer

    service, method = wire.KV_BATCH_METHOD.strip("/").split("/")
    return grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(batch)})
