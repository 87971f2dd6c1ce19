"""Helpers that split partitions and check both halves."""

from collections.abc import Mapping

from minka.v1.cluster_pb2 import Partition
from minka.wire import kv_frames
from tests.integration.replication.harness import Cluster
from tests.integration.replication.node import TestNode, until

ROWS: dict[bytes, bytes | None] = {b"%04d" % i: b"%d" % i * 20 for i in range(1000)}
KEY = b"0600"
LOWER = {key: value for key, value in ROWS.items() if key < KEY}
UPPER = {key: value for key, value in ROWS.items() if key >= KEY}
NODES = ("athens", "byzantium", "cyrene")


async def scanned(node: TestNode, partition_id: int, generation: int = 2, reverse: bool = False) -> list[bytes]:
    """Scan all keys of the partition, page by page."""
    found: list[bytes] = []
    row = node.replica(partition_id).state.row
    start, end = row.start_key, row.end_key
    while True:
        body = kv_frames.encode(kv_frames.ScanBody(start, end, reverse, 170, 1 << 20))
        page = kv_frames.decode_page(await node.ask(kv_frames.Op.SCAN, partition_id, generation, body))
        found += page.keys
        if (page.start, page.end) == (start, end):
            return found
        start, end = (start, page.start) if reverse else (page.end, end)


async def begin(c: Cluster, key: bytes = KEY, partition_id: int = 1) -> tuple[Partition, Partition]:
    """Begin a split: make its rows, and tell all nodes."""
    parent, child = c.split(partition_id, key)
    await c.tell_all(parent.id, child.id)
    return parent, child


async def ended(c: Cluster, child_id: int = 2) -> None:
    """Wait until the split has ended and all living nodes have the new rows."""
    await until(lambda: not c.rows[child_id].splitting)
    parent_id = c.rows[child_id].split_from
    running = [node for node in c.nodes.values() if node.running and node.id not in c.dead]
    await until(
        lambda: all(
            node.replica(id_).state.row.partition_epoch == c.rows[id_].partition_epoch
            for node in running
            for id_ in (parent_id, child_id)
            if node.id in c.rows[id_].replicas
        )
    )


async def assert_halves(
    leader: TestNode, lower: Mapping[bytes, bytes | None] = LOWER, upper: Mapping[bytes, bytes | None] = UPPER
) -> None:
    """Check that each half serves exactly its own rows."""
    assert await leader.get(1, *lower, generation=2) == list(lower.values())
    assert await leader.get(2, *upper, generation=2) == list(upper.values())
    assert await scanned(leader, 1) == sorted(lower)
    assert await scanned(leader, 2) == sorted(upper)
    assert await scanned(leader, 2, reverse=True) == sorted(upper, reverse=True)


def elect_both(c: Cluster, leader: str, without: tuple[str, ...] = ()) -> None:
    """Make the rows in which the same leader leads both halves."""
    for id_ in (1, 2):
        c.elect(id_, leader, without=without)
