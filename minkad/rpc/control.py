"""The control calls: requests of clients to this node."""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from typing import Any, Final, TypeVar

import grpc

from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import (
    Blocker,
    ChangeVotersRequest,
    ChangeVotersResponse,
    CoordinatorStatus,
    CountKeysRequest,
    CountKeysResponse,
    DescribeNodeRequest,
    DescribeNodeResponse,
    GetDrainStatusRequest,
    GetDrainStatusResponse,
    GetOperationsRequest,
    GetOperationsResponse,
    GetSplitBlockersRequest,
    GetSplitBlockersResponse,
    GetStatusRequest,
    GetStatusResponse,
    GetTableRequest,
    GetTableResponse,
    ListPartitionsRequest,
    ListPartitionsResponse,
    NodeStatus,
    PartitionCount,
    ShardsOnNode,
    SplitKeysRequest,
    SplitKeysResponse,
    TransferLeadershipRequest,
    TransferLeadershipResponse,
)
from minka.v1.admin_pb2_grpc import AdminServicer, InventoryServicer, MetadataServicer
from minka.v1.load_api_pb2_grpc import LoadsServicer
from minkad.coordinator.active_controller import ActiveController
from minkad.coordinator.admin_requests import AdminRequests
from minkad.coordinator.client_tables import ClientTables
from minkad.coordinator.coordinator import Coordinator
from minkad.coordinator.load_requests import LoadRequests
from minkad.coordinator.table_counting import TableCounting
from minkad.core.controller import drains
from minkad.core.controller.blockers import MAX_BLOCKERS, split_blockers
from minkad.core.controller_methods import Method
from minkad.core.partition_list import PartitionList
from minkad.core.state import ROWS_A_PIECE, slices
from minkad.process.turns import turn
from minkad.rpc.operations import get_operations

_Context = grpc.aio.ServicerContext[Any, Any]
Req = TypeVar("Req")
Resp = TypeVar("Resp")


GET_TABLE: Final = Method("Metadata", "GetTable", GetTableRequest, GetTableResponse)


class MetadataService(MetadataServicer):
    """The table, from this node's own copy."""

    def __init__(self, tables: ClientTables) -> None:
        self._tables = tables

    async def GetTable(self, request: GetTableRequest, context: _Context) -> GetTableResponse:
        """The rows that the caller wants and lacks."""
        return await self._tables.answer(request)


def answered_by(method: Callable[[Any, Req], Awaitable[Resp]]) -> Any:  # the base's methods take names, too
    """Make an RPC that a method of `_requests` answers."""

    async def answer(self: Any, request: Req, context: _Context) -> Resp:
        return await method(self._requests, request)

    return answer


class LoadService(LoadsServicer):
    """Requests of jobs and people about loads."""

    def __init__(self, requests: LoadRequests) -> None:
        self._requests = requests

    BeginLoad = answered_by(LoadRequests.run)
    TouchLoad = answered_by(LoadRequests.run)
    CommitLoad = answered_by(LoadRequests.run)
    AbortLoad = answered_by(LoadRequests.run)
    GetLoads = answered_by(LoadRequests.get_loads)


class AdminService(AdminServicer):
    """Requests of people about the cluster."""

    def __init__(
        self,
        coordinator: Coordinator,
        node_id: str,
        has_clearance: Callable[[], bool],
        describe: Callable[[Iterable[int], bool], DescribeNodeResponse],
        counting: TableCounting,
    ) -> None:
        self._requests = AdminRequests(coordinator)
        self._counting = counting
        self._coordinator = coordinator
        self._node_id = node_id
        self._has_clearance = has_clearance
        self._describe = describe

    CreateKeyspace = answered_by(AdminRequests.create_keyspace)
    PlanReassign = answered_by(AdminRequests.plan_reassign)
    ApplyPlan = answered_by(AdminRequests.apply_plan)
    ElectLeaders = answered_by(AdminRequests.elect_leaders)
    Split = answered_by(AdminRequests.split)
    Merge = answered_by(AdminRequests.merge)
    DrainNode = answered_by(AdminRequests.drain_node)
    UndrainNode = answered_by(AdminRequests.run)
    PauseOperation = answered_by(AdminRequests.run)
    ResumeOperation = answered_by(AdminRequests.run)
    CancelOperation = answered_by(AdminRequests.run)
    LimitOperation = answered_by(AdminRequests.run)
    RemoveNode = answered_by(AdminRequests.run)

    async def DescribeNode(self, request: DescribeNodeRequest, context: _Context) -> DescribeNodeResponse:
        """This node's knowledge of itself."""
        return self._describe(request.partitions, request.stories)

    async def GetStatus(self, request: GetStatusRequest, context: _Context) -> GetStatusResponse:
        """This node's knowledge of the cluster; more when it is the active controller."""
        state = self._coordinator.state
        if request.summary:
            summary = await self._counting.summary(request.silent)
            status = self._without_partitions()
            status.summary.CopyFrom(summary)
            return status
        status = self._without_partitions()
        changes = None
        if request.known_version and request.known_cluster == state.cluster.id:
            changes = state.table_since_in_pieces(request.known_version)
        if changes is not None:
            status.ClearField("table")
            status.changes.CopyFrom(changes[0])
        partitions = status.table.partitions if changes is None else status.changes.partitions
        for some in state.table_in_pieces()[1] if changes is None else changes[1]:
            partitions.extend(some)
            await turn()
        if (active := self._coordinator.active) is not None:
            for stats in slices(active.reports.leader_stats(), ROWS_A_PIECE):
                status.replicas.extend(stats)
                await turn()
            status.damaged.extend(active.reports.damaged())
        return status

    async def ListPartitions(
        self, request: ListPartitionsRequest, context: _Context
    ) -> AsyncIterator[ListPartitionsResponse]:
        """The rows; at the active controller, also the reports about these partitions."""
        state, active = self._coordinator.state, self._coordinator.active
        rows, status = PartitionList(state, request.filter, request.limit), self._without_partitions()
        yield ListPartitionsResponse(status=status)
        reports = active.reports if active is not None else None
        damaged = defaultdict(list)
        for one in reports.damaged() if reports is not None else ():
            damaged[one.partition_id].append(one)
        for some in rows.pieces():
            if some:
                stats = (reports.of(row.id) for row in some) if reports is not None else ()
                yield ListPartitionsResponse(
                    partitions=some,
                    replicas=[one for one in stats if one is not None],
                    damaged=[one for row in some for one in damaged[row.id]] if damaged else (),
                )
            await turn()
        yield ListPartitionsResponse(matching=rows.counts())

    def _without_partitions(self) -> GetStatusResponse:
        coordinator = self._coordinator
        state, active = coordinator.state, coordinator.active
        status = GetStatusResponse(
            served_by=self._node_id,
            from_controller=active is not None,
            has_clearance=self._has_clearance(),
            table=state.table_without_partitions(),
            coordinator=self._coordinator_status(),
            running=state.unended_operations(),
        )
        if active is not None:
            status.nodes.extend(_node_status(active, node) for node in state.nodes)
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
            seat_due=self._coordinator.seat_due(),
        )

    async def GetOperations(self, request: GetOperationsRequest, context: _Context) -> GetOperationsResponse:
        """The operations, their migrations, and the reasons why migrations wait."""
        return await get_operations(self._coordinator, request)

    async def GetDrainStatus(self, request: GetDrainStatusRequest, context: _Context) -> GetDrainStatusResponse:
        """The drain as the active controller sees it."""
        await self._coordinator.up_to_date()
        state = self._coordinator.state  # the recorded state, since somebody may stop the node after this
        node = state.nodes.get(request.node)
        if node is None:
            raise MinkaError(Code.UNKNOWN_NODE, f"there is no node {request.node}", node=request.node)
        blockers: list[Blocker] = []
        for some in drains.blockers(state, node.id):
            blockers += some
            await turn()
        return GetDrainStatusResponse(
            state=node.state,
            leaders=len(state.partitions.led.get(node.id, ())),
            replicas=len(state.partitions.copies.get(node.id, ())),
            safe_to_stop=not blockers,
            blockers=blockers[:MAX_BLOCKERS],
            blocker_count=len(blockers),
            shards=(ShardsOnNode(shard=name, duties=held) for name, held in drains.shards_on(state, node.id)),
        )

    async def GetSplitBlockers(self, request: GetSplitBlockersRequest, context: _Context) -> GetSplitBlockersResponse:
        """The obstacles that keep splits from beginning, as the active controller decides."""
        await self._coordinator.up_to_date()
        return split_blockers(self._coordinator.state, request.partition_id)

    async def TransferLeadership(
        self, request: TransferLeadershipRequest, context: _Context
    ) -> TransferLeadershipResponse:
        """At the present leader, ask a voter to take over. The voter takes over within an election timeout or not at
        all; the answer doesn't wait for this.
        """
        await self._coordinator.transfer_leadership(request.node)
        return TransferLeadershipResponse()

    async def ChangeVoters(self, request: ChangeVotersRequest, context: _Context) -> ChangeVotersResponse:
        """Propose the change; the status shows when it is done."""
        await self._coordinator.change_voters(request.promote, request.demote)
        return ChangeVotersResponse(coordinator=self._coordinator_status())


class InventoryService(InventoryServicer):
    """The data on this node's disks."""

    def __init__(
        self,
        count_keys: Callable[[Collection[int]], Awaitable[list[PartitionCount]]],
        split_keys: Callable[[int, int], Awaitable[list[bytes]]],
    ) -> None:
        self._count_keys = count_keys
        self._split_keys = split_keys

    async def CountKeys(self, request: CountKeysRequest, context: _Context) -> CountKeysResponse:
        """Count the keys by reading all of them."""
        return CountKeysResponse(partitions=await self._count_keys(request.partition_ids))

    async def SplitKeys(self, request: SplitKeysRequest, context: _Context) -> SplitKeysResponse:
        """Find keys that divide the partition's data, by the properties of its tables and a part of one table."""
        return SplitKeysResponse(keys=await self._split_keys(request.partition_id, request.parts))


def _node_status(active: ActiveController, node: str) -> NodeStatus:
    applied, (problem, lasts) = active.reports.applied, active.data_port_problem(node)
    return NodeStatus(
        node_id=node,
        heartbeat_age_ms=int(active.silence(node) * 1000) if node in applied else None,
        applied_index=applied.get(node, 0),
        disk=active.reports.disks.get(node),
        data_port_problem=problem,
        data_port_problem_ms=int(lasts * 1000),
        behind_ms=int(active.behind(node) * 1000),
        clock_ahead_ms=active.reports.clocks_ms.get(node),
    )
