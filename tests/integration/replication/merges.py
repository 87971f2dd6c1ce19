"""Helpers that create two neighbouring partitions, and wait until they are merged."""

from collections.abc import Sequence

from tests.integration.replication.halves import KEY, LOWER, UPPER
from tests.integration.replication.harness import Cluster
from tests.integration.replication.node import TestNode, until

GENERATION = 2  # the generation of the remaining partition after the merge


async def two(c: Cluster, followers: Sequence[str] = ()) -> None:
    """Create partition 1 with the keys below KEY, and partition 2 with the others; write rows to both."""
    await c.create("athens", 1, 2, followers=followers)
    await bound(c)
    await c.nodes["athens"].put(1, LOWER)
    await c.nodes["athens"].put(2, UPPER)


async def bound(c: Cluster) -> None:
    """Set KEY as the bound between partitions 1 and 2."""
    c.change(1, lambda row: setattr(row, "end_key", KEY))
    c.change(2, lambda row: setattr(row, "start_key", KEY))
    await c.tell_all(1, 2)


async def merged(c: Cluster, *nodes: TestNode) -> None:
    """Wait until the nodes know of the merge and have deleted their replicas of partition 2."""
    await until(lambda: 2 in c.gone)
    there = nodes or tuple(c.nodes.values())
    await until(lambda: all(node.replica(1).state.row.partition_epoch == c.rows[1].partition_epoch for node in there))
    await until(lambda: all(2 not in node.manager.replicas for node in there))
