"""What people ask of the active controller: request → command → answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from minka.v1.admin_pb2 import (
    ApplyPlanRequest,
    ApplyPlanResponse,
    CancelOperationRequest,
    CreateKeyspaceRequest,
    CreateKeyspaceResponse,
    DrainNodeRequest,
    DrainNodeResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    LimitOperationRequest,
    MergeRequest,
    MergeResponse,
    OperationResponse,
    PauseOperationRequest,
    Plan,
    PlanReassignRequest,
    RemoveNodeRequest,
    RemoveNodeResponse,
    ResumeOperationRequest,
    SplitRequest,
    SplitResponse,
    UndrainNodeRequest,
    UndrainNodeResponse,
)
from minkad.coordinator.coordinator import Coordinator
from minkad.core.controller import (
    ApplyPlan,
    CancelOperation,
    Command,
    CreateKeyspace,
    DrainNode,
    ElectLeaders,
    LimitOperation,
    Merge,
    PauseOperation,
    RemoveNode,
    Split,
    UndrainNode,
    preferred,
)
from minkad.core.placement import plan_reassign
from minkad.process.clock import unix_ms

_PLANS_AT_ONCE: Final = 2  # each has a copy of the table


class AdminRequests:
    """At this node. What changes the table is answered once that is recorded. Methods raise MinkaError, NOT_CONTROLLER
    and NO_CONTROLLER where another node has to be asked.
    """

    def __init__(self, coordinator: Coordinator, in_thread: Callable[..., Awaitable[Plan]] = asyncio.to_thread) -> None:
        self._coordinator = coordinator
        self._planning = asyncio.Semaphore(_PLANS_AT_ONCE)
        self._in_thread = in_thread

    async def create_keyspace(self, request: CreateKeyspaceRequest) -> CreateKeyspaceResponse:
        """Its partitions go ONLINE afterwards."""
        command = CreateKeyspace(
            request.name,
            request.partition_count,
            request.hash,
            request.replicas,
            request.min_insync,
            request.durability,
            request.unclean_election,
            list(request.ranges.split_points) if request.HasField("ranges") else None,
            request.ranges.max_bytes,
            request.ranges.max_ops,
        )
        await self._coordinator.controller().submit(command)
        return CreateKeyspaceResponse(keyspace=self._coordinator.state.keyspace_named(request.name))

    async def plan_reassign(self, request: PlanReassignRequest) -> Plan:
        """Make a plan; nothing is changed."""
        controller = self._coordinator.controller()
        # In a thread, from a copy: of many partitions it takes seconds, and heartbeats must not wait for it.
        async with self._planning:
            state, sizes, disks = controller.decided.copy(), controller.reports.sizes(), dict(controller.reports.disks)
            return await self._in_thread(plan_reassign, state, sizes, request, unix_ms(), disks)

    async def apply_plan(self, request: ApplyPlanRequest) -> ApplyPlanResponse:
        """Answers the operation that has begun."""
        rate_limit = request.rate_limit if request.HasField("rate_limit") else None
        command = ApplyPlan(request.plan, request.requested_by, request.reason, rate_limit)
        return ApplyPlanResponse(operation=await self._coordinator.controller().begin(command))

    async def elect_leaders(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """Answers the operation, if there is anything to do, and what it leaves out."""
        controller = self._coordinator.controller()
        partitions = preferred.chosen(controller.decided, request.keyspaces, request.partitions)
        skipped = preferred.skipped(controller.decided, partitions)
        operation = await controller.begin(
            ElectLeaders(partitions, request.requested_by, request.reason, request.queue)
        )
        return ElectLeadersResponse(operation=operation, skipped=skipped)

    async def split(self, request: SplitRequest) -> SplitResponse:
        """Answers the operation, if there is anything to do."""
        command = Split(request.keyspace, request.keys, request.requested_by, request.reason, request.queue)
        return SplitResponse(operation=await self._coordinator.controller().begin(command))

    async def merge(self, request: MergeRequest) -> MergeResponse:
        """Answers the operation that has begun."""
        controller = self._coordinator.controller()
        command = Merge(
            request.keyspace,
            request.keys,
            request.requested_by,
            request.reason,
            controller.reports.sizes(),
            queue=request.queue,
        )
        return MergeResponse(operation=await controller.begin(command))

    async def drain_node(self, request: DrainNodeRequest) -> DrainNodeResponse:
        """Answers the operation that has begun."""
        controller = self._coordinator.controller()
        command = DrainNode(
            request.node,
            request.decommission,
            request.requested_by,
            request.reason,
            controller.reports.sizes(),
            request.rate_limit,
            controller.reports.disks,
            request.queue,
        )
        return DrainNodeResponse(operation=await controller.begin(command))

    async def undrain_node(self, request: UndrainNodeRequest) -> UndrainNodeResponse:
        """End the drain of a node, which stays."""
        await self._coordinator.controller().submit(UndrainNode(request.node))
        return UndrainNodeResponse()

    async def pause_operation(self, request: PauseOperationRequest) -> OperationResponse:
        """Answers the operation."""
        return await self._change(request.id, PauseOperation(request.id, True))

    async def resume_operation(self, request: ResumeOperationRequest) -> OperationResponse:
        """Answers the operation."""
        return await self._change(request.id, PauseOperation(request.id, False))

    async def cancel_operation(self, request: CancelOperationRequest) -> OperationResponse:
        """Answers the operation."""
        return await self._change(request.id, CancelOperation(request.id, request.requested_by, request.reason))

    async def limit_operation(self, request: LimitOperationRequest) -> OperationResponse:
        """Answers the operation."""
        return await self._change(request.id, LimitOperation(request.id, request.rate_limit))

    async def _change(self, operation_id: int, command: Command) -> OperationResponse:
        await self._coordinator.controller().submit(command)
        return OperationResponse(operation=self._coordinator.state.operations[operation_id])

    async def remove_node(self, request: RemoveNodeRequest) -> RemoveNodeResponse:
        """The node's seat in the Raft group goes with it."""
        await self._coordinator.controller().submit(RemoveNode(request.node))
        return RemoveNodeResponse()
