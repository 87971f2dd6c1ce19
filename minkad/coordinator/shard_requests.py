"""What nodes ask of the active controller for the shards that have sessions with them: request → command → answer."""

from minka.v1.shards_pb2 import (
    LeaveShardRequest,
    LeaveShardResponse,
    RegisterShardRequest,
    RegisterShardResponse,
    ReportShardRequest,
    ReportShardResponse,
    ShardHeartbeatsRequest,
    ShardHeartbeatsResponse,
)
from minkad.coordinator.coordinator import Coordinator
from minkad.core.controller import LeaveShard, ReportShard


class ShardRequests:
    """At this node. What changes the tables is answered once that is recorded. Methods raise MinkaError, NOT_CONTROLLER
    and NO_CONTROLLER where another node has to be asked.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def register_shard(self, request: RegisterShardRequest) -> RegisterShardResponse:
        """A process makes itself known."""
        await self._coordinator.controller().register_shard(request.shard)
        return RegisterShardResponse(index=self._coordinator.driver.applied_index)

    def shard_heartbeats(self, request: ShardHeartbeatsRequest) -> ShardHeartbeatsResponse:
        """Processes are there."""
        return self._coordinator.controller().shards.heartbeats(request)

    async def report_shard(self, request: ReportShardRequest) -> ReportShardResponse:
        """What has become of duties."""
        took = self._coordinator.history.took_ms
        attached = {holding.duty for holding in request.report.attached}
        took.update((one.duty, one.took_ms) for one in request.report.times if one.duty in attached)
        command = ReportShard(request.shard, request.incarnation, request.report)
        await self._coordinator.controller().submit(command)
        return ReportShardResponse(index=self._coordinator.driver.applied_index)

    async def leave_shard(self, request: LeaveShardRequest) -> LeaveShardResponse:
        """A process is about to stop."""
        await self._coordinator.controller().submit(LeaveShard(request.shard, request.incarnation))
        return LeaveShardResponse()
