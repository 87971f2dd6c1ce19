"""Helpers for partitions that move from athens to ephesus."""

from tests.integration.replication.harness import Cluster
from tests.integration.replication.node import TestNode, until

ROWS: dict[bytes, bytes | None] = {b"key %05d" % i: b"value %d" % i * 10 for i in range(5000)}
SMALL: dict[bytes, bytes | None] = {b"a": b"1", b"b": b"2"}


async def two(c: Cluster, rows: dict[bytes, bytes | None], *partition_ids: int) -> tuple[TestNode, TestNode]:
    """Start athens and ephesus, and create partitions with these rows on athens."""
    athens, ephesus = await c.add("athens", "ephesus")
    await c.create("athens", *(partition_ids or (1,)))
    for id_ in partition_ids or (1,):
        await athens.put(id_, rows)
    return athens, ephesus


async def arrived(c: Cluster, partition_id: int = 1, target: str = "ephesus", source: str = "athens") -> None:
    """Wait until the target leads and the source has deleted its copy."""
    await until(lambda: c.rows[partition_id].leader == target)
    generation = c.rows[partition_id].generation
    await c.nodes[target].get(partition_id, b"any", generation=generation)
    await until(lambda: partition_id not in c.nodes[source].manager.replicas)
    await until(lambda: not (c.path / source / "partitions" / str(partition_id)).exists())
    await until(lambda: not c.nodes[source].manager.migrations())


async def check(node: TestNode, rows: dict[bytes, bytes | None], generation: int = 2, partition_id: int = 1) -> None:
    """Check that the partition has exactly these rows."""
    assert await node.get(partition_id, *rows, generation=generation) == list(rows.values())
    assert (await node.count())[partition_id] == len([value for value in rows.values() if value is not None])
