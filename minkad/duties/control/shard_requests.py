"""Nodes' requests to the active controller for the shards that have sessions with them."""

from minka.v1.shards_pb2 import (
    RegisterShardRequest,
    RegisterShardResponse,
    ReportShardsRequest,
    ReportShardsResponse,
    ShardHeartbeatsRequest,
    ShardHeartbeatsResponse,
)
from minkad.coordinator.controller_requests import ControllerRequests
from minkad.core.duties.control.shard_lives import is_process


class ShardRequests(ControllerRequests):
    """Requests of nodes about shards."""

    async def register_shard(self, request: RegisterShardRequest) -> RegisterShardResponse:
        """Register a shard's process."""
        await self._coordinator.controller().shards.register(request.shard)
        return RegisterShardResponse(index=self._coordinator.driver.applied_index)

    def shard_heartbeats(self, request: ShardHeartbeatsRequest) -> ShardHeartbeatsResponse:
        """Renew the clearances of the shards whose nodes have heard from them."""
        return self._coordinator.controller().shards.heartbeats(request)

    async def report_shards(self, request: ReportShardsRequest) -> ReportShardsResponse:
        """Record shards' reports about their duties. The response names the shards that are fenced."""
        controller = self._coordinator.controller()
        for one in request.reports:
            self._coordinator.history.note_times(controller.decided.duties, one)
        await controller.run(request)
        shards = controller.decided.duties.shards
        fenced = [
            one.shard
            for one in request.reports
            if one.shard not in shards or not is_process(shards[one.shard], one.incarnation)
        ]
        return ReportShardsResponse(index=self._coordinator.driver.applied_index, fenced=fenced)
