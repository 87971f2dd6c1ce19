"""Raft messages between nodes: one long-lived stream from each node to each other; a slow one blocks no other."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import grpc

from minka.v1.coordinator_pb2 import RaftSendResponse
from minka.v1.coordinator_pb2_grpc import RaftServicer, RaftStub
from minka.v1.raft_pb2 import Message, MessageType, RaftMessageBatch
from minkad.rpc.channels import Channels

log: Final = logging.getLogger(__name__)

MAX_QUEUED: Final = 1024  # messages to one node; Raft repeats what is dropped
MAX_BATCH: Final = 256
RECONNECT: Final = 0.1  # seconds


class RaftReceiver(RaftServicer):
    """Takes messages in."""

    def __init__(self, receive: Callable[[Sequence[Message]], None]) -> None:
        self._receive = receive

    async def Send(
        self, request_iterator: AsyncIterator[RaftMessageBatch], context: grpc.aio.ServicerContext[Any, Any]
    ) -> RaftSendResponse:
        """Until the sender ends the stream."""
        async for batch in request_iterator:
            self._receive(batch.messages)
        return RaftSendResponse()


class RaftTransport:
    """Sends messages to nodes by raft id. `address_of` answers None for a node that is not known yet."""

    def __init__(
        self,
        channels: Channels,
        address_of: Callable[[int], str | None],
        unreachable: Callable[[int], None],
        snapshot_sent: Callable[[int, bool], None],
    ) -> None:
        self._channels = channels
        self._address_of = address_of
        self._unreachable = unreachable
        self._snapshot_sent = snapshot_sent
        self._links: dict[int, _Link] = {}

    def send(self, messages: Sequence[Message]) -> None:
        """Queue each message for its node."""
        for message in messages:
            self._link(message.to).put(message)

    def _link(self, raft_id: int) -> "_Link":
        if raft_id not in self._links:
            self._links[raft_id] = _Link(self, raft_id)
        return self._links[raft_id]

    def close(self) -> None:
        """End all streams."""
        for link in self._links.values():
            link.task.cancel()
        self._links.clear()


class _Link:
    def __init__(self, transport: RaftTransport, raft_id: int) -> None:
        self._transport = transport
        self._raft_id = raft_id
        self._queue: deque[Message] = deque(maxlen=MAX_QUEUED)
        self._wake = asyncio.Event()
        self._connected = False
        self.task = asyncio.create_task(self._run(), name=f"raft messages to {raft_id}")

    def put(self, message: Message) -> None:
        self._queue.append(message)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            address = self._transport._address_of(self._raft_id)
            if address is not None:
                await self._stream(address)
            self._lost()
            await asyncio.sleep(RECONNECT)

    def _lost(self) -> None:
        """What was queued is old by the time the node is back."""
        self._transport._unreachable(self._raft_id)
        for message in self._queue:
            if message.type == MessageType.MSG_SNAP:
                self._transport._snapshot_sent(self._raft_id, False)
        self._queue.clear()
        self._wake.clear()

    async def _stream(self, address: str) -> None:
        stub = RaftStub(self._transport._channels.to(address))
        try:
            await stub.Send(self._batches(), metadata=self._transport._channels.identity)
        except grpc.aio.AioRpcError as error:
            if self._connected:
                log.info("raft stream broke", extra={"to": address, "reason": error.details()})
            self._connected = False

    async def _batches(self) -> AsyncIterator[RaftMessageBatch]:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))]
                yield RaftMessageBatch(messages=batch)
                self._connected = True
                for message in batch:
                    if message.type == MessageType.MSG_SNAP:
                        self._transport._snapshot_sent(self._raft_id, True)
