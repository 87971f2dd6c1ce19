"""People's requests to the active controller: each becomes a command, and its outcome the response."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from minka.errors import MinkaError
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
from minkad.coordinator.active_controller import ActiveController
from minkad.coordinator.coordinator import Coordinator
from minkad.core.controller import (
    ApplyPlan,
    CancelOperation,
    Command,
    CreateKeyspace,
    DrainNode,
    ElectLeaders,
    ElectUnclean,
    LimitOperation,
    Merge,
    PauseOperation,
    RemoveNode,
    Split,
    UndrainNode,
    preferred,
)
from minkad.core.placement import plan_reassign
from minkad.core.state import ROWS_A_PIECE, State, slices
from minkad.process.clock import unix_ms
from minkad.process.turns import turn

log: Final = logging.getLogger(__name__)

_PLANS_AT_ONCE: Final = 2  # each has a copy of the table


class AdminRequests:
    """Handles requests if this node is the active controller. A change of the table is answered when it is recorded.
    Methods raise MinkaError, with NOT_CONTROLLER or NO_CONTROLLER if another node has to be asked.
    """

    def __init__(self, coordinator: Coordinator, in_thread: Callable[..., Awaitable[Plan]] = asyncio.to_thread) -> None:
        self._coordinator = coordinator
        self._planning = asyncio.Semaphore(_PLANS_AT_ONCE)
        self._in_thread = in_thread

    async def create_keyspace(self, request: CreateKeyspaceRequest) -> CreateKeyspaceResponse:
        """Create a keyspace; its partitions go ONLINE afterwards."""
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
        """Make a plan; changes nothing."""
        plan, _ = await self._plan(self._coordinator.controller(), request)
        return plan

    async def _plan(self, controller: ActiveController, request: PlanReassignRequest) -> tuple[Plan, dict[int, int]]:
        """The plan, and the sizes of partitions that it is based on. It is made in a thread, from a copy: with many
        partitions it takes seconds, and heartbeats must not wait for it.
        """
        async with self._planning:
            sizes = await _sizes(controller)
            state, disks = _for_planning(controller.decided), dict(controller.reports.disks)
            return await self._in_thread(plan_reassign, state, sizes, request, unix_ms(), disks), sizes

    async def apply_plan(self, request: ApplyPlanRequest) -> ApplyPlanResponse:
        """Begin the operation that the plan describes."""
        rate_limit = request.rate_limit if request.HasField("rate_limit") else None
        command = ApplyPlan(request.plan, request.requested_by, request.reason, rate_limit)
        return ApplyPlanResponse(operation=await self._coordinator.controller().begin(command))

    async def elect_leaders(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """Begin an operation that makes preferred leaders lead, if there is anything to do. The response names the
        partitions that it leaves out, with the reasons. An unclean election is done at once.
        """
        controller = self._coordinator.controller()
        if request.HasField("unclean"):
            await self._elect_unclean(request)
            return ElectLeadersResponse()
        partitions = preferred.chosen(controller.decided, request.keyspaces, request.partitions)
        skipped = preferred.skipped(controller.decided, partitions)
        operation = await controller.begin(
            ElectLeaders(partitions, request.requested_by, request.reason, request.queue)
        )
        return ElectLeadersResponse(operation=operation, skipped=skipped)

    async def _elect_unclean(self, request: ElectLeadersRequest) -> None:
        wanted, controller = request.unclean, self._coordinator.controller()
        damaged = [one.node_id for one in controller.reports.damaged() if one.partition_id == wanted.partition_id]
        await controller.submit(ElectUnclean(wanted.partition_id, wanted.partition_epoch, wanted.node, damaged))
        names = {"partition": wanted.partition_id, "leader": wanted.node, "reason": request.reason}
        log.warning("a person accepts lost writes: an unclean election", extra=names | {"by": request.requested_by})

    async def split(self, request: SplitRequest) -> SplitResponse:
        """Begin an operation that splits partitions at the keys, if there is anything to do."""
        command = Split(request.keyspace, request.keys, request.requested_by, request.reason, request.queue)
        return SplitResponse(operation=await self._coordinator.controller().begin(command))

    async def merge(self, request: MergeRequest) -> MergeResponse:
        """Begin an operation that merges partitions."""
        controller = self._coordinator.controller()
        command = Merge(
            request.keyspace,
            request.keys,
            request.requested_by,
            request.reason,
            await _sizes(controller),
            queue=request.queue,
        )
        return MergeResponse(operation=await controller.begin(command))

    async def drain_node(self, request: DrainNodeRequest) -> DrainNodeResponse:
        """Begin the drain of a node."""
        controller, plan, sizes = self._coordinator.controller(), None, dict[int, int]()
        if request.decommission:
            with contextlib.suppress(MinkaError):  # an obstacle counts only when the drain begins
                plan, sizes = await self._plan(controller, PlanReassignRequest(drain=[request.node]))
        command = DrainNode(
            request.node,
            request.decommission,
            request.requested_by,
            request.reason,
            sizes or await _sizes(controller),
            request.rate_limit,
            controller.reports.disks,
            request.queue,
            plan,
        )
        return DrainNodeResponse(operation=await controller.begin(command))

    async def undrain_node(self, request: UndrainNodeRequest) -> UndrainNodeResponse:
        """End the drain of a node; the node stays in the cluster."""
        await self._coordinator.controller().submit(UndrainNode(request.node, request.requested_by))
        return UndrainNodeResponse()

    async def pause_operation(self, request: PauseOperationRequest) -> OperationResponse:
        """Begin no further migration of the operation until it is resumed."""
        return await self._change(request.id, PauseOperation(request.id, True))

    async def resume_operation(self, request: ResumeOperationRequest) -> OperationResponse:
        """Continue a paused operation."""
        return await self._change(request.id, PauseOperation(request.id, False))

    async def cancel_operation(self, request: CancelOperationRequest) -> OperationResponse:
        """Cancel the operation; the response has its new row."""
        return await self._change(request.id, CancelOperation(request.id, request.requested_by, request.reason))

    async def limit_operation(self, request: LimitOperationRequest) -> OperationResponse:
        """Change the limit of bytes a second that the operation may send from each node; 0: no limit."""
        return await self._change(request.id, LimitOperation(request.id, request.rate_limit))

    async def _change(self, operation_id: int, command: Command) -> OperationResponse:
        await self._coordinator.controller().submit(command)
        return OperationResponse(operation=self._coordinator.state.operations[operation_id])

    async def remove_node(self, request: RemoveNodeRequest) -> RemoveNodeResponse:
        """Remove a node from the cluster, and from the Raft group."""
        await self._coordinator.controller().submit(RemoveNode(request.node))
        return RemoveNodeResponse()


async def _sizes(controller: ActiveController) -> dict[int, int]:
    """Bytes by partition id, as the leaders last reported. Other tasks run after each piece."""
    sizes: dict[int, int] = {}
    for some in slices(controller.reports.leader_stats(), ROWS_A_PIECE):
        sizes.update((stats.partition_id, stats.bytes) for stats in some)
        await turn()
    return sizes


def _for_planning(decided: State) -> State:
    """A copy of the tables that the planner reads, for a thread."""
    operations = {operation.id: operation for operation in decided.unended_operations()}
    return State(
        decided.cluster,
        decided.version,
        dict(decided.nodes),
        dict(decided.keyspaces),
        decided.partitions.copy(),
        operations,
        {id_: dict(decided.migrations[id_]) for id_ in operations},
    )
