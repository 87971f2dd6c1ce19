"""Nodes' requests to the active controller: each becomes a command, and its outcome the response."""

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
    LeaveResponse,
    ProposeSplitRequest,
    ProposeSplitResponse,
    RegisterRequest,
    RegisterResponse,
)
from minkad.coordinator.coordinator import Coordinator
from minkad.core.controller import drains, merges
from minkad.core.controller.commands import ControlledShutdown, FinishMerge, FinishSplit, HandOver, Leave, ProposeSplit
from minkad.core.controller.selectors import Live
from minkad.core.state import ROWS_A_PIECE, slices
from minkad.process.turns import turn


class NodeRequests:
    """Handles requests if this node is the active controller. A change of the table is answered when it is recorded.
    Methods raise MinkaError, with NOT_CONTROLLER or NO_CONTROLLER if another node has to be asked.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def register(self, request: RegisterRequest) -> RegisterResponse:
        """Register a process of a node."""
        state, members = self._coordinator.state, self._coordinator.driver.match()
        known = state.nodes.get(request.node.id)
        # No leader compares the log of a node that isn't a member yet, or no longer.
        log_unchecked = request.log_unchecked and known is not None and known.raft_id in members
        await self._coordinator.controller().register(request.node, log_unchecked)
        state = self._coordinator.state
        return RegisterResponse(cluster_id=state.cluster.id, raft_id=state.nodes[request.node.id].raft_id)

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Renew the clearance of a process, and keep its reports."""
        return self._coordinator.controller().heartbeat(request)

    async def hand_over(self, request: HandOverRequest) -> HandOverResponse:
        """Record a hand-over. The response has the partition's new row."""
        command = HandOver(request.node_id, request.partition_id, request.partition_epoch, request.target)
        await self._coordinator.controller().submit(command)
        return HandOverResponse(partition=self._coordinator.state.partitions[request.partition_id])

    async def alter_isr(self, request: AlterIsrRequest) -> AlterIsrResponse:
        """Change in-sync sets. The response has the partitions' rows."""
        return await self._coordinator.controller().alter_isr(request)

    async def propose_split(self, request: ProposeSplitRequest) -> ProposeSplitResponse:
        """Begin a split. The response has the rows of both halves; the split may have ended by then."""
        command = ProposeSplit(request.node_id, request.partition_id, request.generation, request.key)
        await self._coordinator.controller().submit(command)
        partitions = self._coordinator.state.partitions
        parent = partitions[request.partition_id]
        halves = (parent, partitions.get(parent.split_to))
        return ProposeSplitResponse(partitions=[row for row in halves if row is not None])

    async def finish_split(self, request: FinishSplitRequest) -> FinishSplitResponse:
        """End a split. The response has the rows of both halves; the parent may be gone by then."""
        command = FinishSplit(request.node_id, request.partition_id, request.leader_epoch, request.partition_epoch)
        await self._coordinator.controller().submit(command)
        partitions = self._coordinator.state.partitions
        child = partitions[request.partition_id]
        halves = (partitions.get(child.split_from), child)
        return FinishSplitResponse(partitions=[row for row in halves if row is not None])

    async def finish_merge(self, request: FinishMergeRequest) -> FinishMergeResponse:
        """Record a merge. The response has the row of the partition that remains, and the last row of the other."""
        command = FinishMerge(
            request.node_id,
            request.partition_id,
            request.partition_epoch,
            request.merged_id,
            request.merged_epoch,
        )
        await self._coordinator.controller().submit(command)
        return FinishMergeResponse(partitions=merges.rows_after(self._coordinator.state, command))

    async def controlled_shutdown(self, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
        """Let other nodes lead this process's partitions. The response has the number of leaderships left to move."""
        await self._coordinator.controller().submit(ControlledShutdown(request.node_id, request.incarnation))
        state = self._coordinator.state
        remaining = 0
        for some in slices(drains.leaderships_to_move(state, request.node_id, Live.of(state)), ROWS_A_PIECE):
            remaining += sum(due is not None for due in some)
            await turn()
        return ControlledShutdownResponse(remaining=remaining)

    async def leave(self, request: LeaveRequest) -> LeaveResponse:
        """Record that a process has stopped serving."""
        await self._coordinator.controller().submit(Leave(request.node_id, request.incarnation))
        return LeaveResponse()
