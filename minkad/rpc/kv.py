"""The data stream: `/minka.v1.Kv/Batch`, frames of many operations as raw bytes (see minka.wire)."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
import msgspec

from minka import wire
from minka.errors import Code, MinkaError
from minka.v1 import errors_pb2
from minkad.shard.manager import ReplicaManager
from minkad.telemetry import Operation, Outcome, Telemetry

MAX_FRAMES_IN_FLIGHT: Final = 64  # of one stream; the next is read when one is answered

_Handle = Callable[[wire.Request], Awaitable[wire.Response]]


class _Stream:
    """One client's stream: each frame is a task, answers go out as they come."""

    def __init__(self, handle: _Handle, telemetry: Telemetry) -> None:
        self._handle = handle
        self._telemetry = telemetry
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
        began = time.perf_counter()
        response = await self._handle(request)
        self._answers.put_nowait(wire.encode(response))
        self._count(request, response, time.perf_counter() - began)

    def _count(self, request: wire.Request, response: wire.Response, seconds: float) -> None:
        for group, result in zip(request.groups, response.results, strict=True):
            operation: Operation = "write" if group.op == wire.Op.WRITE else "read"
            self._telemetry.kv(operation, "ok" if result.error is None else _outcome(result.error), seconds)

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


def _outcome(error: bytes) -> Outcome:
    """A refusal that the client answers by going elsewhere is no failure."""
    code = errors_pb2.Error.FromString(error).code
    return "refused" if Code[code].info.retriable else "failed"


def kv_handler(manager: ReplicaManager, telemetry: Telemetry) -> grpc.GenericRpcHandler:
    """The service, for the server."""

    async def batch(frames: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for answer in _Stream(manager.handle, telemetry).answers(frames):
            yield answer

    service, method = wire.KV_BATCH_METHOD.strip("/").split("/")
    return grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(batch)})
