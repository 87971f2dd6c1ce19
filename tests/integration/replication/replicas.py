"""Helpers that create partitions with three replicas, cut nodes off, and compare replicas."""

import asyncio
import contextlib
from collections.abc import Callable

from tests.integration.replication.harness import Cluster
from tests.integration.replication.node import Refused, TestNode, until

NAMES = ("athens", "byzantium", "cyrene")


async def three(c: Cluster, *partition_ids: int) -> list[TestNode]:
    """Start three nodes, and create partitions with a replica on each; athens leads them."""
    nodes = await c.add(*NAMES)
    await c.create("athens", *(partition_ids or (1,)), followers=NAMES[1:])
    return nodes


async def same_everywhere(c: Cluster, partition_id: int = 1) -> None:
    """Wait until all replicas are in sync and have applied the same entries; check that their logs are equal."""
    row = c.rows[partition_id]
    await until(lambda: set(c.rows[partition_id].isr) == set(row.replicas))
    replicas = [c.nodes[node].replica(partition_id) for node in row.replicas]
    await until(lambda: len({replica.state.applied for replica in replicas}) == 1)
    assert {replica.log.end for replica in replicas} == {replicas[0].state.applied}
    start = max(replica.log.base for replica in replicas) + 1
    end = replicas[0].log.end
    if start <= end:
        logs = [[(e.leader_epoch, e.body) for e in replica.log.read(start, end, 1 << 30)] for replica in replicas]
        assert logs[0] == logs[1] == logs[-1]


async def led_by(c: Cluster, node: TestNode) -> None:
    """Wait until the controller's table has the node as the leader."""
    await until(lambda: c.rows[1].leader == node.id)


async def applied(node: TestNode, offset: int) -> None:
    """Wait until the node has applied the log up to this offset."""
    await until(lambda: node.replica().state.applied == offset)


def cut_off(node: TestNode) -> Callable[[], None]:
    """Hold back the node's frames to its followers until the returned function is called."""
    node.links.whole.clear()
    return node.links.whole.set


async def until_fresh(node: TestNode, age_ms: int) -> None:
    """Wait until the node answers stale reads whose age is at most `age_ms`."""
    deadline = asyncio.get_running_loop().time() + 5
    while True:
        with contextlib.suppress(Refused):
            if (await node.get_stale(1, b"a")).age_ms <= age_ms:
                return
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
