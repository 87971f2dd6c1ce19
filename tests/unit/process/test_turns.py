"""Tasks do long work in pieces, and take turns. Between two pieces, some rounds of the loop are left to short tasks."""

import asyncio
from itertools import pairwise

from minkad.process.turns import ROUNDS, turn


async def test_only_one_of_several_rounds_has_a_piece_of_long_work() -> None:
    rounds, pieces = 0, list[tuple[str, int]]()

    async def count_rounds() -> None:
        nonlocal rounds
        while len(pieces) < 6:
            rounds += 1
            await asyncio.sleep(0)

    async def work(name: str) -> None:
        for _ in range(3):
            await turn()
            pieces.append((name, rounds))

    await asyncio.gather(work("a"), work("b"), count_rounds())
    assert [name for name, _ in pieces] == list("ababab")
    at = [round_ for _, round_ in pieces]
    assert all(after - before >= ROUNDS - 1 for before, after in pairwise(at))


async def test_work_that_was_cancelled_takes_no_turn() -> None:
    cancelled = asyncio.create_task(turn())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait_for(turn(), timeout=10)
    assert cancelled.cancelled()
