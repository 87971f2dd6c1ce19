"""Pallets, duties and shards: requests of clients to any node, and of nodes to the active controller."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

import grpc

from minka.v1.duty_api_pb2_grpc import DutiesServicer, DutyControlServicer
from minkad.coordinator.duty_requests import DutyRequests
from minkad.duties.gateway import DutyGateway
from minkad.rpc.control import answered_by

_Context = grpc.aio.ServicerContext[Any, Any]
Req = TypeVar("Req")
Resp = TypeVar("Resp")

DEFAULT_TIMEOUT_S: Final = 10.0  # of a call without a deadline
MAX_TIMEOUT_S: Final = 60.0
_ANSWERING_PART: Final = 0.95  # of the caller's time, so that it hears why its time was not enough


def _by_gateway(method: Callable[[Any, Req, float], Awaitable[Resp]]) -> Any:  # the base's methods take names, too
    """The RPC that this method of the gateway answers, within the caller's deadline."""

    async def answer(self: Any, request: Req, context: _Context) -> Resp:
        remaining = cast("float | None", context.time_remaining())  # gRPC's type lacks the None
        timeout = DEFAULT_TIMEOUT_S if remaining is None else min(remaining * _ANSWERING_PART, MAX_TIMEOUT_S)
        return await method(self._gateway, request, timeout)

    return answer


class DutyService(DutiesServicer):
    """Requests of clients to any node about duties."""

    def __init__(self, gateway: DutyGateway) -> None:
        self._gateway = gateway

    ChangePallets = _by_gateway(DutyGateway.change_pallets)
    GetPallets = _by_gateway(DutyGateway.get_pallets)
    ChangeDuties = _by_gateway(DutyGateway.change_duties)
    GetDuties = _by_gateway(DutyGateway.get_duties)
    GetShards = _by_gateway(DutyGateway.get_shards)
    ExplainDuty = _by_gateway(DutyGateway.explain_duty)
    PlanRebalance = _by_gateway(DutyGateway.plan_rebalance)
    ComparePallet = _by_gateway(DutyGateway.compare_pallet)


class DutyControlService(DutyControlServicer):
    """Requests of nodes to the active controller about duties; NOT_CONTROLLER elsewhere."""

    def __init__(self, requests: DutyRequests) -> None:
        self._requests = requests

    ChangePallets = answered_by(DutyRequests.change_pallets)
    GetPallets = answered_by(DutyRequests.get_pallets)
    ChangeDuties = answered_by(DutyRequests.change_duties)
    GetDuties = answered_by(DutyRequests.get_duties)
    GetShards = answered_by(DutyRequests.get_shards)
    ExplainDuty = answered_by(DutyRequests.explain_duty)
    PlanRebalance = answered_by(DutyRequests.plan_rebalance)
    ComparePallet = answered_by(DutyRequests.compare_pallet)
