"""Nodes' requests to the active controller for the shards that have sessions with them."""

from minka.v1.shards_pb2 import (
    LeaveShardRequest,
    LeaveShardResponse,
    RegisterShardRequest,
    RegisterShardResponse,
    ReportShardsRequest,
    ReportShardsResponse,
    ShardHeartbeatsRequest,
    ShardHeartbeatsResponse,
)
from minkad.coordinator.coordinator import Coordinator
from minkad.core.duties.control.duty_commands import LeaveShard, ReportShards
from minkad.core.duties.control.shard_lives import is_process


class ShardRequests:
    """Handles requests if this node is the active controller. A change of the tables is answered when it is recorded.
    Methods raise MinkaError, with NOT_CONTROLLER or NO_CONTROLLER if another node has to be asked.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def register_shard(self, request: RegisterShardRequest) -> RegisterShardResponse:
        """Register a shard's process."""
        await self._coordinator.controller().register_shard(request.shard)
        return RegisterShardResponse(index=self._coordinator.driver.applied_index)

    def shard_heartbeats(self, request: ShardHeartbeatsRequest) -> ShardHeartbeatsResponse:
        """Renew the clearances of the shards whose nodes have heard from them."""
        return self._coordinator.controller().shards.heartbeats(request)

    async def report_shards(self, request: ReportShardsRequest) -> ReportShardsResponse:
        """Record shards' reports about their duties. The response names the shards that are fenced."""
        controller = self._coordinator.controller()
        for one in request.reports:
            self._coordinator.history.note_times(controller.decided.duties, one)
        await controller.submit(ReportShards(request.reports))
        shards = controller.decided.duties.shards
        fenced = [
            one.shard
            for one in request.reports
            if one.shard not in shards or not is_process(shards[one.shard], one.incarnation)
        ]
        return ReportShardsResponse(index=self._coordinator.driver.applied_index, fenced=fenced)

    async def leave_shard(self, request: LeaveShardRequest) -> LeaveShardResponse:
        """Record that a shard's process is about to stop."""
        await self._coordinator.controller().submit(LeaveShard(request.shard, request.incarnation))
        return LeaveShardResponse()
