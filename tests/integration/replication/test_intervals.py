"""Replicas report their load for the history of their node: each request of a client once, and each change of their
size.
"""

from pathlib import Path

import pytest

from minka.errors import Code
from minka.wire import kv_frames
from minka.wire.history_rows import PartitionInterval
from tests.integration.replication.harness import cluster
from tests.integration.replication.node import Refused, TestNode
from tests.integration.replication.replicas import applied, three, until_fresh

PAIRS = {b"%03d" % i: b"v" * 50 for i in range(100)}


async def take(node: TestNode, *, whole: bool = False) -> list[PartitionInterval]:
    return await node.manager.intervals.take(whole=whole)


async def test_each_answer_is_counted_once_at_the_node_that_gave_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        athens, byzantium, cyrene = await three(c)
        await athens.put(1, PAIRS)
        await athens.put(1, {b"000": None})
        await athens.get(1, *PAIRS)  # more keys than the node reads at once
        await athens.get(1, b"001")
        scan = kv_frames.encode(kv_frames.ScanBody(b"", b"", False, 1000, 1 << 20))
        page = await athens.ask(kv_frames.Op.SCAN, 1, 1, scan)
        with pytest.raises(Refused) as refused:
            await athens.put(1, {b"": b""})
        assert refused.value.error.code is Code.INVALID_ARGUMENT
        await applied(byzantium, athens.replica().state.applied)
        await until_fresh(byzantium, 400)  # this sends reads, too
        await take(byzantium)
        await byzantium.get_stale(1, b"001", b"002")
        (leader,) = await take(athens)
        assert (leader.partition_id, leader.leads) == (1, True)
        assert (leader.reads, leader.writes) == (100 + 1 + 1 + 9, 100 + 1)
        assert (sum(leader.reads_took), sum(leader.writes_took)) == (3, 2)
        assert leader.bytes_written == sum(
            len(kv_frames.encode(kv_frames.WriteBody(list(pairs), list(pairs.values()))))
            for pairs in (PAIRS, {b"000": None})
        )
        assert 99 * 50 + 50 + len(page) < leader.bytes_read < 100 * 55 + 55 + len(page)
        assert (leader.bytes, leader.keys) == (99 * 53, 99)
        (follower,) = await take(byzantium)
        assert (follower.leads, follower.reads, follower.writes) == (False, 2, 0)
        assert follower.bytes == leader.bytes
        await applied(cyrene, athens.replica().state.applied)
        (quiet,) = await take(cyrene)
        assert (quiet.ops, quiet.bytes) == (0, leader.bytes)


async def test_a_quiet_partition_is_reported_only_after_a_change_of_size_or_if_all_are_requested(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as c:
        (athens,) = await c.add("athens")
        await c.create("athens", 1, 2, 3)
        await athens.put(1, PAIRS)
        await athens.put(2, PAIRS)
        assert [row.partition_id for row in await take(athens)] == [1, 2]
        assert await take(athens) == []
        assert [(row.partition_id, row.ops) for row in await take(athens, whole=True)] == [(1, 0), (2, 0)]
        await athens.put(2, {b"a%d" % i: b"v" * 50 for i in range(10)})
        assert [row.partition_id for row in await take(athens)] == [2]
        assert await take(athens) == []
