"""The limits on the memory that streamed answers take on the node."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any, Final

import grpc
import pytest

from minka.bulk.bulk_loads import FETCH_METHOD
from minkad.process.memory import Memory
from minkad.rpc.interceptor import Interceptor

MIB: Final = 1024 * 1024
READ: Final = "/minka.v1.Snapshots/Read"
LIST: Final = "/minka.v1.Control/ListPartitions"
pytestmark = pytest.mark.timeout(20)


class Context:
    """A call whose client takes all answers, or none of them."""

    def __init__(self, takes: bool = True) -> None:
        self.taken: list[int] = []
        self._takes = takes
        self._callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def write(self, answer: bytes) -> None:
        await asyncio.sleep(0 if self._takes else 60)
        self.taken.append(len(answer))

    def end(self) -> None:
        for callback in self._callbacks:
            callback(None)


class Node:
    """A node's interceptor for streams. It has `mib` MiB of memory for calls, and as much for feeds."""

    def __init__(self, mib: int = 4) -> None:
        self.calls, self.feeds = (Memory(mib * MIB, time.monotonic) for _ in range(2))
        self.interceptor = Interceptor("test", self.calls, self.feeds)

    async def stream(self, method: str, answers: AsyncGenerator[bytes, None], takes: bool = True) -> list[int]:
        """Stream these answers; returns the sizes of the answers that the client took."""
        context: Any = Context(takes)
        try:
            await self.interceptor.streamed(method, answers, bytes, context)
        finally:
            context.end()
        return list(context.taken)


async def sized(*sizes: int) -> AsyncGenerator[bytes, None]:
    for size in sizes:
        yield bytes(size)


async def test_a_stream_that_waits_for_its_turn_holds_no_memory() -> None:
    node, turn = Node(), asyncio.Semaphore(1)

    async def scan() -> AsyncGenerator[bytes, None]:
        yield b""
        async with turn:
            for _ in range(8):
                await asyncio.sleep(0)
                yield bytes(MIB // 2)

    async with asyncio.timeout(10):
        taken = await asyncio.gather(*(node.stream(READ, scan()) for _ in range(20)))
    assert taken == [[MIB // 2] * 8] * 20
    assert node.feeds.used == 0


async def test_an_answer_after_a_turn_counts_only_once_it_is_made() -> None:
    node, counted = Node(), []

    async def scan() -> AsyncGenerator[bytes, None]:
        for size in (0, MIB // 2, MIB // 2):
            counted.append(node.feeds.used >= MIB // 2)
            yield bytes(size)

    assert await node.stream(READ, scan()) == [MIB // 2] * 2
    assert counted == [True, False, True]


async def test_the_memory_reserved_after_a_large_answer_soon_shrinks() -> None:
    node, used = Node(64), []

    async def small() -> AsyncGenerator[bytes, None]:
        for _ in range(200):
            used.append(node.feeds.used)
            yield bytes(MIB // 4)

    await node.stream(READ, sized(40 * MIB))
    await node.stream(READ, small())
    assert 16 * MIB <= used[0] < 17 * MIB  # at most a quarter of the 64 MiB stays reserved
    assert used[-1] < MIB


async def test_operators_do_not_wait_for_slow_readers() -> None:
    node = Node()
    slow = [asyncio.ensure_future(node.stream(READ, sized(MIB), takes=False)) for _ in range(8)]
    for _ in range(20):
        await asyncio.sleep(0)
    async with asyncio.timeout(1):
        assert await node.stream(LIST, sized(1000)) == [1000]
    for one in slow:
        one.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


async def test_nodes_can_fetch_files_of_loads_although_clients_hold_the_memory() -> None:
    node = Node()
    for memory in (node.calls, node.feeds):
        memory.share().take(4 * MIB)

    async def fetch(request: bytes, context: Any) -> AsyncGenerator[bytes, None]:
        yield request * 2

    async def found(_: Any) -> Any:
        return grpc.unary_stream_rpc_method_handler(fetch)

    of_a_node = (("minka-cluster", "test"), ("minka-node", "athens"))
    call: Any = SimpleNamespace(method=FETCH_METHOD, invocation_metadata=of_a_node)
    handler: Any = await node.interceptor.intercept_service(found, call)
    async with asyncio.timeout(1):
        assert [answer async for answer in handler.unary_stream(b"a", Context())] == [b"aa"]
