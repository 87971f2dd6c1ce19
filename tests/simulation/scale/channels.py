"""What the real transport of Raft messages uses of gRPC. Messages are encoded in the sender's turns, as gRPC does."""

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import Message as AnyMessage

from minka.v1.coordinator_pb2 import RaftSendResponse, SnapshotChunk
from minka.v1.raft_pb2 import Message, RaftMessageBatch

if TYPE_CHECKING:
    from tests.simulation.scale.voter import Voter

_Call = Callable[..., Any]


class SimChannels:
    """The simulated `Channels` of one process."""

    identity: tuple[tuple[str, str], ...] = ()

    def __init__(self, voter: "Voter") -> None:
        self._voter = voter

    def to(self, address: str) -> "_Channel":
        """The channel to an address."""
        return _Channel(self._voter, address)


class _Channel:
    def __init__(self, voter: "Voter", address: str) -> None:
        self._voter = voter
        self._address = address

    def stream_unary(self, path: str, request_serializer: Callable[[AnyMessage], bytes], **_: object) -> _Call:
        """The call of this name, as the generated stub asks for it."""
        world, voter, address = self._voter.world, self._voter, self._address
        collect = path.endswith("SendSnapshot")

        async def call(requests: AsyncIterator[AnyMessage], **_: object) -> RaftSendResponse:
            if not world.listens(address):
                raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
            pieces = bytearray()
            async for request in requests:
                data = request_serializer(request)
                if isinstance(request, SnapshotChunk):
                    pieces += request.data
                elif isinstance(request, RaftMessageBatch):
                    voter.sent_bytes += len(data)
                    world.raft_to(voter, address, request.messages)
            if collect:
                voter.sent_bytes += len(pieces)
                world.raft_to(voter, address, [Message.FromString(bytes(pieces))])
            return RaftSendResponse()

        return call
