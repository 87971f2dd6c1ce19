"""The control calls: what clients, nodes and the active controller ask of this node."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

import grpc

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import (
    ApplyPlanRequest,
    ApplyPlanResponse,
    CancelOperationRequest,
    ChangeVotersRequest,
    ChangeVotersResponse,
    CoordinatorStatus,
    CountKeysRequest,
    CountKeysResponse,
    CreateKeyspaceRequest,
    CreateKeyspaceResponse,
    DescribeNodeRequest,
    DescribeNodeResponse,
    DrainNodeRequest,
    DrainNodeResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    GetDrainStatusRequest,
    GetDrainStatusResponse,
    GetOperationsRequest,
    GetOperationsResponse,
    GetStatusRequest,
    GetStatusResponse,
    GetTableRequest,
    GetTableResponse,
    LimitOperationRequest,
    MergeRequest,
    MergeResponse,
    NodeStatus,
    OperationResponse,
    PartitionCount,
    PauseOperationRequest,
    Plan,
    PlanReassignRequest,
    RemoveNodeRequest,
    RemoveNodeResponse,
    ResumeOperationRequest,
    SplitKeysRequest,
    SplitKeysResponse,
    SplitRequest,
    SplitResponse,
    TransferLeadershipRequest,
    TransferLeadershipResponse,
    UndrainNodeRequest,
    UndrainNodeResponse,
)
from minka.v1.admin_pb2_grpc import AdminServicer, InventoryServicer, MetadataServicer
from minka.v1.cluster_pb2 import Operation, OperationState, PartitionTable
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
    UpdateReplicasRequest,
    UpdateReplicasResponse,
)
from minka.v1.coordinator_pb2_grpc import CoordinatorServicer, ReplicaControlServicer
from minkad.clock import unix_ms
from minkad.coordinator.coordinator import Coordinator
from minkad.core.controller import (
    ApplyPlan,
    CancelOperation,
    Command,
    ControlledShutdown,
    CreateKeyspace,
    DrainNode,
    ElectLeaders,
    FinishMerge,
    FinishSplit,
    HandOver,
    Leave,
    LimitOperation,
    Merge,
    PauseOperation,
    ProposeSplit,
    RemoveNode,
    Split,
    UndrainNode,
    blockers_of,
    drains,
    merges,
    preferred,
    splits,
)
from minkad.core.controller.selectors import Live
from minkad.core.placement import plan_reassign
from minkad.core.state import ROWS_A_PIECE, State, slices
from minkad.turns import turn

_Context = grpc.aio.ServicerContext[Any, Any]

DEFAULT_OPERATIONS = 20
MAX_BLOCKERS = 100  # in an answer, of one operation or node
_PLANS_AT_ONCE = 2  # each has a copy of the table


class MetadataService(MetadataServicer):
    """The table, from this node's own copy."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def GetTable(self, request: GetTableRequest, context: _Context) -> GetTableResponse:
        """The whole table, or nothing when the caller has this version."""
        state = self._coordinator.state
        if request.known_version and request.known_version == state.version:
            return GetTableResponse()
        response = GetTableResponse()
        await _fill(response.table, state)
        return response


async def _fill(table: PartitionTable, state: State) -> None:
    """The whole table, as it is now, in turns."""
    without_rows, rows = state.table_in_pieces()
    table.CopyFrom(without_rows)
    for some in rows:
        table.partitions.extend(some)
        await turn()


class CoordinatorService(CoordinatorServicer):
    """What nodes ask of the active controller."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def Register(self, request: RegisterRequest, context: _Context) -> RegisterResponse:
        """Through the log."""
        await self._coordinator.controller().register(request.node)
        state = self._coordinator.state
        return RegisterResponse(cluster_id=state.cluster.id, raft_id=state.nodes[request.node.id].raft_id)

    async def Heartbeat(
        self, request_iterator: AsyncIterator[HeartbeatRequest], context: _Context
    ) -> AsyncIterator[HeartbeatResponse]:
        """Ends with NOT_CONTROLLER when this node stops to be the controller."""
        async for request in request_iterator:
            yield self._coordinator.controller().heartbeat(request)

    async def HandOver(self, request: HandOverRequest, context: _Context) -> HandOverResponse:
        """Through the log; answers the new row."""
        command = HandOver(request.node_id, request.partition_id, request.partition_epoch, request.target)
        await self._coordinator.controller().submit(command)
        return HandOverResponse(partition=self._coordinator.state.partitions[request.partition_id])

    async def AlterIsr(self, request: AlterIsrRequest, context: _Context) -> AlterIsrResponse:
        """Through the log; answers the rows."""
        return await self._coordinator.controller().alter_isr(request)

    async def ProposeSplit(self, request: ProposeSplitRequest, context: _Context) -> ProposeSplitResponse:
        """Through the log; answers the rows of both halves."""
        command = ProposeSplit(request.node_id, request.partition_id, request.generation, request.key)
        await self._coordinator.controller().submit(command)
        partitions = self._coordinator.state.partitions
        parent = partitions[request.partition_id]
        return ProposeSplitResponse(partitions=[parent, partitions[parent.split_to]])

    async def FinishSplit(self, request: FinishSplitRequest, context: _Context) -> FinishSplitResponse:
        """Through the log; answers the rows of both halves."""
        await self._coordinator.controller().submit(
            FinishSplit(request.node_id, request.partition_id, request.leader_epoch)
        )
        partitions = self._coordinator.state.partitions
        child = partitions[request.partition_id]
        halves = (partitions.get(child.split_from), child)
        return FinishSplitResponse(partitions=[row for row in halves if row is not None])

    async def FinishMerge(self, request: FinishMergeRequest, context: _Context) -> FinishMergeResponse:
        """Through the log; answers the row of the one that remains, and the last one of the other."""
        command = FinishMerge(
            request.node_id,
            request.partition_id,
            request.partition_epoch,
            request.merged_id,
            request.merged_epoch,
        )
        await self._coordinator.controller().submit(command)
        return FinishMergeResponse(partitions=merges.rows_after(self._coordinator.state, command))

    async def ControlledShutdown(
        self, request: ControlledShutdownRequest, context: _Context
    ) -> ControlledShutdownResponse:
        """Through the log; answers how much is left to wait for."""
        await self._coordinator.controller().submit(ControlledShutdown(request.node_id, request.incarnation))
        state = self._coordinator.state
        left = drains.leaderships_to_move(state, request.node_id, Live.of(state))
        return ControlledShutdownResponse(remaining=len(left))

    async def Leave(self, request: LeaveRequest, context: _Context) -> LeaveResponse:
        """Through the log."""
        await self._coordinator.controller().submit(Leave(request.node_id, request.incarnation))
        return LeaveResponse()


class AdminService(AdminServicer):
    """What people ask."""

    def __init__(
        self,
        coordinator: Coordinator,
        node_id: str,
        has_clearance: Callable[[], bool],
        describe: Callable[[], DescribeNodeResponse],
    ) -> None:
        self._coordinator = coordinator
        self._node_id = node_id
        self._has_clearance = has_clearance
        self._planning = asyncio.Semaphore(_PLANS_AT_ONCE)
        self._describe = describe

    async def DescribeNode(self, request: DescribeNodeRequest, context: _Context) -> DescribeNodeResponse:
        """What this node knows of itself."""
        return self._describe()

    async def GetStatus(self, request: GetStatusRequest, context: _Context) -> GetStatusResponse:
        """What this node knows; more when it is the active controller."""
        coordinator = self._coordinator
        status = GetStatusResponse(
            served_by=self._node_id,
            has_clearance=self._has_clearance(),
            coordinator=self._coordinator_status(),
            running=coordinator.state.running_operations(),
        )
        if (active := coordinator.active) is not None:
            status.from_controller = True
            status.nodes.extend(
                NodeStatus(
                    node_id=node,
                    heartbeat_age_ms=int(active.silence(node) * 1000),
                    applied_index=active.applied.get(node, 0),
                    disk=active.disks.get(node),
                )
                for node in coordinator.state.nodes
            )
            for some in slices(active.each_leaders_stats(), ROWS_A_PIECE):
                status.replicas.extend(some)
                await turn()
            status.damaged.extend(active.damaged())
        await _fill(status.table, coordinator.state)
        return status

    def _coordinator_status(self) -> CoordinatorStatus:
        driver, leader = self._coordinator.driver, self._coordinator.leader()
        raft = driver.raw.basic_status()

        def names(raft_ids: Collection[int]) -> list[str]:
            nodes = map(self._coordinator.node_with, sorted(raft_ids))
            return [node.id if node else "?" for node in nodes]

        return CoordinatorStatus(
            controller=leader.id if leader else "",
            term=raft.term,
            commit_index=raft.commit,
            applied_index=driver.applied_index,
            snapshot_index=driver.snapshot_index,
            voters=names(driver.conf_state.voters),
            learners=names(driver.conf_state.learners),
        )

    async def CreateKeyspace(self, request: CreateKeyspaceRequest, context: _Context) -> CreateKeyspaceResponse:
        """Through the log; its partitions go ONLINE afterwards."""
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

    async def PlanReassign(self, request: PlanReassignRequest, context: _Context) -> Plan:
        """Nothing is changed."""
        controller = self._coordinator.controller()
        # In a thread, from a copy: of many partitions it takes seconds, and heartbeats must not wait for it.
        async with self._planning:
            state, sizes, disks = controller.decided.copy(), controller.sizes(), dict(controller.disks)
            return await asyncio.to_thread(plan_reassign, state, sizes, request, unix_ms(), disks)

    async def ApplyPlan(self, request: ApplyPlanRequest, context: _Context) -> ApplyPlanResponse:
        """Through the log; answers the operation that has begun."""
        rate_limit = request.rate_limit if request.HasField("rate_limit") else None
        command = ApplyPlan(request.plan, request.requested_by, request.reason, rate_limit)
        return ApplyPlanResponse(operation=await self._begin(command))

    async def _begin(self, command: Command) -> Operation:
        """The operation that the command has begun."""
        controller = self._coordinator.controller()
        operation_id = controller.decided.next_operation_id
        await controller.submit(command)
        return self._coordinator.state.operations[operation_id]

    async def GetOperations(self, request: GetOperationsRequest, context: _Context) -> GetOperationsResponse:
        """From this node's copy; the progress is the active controller's to know."""
        state, active = self._coordinator.state, self._coordinator.active
        newest = sorted(state.operations, reverse=True)[: request.limit or DEFAULT_OPERATIONS]
        ids = list(request.ids) or newest
        for operation_id in ids:
            if operation_id not in state.operations:
                raise MinkaError(Code.UNKNOWN_OPERATION, f"there is no operation {operation_id}")
        operations = [state.operations[i] for i in ids]
        running = any(o.state == OperationState.OPERATION_STATE_RUNNING for o in operations)
        return GetOperationsResponse(
            operations=operations,
            migrations=[m for i in ids for m in state.migrations[i].values()] if request.with_migrations else [],
            progress=active.progress() if active and running else [],
            now_ms=unix_ms(),
            blockers=[
                blocker
                for o in operations
                if active and o.state == OperationState.OPERATION_STATE_RUNNING
                for blocker in blockers_of(state, o)[:MAX_BLOCKERS]
            ],
        )

    async def ElectLeaders(self, request: ElectLeadersRequest, context: _Context) -> ElectLeadersResponse:
        """Through the log; answers the operation, if there is anything to do, and what it leaves out."""
        state = self._coordinator.controller().decided
        partitions = preferred.chosen(state, request.keyspaces, request.partitions)
        skipped = preferred.skipped(state, partitions)
        if not preferred.due(state, partitions):
            return ElectLeadersResponse(skipped=skipped)
        operation = await self._begin(ElectLeaders(partitions, request.requested_by, request.reason))
        return ElectLeadersResponse(operation=operation, skipped=skipped)

    async def Split(self, request: SplitRequest, context: _Context) -> SplitResponse:
        """Through the log; answers the operation, if there is anything to do."""
        command = Split(request.keyspace, request.keys, request.requested_by, request.reason)
        if not splits.new_keys(self._coordinator.controller().decided, command):
            return SplitResponse()
        return SplitResponse(operation=await self._begin(command))

    async def Merge(self, request: MergeRequest, context: _Context) -> MergeResponse:
        """Through the log; answers the operation that has begun."""
        sizes = self._coordinator.controller().sizes()
        command = Merge(request.keyspace, request.keys, request.requested_by, request.reason, sizes)
        return MergeResponse(operation=await self._begin(command))

    async def DrainNode(self, request: DrainNodeRequest, context: _Context) -> DrainNodeResponse:
        """Through the log; answers the operation that has begun."""
        controller = self._coordinator.controller()
        command = DrainNode(
            request.node,
            request.decommission,
            request.requested_by,
            request.reason,
            controller.sizes(),
            request.rate_limit,
            controller.disks,
        )
        return DrainNodeResponse(operation=await self._begin(command))

    async def UndrainNode(self, request: UndrainNodeRequest, context: _Context) -> UndrainNodeResponse:
        """Through the log."""
        await self._coordinator.controller().submit(UndrainNode(request.node))
        return UndrainNodeResponse()

    async def GetDrainStatus(self, request: GetDrainStatusRequest, context: _Context) -> GetDrainStatusResponse:
        """As the active controller sees it."""
        self._coordinator.controller()
        state = self._coordinator.state  # what is recorded: somebody stops a node on this word
        node = state.nodes.get(request.node)
        if node is None:
            raise MinkaError(Code.UNKNOWN_NODE, f"there is no node {request.node}", node=request.node)
        blockers = drains.blockers(state, node.id)
        return GetDrainStatusResponse(
            state=node.state,
            leaders=sum(p.leader == node.id for p in state.partitions.values()),
            replicas=sum(1 for _ in state.partitions_on(node.id)),
            safe_to_stop=not blockers,
            blockers=blockers[:MAX_BLOCKERS],
            blocker_count=len(blockers),
        )

    async def PauseOperation(self, request: PauseOperationRequest, context: _Context) -> OperationResponse:
        """Through the log."""
        return await self._change(request.id, PauseOperation(request.id, True))

    async def ResumeOperation(self, request: ResumeOperationRequest, context: _Context) -> OperationResponse:
        """Through the log."""
        return await self._change(request.id, PauseOperation(request.id, False))

    async def CancelOperation(self, request: CancelOperationRequest, context: _Context) -> OperationResponse:
        """Through the log."""
        return await self._change(request.id, CancelOperation(request.id, request.requested_by, request.reason))

    async def LimitOperation(self, request: LimitOperationRequest, context: _Context) -> OperationResponse:
        """Through the log."""
        return await self._change(request.id, LimitOperation(request.id, request.rate_limit))

    async def _change(self, operation_id: int, command: Command) -> OperationResponse:
        await self._coordinator.controller().submit(command)
        return OperationResponse(operation=self._coordinator.state.operations[operation_id])

    async def TransferLeadership(
        self, request: TransferLeadershipRequest, context: _Context
    ) -> TransferLeadershipResponse:
        """Asked of the present leader; done when another node leads, or not at all."""
        self._coordinator.transfer_leadership(request.node)
        return TransferLeadershipResponse()

    async def ChangeVoters(self, request: ChangeVotersRequest, context: _Context) -> ChangeVotersResponse:
        """Proposed; the status shows when it is done."""
        self._coordinator.change_voters(request.promote, request.demote)
        return ChangeVotersResponse(coordinator=self._coordinator_status())

    async def RemoveNode(self, request: RemoveNodeRequest, context: _Context) -> RemoveNodeResponse:
        """Through the log; its seat in the Raft group goes with it."""
        await self._coordinator.controller().submit(RemoveNode(request.node))
        return RemoveNodeResponse()


class ReplicaControlService(ReplicaControlServicer):
    """What the active controller tells this node."""

    def __init__(
        self,
        incarnation: Callable[[], str],
        update_replicas: Callable[[UpdateReplicasRequest], Awaitable[UpdateReplicasResponse]],
    ) -> None:
        self._incarnation = incarnation
        self._update_replicas = update_replicas

    async def UpdateReplicas(self, request: UpdateReplicasRequest, context: _Context) -> UpdateReplicasResponse:
        """Handed to the data plane. Raises NOT_REGISTERED when the rows are meant for another process of this node."""
        check_process(request, self._incarnation())
        return await self._update_replicas(request)


def check_process(request: UpdateReplicasRequest, incarnation: str) -> None:
    """A process that is yet to register must not lead what rows from before say: NOT_REGISTERED."""
    if request.incarnation != incarnation:
        raise MinkaError(Code.NOT_REGISTERED, f"the rows are for process {request.incarnation}, this is {incarnation}")


class InventoryService(InventoryServicer):
    """What lies on this node's disks."""

    def __init__(
        self,
        count_keys: Callable[[Collection[int]], Awaitable[list[PartitionCount]]],
        split_keys: Callable[[int, int], Awaitable[list[bytes]]],
    ) -> None:
        self._count_keys = count_keys
        self._split_keys = split_keys

    async def CountKeys(self, request: CountKeysRequest, context: _Context) -> CountKeysResponse:
        """By reading."""
        return CountKeysResponse(partitions=await self._count_keys(request.partition_ids))

    async def SplitKeys(self, request: SplitKeysRequest, context: _Context) -> SplitKeysResponse:
        """By what the tables say of themselves, and a part of one."""
        return SplitKeysResponse(keys=await self._split_keys(request.partition_id, request.parts))
