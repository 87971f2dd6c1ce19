"""A client of the servers in `conftest.py`, and a helper that waits for a condition."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from minka.async_client import AsyncClient

Make = Callable[..., Any]
BadCalls = list[tuple[Callable[[Any], Any], str]]  # a call of a client, synchronous or asyncio, and the error's text


def client_of(cluster: Any, **options: Any) -> AsyncClient:
    """Make a client for the keyspace `flights`, which the test's servers serve."""
    return AsyncClient(cluster.endpoints, keyspace="flights", rng=Random(1), **options)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds. Raises TimeoutError after 30 s."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # the library makes the condition true, and sets no event
            await asyncio.sleep(0.002)
