"""The data stream to one node: what callers do at the same time travels in common frames, several under way."""

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc
import msgspec

from minka._call import Part
from minka._grpc import clipped, error_from_call
from minka.errors import Code, MinkaError
from minka.v1 import errors_pb2
from minka.wire import (
    KV_BATCH_METHOD,
    Group,
    GroupResult,
    Op,
    Request,
    WriteBody,
    decode_response,
    decode_values,
    encode,
)

FRAME_BYTES: Final = 1024 * 1024  # a frame is closed when it has reached this; one group may exceed it
MAX_GROUPS: Final = 1024
MAX_FRAMES_UNDER_WAY: Final = 8
MAX_QUEUED_BYTES: Final = 64 * 1024 * 1024
QUIET_S: Final = 1.0  # so long without an answer, and the partition table is asked about it
_OVERDUE_S: Final = 1.0  # a node answers every frame within its timeout; so much later it is given up
_PART_BYTES: Final = 64  # what a part weighs besides its keys and values

# What parts of one group have in common: op, partition, generation; the last is 0, or unlike all others' for a part
# that wants a frame of its own.
_Key = tuple[Op, int, int, int]


@dataclass(slots=True)
class _Frame:
    """A frame under way: the parts of each of its groups."""

    groups: list[list[Part]]
    sent_at: float
    answer_by: float


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
        # Raw bytes both ways.
        self._method: Final[grpc.aio.StreamStreamMultiCallable[bytes, bytes]] = channel.stream_stream(KV_BATCH_METHOD)
        self._loop = loop
        self._on_quiet = on_quiet
        self._queue: OrderedDict[_Key, list[Part]] = OrderedDict()
        self._queued_bytes = 0
        self._under_way: dict[int, _Frame] = {}
        self._ids = itertools.count(1)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._heard_at = 0.0
        self._closing = False

    def add(self, part: Part) -> None:
        """Queue a part; what is added in one turn of the loop travels together."""
        if self._queued_bytes >= MAX_QUEUED_BYTES:
            message = f"{MAX_QUEUED_BYTES >> 20} MiB are queued for this node already"
            self._loop.call_soon(part.call.refused, part, MinkaError(Code.OVERLOADED, message))
            return
        assert part.route is not None, "a part is routed before it is sent"
        key = (part.call.op, part.route.partition_id, part.route.generation, id(part) if part.alone else 0)
        self._queue.setdefault(key, []).append(part)
        self._queued_bytes += part.size + _PART_BYTES
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
        """One life of the stream, from the first part to its end; whatever is left then is refused."""
        call = self._method()
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
            while self._queue and len(self._under_way) < MAX_FRAMES_UNDER_WAY:
                if (frame := self._next_frame()) is None:
                    continue
                try:
                    await call.write(frame)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the call is over, and its reader says why
            self._wake.clear()

    def _next_frame(self) -> bytes | None:
        """Take from the queue what fits into a frame; None when nobody waits for it any more."""
        groups: list[Group] = []
        parts_of: list[list[Part]] = []
        size, deadline = 0, 0.0
        while self._queue and size < FRAME_BYTES and len(groups) < MAX_GROUPS:
            key, parts = self._queue.popitem(last=False)
            if key[3] and groups:
                self._queue[key] = parts
                break
            if not (parts := self._take(key, parts)):
                continue
            group = _group(key, parts)
            groups.append(group)
            parts_of.append(parts)
            size += len(group.body)
            deadline = max(deadline, *(part.call.deadline for part in parts))
            if key[3]:
                break
        if not groups:
            return None
        now = self._loop.time()
        timeout_ms = max(1, int((deadline - now) * 1000))
        if not self._under_way:
            self._heard_at = now
        number = next(self._ids)
        self._under_way[number] = _Frame(parts_of, now, now + timeout_ms / 1000 + _OVERDUE_S)
        return encode(Request(number, timeout_ms, groups))

    def _take(self, key: _Key, parts: list[Part]) -> list[Part]:
        """The first of a group's parts, up to the size of a frame; the rest goes back to the front of the queue."""
        size, taken = 0, 0
        for part in parts:
            if size >= FRAME_BYTES:
                self._queue[key] = parts[taken:]
                self._queue.move_to_end(key, last=False)
                break
            size += part.size
            taken += 1
            self._queued_bytes -= part.size + _PART_BYTES
        wanted = [part for part in parts[:taken] if part.open]
        for part in wanted:
            part.sent = True
        return wanted

    def _receive(self, data: bytes) -> None:
        response = decode_response(data)
        self._heard_at = self._loop.time()
        frame = self._under_way.get(response.id)
        if frame is None or len(frame.groups) != len(response.results):
            raise msgspec.DecodeError(f"frame {response.id} with {len(response.results)} results was not asked for")
        for parts, result in zip(frame.groups, response.results, strict=True):
            _hand_out(parts, result)
        del self._under_way[response.id]
        if self._queue:
            self._wake.set()

    async def _watch(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        """Notice a node that is connected and silent: it hangs, or its machine is gone."""
        while True:
            await asyncio.sleep(QUIET_S / 2)
            now = self._loop.time()
            if not self._under_way or now - self._heard_at < QUIET_S:
                continue
            self._on_quiet(self._address)
            if any(now > frame.answer_by for frame in self._under_way.values()):
                call.cancel()
                return

    def _refuse_all(self, error: MinkaError) -> None:
        """Refuse what is under way: it may have been done, unless there was no connection. The queue was never sent."""
        message = clipped(error.message.removeprefix(f"{self._address}: "))
        if error.code not in (Code.UNREACHABLE, Code.OUTCOME_UNKNOWN):
            message = f"the stream ended with {error.code.name}: {message}"
        unknown = MinkaError(Code.OUTCOME_UNKNOWN, message)
        never_sent = MinkaError(Code.UNREACHABLE if error.code is Code.OUTCOME_UNKNOWN else error.code, message)
        under_way, queue = self._under_way, self._queue
        self._under_way, self._queue, self._queued_bytes = {}, OrderedDict(), 0
        for part in (part for frame in under_way.values() for parts in frame.groups for part in parts):
            maybe_done = part.call.op is Op.WRITE and error.code is not Code.UNREACHABLE
            part.call.refused(part, unknown if maybe_done else never_sent)
        for part in (part for parts in queue.values() for part in parts):
            part.call.refused(part, never_sent)


def _group(key: _Key, parts: list[Part]) -> Group:
    op, partition_id, generation, _ = key
    keys = parts[0].keys if len(parts) == 1 else [k for part in parts for k in part.keys]
    if op is Op.READ:
        return Group(op, partition_id, generation, encode(keys))
    values = parts[0].values if len(parts) == 1 else [v for part in parts for v in part.values or ()]
    assert values is not None, "a write has values"
    assert len(values) == len(keys), f"{len(values)} values for {len(keys)} keys"
    return Group(op, partition_id, generation, encode(WriteBody(keys, values)))


def _hand_out(parts: list[Part], result: GroupResult) -> None:
    if result.error is not None:
        error = MinkaError.from_proto(errors_pb2.Error.FromString(result.error))
        for part in parts:
            part.call.refused(part, error)
    elif parts[0].call.op is Op.WRITE:
        for part in parts:
            part.call.answered(part, None)
    else:
        values, start = decode_values(result.body or b""), 0
        if len(values) != sum(len(part.keys) for part in parts):
            raise msgspec.DecodeError(f"{len(values)} values are not what was asked for")
        for part in parts:
            part.call.answered(part, values[start : start + len(part.keys)])
            start += len(part.keys)
