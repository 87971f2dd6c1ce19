"""The active controller's instructions to this node."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from minka.errors import Code, MinkaError
from minka.v1.coordinator_pb2 import UpdateReplicasRequest, UpdateReplicasResponse
from minka.v1.coordinator_pb2_grpc import ReplicaControlServicer
from minkad.coordinator.member import Member
from minkad.core.controller_methods import Method
from minkad.rpc.own_requests import answer_here

_Context = grpc.aio.ServicerContext[Any, Any]

UPDATE_REPLICAS: Final = Method("ReplicaControl", "UpdateReplicas", UpdateReplicasRequest, UpdateReplicasResponse)
UPDATE_TIMEOUT: Final = 10.0  # seconds; after a timeout the node still goes on to host and delete replicas


class ReplicaControl(ReplicaControlServicer):
    """Passes the rows on to the data plane."""

    def __init__(
        self,
        member: Member,
        update_replicas: Callable[[UpdateReplicasRequest], Awaitable[UpdateReplicasResponse]],
    ) -> None:
        self._member = member
        self._update_replicas = update_replicas

    async def UpdateReplicas(self, request: UpdateReplicasRequest, context: _Context) -> UpdateReplicasResponse:
        """Answer the controller of another node."""
        return await self._update(request)

    async def update_here(self, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        """Answer this node's own controller."""
        try:
            async with asyncio.timeout(UPDATE_TIMEOUT):
                return await answer_here(UPDATE_REPLICAS, request, self._member.node.id, self._update)
        except TimeoutError:
            raise MinkaError(Code.DEADLINE_EXCEEDED, "this node's data plane did not answer in time") from None

    async def _update(self, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        check_process(request, self._member.node.incarnation)
        return await self._update_replicas(request)


def check_process(request: UpdateReplicasRequest, incarnation: str) -> None:
    """Raises NOT_REGISTERED if the rows are for another process of this node: a process that has yet to register must
    not lead by older rows.
    """
    if request.incarnation != incarnation:
        raise MinkaError(Code.NOT_REGISTERED, f"the rows are for process {request.incarnation}, this is {incarnation}")
