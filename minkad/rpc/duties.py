"""Pallets, duties and shards: requests of clients to any node, and of nodes to the active controller."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc

from minka.v1.duty_api_pb2_grpc import DutiesServicer, DutyControlServicer
from minkad.duties.control.duty_requests import DutyRequests
from minkad.duties.node.gateway import DutyGateway
from minkad.rpc.call_deadlines import time_to_answer
from minkad.rpc.control import answered_by

_Context = grpc.aio.ServicerContext[Any, Any]
Req = TypeVar("Req")
Resp = TypeVar("Resp")

_DEFAULT_TIMEOUT_S: Final = 10.0  # of a call without a deadline
_MAX_TIMEOUT_S: Final = 60.0


def _answered_in_time(
    method: Callable[[Any, Req, float], Awaitable[Resp]],
) -> Any:  # see `answered_by`
    """The RPC that the method of `_requests` answers within the caller's deadline."""

    async def answer(self: Any, request: Req, context: _Context) -> Resp:
        timeout = min(time_to_answer(context, _DEFAULT_TIMEOUT_S), _MAX_TIMEOUT_S)
        return await method(self._requests, request, timeout)

    return answer


class DutyService(DutiesServicer):
    """Requests of clients to any node about duties."""

    def __init__(self, gateway: DutyGateway) -> None:
        self._requests = gateway

    ChangePallets = _answered_in_time(DutyGateway.change_pallets)
    GetPallets = _answered_in_time(DutyGateway.get_pallets)
    ChangeDuties = _answered_in_time(DutyGateway.change_duties)
    GetDuties = _answered_in_time(DutyGateway.get_duties)
    GetShards = _answered_in_time(DutyGateway.get_shards)
    ExplainDuty = _answered_in_time(DutyGateway.explain_duty)
    PlanRebalance = _answered_in_time(DutyGateway.plan_rebalance)
    ComparePallet = _answered_in_time(DutyGateway.compare_pallet)


class DutyControlService(DutyControlServicer):
    """Requests of nodes to the active controller about duties; NOT_CONTROLLER elsewhere."""

    def __init__(self, requests: DutyRequests) -> None:
        self._requests = requests

    ChangePallets = _answered_in_time(DutyRequests.change_pallets)
    GetPallets = answered_by(DutyRequests.get_pallets)
    ChangeDuties = _answered_in_time(DutyRequests.change_duties)
    GetDuties = answered_by(DutyRequests.get_duties)
    GetShards = answered_by(DutyRequests.get_shards)
    ExplainDuty = answered_by(DutyRequests.explain_duty)
    PlanRebalance = answered_by(DutyRequests.plan_rebalance)
    ComparePallet = answered_by(DutyRequests.compare_pallet)
