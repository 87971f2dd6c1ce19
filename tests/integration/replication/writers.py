"""Helpers that write to a replicated partition and remember acknowledged writes, and that watch the watermarks."""

import asyncio
import contextlib
import random

from minka.errors import Code, MinkaError
from minkad.replication.applying.hosted_replica import HostedReplica
from tests.integration.replication.harness import Cluster
from tests.integration.replication.node import Refused, TestNode, until

# Refusals by a node that did nothing: the writer asks another node.
ELSEWHERE = (Code.STALE_GENERATION, Code.NOT_LEADER, Code.NO_CLEARANCE, Code.PARTITION_OFFLINE, Code.PARTITION_NOT_HERE)


class Watch:
    """Checks all the time that no replica's high watermark or applied offset falls while its process lives."""

    def __init__(self, c: Cluster) -> None:
        self._c = c
        self._seen: dict[HostedReplica, tuple[int, int]] = {}
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            for node in self._c.nodes.values():
                for replica in node.manager.replicas.values() if node.running else ():
                    now = (replica.state.high_watermark, replica.state.applied)
                    before = self._seen.get(replica, (0, 0))
                    assert now[0] >= before[0], f"{node.id}: {replica} was at {before}"
                    assert now[1] >= before[1], f"{node.id}: {replica} was at {before}"
                    self._seen[replica] = now
            await asyncio.sleep(0.001)

    async def stop(self) -> None:
        """Stop the checks. Raises AssertionError if one failed."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


class Writers:
    """Clients that write while nodes die. They write each key once, so `check` finds any lost write."""

    def __init__(self, c: Cluster, count: int = 6, partition_id: int = 1) -> None:
        self.c = c
        self.partition_id = partition_id
        self.acknowledged: dict[bytes, bytes] = {}
        self.unknown: dict[bytes, bytes] = {}
        self.refused: list[MinkaError] = []
        self._stop = False
        self._tasks = [asyncio.create_task(self._write(random.Random(number), number)) for number in range(count)]

    async def stop(self) -> None:
        """Stop the writers, and wait for the last writes."""
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def more(self, count: int = 50) -> None:
        """Wait until `count` more writes are acknowledged."""
        goal = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= goal)

    async def _write(self, rng: random.Random, number: int) -> None:
        count = 0
        while not self._stop:
            count += 1
            await self._put(b"%d/%d" % (number, count), rng.randbytes(rng.choice((10, 300))))

    async def _put(self, key: bytes, value: bytes) -> None:
        while True:
            row = self.c.rows[self.partition_id]
            node = self.c.nodes.get(row.leader)
            await asyncio.sleep(0)
            if node is None or not node.running:
                await asyncio.sleep(0.002)
                continue
            try:
                await node.put(self.partition_id, {key: value}, row.generation, 3000)
                self.acknowledged[key] = value
                return
            except Refused as refused:
                self.refused.append(refused.error)
                if refused.error.code not in ELSEWHERE:
                    self.unknown[key] = value
                    return

    async def check(self, node: TestNode) -> None:
        """Check that no acknowledged write is lost, and that the node has no values but those that a writer wrote."""
        row = self.c.rows[self.partition_id]
        expected = {**self.acknowledged, **self.unknown}
        found = dict(zip(expected, await node.get(row.id, *expected, generation=row.generation), strict=True))
        lost = [key for key in self.acknowledged if found[key] != self.acknowledged[key]]
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} writes are lost, such as {lost[0]!r}"
        assert all(found[key] in (None, self.unknown[key]) for key in self.unknown)
