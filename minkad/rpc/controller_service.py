"""The active controller's handlers, for the requests of other nodes by gRPC and for this node's own. Both get the same
checks, times and errors.
"""

from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc

from minka.v1.coordinator_pb2 import HeartbeatRequest, HeartbeatResponse
from minkad.coordinator.controller_handlers import ControllerHandlers
from minkad.core.controller_methods import HEARTBEAT, Method, Request, Response
from minkad.rpc.call_deadlines import MAX_TIMEOUT_S, part_for_answer, time_for_controller
from minkad.rpc.own_requests import answer_here

_Context = grpc.aio.ServicerContext[Any, Any]

_HEARTBEAT_TIMEOUT_S: Final = 1.0  # nothing in a heartbeat's answer waits


class ControllerService:
    """NOT_CONTROLLER or NO_CONTROLLER while this node isn't the active controller."""

    def __init__(self, handlers: ControllerHandlers, node_id: str) -> None:
        self._handlers = handlers
        self._node_id = node_id

    async def answer_here(self, method: Method[Request, Response], request: Request, timeout: float) -> Response:
        """Answer this node's own request, as another node's request by gRPC would be answered."""
        seconds = min(part_for_answer(timeout), MAX_TIMEOUT_S)
        return await answer_here(
            method, request, self._node_id, lambda checked: self._handlers.answer(method, checked, seconds)
        )

    def grpc_handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """The handlers of other nodes' requests, by service."""
        services: dict[str, dict[str, Any]] = defaultdict(dict)
        for method in self._handlers.methods:
            services[method.service][method.name] = self._stream() if method is HEARTBEAT else self._unary(method)
        return tuple(grpc.method_handlers_generic_handler(f"minka.v1.{name}", some) for name, some in services.items())

    def _unary(self, method: Method[Request, Response]) -> Any:  # grpcio's types know only the synchronous API
        async def answer(request: Request, context: _Context) -> Response:
            return await self._handlers.answer(method, request, time_for_controller(context))

        return grpc.unary_unary_rpc_method_handler(answer, method.request.FromString, method.response.SerializeToString)

    def _stream(self) -> Any:  # as above
        async def answer(
            requests: AsyncIterator[HeartbeatRequest], context: _Context
        ) -> AsyncIterator[HeartbeatResponse]:
            async for request in requests:
                yield await self._handlers.answer(HEARTBEAT, request, _HEARTBEAT_TIMEOUT_S)

        return grpc.stream_stream_rpc_method_handler(
            answer, HEARTBEAT.request.FromString, HEARTBEAT.response.SerializeToString
        )
