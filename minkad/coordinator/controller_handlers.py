"""The functions of the active controller that answer the requests of nodes, by method."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from minkad.coordinator.coordinator import Coordinator
from minkad.coordinator.load_requests import LoadRequests
from minkad.coordinator.node_requests import NodeRequests
from minkad.core import controller_methods as m
from minkad.core.controller_methods import Method, Request, Response
from minkad.duties.control.duty_requests import DutyRequests
from minkad.duties.control.shard_requests import ShardRequests

_Handler = Callable[[Any, float], Awaitable[Any]]
_Handled = tuple[Method[Any, Any], _Handler]


class ControllerHandlers:
    """Handles requests if this node is the active controller; else they raise NOT_CONTROLLER or NO_CONTROLLER."""

    def __init__(self, coordinator: Coordinator) -> None:
        nodes, loads = NodeRequests(coordinator), LoadRequests(coordinator)
        shards, duties = ShardRequests(coordinator), DutyRequests(coordinator)
        self._handlers: Final = dict(
            [
                _at_once(m.HEARTBEAT, nodes.heartbeat),
                _awaited(m.REGISTER, nodes.register),
                _awaited(m.HAND_OVER, nodes.run),
                _awaited(m.ALTER_ISR, nodes.run),
                _awaited(m.PROPOSE_SPLIT, nodes.run),
                _awaited(m.FINISH_SPLIT, nodes.run),
                _awaited(m.FINISH_MERGE, nodes.run),
                _awaited(m.CONTROLLED_SHUTDOWN, nodes.controlled_shutdown),
                _awaited(m.LEAVE, nodes.run),
                _awaited(m.FINISH_LOAD_PARTS, loads.finish_load_parts),
                _at_once(m.SHARD_HEARTBEATS, shards.shard_heartbeats),
                _awaited(m.REGISTER_SHARD, shards.register_shard),
                _awaited(m.REPORT_SHARDS, shards.report_shards),
                _awaited(m.LEAVE_SHARD, shards.run),
                _in_time(m.CHANGE_PALLETS, duties.change_pallets),
                _awaited(m.GET_PALLETS, duties.get_pallets),
                _in_time(m.CHANGE_DUTIES, duties.change_duties),
                _awaited(m.GET_DUTIES, duties.get_duties),
                _awaited(m.GET_SHARDS, duties.get_shards),
                _awaited(m.EXPLAIN_DUTY, duties.explain_duty),
                _awaited(m.PLAN_REBALANCE, duties.plan_rebalance),
                _awaited(m.COMPARE_PALLET, duties.compare_pallet),
            ]
        )
        self.methods: Final = tuple(self._handlers)

    async def answer(self, method: Method[Request, Response], request: Request, timeout: float) -> Response:
        """The response. A change that waits for its confirmation is answered within `timeout` seconds. Raises
        MinkaError.
        """
        return cast(Response, await self._handlers[method](request, timeout))


def _awaited(method: Method[Request, Response], handler: Callable[[Request], Awaitable[Response]]) -> _Handled:
    return method, lambda request, _: handler(request)


def _in_time(method: Method[Request, Response], handler: Callable[[Request, float], Awaitable[Response]]) -> _Handled:
    return method, handler


def _at_once(method: Method[Request, Response], handler: Callable[[Request], Response]) -> _Handled:
    async def answer(request: Request, _: float) -> Response:
        return handler(request)

    return method, answer
