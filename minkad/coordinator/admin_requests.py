"""People's requests to the active controller that aren't commands themselves."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from minka.errors import MinkaError
from minka.v1.admin_pb2 import (
    ApplyPlanRequest,
    ApplyPlanResponse,
    CreateKeyspaceRequest,
    CreateKeyspaceResponse,
    DrainNodeRequest,
    DrainNodeResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    MergeRequest,
    MergeResponse,
    Plan,
    PlanReassignRequest,
    SplitRequest,
    SplitResponse,
)
from minkad.coordinator.active_controller import ActiveController
from minkad.coordinator.controller_requests import ControllerRequests
from minkad.coordinator.coordinator import Coordinator
from minkad.coordinator.new_keyspaces import created
from minkad.core.controller import preferred
from minkad.core.controller.drains import DrainNode
from minkad.core.controller.keyspaces import CreateKeyspace
from minkad.core.controller.merges import Merge
from minkad.core.controller.operation_kind import Usage
from minkad.core.controller.preferred import ElectLeaders
from minkad.core.controller.reassigns import ApplyPlan
from minkad.core.controller.splits import Split
from minkad.core.controller.unclean import ElectUnclean
from minkad.core.placement import plan_reassign
from minkad.core.state import ROWS_A_PIECE, State, slices
from minkad.process.clock import unix_ms
from minkad.process.turns import turn

log: Final = logging.getLogger(__name__)

_PLANS_AT_ONCE: Final = 2  # each has a copy of the table


class AdminRequests(ControllerRequests):
    """Requests of people."""

    def __init__(self, coordinator: Coordinator, in_thread: Callable[..., Awaitable[Plan]] = asyncio.to_thread) -> None:
        super().__init__(coordinator)
        self._planning = asyncio.Semaphore(_PLANS_AT_ONCE)
        self._in_thread = in_thread

    async def create_keyspace(self, request: CreateKeyspaceRequest) -> CreateKeyspaceResponse:
        """Create a keyspace; its partitions go ONLINE afterwards."""
        return await created(self._coordinator.controller(), CreateKeyspace.of(request))

    async def plan_reassign(self, request: PlanReassignRequest) -> Plan:
        """Make a plan; changes nothing."""
        plan, _ = await self._plan(await self._coordinator.up_to_date(), request)
        return plan

    async def _plan(self, controller: ActiveController, request: PlanReassignRequest) -> tuple[Plan, dict[int, int]]:
        """The plan, and the sizes of partitions that it is based on. A thread makes the plan from a copy of the table:
        with many partitions this takes seconds, and heartbeats must not wait for it.
        """
        async with self._planning:
            sizes = await _sizes(controller)
            state, disks = _for_planning(controller.decided), dict(controller.reports.disks)
            return await self._in_thread(plan_reassign, state, sizes, request, unix_ms(), disks), sizes

    async def apply_plan(self, request: ApplyPlanRequest) -> ApplyPlanResponse:
        """Begin the operation that the plan describes."""
        return ApplyPlanResponse(operation=await self._coordinator.controller().run(ApplyPlan.of(request)))

    async def elect_leaders(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """Begin an operation that makes preferred leaders lead, if there is anything to do. The response names the
        partitions that the operation leaves out, with the reasons. An unclean election is done at once.
        """
        controller = await self._coordinator.up_to_date()
        if request.HasField("unclean"):
            await self._elect_unclean(request)
            return ElectLeadersResponse()
        partitions = preferred.chosen(controller.decided, request.keyspaces, request.partitions)
        skipped = preferred.skipped(controller.decided, partitions)
        command = ElectLeaders(partitions, request.requested_by, request.reason, request.queue)
        return ElectLeadersResponse(operation=await controller.run(command), skipped=skipped)

    async def _elect_unclean(self, request: ElectLeadersRequest) -> None:
        wanted, controller = request.unclean, self._coordinator.controller()
        damaged = [one.node_id for one in controller.reports.damaged() if one.partition_id == wanted.partition_id]
        await controller.run(ElectUnclean(wanted.partition_id, wanted.partition_epoch, wanted.node, damaged))
        names = {"partition": wanted.partition_id, "leader": wanted.node, "reason": request.reason}
        log.warning("a person accepts lost writes: an unclean election", extra=names | {"by": request.requested_by})

    async def split(self, request: SplitRequest) -> SplitResponse:
        """Begin an operation that splits partitions at the keys, if there is anything to do."""
        return SplitResponse(operation=await self._coordinator.controller().run(Split.of(request)))

    async def merge(self, request: MergeRequest) -> MergeResponse:
        """Begin an operation that merges partitions."""
        controller = self._coordinator.controller()
        command = Merge.of(request, await _sizes(controller))
        return MergeResponse(operation=await controller.run(command))

    async def drain_node(self, request: DrainNodeRequest) -> DrainNodeResponse:
        """Begin the drain of a node."""
        controller, plan, sizes = self._coordinator.controller(), None, dict[int, int]()
        if request.decommission:
            with contextlib.suppress(MinkaError):  # an obstacle counts only when the drain begins
                plan, sizes = await self._plan(controller, PlanReassignRequest(drain=[request.node]))
        usage = Usage(sizes or await _sizes(controller), controller.reports.disks, plan)
        return DrainNodeResponse(operation=await controller.run(DrainNode.of(request, usage)))


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
