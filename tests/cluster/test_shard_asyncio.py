"""A shard on the event loop of an asyncio program. Its delegate reports weights and failures; in the end the shard
leaves the cluster.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

import pytest

from minka.duties import AsyncClient, Capacity, Delegate, Duty, Shard, changes
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from tests.cluster.cluster import DEADLINE
from tests.cluster.shards import QUICK_SHARDS


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1, config={"shards": QUICK_SHARDS}) as cluster:
        yield cluster


class Fetcher(Delegate):
    """A delegate that runs one asyncio task for each duty."""

    def __init__(self) -> None:
        self.tasks: dict[Duty, asyncio.Task[None]] = {}
        self.weights: dict[str, int] = {}
        self.done = asyncio.Event()
        self.failing = 0

    async def attach(self, duties: Sequence[Duty]) -> None:
        if any(duty.id == "bad" for duty in duties):
            self.failing += 1
            raise ValueError("no such feed")
        for duty in duties:
            assert duty.is_held()
            self.tasks[duty] = asyncio.create_task(self.poll(duty))

    async def detach(self, duties: Sequence[Duty]) -> None:
        for duty in duties:
            self.tasks.pop(duty).cancel()

    async def poll(self, duty: Duty) -> None:
        await self.done.wait()
        if duty.lazy:
            del self.tasks[duty]

    def report(self) -> dict[Duty, int | None]:
        return {duty: self.weights.get(duty.id) for duty in self.tasks}


async def until(probe: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not await probe():  # noqa: ASYNC110 - the probe asks a cluster
            await asyncio.sleep(0.02)


async def _attached(fetcher: Fetcher, id_: str) -> bool:
    return id_ in {duty.id for duty in fetcher.tasks}


async def test_a_shard_reports_and_leaves(cluster: LocalCluster) -> None:
    fetcher = Fetcher()
    async with AsyncClient(cluster.endpoints, timeout=20.0) as client:
        await client.create_pallet("feeds")
        await client.create_pallet("mail")
        ids = ("heavy", "ends", "bad")
        await client.change([changes.create("feeds", id_, id_, weight=10, lazy=id_ == "ends") for id_ in ids])
        async with Shard(fetcher, {"feeds": Capacity(100)}, cluster.endpoints, name="s") as shard:

            async def attached() -> bool:
                return {duty.id for duty in fetcher.tasks} == {"heavy", "ends"}

            await until(attached)
            assert {duty.id: duty.payload for duty in shard.duties} | {"bad": b"bad"} == {
                id_: id_.encode() for id_ in ids
            }

            async def quarantined() -> bool:
                return bool((await client.get("feeds", "bad")).quarantines)

            await until(quarantined)
            (row,) = (await client.get("feeds", "bad")).quarantines
            assert (row.shard, row.reason) == ("s", "attach: ValueError: no such feed")
            assert fetcher.failing >= 5
            fetcher.weights["heavy"] = 30
            fetcher.done.set()

            async def reported() -> bool:
                return (await client.get("feeds", "heavy")).reported_weight == 30

            await until(reported)

            async def ended() -> bool:
                try:
                    await client.get("feeds", "ends")
                except MinkaError as error:
                    return error.code is Code.UNKNOWN_DUTY
                return False

            await until(ended)
            (held,) = shard.duties
            shard.resize({"feeds": Capacity(200), "mail": None})

            async def resized() -> bool:
                (view,) = (await client.shards(["s"])).shards
                return [(one.pallet, one.capacity) for one in view.loads] == [("feeds", 200), ("mail", None)]

            await until(resized)
            await client.create("mail", "letter")
            await until(lambda: _attached(fetcher, "letter"))
        assert not fetcher.tasks
        assert not held.is_held()
        (view,) = (await client.shards(["s"])).shards
        assert view.state_reason == "stopped gracefully"
