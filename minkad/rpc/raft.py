"""Raft messages between nodes: one long-lived stream from each node to each other; a slow one blocks no other."""

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import RaftSendResponse, SnapshotChunk
from minka.v1.coordinator_pb2_grpc import RaftServicer, RaftStub
from minka.v1.raft_pb2 import Message, MessageType, RaftMessageBatch
from minkad.config.addresses import split_address
from minkad.core.raft.sender import sender_of
from minkad.process.clock import boottime
from minkad.rpc import rules
from minkad.rpc.channels import Channels
from minkad.rpc.validation import check

log: Final = logging.getLogger(__name__)

MAX_QUEUED: Final = 1024  # messages to one node; Raft repeats what is dropped
MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024  # of the entries in them; one message may have more
MAX_BATCH: Final = 256
MAX_BATCH_BYTES: Final = 1024 * 1024
MAX_SNAPSHOTS: Final = 2  # sent at a time, encoded; one is received at a time
SNAPSHOT_SECONDS: Final = 30.0  # beyond four times its time at the rate; after that it fails
SNAPSHOT_SILENCE: Final = 10.0  # seconds between two pieces of a snapshot, at most
RECONNECT: Final = 0.1  # seconds
PROBE_TIMEOUT: Final = 0.5  # seconds
CHUNK_BYTES: Final = 256 * 1024
MAX_SNAPSHOT_BYTES: Final = 256 * 1024 * 1024
ADDRESS_METADATA: Final = "minka-address"
MAX_HEARD: Final = 4096  # senders whose address is remembered


class RaftReceiver(RaftServicer):
    """Takes messages in, and tells `heard_from` which raft id sends from which address."""

    def __init__(
        self,
        receive: Callable[[Sequence[Message]], None],
        heard_from: Callable[[int, str], None],
        is_stranger: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Messages of raft ids that are strangers are refused."""
        self._receive = receive
        self._heard_from = heard_from
        self._is_stranger = is_stranger
        self._receives_snapshot = False

    async def Send(
        self, request_iterator: AsyncIterator[RaftMessageBatch], context: grpc.aio.ServicerContext[Any, Any]
    ) -> RaftSendResponse:
        """Take in messages until the sender ends the stream. Raises INVALID_ARGUMENT."""
        address = dict(context.invocation_metadata() or ()).get(ADDRESS_METADATA)
        if address is not None and (not isinstance(address, str) or rules.address(address)):
            raise MinkaError(Code.INVALID_ARGUMENT, f"{ADDRESS_METADATA} is no address")
        known: set[int] = set()
        async for batch in request_iterator:
            self._check(batch.messages, known)
            if isinstance(address, str) and (sender := sender_of(batch.messages)):
                self._heard_from(sender, address)
            self._receive(batch.messages)
        return RaftSendResponse()

    def _check(self, messages: Sequence[Message], known: set[int]) -> None:
        for message in messages:
            if message.from_id in known:
                continue
            if not message.from_id or self._is_stranger(message.from_id):
                raise MinkaError(Code.INVALID_ARGUMENT, f"no node has the raft id {message.from_id}")
            known.add(message.from_id)

    async def SendSnapshot(
        self, request_iterator: AsyncIterator[SnapshotChunk], context: grpc.aio.ServicerContext[Any, Any]
    ) -> RaftSendResponse:
        """Take in a snapshot, as a whole or not at all. Raises OVERLOADED while another one is received,
        INVALID_ARGUMENT, TOO_LARGE, CORRUPT_DATA.
        """
        if self._receives_snapshot:
            raise MinkaError(Code.OVERLOADED, "another snapshot is being received")
        self._receives_snapshot = True
        try:
            message = await _assembled(request_iterator)
        finally:
            self._receives_snapshot = False
        check(message)
        if message.type != MessageType.MSG_SNAP:
            raise MinkaError(Code.INVALID_ARGUMENT, "the message has no snapshot")
        self._check([message], set())
        self._receive([message])
        return RaftSendResponse()


async def _assembled(chunks: AsyncIterator[SnapshotChunk]) -> Message:
    content, checksum = bytearray(), 0
    try:
        async with asyncio.timeout(SNAPSHOT_SILENCE) as silence:
            async for chunk in chunks:
                silence.reschedule(asyncio.get_running_loop().time() + SNAPSHOT_SILENCE)
                content += chunk.data
                checksum = chunk.checksum
                if len(content) > MAX_SNAPSHOT_BYTES:
                    raise MinkaError(Code.TOO_LARGE, f"a snapshot of more than {MAX_SNAPSHOT_BYTES} bytes")
    except TimeoutError:
        raise MinkaError(Code.CORRUPT_DATA, f"a snapshot stopped for {SNAPSHOT_SILENCE:g} s") from None
    if zlib.crc32(content) != checksum:
        raise MinkaError(Code.CORRUPT_DATA, "a snapshot arrived damaged or in part")
    try:
        return Message.FromString(bytes(content))
    except DecodeError as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"the snapshot is no message: {error}") from error


class RaftTransport:
    """Sends messages to nodes by raft id.

    Each stream says at which address its sender is reached, and that counts more than what the table says: a node that
    has just joined has no table yet, and a voter that moved to another address has it recorded only once it is heard.
    `address_of` returns the addresses of the others; None for a node that is not known yet.
    """

    def __init__(
        self,
        channels: Channels,
        own_address: str,
        address_of: Callable[[int], str | None],
        unreachable: Callable[[int], None],
        gone: Callable[[int], None],
        snapshot_sent: Callable[[int, bool], None],
        snapshot_bytes_per_second: int,
    ) -> None:
        self._channels = channels
        self._metadata = (*channels.identity, (ADDRESS_METADATA, own_address))
        self._address_of = address_of
        self._heard: dict[int, str] = {}
        self._heard_at: dict[int, float] = {}
        self._unreachable = unreachable
        self._gone = gone
        self._snapshot_sent = snapshot_sent
        self._chunk_seconds = CHUNK_BYTES / snapshot_bytes_per_second
        self._links: dict[int, _Link] = {}
        self._snapshots: dict[int, asyncio.Task[None]] = {}
        self._sending = asyncio.Semaphore(MAX_SNAPSHOTS)

    def send(self, messages: Sequence[Message]) -> None:
        """Queue each message for its node; a snapshot is sent by a call of its own."""
        for message in messages:
            if message.type != MessageType.MSG_SNAP:
                self._link(message.to).put(message)
            elif message.to not in self._snapshots:
                task = asyncio.create_task(self._send_snapshot(message), name=f"raft snapshot to {message.to}")
                self._snapshots[message.to] = task

    def heard_from(self, raft_id: int, address: str) -> None:
        """Note that a node has sent messages, and that it says it is reached at `address`."""
        self._heard[raft_id] = address
        self._heard_at[raft_id] = boottime()
        if len(self._heard) > MAX_HEARD:
            first = next(iter(self._heard))
            del self._heard[first], self._heard_at[first]

    def last_heard(self, raft_id: int) -> float | None:
        """When a node last sent messages, in seconds of `boottime`; None: not yet."""
        return self._heard_at.get(raft_id)

    def _where(self, raft_id: int) -> str | None:
        return self._heard.get(raft_id) or self._address_of(raft_id)

    def _link(self, raft_id: int) -> "_Link":
        if raft_id not in self._links:
            self._links[raft_id] = _Link(
                raft_id, self._channels, self._metadata, self._where, self._unreachable, self._gone
            )
        return self._links[raft_id]

    async def _send_snapshot(self, message: Message) -> None:
        address, ok = self._where(message.to), False
        try:
            if address is not None:
                stub = RaftStub(self._channels.to(address))
                async with self._sending:
                    seconds = SNAPSHOT_SECONDS + 4 * self._chunk_seconds * message.ByteSize() / CHUNK_BYTES
                    await stub.SendSnapshot(self._chunks(message), metadata=self._metadata, timeout=seconds)
                ok = True
        except grpc.aio.AioRpcError as error:
            log.info("a snapshot was not delivered", extra={"to": address, "reason": error.details()})
        finally:
            del self._snapshots[message.to]
            self._snapshot_sent(message.to, ok)

    async def _chunks(self, message: Message) -> AsyncIterator[SnapshotChunk]:
        content = message.SerializeToString()
        for start in range(0, len(content), CHUNK_BYTES):
            last = start + CHUNK_BYTES >= len(content)
            yield SnapshotChunk(data=content[start : start + CHUNK_BYTES], checksum=zlib.crc32(content) if last else 0)
            await asyncio.sleep(self._chunk_seconds)

    def close(self) -> None:
        """End all streams."""
        for task in [link.task for link in self._links.values()] + list(self._snapshots.values()):
            task.cancel()
        self._links.clear()


class _Link:
    """The stream to one node. It begins with the first message, and again with the next one after it has broken."""

    def __init__(
        self,
        raft_id: int,
        channels: Channels,
        metadata: tuple[tuple[str, str], ...],
        address_of: Callable[[int], str | None],
        unreachable: Callable[[int], None],
        gone: Callable[[int], None],
    ) -> None:
        self._raft_id = raft_id
        self._channels = channels
        self._metadata = metadata
        self._address_of = address_of
        self._unreachable = unreachable
        self._gone = gone
        self._queue: deque[tuple[Message, int]] = deque()
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self._connected = False
        self._connection = 0
        self.task = asyncio.create_task(self._run(), name=f"raft messages to {raft_id}")

    def put(self, message: Message) -> None:
        size = sum(len(entry.data) for entry in message.entries)
        self._queue.append((message, size))
        self._queued_bytes += size
        while len(self._queue) > MAX_QUEUED or (len(self._queue) > 1 and self._queued_bytes > MAX_QUEUED_BYTES):
            self._queued_bytes -= self._queue.popleft()[1]
        self._wake.set()

    def _take(self) -> list[Message]:
        batch: list[Message] = []
        total = 0
        while self._queue and len(batch) < MAX_BATCH and total < MAX_BATCH_BYTES:
            message, size = self._queue.popleft()
            self._queued_bytes -= size
            total += size
            batch.append(message)
        return batch

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            address = self._address_of(self._raft_id)
            if address is not None:
                await self._stream(address)
            self._unreachable(self._raft_id)
            self._queue.clear()  # it is old by the time the node is back
            self._queued_bytes = 0
            self._wake.clear()
            await asyncio.sleep(RECONNECT)

    async def _stream(self, address: str) -> None:
        stub = RaftStub(self._channels.to(address))
        try:
            await stub.Send(self._batches(self._connection), metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            if self._connected:
                self._connected = False
                log.info("raft stream broke", extra={"to": address, "reason": error.details()})
                if await _is_refused(address):
                    self._gone(self._raft_id)
        finally:
            self._connection += 1

    async def _batches(self, connection: int) -> AsyncIterator[RaftMessageBatch]:
        while True:
            await self._wake.wait()
            # gRPC goes on asking for the next message when the call has ended, and drops it: it must not get one.
            if connection != self._connection:
                return
            self._wake.clear()
            while self._queue and connection == self._connection:
                yield RaftMessageBatch(messages=self._take())
                self._connected = True


async def _is_refused(address: str) -> bool:
    """Whether the machine is there, and no process listens at the address."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            _, writer = await asyncio.open_connection(*split_address(address))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    writer.close()
    return False
