"""A node sends its shards' reports and heartbeats to the active controller."""

import asyncio
from typing import Any, cast

from minka.v1.duties_pb2 import Shard
from minka.v1.shards_pb2 import (
    Holding,
    ReportShardsResponse,
    ShardHeartbeatsResponse,
    ShardReport,
)
from minkad.coordinator.controller_calls import ControllerCalls
from minkad.core.controller_methods import REPORT_SHARDS, SHARD_HEARTBEATS, Method
from minkad.duties.node.relay import REPORT_CALLS, Relay


class FakeController:
    """A controller that answers reports when a test says so."""

    def __init__(self) -> None:
        self.reports: list[list[str]] = []  # for each call: the shards whose reports came with it
        self.recorded: list[asyncio.Future[None]] = []
        self.signs: list[list[str]] = []

    async def call(self, method: Method[Any, Any], request: Any) -> Any:
        """Note reports, which a test answers later. Answer heartbeats at once."""
        if method is SHARD_HEARTBEATS:
            self.signs.append([sign.shard for sign in request.signs])
            return ShardHeartbeatsResponse(clearance_ms=1000)
        assert method is REPORT_SHARDS
        self.reports.append([one.shard for one in request.reports])
        self.recorded.append(asyncio.get_running_loop().create_future())
        index = len(self.recorded)
        await self.recorded[-1]
        return ReportShardsResponse(index=index)


class Heard:
    """A session that notes what the relay tells it."""

    is_open = True

    def __init__(self) -> None:
        self.granted_at: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def granted(self, sequence: int, clearance_ms: int) -> None:
        """Note the grant. A second grant would fail the test."""
        self.granted_at.set_result(sequence)

    def fenced(self, reason: str) -> None:
        """Fail: no session is fenced in these tests."""
        raise AssertionError(reason)


async def test_a_limited_number_of_reports_is_under_way_at_a_time() -> None:
    controller = FakeController()
    relay = Relay(cast("ControllerCalls", controller), 0.01)
    running = asyncio.create_task(relay.run())
    said = ShardReport(sequence=1, attached=[Holding(duty=1, epoch=1)])
    answers = []
    for number in range(REPORT_CALLS + 2):
        answers.append(asyncio.create_task(relay.report(Shard(name=f"s{number}"), said)))
        for _ in range(10):
            await asyncio.sleep(0)
    assert controller.reports == [[f"s{number}"] for number in range(REPORT_CALLS)]
    controller.recorded[-1].set_result(None)  # the last call is answered first
    assert await answers[REPORT_CALLS - 1] == REPORT_CALLS
    for _ in range(10):
        await asyncio.sleep(0)
    assert controller.reports[-1] == [f"s{REPORT_CALLS}", f"s{REPORT_CALLS + 1}"], "waiting reports go together"
    for one in controller.recorded:
        if not one.done():
            one.set_result(None)
    assert await asyncio.gather(*answers) == [*range(1, REPORT_CALLS + 1), REPORT_CALLS + 1, REPORT_CALLS + 1]
    running.cancel()


async def test_heartbeats_in_quick_succession_share_a_call() -> None:
    controller = FakeController()
    relay = Relay(cast("ControllerCalls", controller), 0.01)
    running = asyncio.create_task(relay.run())
    heard = [Heard() for _ in range(3)]
    for number, session in enumerate(heard):
        relay.beat(Shard(name=f"s{number}", incarnation="p"), 7, session)
        await asyncio.sleep(0)
    assert [await session.granted_at for session in heard] == [7, 7, 7]
    assert controller.signs == [["s0", "s1", "s2"]]
    running.cancel()
