"""Redis clients attack a node. It still serves other clients, no turn of its loop is long, and it frees the memory."""

import asyncio
import random
from pathlib import Path
from threading import Event

import pytest

from minkad.process import garbage
from minkad.process.loop_lag import LoopLag
from tests.integration.replication.harness import cluster
from tests.integration.replication.hostile_redis import KEYS, attack
from tests.integration.replication.node import until
from tests.integration.replication.redis_client import RANGES, clients, table_of

MIB = 1024 * 1024
LONG_S = 1.0  # seconds of processor time that no turn of the loop may take, even on a slow machine


async def fuzz(path: Path, seed: int, attackers: int, scale: int, count: int) -> float:
    """Attack a node; returns the processor time of the longest turn of its loop, in seconds."""
    rng, stopped = random.Random(seed), Event()
    async with cluster(path) as c:
        c.clients_memory_bytes = 64 * MIB
        athens, byzantium = await c.add("athens", "byzantium")
        leader = rng.choice([athens, byzantium])
        await c.create(leader.id, 1)
        await leader.put(1, {key: rng.randbytes(rng.choice([10, 1000, 300_000])) for key in KEYS})
        memory, most = athens.clients_memory, 0
        watching = [
            asyncio.create_task(LoopLag(athens.telemetry).run()),
            asyncio.create_task(garbage.collect(lambda: 4 * memory.used > memory.limit)),
        ]
        async with clients(athens, table_of(c, RANGES), 1) as (other,):
            address = other.address
            attacks = [
                asyncio.create_task(asyncio.to_thread(attack, address, seed * 100 + number, scale, count, stopped))
                for number in range(attackers)
            ]
            try:
                while not all(one.done() for one in attacks):
                    assert await asyncio.wait_for(other.say("PING"), 20) == [b"+PONG"]
                    most = max(most, memory.used)
                    await asyncio.sleep(0.01)
                await asyncio.gather(*attacks)
            finally:
                stopped.set()
                for one in watching:
                    one.cancel()
            assert most < 2 * memory.limit, f"{most / MIB:.0f} MiB"
            await until(lambda: memory.used < MIB, 60.0)
        return athens.telemetry.loop_work.most


@pytest.mark.seeds(1)
@pytest.mark.timeout(120, method="thread")
async def test_hostile_clients(tmp_path: Path, seed: int) -> None:
    assert await fuzz(tmp_path, seed, attackers=3, scale=200_000, count=4) < LONG_S


@pytest.mark.soak
@pytest.mark.seeds(2)
@pytest.mark.timeout(300, method="thread")
async def test_more_hostile_clients(tmp_path: Path, seed: int) -> None:
    assert await fuzz(tmp_path, seed, attackers=6, scale=8_000_000, count=20) < LONG_S
