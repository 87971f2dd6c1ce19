"""Replication between nodes over gRPC, as raw bytes (see minkad.replication.frames)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc

from minka.grpc_calls import error_from_call
from minkad.process.telemetry import Telemetry
from minkad.replication.frames import APPEND_METHOD, SHIP_METHOD
from minkad.replication.manager import ReplicaManager

Metadata = tuple[tuple[str, str | bytes], ...]

_SHIP_SECONDS: Final = 3600.0  # the migration's stall timeout comes first


class GrpcLinks:
    """`ReplicationLinks` on the node's channels."""

    def __init__(self, channel_to: Callable[[str], grpc.aio.Channel], identity: Metadata, telemetry: Telemetry) -> None:
        """`channel_to` gives the channel to a node's id, or raises a MinkaError; `identity` goes with each call."""
        self._channel_to = channel_to
        self._identity = identity
        self._telemetry = telemetry

    async def append(self, node_id: str, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """See ReplicationLinks."""
        method: Any = self._channel_to(node_id).stream_stream(APPEND_METHOD)
        source = _Source(frames)
        call = method(source.messages(), metadata=self._identity)
        try:
            async for answer in call:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, node_id, repeatable=True) from error
        except asyncio.CancelledError:
            source.reraise()
            raise
        finally:
            call.cancel()

    async def ship(self, node_id: str, messages: AsyncIterator[bytes]) -> bytes:
        """See ReplicationLinks."""
        method: Any = self._channel_to(node_id).stream_unary(SHIP_METHOD)
        source = _Source(self._counted(messages))
        try:
            answer: bytes = await method(source.messages(), metadata=self._identity, timeout=_SHIP_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, node_id, repeatable=True) from error
        except asyncio.CancelledError:
            source.reraise()
            raise
        return answer

    async def _counted(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for message in messages:
            yield message
            self._telemetry.migration_bytes_sent += len(message)


class _Source:
    """The messages that are sent. If making one fails, gRPC cancels the call, which looks as if the task were
    cancelled; `reraise` raises what really failed.
    """

    def __init__(self, messages: AsyncIterator[bytes]) -> None:
        self._messages = messages
        self._failure: Exception | None = None

    async def messages(self) -> AsyncIterator[bytes]:
        try:
            async for message in self._messages:
                yield message
        except Exception as error:
            self._failure = error
            raise

    def reraise(self) -> None:
        if self._failure is not None:
            raise self._failure


def replication_handler(manager: ReplicaManager, telemetry: Telemetry) -> grpc.GenericRpcHandler:
    """The handlers of the replication's methods, for the server."""

    async def append(frames: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for acks in manager.follow(aiter(frames)):
            yield acks

    async def ship(messages: AsyncIterator[bytes], _: Any) -> bytes:
        return await manager.install(received(messages))

    async def received(messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for message in messages:
            telemetry.migration_bytes_received += len(message)
            yield message

    service = APPEND_METHOD.strip("/").split("/")[0]
    handlers: dict[str, Any] = {
        APPEND_METHOD.rsplit("/", 1)[1]: grpc.stream_stream_rpc_method_handler(append),
        SHIP_METHOD.rsplit("/", 1)[1]: grpc.stream_unary_rpc_method_handler(ship),
    }
    return grpc.method_handlers_generic_handler(service, handlers)
