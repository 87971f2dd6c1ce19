"""The calls between simulated nodes. They behave like the calls of `minkad.rpc`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import (
    HeartbeatRequest,
    HeartbeatResponse,
    UpdateReplicasRequest,
    UpdateReplicasResponse,
)
from minka.v1.load_api_pb2 import PullFileRequest
from minkad.core.controller_methods import Method, Request, Response
from minkad.rpc.replica_control import check_process
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

    async def call(self, address: str, method: Method[Request, Response], request: Request, timeout: float) -> Response:
        """Call the active controller at this address."""
        broken = Code.UNREACHABLE if method.is_repeatable else Code.OUTCOME_UNKNOWN
        return await self._call(address, lambda to: to.handlers.answer(method, request, timeout), timeout, broken)

    async def pull_file(self, node_id: str, request: PullFileRequest) -> None:
        """Call Spool.PullFile."""

        async def serve(server: "Process") -> None:
            assert server.manager.ingesting is not None
            await server.manager.ingesting.get_file(request.load_number, request.file)

        address = self._process.coordinator.address_of(node_id)
        await self._call(address, serve, _PULL_TIMEOUT, Code.UNREACHABLE)

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
            answer = server.node_requests.heartbeat(request)
        except MinkaError as error:
            answer = error
        self._back.send(lambda: self._answers.put_nowait(answer))
