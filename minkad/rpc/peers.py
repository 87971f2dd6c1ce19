"""The control calls that this node makes to others; a failed call raises MinkaError."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING, TypeVar

import grpc
from google.protobuf.message import Message

from minka.engine.grpc_calls import error_from_call
from minka.v1.coordinator_pb2 import (
    AlterIsrRequest,
    AlterIsrResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    FinishMergeRequest,
    FinishMergeResponse,
    FinishSplitRequest,
    FinishSplitResponse,
    HandOverRequest,
    HandOverResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveRequest,
    ProposeSplitRequest,
    ProposeSplitResponse,
    RegisterRequest,
    RegisterResponse,
    UpdateReplicasRequest,
    UpdateReplicasResponse,
)
from minka.v1.coordinator_pb2_grpc import CoordinatorStub, ReplicaControlStub
from minka.v1.load_api_pb2 import FinishLoadPartsRequest, FinishLoadPartsResponse
from minka.v1.load_api_pb2_grpc import LoadControlStub
from minka.v1.shards_pb2 import (
    LeaveShardRequest,
    RegisterShardRequest,
    RegisterShardResponse,
    ReportShardsRequest,
    ReportShardsResponse,
    ShardHeartbeatsRequest,
    ShardHeartbeatsResponse,
)
from minka.v1.shards_pb2_grpc import ShardCoordinatorStub
from minkad.rpc.channels import Channels

if TYPE_CHECKING:  # the stubs of a channel of grpc.aio; at run time the classes are the same
    from minka.v1.coordinator_pb2_grpc import CoordinatorAsyncStub
    from minka.v1.load_api_pb2_grpc import LoadControlAsyncStub
    from minka.v1.shards_pb2_grpc import ShardCoordinatorAsyncStub

_Request = TypeVar("_Request", bound=Message)
_Response = TypeVar("_Response", bound=Message)

UPDATE_TIMEOUT = 10.0  # seconds; the node goes on hosting and deleting even if the answer comes too late


class Peers:
    """Calls to other nodes, and to this one if it is the active controller itself."""

    def __init__(self, channels: Channels, address_of: Callable[[str], str]) -> None:
        self._channels = channels
        self._address_of = address_of

    async def register(self, address: str, request: RegisterRequest, timeout: float) -> RegisterResponse:
        """Coordinator.Register; repeating it is safe."""
        return await self._call(address, self._coordinator(address).Register, request, timeout)

    async def heartbeat(
        self, address: str, requests: AsyncIterator[HeartbeatRequest]
    ) -> AsyncGenerator[HeartbeatResponse, None]:
        """Coordinator.Heartbeat, until it breaks."""
        call = self._coordinator(address).Heartbeat(requests, metadata=self._channels.identity)
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, address, repeatable=True) from error
        finally:
            call.cancel()

    async def hand_over(self, address: str, request: HandOverRequest, timeout: float) -> HandOverResponse:
        """Coordinator.HandOver."""
        return await self._call(address, self._coordinator(address).HandOver, request, timeout, repeatable=False)

    async def alter_isr(self, address: str, request: AlterIsrRequest, timeout: float) -> AlterIsrResponse:
        """Coordinator.AlterIsr; repeating it is safe."""
        return await self._call(address, self._coordinator(address).AlterIsr, request, timeout)

    async def propose_split(self, address: str, request: ProposeSplitRequest, timeout: float) -> ProposeSplitResponse:
        """Coordinator.ProposeSplit; repeating it is safe."""
        return await self._call(address, self._coordinator(address).ProposeSplit, request, timeout)

    async def finish_split(self, address: str, request: FinishSplitRequest, timeout: float) -> FinishSplitResponse:
        """Coordinator.FinishSplit; repeating it is safe."""
        return await self._call(address, self._coordinator(address).FinishSplit, request, timeout)

    async def finish_merge(self, address: str, request: FinishMergeRequest, timeout: float) -> FinishMergeResponse:
        """Coordinator.FinishMerge; a caller that asks again learns the outcome."""
        return await self._call(address, self._coordinator(address).FinishMerge, request, timeout, repeatable=False)

    async def finish_load_parts(
        self, address: str, request: FinishLoadPartsRequest, timeout: float
    ) -> FinishLoadPartsResponse:
        """LoadControl.FinishLoadParts; repeating it is safe."""
        stub: LoadControlAsyncStub = LoadControlStub(self._channels.to(address))
        return await self._call(address, stub.FinishLoadParts, request, timeout)

    async def controlled_shutdown(
        self, address: str, request: ControlledShutdownRequest, timeout: float
    ) -> ControlledShutdownResponse:
        """Coordinator.ControlledShutdown; repeating it is safe."""
        return await self._call(address, self._coordinator(address).ControlledShutdown, request, timeout)

    async def leave(self, address: str, request: LeaveRequest, timeout: float) -> None:
        """Coordinator.Leave."""
        await self._call(address, self._coordinator(address).Leave, request, timeout)

    async def register_shard(
        self, address: str, request: RegisterShardRequest, timeout: float
    ) -> RegisterShardResponse:
        """ShardCoordinator.RegisterShard; repeating it is safe."""
        return await self._call(address, self._shard_coordinator(address).RegisterShard, request, timeout)

    async def shard_heartbeats(
        self, address: str, request: ShardHeartbeatsRequest, timeout: float
    ) -> ShardHeartbeatsResponse:
        """ShardCoordinator.ShardHeartbeats."""
        return await self._call(address, self._shard_coordinator(address).ShardHeartbeats, request, timeout)

    async def report_shards(self, address: str, request: ReportShardsRequest, timeout: float) -> ReportShardsResponse:
        """ShardCoordinator.ReportShards; repeating it is safe."""
        return await self._call(address, self._shard_coordinator(address).ReportShards, request, timeout)

    async def leave_shard(self, address: str, request: LeaveShardRequest, timeout: float) -> None:
        """ShardCoordinator.LeaveShard; repeating it is safe."""
        await self._call(address, self._shard_coordinator(address).LeaveShard, request, timeout)

    async def update_replicas(self, node_id: str, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        """ReplicaControl.UpdateReplicas at a node; repeating it is safe."""
        address = self._address_of(node_id)
        stub = ReplicaControlStub(self._channels.to(address))
        return await self._call(address, stub.UpdateReplicas, request, UPDATE_TIMEOUT)

    async def _call(
        self,
        address: str,
        method: "grpc.aio.UnaryUnaryMultiCallable[_Request, _Response]",
        request: _Request,
        timeout: float,
        *,
        repeatable: bool = True,
    ) -> _Response:
        try:
            return await method(request, timeout=timeout, metadata=self._channels.identity)
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, address, repeatable=repeatable) from error

    def _shard_coordinator(self, address: str) -> "ShardCoordinatorAsyncStub":
        return ShardCoordinatorStub(self._channels.to(address))

    def _coordinator(self, address: str) -> "CoordinatorAsyncStub":
        return CoordinatorStub(self._channels.to(address))
