"""gRPC calls between the coordinators of nodes: to locate a data port, which takes Raft messages, and to send a
snapshot.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from minka.engine.grpc_calls import error_from_call
from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import LocateRequest, LocateResponse, RaftSendResponse, SnapshotChunk
from minka.v1.coordinator_pb2_grpc import RaftServicer, RaftStub
from minka.v1.raft_pb2 import Message, MessageType, RaftMessageBatch
from minkad.core.raft.sender import sender_of
from minkad.rpc import field_rules
from minkad.rpc.channels import Channels
from minkad.rpc.validation import check

MAX_SNAPSHOTS: Final = 2  # snapshots sent at a time, since each is encoded in memory; one is received at a time
SNAPSHOT_SECONDS: Final = 30.0  # the timeout of a snapshot is this, and four times its duration at the rate
SNAPSHOT_SILENCE: Final = 10.0  # most seconds between two pieces of a snapshot
LOCATE_TIMEOUT: Final = 2.0  # seconds
CHUNK_BYTES: Final = 256 * 1024
MAX_SNAPSHOT_BYTES: Final = 256 * 1024 * 1024


class RaftReceiver(RaftServicer):
    """Takes messages in, and tells `heard_from` the raft id and the address of each sender."""

    def __init__(
        self,
        receive: Callable[[Sequence[Message]], None],
        heard_from: Callable[[int, str], None],
        is_stranger: Callable[[int], bool] = lambda _: False,
        data_address: str = "",
        raft_id: int = 0,
    ) -> None:
        """Messages of strange raft ids are refused. `data_address` is the address of this node's data port, and
        `raft_id` is this node's raft id.
        """
        self._receive = receive
        self._heard_from = heard_from
        self._is_stranger = is_stranger
        self._located = LocateResponse(data_address=data_address, raft_id=raft_id)
        self._receives_snapshot = False  # at most one at a time, since a snapshot may have 256 MiB

    def begin(self, address: str) -> Callable[[bytes], None]:
        """Returns the function that takes in the messages of a node that calls this gRPC address its own. Raises
        INVALID_ARGUMENT, as the function does.
        """
        if field_rules.address(address):
            raise MinkaError(Code.INVALID_ARGUMENT, f"the sender of Raft messages has no address: {address[:64]!r}")
        known: set[int] = set()

        def take(content: bytes) -> None:
            try:
                batch = RaftMessageBatch.FromString(content)
            except DecodeError as error:
                raise MinkaError(Code.INVALID_ARGUMENT, f"these aren't valid Raft messages: {error}") from error
            check(batch)
            self._check(batch.messages, known)
            if sender := sender_of(batch.messages):
                self._heard_from(sender, address)
            self._receive(batch.messages)

        return take

    def _check(self, messages: Sequence[Message], known: set[int]) -> None:
        for message in messages:
            if message.from_id in known:
                continue
            if not message.from_id or self._is_stranger(message.from_id):
                raise MinkaError(Code.INVALID_ARGUMENT, f"no node has the raft id {message.from_id}")
            known.add(message.from_id)

    async def Locate(self, request: LocateRequest, context: grpc.aio.ServicerContext[Any, Any]) -> LocateResponse:
        """The address of this node's data port, and this node's raft id."""
        return self._located

    async def SendSnapshot(
        self, request_iterator: AsyncIterator[SnapshotChunk], context: grpc.aio.ServicerContext[Any, Any]
    ) -> RaftSendResponse:
        """Take in a snapshot, as a whole or not at all. Raises OVERLOADED while another snapshot is being received,
        INVALID_ARGUMENT, TOO_LARGE, CORRUPT_DATA; UNREACHABLE if it is for a node that had this address before.
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
        if self._located.raft_id not in (0, message.to):
            text = f"here is the node with raft id {self._located.raft_id} now, not that with {message.to}"
            raise MinkaError(Code.UNREACHABLE, text)
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
        raise MinkaError(Code.INVALID_ARGUMENT, f"the snapshot isn't a valid message: {error}") from error


class RaftCalls:
    """The calls to other nodes, by their gRPC addresses."""

    def __init__(self, channels: Channels, snapshot_bytes_per_second: int) -> None:
        self._channels = channels
        self._chunk_seconds = CHUNK_BYTES / snapshot_bytes_per_second
        self._sending = asyncio.Semaphore(MAX_SNAPSHOTS)

    async def locate(self, address: str, raft_id: int) -> str:
        """The address of the data port of the node with this raft id. Raises UNREACHABLE (also if another node
        answers), and the node's errors.
        """
        stub = RaftStub(self._channels.to(address))
        try:
            found = await stub.Locate(LocateRequest(), metadata=self._channels.identity, timeout=LOCATE_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, address, repeatable=True) from error
        if found.raft_id not in (0, raft_id):  # 0: a node of an earlier version
            text = f"at {address} is the node with raft id {found.raft_id} now, not that with {raft_id}"
            raise MinkaError(Code.UNREACHABLE, text)
        if field_rules.address(found.data_address):
            raise MinkaError(Code.UNREACHABLE, f"{address} says that its data port is at {found.data_address[:64]!r}")
        return found.data_address

    async def send_snapshot(self, address: str, message: Message) -> None:
        """Send a message with a snapshot, at the configured rate. Raises UNREACHABLE, and the node's errors."""
        stub = RaftStub(self._channels.to(address))
        seconds = SNAPSHOT_SECONDS + 4 * self._chunk_seconds * message.ByteSize() / CHUNK_BYTES
        try:
            async with self._sending:
                await stub.SendSnapshot(self.chunks(message), metadata=self._channels.identity, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, address, repeatable=True) from error

    async def chunks(self, message: Message) -> AsyncIterator[SnapshotChunk]:
        """The message in pieces, at the rate."""
        content = message.SerializeToString()
        for start in range(0, len(content), CHUNK_BYTES):
            last = start + CHUNK_BYTES >= len(content)
            yield SnapshotChunk(data=content[start : start + CHUNK_BYTES], checksum=zlib.crc32(content) if last else 0)
            await asyncio.sleep(self._chunk_seconds)
