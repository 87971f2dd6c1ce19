"""Replication between nodes over gRPC, as raw bytes (see minkad.shard.frames)."""

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc

from minka._grpc import error_from_call
from minkad.shard.frames import APPEND_METHOD, SHIP_METHOD
from minkad.shard.manager import ReplicaManager

Metadata = tuple[tuple[str, str | bytes], ...]

_SHIP_SECONDS: Final = 3600.0  # the migration's stall timeout comes first


class GrpcLinks:
    """`ReplicationLinks` on the node's channels."""

    def __init__(self, channel_to: Callable[[str], grpc.aio.Channel], identity: Metadata) -> None:
        """`channel_to` gives the channel to a node's id, or raises a MinkaError; `identity` goes with each call."""
        self._channel_to = channel_to
        self._identity = identity

    async def append(self, node_id: str, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """See ReplicationLinks."""
        method: Any = self._channel_to(node_id).stream_stream(APPEND_METHOD)
        call = method(frames, metadata=self._identity)
        try:
            async for answer in call:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, node_id, repeatable=True) from error
        finally:
            call.cancel()

    async def ship(self, node_id: str, messages: AsyncIterator[bytes]) -> bytes:
        """See ReplicationLinks."""
        method: Any = self._channel_to(node_id).stream_unary(SHIP_METHOD)
        try:
            answer: bytes = await method(messages, metadata=self._identity, timeout=_SHIP_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, node_id, repeatable=True) from error
        return answer


def replication_handler(manager: ReplicaManager) -> grpc.GenericRpcHandler:
    """The service, for the server."""

    async def append(frames: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for acks in manager.follow(aiter(frames)):
            yield acks

    async def ship(messages: AsyncIterator[bytes], _: Any) -> bytes:
        return await manager.install(aiter(messages))

    service = APPEND_METHOD.strip("/").split("/")[0]
    handlers: dict[str, Any] = {
        APPEND_METHOD.rsplit("/", 1)[1]: grpc.stream_stream_rpc_method_handler(append),
        SHIP_METHOD.rsplit("/", 1)[1]: grpc.stream_unary_rpc_method_handler(ship),
    }
    return grpc.method_handlers_generic_handler(service, handlers)
