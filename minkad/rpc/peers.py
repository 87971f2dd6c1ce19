"""The control calls of this node to other nodes. A failed call raises MinkaError."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable

import grpc

from minka.engine.grpc_calls import error_from_call
from minka.v1.coordinator_pb2 import HeartbeatRequest, HeartbeatResponse, UpdateReplicasRequest, UpdateReplicasResponse
from minkad.core.controller_methods import HEARTBEAT, Method, Request, Response
from minkad.rpc.channels import Channels
from minkad.rpc.replica_control import UPDATE_REPLICAS, UPDATE_TIMEOUT


class Peers:
    """Calls to other nodes."""

    def __init__(self, channels: Channels, address_of: Callable[[str], str]) -> None:
        self._channels = channels
        self._address_of = address_of

    async def call(self, address: str, method: Method[Request, Response], request: Request, timeout: float) -> Response:
        """Call the node at the address. Raises the node's refusal; DEADLINE_EXCEEDED after `timeout` seconds;
        UNREACHABLE, or OUTCOME_UNKNOWN if the node may have carried out a request that can't be repeated.
        """
        make = self._channels.to(address).unary_unary(
            method.path, method.request.SerializeToString, method.response.FromString
        )
        try:
            return await make(request, timeout=timeout, metadata=self._channels.identity)
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, address, repeatable=method.is_repeatable) from error

    async def heartbeat(
        self, address: str, requests: AsyncIterator[HeartbeatRequest]
    ) -> AsyncGenerator[HeartbeatResponse, None]:
        """Send heartbeats to the active controller, until the stream breaks."""
        make = self._channels.to(address).stream_stream(
            HEARTBEAT.path, HEARTBEAT.request.SerializeToString, HEARTBEAT.response.FromString
        )
        call = make(requests, metadata=self._channels.identity)
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, address, repeatable=True) from error
        finally:
            call.cancel()

    async def update_replicas(self, node_id: str, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        """ReplicaControl.UpdateReplicas at a node."""
        return await self.call(self._address_of(node_id), UPDATE_REPLICAS, request, UPDATE_TIMEOUT)
