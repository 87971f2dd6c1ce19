"""Nodes acknowledge their rows. While the controller records acknowledgements, more come, and it then records all of
these together.
"""

import asyncio
from collections.abc import Sequence

from minkad.coordinator.acknowledgements import ROWS_AT_ONCE, Acknowledgements
from minkad.core.controller.row_answers import ReplicaReport


def report(node: str, first: int, count: int = 1) -> ReplicaReport:
    return ReplicaReport(node, [(id_, 1) for id_ in range(first, first + count)])


async def test_waiting_reports_are_recorded_together_up_to_a_limit() -> None:
    recorded: list[list[str]] = []
    begun, may_go_on, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def record(reports: Sequence[ReplicaReport]) -> None:
        recorded.append([one.node_id for one in reports])
        begun.set()
        await may_go_on.wait()
        if len(recorded) == 3:
            over.set()

    answers = Acknowledgements(record)
    answers.add(report("a", 1))
    running = asyncio.create_task(answers.run())
    await begun.wait()
    for node, count in (("b", 1), ("c", ROWS_AT_ONCE), ("d", 1)):
        answers.add(report(node, 10, count))
    may_go_on.set()
    async with asyncio.timeout(10):
        await over.wait()
    running.cancel()
    assert recorded == [["a"], ["b", "c"], ["d"]]
