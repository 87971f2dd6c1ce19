"""Copies of checkpoints give way to clients that wait longer than usual."""

import asyncio
from math import inf

import pytest

from minkad.replication.sending.pace import LEAST_RATE, LOOK_S, Pace


class Node:
    """A node that copies a partition. Its clients wait as long as the test says. Time is simulated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.requests, self.loop = (0.0, 0), (0.0, 0)
        self.pace = Pace(lambda: self.now, lambda: [self.requests, self.loop], lambda _: None)
        monkeypatch.setattr("minkad.replication.sending.pace.asyncio.sleep", self.sleep)
        self._looked_at = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def _look_if_due(self, wait: float | None, late: float) -> None:
        while self.now - self._looked_at >= LOOK_S:
            self._looked_at += LOOK_S
            if wait is not None:
                self.requests = (self.requests[0] + 100 * wait, self.requests[1] + 100)
            self.loop = (self.loop[0] + 10 * late, self.loop[1] + 10)
            self.pace.look()

    def rest(self, seconds: float, wait: float | None, late: float = 0.001) -> None:
        """Let clients make requests while nothing is copied."""
        until = self.now + seconds
        while self.now < until:
            self.now += LOOK_S
            self._look_if_due(wait, late)

    async def copy(self, seconds: float, wait: float | None, late: float = 0.001) -> float:
        """Copy for this time, while each request of a client takes `wait` seconds (None: no clients). Returns the
        copied bytes a second.
        """
        began, copied = self.now, 0
        while self.now - began < seconds:
            for part in self.pace.parts(bytes(1_000_000)):
                await self.pace.take(len(part))
                copied += len(part)
            self.now += 0.005  # the disk takes this time
            self._look_if_due(wait, late)
        return copied / (self.now - began)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


async def test_without_clients_a_copy_is_not_slowed(node: Node) -> None:
    node.rest(5, None)
    assert await node.copy(5, None) > 190e6
    assert node.pace.rate == inf
    assert list(node.pace.parts(b"abc" * 100_000)) == [b"abc" * 100_000]


async def test_a_copy_becomes_faster_while_clients_wait_as_usual_and_slower_when_they_wait_longer(node: Node) -> None:
    node.rest(10, 0.002)
    first = await node.copy(5, 0.002)
    later = await node.copy(20, 0.002)
    assert 10e6 < first < 30e6 < later < 60e6
    assert await node.copy(20, 0.004) < first
    assert node.pace.rate == LEAST_RATE
    assert await node.copy(5, 10.0) > 0.8 * LEAST_RATE, "it never stands still"
    assert await node.copy(60, 0.002) > 2 * LEAST_RATE


async def test_a_late_loop_slows_a_copy_only_if_there_are_clients(node: Node) -> None:
    """Requests wait for a late loop before their time is measured. Without clients, a late loop does no harm."""
    node.rest(10, 0.002)
    await node.copy(20, 0.002, late=0.005)
    assert node.pace.rate == LEAST_RATE
    await node.copy(5, None, late=0.005)
    assert node.pace.rate == inf


async def test_the_usual_wait_is_learned_while_nothing_is_copied(node: Node) -> None:
    node.rest(10, 0.002)
    await node.copy(20, 0.004)
    assert node.pace.rate == LEAST_RATE, "the usual wait isn't learned during a copy"
    node.rest(30, 0.004)
    assert await node.copy(20, 0.004) > 2 * LEAST_RATE


async def test_waits_too_short_to_notice_do_not_slow_a_copy(node: Node) -> None:
    node.rest(10, 0.0001, late=0.0)
    await node.copy(20, 0.0004, late=0.0)
    assert node.pace.rate > 4 * LEAST_RATE


async def test_a_copy_that_writes_would_outrun_does_not_give_way(node: Node) -> None:
    node.rest(5, wait=0.001)
    node.pace.need("one", 30e6)
    node.pace.need("another", 10e6)
    assert await node.copy(10, wait=0.1) == pytest.approx(40e6, rel=0.05)
    node.pace.need("one", 0.0)
    node.pace.need("another", 0.0)
    assert await node.copy(10, wait=0.1) == pytest.approx(LEAST_RATE, rel=0.1)


async def test_the_pace_looks_at_waits_until_it_is_closed() -> None:
    count = 0

    def waits() -> list[tuple[float, int]]:
        nonlocal count
        count += 1
        return [(0.0, count), (0.0, 0)]

    pace = Pace(asyncio.get_running_loop().time, waits, lambda _: None)
    pace.start()
    async with asyncio.timeout(10):
        while count < 3:  # noqa: ASYNC110 - no event tells of a look
            await asyncio.sleep(0.01)
    assert pace.rate < inf
    await pace.close()
