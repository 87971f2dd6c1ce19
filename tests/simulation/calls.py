"""The calls between simulated nodes. They behave like the calls of `minkad.rpc`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from minka.errors import Code, MinkaError
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
    ProposeSplitRequest,
    ProposeSplitResponse,
    RegisterRequest,
    RegisterResponse,
    UpdateReplicasRequest,
    UpdateReplicasResponse,
)
from minka.v1.load_api_pb2 import FinishLoadPartsRequest, FinishLoadPartsResponse, PullFileRequest
from minka.v1.shards_pb2 import (
    LeaveShardRequest,
    RegisterShardRequest,
    RegisterShardResponse,
    ReportShardsRequest,
    ReportShardsResponse,
    ShardHeartbeatsRequest,
    ShardHeartbeatsResponse,
)
from minkad.coordinator.load_requests import LoadRequests
from minkad.duties.control.shard_requests import ShardRequests
from minkad.rpc.control import check_process
from tests.simulation.streams import Way

if TYPE_CHECKING:
    from tests.simulation.process import Process

R = TypeVar("R")

_UPDATE_TIMEOUT: Final = 2.0
_PULL_TIMEOUT: Final = 5.0


def settle(future: asyncio.Future[R], result: R | MinkaError) -> None:
    """Give the future its result or error, unless its caller no longer waits."""
    if future.done():
        return
    if isinstance(result, MinkaError):
        future.set_exception(result)
    else:
        future.set_result(result)


class Calls:
    """The calls that one process makes to other processes or to itself."""

    def __init__(self, process: "Process") -> None:
        self._process = process

    async def register(self, address: str, request: RegisterRequest, timeout: float) -> RegisterResponse:
        """Call Coordinator.Register."""
        return await self._call(address, lambda to: to.requests.register(request), timeout, Code.UNREACHABLE)

    async def hand_over(self, address: str, request: HandOverRequest, timeout: float) -> HandOverResponse:
        """Call Coordinator.HandOver."""
        return await self._call(address, lambda to: to.requests.run(request), timeout, Code.OUTCOME_UNKNOWN)

    async def alter_isr(self, address: str, request: AlterIsrRequest, timeout: float) -> AlterIsrResponse:
        """Call Coordinator.AlterIsr."""
        return await self._call(address, lambda to: to.requests.run(request), timeout, Code.OUTCOME_UNKNOWN)

    async def propose_split(self, address: str, request: ProposeSplitRequest, timeout: float) -> ProposeSplitResponse:
        """Call Coordinator.ProposeSplit."""
        return await self._call(address, lambda to: to.requests.run(request), timeout, Code.UNREACHABLE)

    async def finish_split(self, address: str, request: FinishSplitRequest, timeout: float) -> FinishSplitResponse:
        """Call Coordinator.FinishSplit."""
        return await self._call(address, lambda to: to.requests.run(request), timeout, Code.UNREACHABLE)

    async def finish_merge(self, address: str, request: FinishMergeRequest, timeout: float) -> FinishMergeResponse:
        """Call Coordinator.FinishMerge."""
        return await self._call(address, lambda to: to.requests.run(request), timeout, Code.OUTCOME_UNKNOWN)

    async def finish_load_parts(
        self, address: str, request: FinishLoadPartsRequest, timeout: float
    ) -> FinishLoadPartsResponse:
        """Call LoadControl.FinishLoadParts."""

        async def serve(server: "Process") -> FinishLoadPartsResponse:
            return await LoadRequests(server.coordinator).finish_load_parts(request)

        return await self._call(address, serve, timeout, Code.UNREACHABLE)

    async def pull_file(self, node_id: str, request: PullFileRequest) -> None:
        """Call Spool.PullFile."""

        async def serve(server: "Process") -> None:
            assert server.spool is not None
            await server.spool.fetching.ensure(request.load_number, request.file)

        address = self._process.coordinator.address_of(node_id)
        await self._call(address, serve, _PULL_TIMEOUT, Code.UNREACHABLE)

    async def controlled_shutdown(
        self, address: str, request: ControlledShutdownRequest, timeout: float
    ) -> ControlledShutdownResponse:
        """Call Coordinator.ControlledShutdown."""
        return await self._call(address, lambda to: to.requests.controlled_shutdown(request), timeout, Code.UNREACHABLE)

    async def leave(self, address: str, request: LeaveRequest, timeout: float) -> None:
        """Call Coordinator.Leave."""
        await self._call(address, lambda to: to.requests.run(request), timeout, Code.UNREACHABLE)

    async def register_shard(
        self, address: str, request: RegisterShardRequest, timeout: float
    ) -> RegisterShardResponse:
        """Call ShardCoordinator.RegisterShard."""
        return await self._call(address, lambda to: _doors(to).register_shard(request), timeout, Code.UNREACHABLE)

    async def shard_heartbeats(
        self, address: str, request: ShardHeartbeatsRequest, timeout: float
    ) -> ShardHeartbeatsResponse:
        """Call ShardCoordinator.ShardHeartbeats."""

        async def serve(server: "Process") -> ShardHeartbeatsResponse:
            return _doors(server).shard_heartbeats(request)

        return await self._call(address, serve, timeout, Code.UNREACHABLE)

    async def report_shards(self, address: str, request: ReportShardsRequest, timeout: float) -> ReportShardsResponse:
        """Call ShardCoordinator.ReportShards."""
        return await self._call(address, lambda to: _doors(to).report_shards(request), timeout, Code.UNREACHABLE)

    async def leave_shard(self, address: str, request: LeaveShardRequest, timeout: float) -> None:
        """Call ShardCoordinator.LeaveShard."""
        await self._call(address, lambda to: _doors(to).run(request), timeout, Code.UNREACHABLE)

    async def update_replicas(self, node_id: str, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        """Call ReplicaControl.UpdateReplicas."""

        async def serve(server: "Process") -> UpdateReplicasResponse:
            check_process(request, server.member.node.incarnation)
            return await server.manager.update_replicas(request)

        address = self._process.coordinator.address_of(node_id)
        return await self._call(address, serve, _UPDATE_TIMEOUT, Code.UNREACHABLE)

    async def _call(self, address: str, serve: Callable[["Process"], Awaitable[R]], timeout: float, broken: Code) -> R:
        """Call the node at the address. Raises the server's error, `broken` if the connection breaks, or
        DEADLINE_EXCEEDED after `timeout` seconds.
        """
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        client = self._process
        server = client.world.process_at(address)

        def fail() -> None:
            settle(answer, MinkaError(broken, f"{address}: the call ended before the answer came"))

        async def answer_it() -> None:
            assert server is not None
            try:
                result = await serve(server)
            except MinkaError as error:
                refusal = error
                server.deliver(client, lambda: settle(answer, refusal))
            else:
                server.deliver(client, lambda: settle(answer, result))

        if server is None:
            client.refused(address, fail)
        else:
            client.deliver(server, lambda: server.spawn(answer_it()), fail)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise MinkaError(Code.DEADLINE_EXCEEDED, f"{address} did not answer in time") from None

    async def heartbeat(
        self, address: str, requests: AsyncIterator[HeartbeatRequest]
    ) -> AsyncGenerator[HeartbeatResponse, None]:
        """Call Coordinator.Heartbeat, a stream: messages keep their order in both directions, and none is lost until
        the stream breaks.
        """
        answers: asyncio.Queue[HeartbeatResponse | MinkaError] = asyncio.Queue()
        pump = asyncio.get_running_loop().create_task(_Stream(self._process, address, answers).run(requests))
        try:
            while True:
                answer = await answers.get()
                if isinstance(answer, MinkaError):
                    raise answer
                yield answer
        finally:
            pump.cancel()


def _doors(server: "Process") -> ShardRequests:
    assert server.doors is not None
    return server.doors.shard_requests


class _Stream:
    def __init__(self, client: "Process", address: str, answers: asyncio.Queue[HeartbeatResponse | MinkaError]) -> None:
        self._client = client
        self._server = client.world.process_at(address)
        self._address = address
        self._answers = answers
        if self._server is not None:
            self._there, self._back = Way(client, self._server, self._break), Way(self._server, client, self._break)

    async def run(self, requests: AsyncIterator[HeartbeatRequest]) -> None:
        async for request in requests:
            if self._server is None:
                self._client.refused(self._address, self._break)
            else:
                self._there.send(partial(self._serve, self._server, request))

    def _break(self) -> None:
        self._answers.put_nowait(MinkaError(Code.UNREACHABLE, f"{self._address}: the stream broke"))

    def _serve(self, server: "Process", request: HeartbeatRequest) -> None:
        answer: HeartbeatResponse | MinkaError
        try:
            answer = server.requests.heartbeat(request)
        except MinkaError as error:
            answer = error
        self._back.send(lambda: self._answers.put_nowait(answer))
