"""A node sends its shards' reports and heartbeats to the active controller."""

import asyncio
from typing import Any

from minka.v1.duties_pb2 import Shard
from minka.v1.shards_pb2 import (
    Holding,
    ReportShardsRequest,
    ReportShardsResponse,
    ShardHeartbeatsRequest,
    ShardHeartbeatsResponse,
    ShardReport,
)
from minkad.duties.node.relay import REPORT_CALLS, Relay


class Stub:
    """A controller that answers reports when a test says so."""

    def __init__(self) -> None:
        self.reports: list[list[str]] = []  # for each call: the shards whose reports came with it
        self.recorded: list[asyncio.Future[None]] = []
        self.signs: list[list[str]] = []

    async def report_shards(self, address: str, request: ReportShardsRequest, timeout: float) -> ReportShardsResponse:
        """Note the reports. A test answers them later."""
        self.reports.append([one.shard for one in request.reports])
        self.recorded.append(asyncio.get_running_loop().create_future())
        index = len(self.recorded)
        await self.recorded[-1]
        return ReportShardsResponse(index=index)

    async def shard_heartbeats(
        self, address: str, request: ShardHeartbeatsRequest, timeout: float
    ) -> ShardHeartbeatsResponse:
        """Answer the heartbeats at once."""
        self.signs.append([sign.shard for sign in request.signs])
        return ShardHeartbeatsResponse(clearance_ms=1000)


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


async def _ask(call: Any) -> Any:
    return await call("address", 1.0)


async def test_a_limited_number_of_reports_is_under_way_at_a_time() -> None:
    stub = Stub()
    relay = Relay(_ask, stub, 0.01)  # type: ignore[arg-type]
    running = asyncio.create_task(relay.run())
    said = ShardReport(sequence=1, attached=[Holding(duty=1, epoch=1)])
    answers = []
    for number in range(REPORT_CALLS + 2):
        answers.append(asyncio.create_task(relay.report(Shard(name=f"s{number}"), said)))
        for _ in range(10):
            await asyncio.sleep(0)
    assert stub.reports == [[f"s{number}"] for number in range(REPORT_CALLS)]
    stub.recorded[-1].set_result(None)  # the last call is answered first
    assert await answers[REPORT_CALLS - 1] == REPORT_CALLS
    for _ in range(10):
        await asyncio.sleep(0)
    assert stub.reports[-1] == [f"s{REPORT_CALLS}", f"s{REPORT_CALLS + 1}"], "waiting reports go together"
    for one in stub.recorded:
        if not one.done():
            one.set_result(None)
    assert await asyncio.gather(*answers) == [*range(1, REPORT_CALLS + 1), REPORT_CALLS + 1, REPORT_CALLS + 1]
    running.cancel()


async def test_heartbeats_in_quick_succession_share_a_call() -> None:
    stub = Stub()
    relay = Relay(_ask, stub, 0.01)  # type: ignore[arg-type]
    running = asyncio.create_task(relay.run())
    heard = [Heard() for _ in range(3)]
    for number, session in enumerate(heard):
        relay.beat(Shard(name=f"s{number}", incarnation="p"), 7, session)
        await asyncio.sleep(0)
    assert [await session.granted_at for session in heard] == [7, 7, 7]
    assert stub.signs == [["s0", "s1", "s2"]]
    running.cancel()
