"""A leader probes a follower's log before the follower has heard of the leadership."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from minkad.core.replication.messages import Ack, Append
from minkad.replication.frames import Frame, decode_answer, encode
from tests.integration.replication.harness import cluster
from tests.integration.replication.node import TestNode


class Leader:
    """A leader's stream, made by the test."""

    def __init__(self, node: TestNode, number: int = 0) -> None:
        self._number = number
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._answers = node.manager.follow(self._read())
        self._acks: list[Ack] = []

    async def _read(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._frames.get()

    async def ask(self, partition_id: int, leader_epoch: int) -> None:
        """Probe, and wait until the follower has read it."""
        probe = Append(partition_id, leader_epoch, 0, 0, 0, [], probe=True)
        await self._frames.put(encode(Frame([probe], [], 0.0, self._number)))
        self._acks = decode_answer(await anext(self._answers)).acks

    async def answer(self) -> Ack:
        """The first acknowledgement."""
        while not self._acks:
            self._acks = decode_answer(await anext(self._answers)).acks
        return self._acks[0]

    async def close(self) -> None:
        await self._answers.aclose()  # type: ignore[attr-defined]


async def test_a_former_leader_asks_later_than_the_new_one(tmp_path: Path) -> None:
    """The former leader was cut off, and doesn't know that another node leads. Its probe must not replace the new
    leader's.
    """
    async with cluster(tmp_path) as c, asyncio.timeout(10):
        athens, _ = await c.add("athens", "byzantium")
        await c.create("byzantium", 1, followers=["athens"])
        new, former = Leader(athens), Leader(athens)
        row = c.change(1, lambda row: setattr(row, "leader_epoch", 7))
        await new.ask(1, 7)
        await former.ask(1, 6)
        await athens.tell(row)
        ack = await new.answer()
        assert (ack.partition_id, ack.leader_epoch) == (1, 7)
        await former.close()
        await new.close()


async def test_a_stream_that_the_leader_has_given_up_is_read_after_the_next_one(tmp_path: Path) -> None:
    """The node was stopped for a while. It has to answer the probe on the newest stream, before and after the row has
    come.
    """
    async with cluster(tmp_path) as c, asyncio.timeout(10):
        athens, _ = await c.add("athens", "byzantium")
        await c.create("byzantium", 1, followers=["athens"])
        newer, older, oldest = Leader(athens, 3), Leader(athens, 2), Leader(athens, 1)
        row = c.change(1, lambda row: setattr(row, "leader_epoch", 7))
        await newer.ask(1, 7)
        await older.ask(1, 7)
        await athens.tell(row)
        assert (await newer.answer()).leader_epoch == 7
        await oldest.ask(1, 7)
        await oldest.close()
        await older.close()
        follower = athens.replica(1).follower
        assert follower is not None
        assert follower.stream is not None
        assert follower.stream.number == 3
        await newer.close()
