"""The history of this node's load over gRPC."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from minka.v1.history_pb2 import ReadHistoryRequest
from minkad.history.recorder import HistoryRecorder

_Context = grpc.aio.ServicerContext[Any, Any]


def history_handler(recorder: HistoryRecorder) -> grpc.GenericRpcHandler:
    """`Read` without a serializer: its answers are serialized HistoryBlocks from the disk, unchanged."""

    async def read(request: ReadHistoryRequest, context: _Context) -> AsyncIterator[bytes]:
        async for block in recorder.read(request.from_ms, request.to_ms):
            yield block

    handlers: dict[str, Any] = {
        "Read": grpc.unary_stream_rpc_method_handler(read, request_deserializer=ReadHistoryRequest.FromString)
    }
    return grpc.method_handlers_generic_handler("minka.v1.History", handlers)
