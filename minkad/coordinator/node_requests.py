"""Nodes' requests to the active controller that aren't commands themselves."""

from minka.v1.coordinator_pb2 import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    RegisterRequest,
    RegisterResponse,
)
from minkad.coordinator.controller_requests import ControllerRequests
from minkad.core.controller import drains
from minkad.core.controller.selectors import Live
from minkad.core.state import ROWS_A_PIECE, slices
from minkad.process.turns import turn


class NodeRequests(ControllerRequests):
    """Requests of nodes."""

    async def register(self, request: RegisterRequest) -> RegisterResponse:
        """Register a process of a node."""
        state, members = self._coordinator.state, self._coordinator.driver.match()
        known = state.nodes.get(request.node.id)
        # No leader compares the log of a node that isn't a member yet, or no longer.
        log_unchecked = request.log_unchecked and known is not None and known.raft_id in members
        return await self._coordinator.controller().register(request.node, log_unchecked)

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Renew the clearance of a process, and keep its reports."""
        return self._coordinator.controller().heartbeat(request)

    async def controlled_shutdown(self, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
        """Let other nodes lead this process's partitions. The response has the number of leaderships left to move."""
        await self._coordinator.controller().run(request)
        state = self._coordinator.state
        remaining = 0
        for some in slices(drains.leaderships_to_move(state, request.node_id, Live.of(state)), ROWS_A_PIECE):
            remaining += sum(due is not None for due in some)
            await turn()
        return ControlledShutdownResponse(remaining=remaining)
