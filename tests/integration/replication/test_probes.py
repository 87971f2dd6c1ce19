"""Leaders probe a follower's log before the follower has heard of the leadership."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from minkad.core.replication.peer_messages import Ack, Append
from minkad.replication.sending.peer_frames import Frame, decode_answer, encode
from tests.integration.replication.harness import cluster
from tests.integration.replication.node import TestNode


class LeaderStream:
    """A leader's stream to a node. The test acts as the leader."""

    def __init__(self, node: TestNode, number: int = 0) -> None:
        self._number = number
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._answers = node.manager.follow(self._read())
        self._acks: list[Ack] = []

    async def _read(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._frames.get()

    async def ask(self, partition_id: int, leader_epoch: int) -> None:
        """Send a probe, and wait until the follower has read it."""
        probe = Append(partition_id, leader_epoch, 0, 0, 0, [], probe=True)
        await self._frames.put(encode(Frame([probe], [], 0.0, self._number)))
        self._acks = decode_answer(await anext(self._answers)).acks

    async def answer(self) -> Ack:
        """Wait for the follower's first acknowledgement."""
        while not self._acks:
            self._acks = decode_answer(await anext(self._answers)).acks
        return self._acks[0]

    async def close(self) -> None:
        await self._answers.aclose()  # type: ignore[attr-defined]


async def test_a_later_probe_of_a_former_leader_is_ignored(tmp_path: Path) -> None:
    """A former leader that doesn't know of the new one sends its probe last. This probe must not replace the new
    leader's probe.
    """
    async with cluster(tmp_path) as c, asyncio.timeout(10):
        athens, _ = await c.add("athens", "byzantium")
        await c.create("byzantium", 1, followers=["athens"])
        new, former = LeaderStream(athens), LeaderStream(athens)
        row = c.change(1, lambda row: setattr(row, "leader_epoch", 7))
        await new.ask(1, 7)
        await former.ask(1, 6)
        await athens.tell(row)
        ack = await new.answer()
        assert (ack.partition_id, ack.leader_epoch) == (1, 7)
        await former.close()
        await new.close()


async def test_a_probe_on_an_older_stream_of_the_leader_is_ignored(tmp_path: Path) -> None:
    """A node that was stopped reads a leader's newest stream before the older ones, which the leader has given up. The
    node must answer on the newest stream, whether it reads an older stream before or after the row arrives.
    """
    async with cluster(tmp_path) as c, asyncio.timeout(10):
        athens, _ = await c.add("athens", "byzantium")
        await c.create("byzantium", 1, followers=["athens"])
        newer, older, oldest = LeaderStream(athens, 3), LeaderStream(athens, 2), LeaderStream(athens, 1)
        row = c.change(1, lambda row: setattr(row, "leader_epoch", 7))
        await newer.ask(1, 7)
        await older.ask(1, 7)
        await athens.tell(row)
        assert (await newer.answer()).leader_epoch == 7
        await oldest.ask(1, 7)
        await oldest.close()
        await older.close()
        follower = athens.replica(1).state.follower
        assert follower is not None
        assert follower.stream is not None
        assert follower.stream.number == 3
        await newer.close()
