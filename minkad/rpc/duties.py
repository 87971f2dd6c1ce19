"""Requests of clients to any node about pallets, duties and shards."""

from typing import Any

import grpc

from minka.v1.duty_api_pb2 import ChangeDutiesRequest, ChangeDutiesResponse, GetDutiesRequest, GetDutiesResponse
from minka.v1.duty_api_pb2_grpc import DutiesServicer
from minkad.core import controller_methods as m
from minkad.core.controller_methods import Method, Request, Response
from minkad.duties.node.gateway import DutyGateway
from minkad.rpc.call_deadlines import time_for_controller

_Context = grpc.aio.ServicerContext[Any, Any]


def _forwarded(method: Method[Request, Response]) -> Any:  # see `answered_by`
    """Make an RPC that the active controller answers within the caller's deadline."""

    async def answer(self: "DutyService", request: Request, context: _Context) -> Response:
        return await self.gateway.ask(method, request, time_for_controller(context))

    return answer


class DutyService(DutiesServicer):
    """Answers of the gateway, within the caller's deadline."""

    def __init__(self, gateway: DutyGateway) -> None:
        self.gateway = gateway

    ChangePallets = _forwarded(m.CHANGE_PALLETS)
    GetPallets = _forwarded(m.GET_PALLETS)
    GetShards = _forwarded(m.GET_SHARDS)
    ExplainDuty = _forwarded(m.EXPLAIN_DUTY)
    PlanRebalance = _forwarded(m.PLAN_REBALANCE)
    ComparePallet = _forwarded(m.COMPARE_PALLET)

    async def ChangeDuties(self, request: ChangeDutiesRequest, context: _Context) -> ChangeDutiesResponse:
        """Store the payloads, and make all changes or none."""
        return await self.gateway.change_duties(request, time_for_controller(context))

    async def GetDuties(self, request: GetDutiesRequest, context: _Context) -> GetDutiesResponse:
        """The duties, with their payloads where requested."""
        return await self.gateway.get_duties(request, time_for_controller(context))
